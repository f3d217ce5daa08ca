"""Internal: what the client and completions servers say to each other, as streams of tokens."""

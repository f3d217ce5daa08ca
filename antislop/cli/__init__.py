"""The command line: what it reads, shows and refuses."""

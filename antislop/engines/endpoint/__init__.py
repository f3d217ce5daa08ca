"""Internal: models behind an HTTP endpoint, each kind of server with its dialect."""

"""Internal: the HTTP server, an app over a backend that writes texts."""

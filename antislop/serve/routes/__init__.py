"""Internal: the routes of the HTTP server."""

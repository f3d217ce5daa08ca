"""Internal: read the bodies of requests from bytes into checked values."""

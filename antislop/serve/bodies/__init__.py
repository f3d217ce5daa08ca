"""Internal: the bodies of requests, from bytes to checked values."""

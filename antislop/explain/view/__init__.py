"""Internal: a trace as a page and as a notebook's output."""

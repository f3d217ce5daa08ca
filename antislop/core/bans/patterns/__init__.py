"""Internal: the kinds of patterns that a ban can have, each with its search."""

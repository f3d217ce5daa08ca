"""Internal: the formats of list files, each read and written by a module."""

"""Internal: the command that serves a model."""

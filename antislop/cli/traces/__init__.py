"""The commands that read traces: look at one, repeat its call."""

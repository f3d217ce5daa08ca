"""Bans, and where they occur in a text that is being written. No torch, no files but the stop words."""

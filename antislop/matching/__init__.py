"""Bans, and their occurrences in a text that is being written. No torch; reads no file but the stop words."""

"""Lists of bans: read, written, checked. No torch."""

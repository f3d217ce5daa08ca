"""Folders that bring `generate` with bans."""

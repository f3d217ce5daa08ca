"""Folders that bring `generate` with bans. Internal: `antislop export` makes them, and transformers calls it."""

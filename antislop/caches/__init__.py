"""Caches of transformers whose rows rewind independently."""

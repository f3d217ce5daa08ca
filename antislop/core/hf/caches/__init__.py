"""Caches of transformers whose rows rewind independently. Internal: `antislop.core.hf.TransformersModel` makes them."""

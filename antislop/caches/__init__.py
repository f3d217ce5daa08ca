"""Caches of transformers whose rows rewind independently. Internal: `antislop.hf.TransformersModel` makes them."""

"""The link to transformers: its models, tokenizers, caches, logits processors and calls of `generate`."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

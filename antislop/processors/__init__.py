"""Logits processors: samplers that presets switch on, and how those of the caller are called with kept text only."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

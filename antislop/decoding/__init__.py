"""Tokens and probabilities: the loop, its rows and rewinds, and the protocols of models. No transformers."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

"""Bans, lists of them, and their occurrences in a text that is being written. No torch."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

"""Bans, lists of bans, and the search for bans in a text that is being written. Nothing here imports torch."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

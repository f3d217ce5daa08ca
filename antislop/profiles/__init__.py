"""Counts of words and n-grams in any amount of text, and the overused ones. No torch."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

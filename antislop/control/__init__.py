"""A rule of one's own over the text: cut, force, mask, sample, fork, step by step, with bans on top."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

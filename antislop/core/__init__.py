"""The sampler, and nothing that uses it: it imports no door."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

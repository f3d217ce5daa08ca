"""The events of a generation, and reports, streams and pictures made from them. No torch."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

"""What happened in a generation, as values: events, reports, streams of text. No torch."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

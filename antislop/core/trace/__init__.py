"""The record of a generation: events, reports, traces and streams of text. Nothing here imports torch."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

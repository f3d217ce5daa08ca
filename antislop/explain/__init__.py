"""Show what was withdrawn and why: pages and files of traces, activations, and the relevance of tokens."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

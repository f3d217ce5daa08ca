"""The sampling loop (draw, judge, rewind), its rows, the protocols of models, and controllers. No transformers."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

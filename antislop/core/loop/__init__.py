"""Draw, judge, rewind: the loop, its rows, the protocols of models, rules of one's own. No transformers."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

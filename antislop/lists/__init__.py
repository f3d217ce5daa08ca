"""Lists of bans as people write them: their formats, what values and lines say, and the lists of the package."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

"""Lists of bans: read files in the formats in which people write lists, and load the lists of this package."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

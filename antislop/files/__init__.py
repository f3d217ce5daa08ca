"""Files of records in, journals out; any file is read and written here, and models are loaded by name. No torch."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

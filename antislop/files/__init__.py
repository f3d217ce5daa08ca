"""Read records, prompts and texts, write journals, and load models by name. All files are opened here. No torch."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

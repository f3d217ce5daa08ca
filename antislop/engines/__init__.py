"""Models elsewhere: behind an HTTP endpoint, inside vLLM, or in an engine of one's own."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

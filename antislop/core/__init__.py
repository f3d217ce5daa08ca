"""The sampler `AntiSlop` and its parts, without the commands, servers and adapters that use it."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

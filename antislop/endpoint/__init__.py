"""Models behind an HTTP endpoint: text written by a server elsewhere, under bans."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

"""Activations of a model and explanations of its choices, from one clean forward pass over the kept text."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

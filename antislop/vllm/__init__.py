"""Bans inside vLLM: in `LLM.generate` and `vllm serve`, exactly and without a second process."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

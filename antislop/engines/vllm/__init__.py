"""Bans inside vLLM: in `LLM.generate` and `vllm serve`, exactly and without a second process."""

from typing import Any

import lazy_loader

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    try:
        return _load(name)
    except ImportError as error:
        if error.name is None or error.name.partition(".")[0] != "vllm":
            raise
        from antislop.engines.vllm.requests import TESTED
        from antislop.errors import InputError

        lacking = f"its module {error.name}, which isn't installed here"
        if not isinstance(error, ModuleNotFoundError):
            lacking = f"a name that its module {error.name} lacks here ({error})"
        raise InputError(
            f"bans inside vLLM need {lacking}: install vLLM {' or '.join(TESTED)}, with which they were tested, or put "
            "antislop in front of vLLM (EndpointSampler)"
        ) from error

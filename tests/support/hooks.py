"""The hooks and modes of a model's modules, and how often a model is called."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


def read_state(model: nn.Module) -> list[tuple[Any, ...]]:
    """Return each module's hooks of all kinds and its mode, to compare before and after."""
    return [
        (path, module.training, *(tuple(value) for key, value in sorted(vars(module).items()) if "hooks" in key))
        for path, module in model.named_modules()
    ]


@contextmanager
def counted_calls(model: nn.Module) -> Iterator[list[None]]:
    """Count the forward passes inside: the length of the list."""
    calls: list[None] = []
    handle = model.register_forward_pre_hook(lambda *_: calls.append(None))
    try:
        yield calls
    finally:
        handle.remove()


@contextmanager
def failing(module: nn.Module) -> Iterator[None]:
    """Make a module raise `ZeroDivisionError` when it is called."""

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    handle = module.register_forward_pre_hook(fail)
    try:
        yield
    finally:
        handle.remove()

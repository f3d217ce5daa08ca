"""Activations of a model and explanations of its choices, from one clean forward pass over the kept text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from antislop.lazy import import_lazily

if TYPE_CHECKING:
    from antislop.interpret.activations import ActivationCache, run_with_cache
else:
    __getattr__, __dir__ = import_lazily(
        __name__,
        {
            "activations": ["ActivationCache", "run_with_cache"],
        },
    )

__all__ = [
    "ActivationCache",
    "run_with_cache",
]

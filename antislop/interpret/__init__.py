"""Activations of a model and explanations of its choices, from one clean forward pass over the kept text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from antislop.lazy import import_lazily

if TYPE_CHECKING:
    from antislop.interpret.activations import ActivationCache, run_with_cache
    from antislop.interpret.explanation import Alternative, Explanation, RejectedAttempt
    from antislop.interpret.forward_result import ForwardResult
else:
    __getattr__, __dir__ = import_lazily(
        __name__,
        {
            "activations": ["ActivationCache", "run_with_cache"],
            "explanation": ["Alternative", "Explanation", "RejectedAttempt"],
            "forward_result": ["ForwardResult"],
        },
    )

__all__ = [
    "ActivationCache",
    "Alternative",
    "Explanation",
    "ForwardResult",
    "RejectedAttempt",
    "run_with_cache",
]

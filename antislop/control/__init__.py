"""A rule of one's own over the text: cut, force, mask, sample, fork, step by step, with bans on top."""

from __future__ import annotations

from typing import TYPE_CHECKING

from antislop.lazy import import_lazily

if TYPE_CHECKING:
    from antislop.control.best_of import BestOf
    from antislop.control.branches import (
        BacktrackError,
        Branch,
        Capabilities,
        CapabilityError,
        Controller,
        Splice,
        Step,
        TokenSet,
    )
    from antislop.control.regenerate import Regenerate
    from antislop.control.replace import Replace
else:
    __getattr__, __dir__ = import_lazily(
        __name__,
        {
            "best_of": ["BestOf"],
            "branches": [
                "BacktrackError",
                "Branch",
                "Capabilities",
                "CapabilityError",
                "Controller",
                "Splice",
                "Step",
                "TokenSet",
            ],
            "regenerate": ["Regenerate"],
            "replace": ["Replace"],
        },
    )

__all__ = [
    "BacktrackError",
    "BestOf",
    "Branch",
    "Capabilities",
    "CapabilityError",
    "Controller",
    "Regenerate",
    "Replace",
    "Splice",
    "Step",
    "TokenSet",
]

"""Lists of bans: read, written, checked. No torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from antislop.lazy import import_lazily

if TYPE_CHECKING:
    from antislop.lists.ban_list import Diff, Refusal, SearchStep
else:
    __getattr__, __dir__ = import_lazily(
        __name__,
        {
            "ban_list": ["Diff", "Refusal", "SearchStep"],
        },
    )

__all__ = [
    "Diff",
    "Refusal",
    "SearchStep",
]

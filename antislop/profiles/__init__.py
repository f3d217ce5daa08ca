"""Counts of words and n-grams in any amount of text, and the overused ones. No torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from antislop.lazy import import_lazily

if TYPE_CHECKING:
    from antislop.profiles.changes import Change, compare
    from antislop.profiles.profiles import Entry, Profile, profile_texts
else:
    __getattr__, __dir__ = import_lazily(
        __name__,
        {
            "changes": ["Change", "compare"],
            "profiles": ["Entry", "Profile", "profile_texts"],
        },
    )

__all__ = [
    "Change",
    "Entry",
    "Profile",
    "compare",
    "profile_texts",
]

"""Bans, and their occurrences in a text that is being written. No torch; reads no file but the stop words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from antislop.lazy import import_lazily

if TYPE_CHECKING:
    from antislop.matching.patterns.loop import Loop
    from antislop.matching.patterns.pattern import Pattern
    from antislop.matching.patterns.phrase import Phrase
    from antislop.matching.patterns.regex import Regex
    from antislop.matching.patterns.tokens import Tokens
    from antislop.matching.patterns.wildcard import Wildcard
    from antislop.matching.patterns.words import Words
    from antislop.matching.token_matcher import Matcher, Violation
else:
    __getattr__, __dir__ = import_lazily(
        __name__,
        {
            "patterns.loop": ["Loop"],
            "patterns.pattern": ["Pattern"],
            "patterns.phrase": ["Phrase"],
            "patterns.regex": ["Regex"],
            "patterns.tokens": ["Tokens"],
            "patterns.wildcard": ["Wildcard"],
            "patterns.words": ["Words"],
            "token_matcher": ["Matcher", "Violation"],
        },
    )

__all__ = [
    "Loop",
    "Matcher",
    "Pattern",
    "Phrase",
    "Regex",
    "Tokens",
    "Violation",
    "Wildcard",
    "Words",
]

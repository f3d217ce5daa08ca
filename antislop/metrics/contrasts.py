"""Count contrasts in finished texts: sentences that deny one thing to put another in its place."""

from __future__ import annotations

from functools import cache

import regex

from antislop.lists.bundled import read_constructions

CONTRASTS = (
    "not-x-but-y",
    "not-just-x-it-is-y",
    "was-not-x-it-was-y",
    "not-about-x-about-y",
    "not-only-but-also",
    "did-not-just-x",
    "no-x-no-y-just",
    "less-x-than-y",
)
"""The bundled constructions that are contrasts. "Not X. Not Y." is none of them: it denies and puts nothing there."""


def count_contrasts(text: str) -> int:
    """Count the contrasts of a text; those that overlap count once, the first of them.

    A whole text is searched at once, which is faster than `BanList.find` and finds the same but for overlaps.

    >>> count_contrasts("It was not a door, but a mouth. It wasn't open. It was hungry.")
    2
    """
    spans = sorted(match.span() for pattern in _patterns() for match in pattern.finditer(text))
    count = end = 0
    for start, stop in spans:
        if start >= end:
            count, end = count + 1, stop
    return count


@cache
def _patterns() -> tuple[regex.Pattern[str], ...]:
    return tuple(regex.compile(each.ban.phrase) for each in read_constructions() if each.name in CONTRASTS)

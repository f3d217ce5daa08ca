"""Count contrasts, and compute the slop score from the rates of slop words, contrasts and slop trigrams."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache

import numpy as np
import regex

from antislop.core.bans import read_constructions
from antislop.measure.estimates import Floats
from antislop.measure.slop_scale import Scale

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
"""The bundled constructions that deny one thing to assert another, unlike "Not X. Not Y.", which asserts nothing."""

WEIGHTS = {"slop_words": 0.60, "contrasts": 0.25, "slop_trigrams": 0.15}
"""The weight of each metric in the slop score."""
LONGEST_MATCH = 1000
"""Characters at the end of an unfinished text in which no match is taken yet: what follows may change it."""
SEARCHED_AT_ONCE = 16_000
"""Characters of a text that has not ended that are searched at once; a shorter one is searched once, at its end."""
_CONTEXT = 100  # characters before the next match, for assertions


class PatternSearch:
    """Searches a text that comes in pieces; finds what `finditer` finds, unless it exceeds `LONGEST_MATCH`."""

    def __init__(self, patterns: Sequence[regex.Pattern[str]]) -> None:
        self._patterns = patterns
        self._text, self._start = "", 0  # what is left of the text, and the number of characters before it
        self._nexts = [0] * len(patterns)

    def read(self, piece: str, *, is_last: bool) -> list[tuple[int, int, int]]:
        """Return matches by their start: (start, end, number of the pattern)."""
        self._text += piece
        limit = len(self._text) - (0 if is_last else LONGEST_MATCH)
        if not is_last and (limit <= 0 or len(self._text) < SEARCHED_AT_ONCE):
            return []
        found = [match for number in range(len(self._patterns)) for match in self._find(number, limit, is_last=is_last)]
        kept = max(0, limit - _CONTEXT)
        self._text, self._start = self._text[kept:], self._start + kept
        return sorted(found)

    def _find(self, number: int, limit: int, *, is_last: bool) -> Iterator[tuple[int, int, int]]:
        place = self._nexts[number] - self._start
        for match in self._patterns[number].finditer(self._text, place):
            if match.start() >= limit and not is_last:
                break
            place = match.end()
            yield self._start + match.start(), self._start + place, number
        self._nexts[number] = self._start + max(place, limit)


class ContrastCount:
    """Counts the contrasts of a text that comes in pieces; of overlapping ones, only the first.

    >>> contrasts = ContrastCount()
    >>> contrasts.read("It was not a door, but a mouth. It wasn't open. It was hungry.", is_last=True)
    >>> contrasts.count
    2
    """

    def __init__(self) -> None:
        self.count = 0
        self._end = 0
        self._search = PatternSearch(_compile_contrasts())

    def read(self, piece: str, *, is_last: bool = False) -> None:
        for start, end, _ in self._search.read(piece, is_last=is_last):
            if start >= self._end:
                self.count, self._end = self.count + 1, end


@cache
def _compile_contrasts() -> tuple[regex.Pattern[str], ...]:
    return tuple(regex.compile(each.ban.text) for each in read_constructions() if each.name in CONTRASTS)


def score_slop(rates: Mapping[str, Floats], scale: Scale) -> Floats:
    """Return the slop score, 0 to 100, of the rates that `WEIGHTS` names; NaN if the scale lacks a range."""
    score = np.zeros_like(rates["slop_words"])
    for name, weight in WEIGHTS.items():
        if name not in scale.ranges:
            return np.full_like(score, np.nan)
        low, high = scale.ranges[name].widen()
        score += 100 * weight * np.clip((rates[name] - low) / (high - low), 0, 1)
    return score

"""Slop: the scale that defines it (lists, ranges and human rates), the count of contrasts, and the slop score."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import regex

from antislop.data import FOLDER
from antislop.errors import InputError
from antislop.files.disk import read_json
from antislop.lists import read_constructions
from antislop.measure.blocks import NGram
from antislop.measure.estimates import Floats
from antislop.measure.languages import ENGLISH, Language
from antislop.measure.words import extract_words

RANGE_MARGIN = 0.1  # share of the width of a range that is added on both sides

Over = Literal["words", "content"]


class Range(NamedTuple):
    """The lowest and the highest value among the texts that a score was calibrated on."""

    low: float
    high: float

    def widen(self) -> Range:
        rim = RANGE_MARGIN * (self.high - self.low)
        return Range(self.low - rim, self.high + rim)


PUBLISHED_RANGES = {
    "slop_words": Range(5.605, 40.441),
    "slop_trigrams": Range(0.078, 1.125),
    "contrasts": Range(0.044, 0.811),
}
"""Ranges of the published score: the leaderboard of https://github.com/sam-paech/slop-score, commit 289264ab2a."""


@dataclass(frozen=True)
class Scale:
    """Lists of slop, ranges and human rates by which texts are measured.

    words: slop words, in lower case.
    trigrams: slop trigrams.
    over: whether a trigram is three words in sequence, or three content words with stop words skipped.
    ranges: those of slop_words, slop_trigrams and contrasts, without the margin; empty if there is no slop score.
    human: by length n (2 and 3), the share of each n-gram among all n-grams of human writing; empty if unknown.
    source: the origin of the scale, for reports.
    """

    words: frozenset[str]
    trigrams: frozenset[NGram]
    over: Over = "content"
    ranges: Mapping[str, Range] = field(default_factory=dict)
    human: Mapping[int, Mapping[NGram, float]] = field(default_factory=dict)
    source: str = "lists given"
    language: Language = ENGLISH

    @classmethod
    @cache
    def load(cls, language: Language = ENGLISH) -> Scale:
        """Load the bundled scale: 567 words and 182 trigrams of content words that models overuse in English.

        The scale was measured in this project: data/metrics/README.md of the repository. For another language there is
        none, and what needs one has no value.
        """
        if not language.is_english:
            return cls(frozenset(), frozenset(), source="no scale, since the bundled one is English", language=language)
        content = read_json(FOLDER / "scale.json")
        return cls(
            frozenset(content["words"]),
            frozenset(tuple(trigram.split()) for trigram in content["trigrams"]),
            "content",
            {name: Range(*bounds) for name, bounds in content["ranges"].items()},
            load_ngrams(),
            "the bundled scale",
        )

    @classmethod
    def read(
        cls,
        words: str | os.PathLike[str] | None,
        trigrams: str | os.PathLike[str] | None,
        human: str | os.PathLike[str] | None = None,
        *,
        over: Over = "words",
        ranges: Mapping[str, Range] | None = None,
    ) -> Scale:
        """Read a scale from files in the form of the published lists.

        words, trigrams: JSON lists of texts, or of lists whose first item is a text.
        human: statistics of slop-forensics, with `top_bigrams` and `top_trigrams`; by default the bundled n-grams.
        over: "words" as in the published score, which counts any three words although its list has no stop words.
        ranges: without them there is no slop score; `PUBLISHED_RANGES` belong to the published lists.

        Raises `InputError` with the path for a file of another kind, and for empty lists.
        """
        return cls(
            frozenset(word for (word,) in _read_list(words, 1)),
            frozenset(_read_list(trigrams, 3)),
            over,
            ranges or {},
            load_ngrams() if human is None else _read_statistics(Path(human)),
            ", ".join("nothing" if path is None else Path(path).name for path in (words, trigrams)),
        )

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that identify the words, trigrams, `over` and ranges of the scale."""
        ranges = sorted((name, *bounds) for name, bounds in self.ranges.items())
        content = json.dumps([sorted(self.words), sorted(self.trigrams), self.over, ranges])
        return sha256(content.encode()).hexdigest()[:16]


@cache
def load_ngrams() -> Mapping[int, Mapping[NGram, float]]:
    """Load the bundled human n-grams, as in `Scale.human`: the most frequent ones in 20 novels before 1930."""
    content = read_json(FOLDER / "human_ngrams.json.gz")
    return {
        n: {tuple(gram.split()): count / content[name]["total"] for gram, count in content[name]["counts"].items()}
        for n, name in ((2, "bigrams"), (3, "trigrams"))
    }


def _read_list(path: str | os.PathLike[str] | None, n: int) -> Collection[NGram]:
    if path is None:
        return set()
    content = read_json(path, advice="pass a JSON list of texts")
    if not isinstance(content, list) or not content:
        raise InputError(f"{path}: contains no list of texts: pass a JSON list such as {_EXAMPLES[n]}")
    entries = set()
    for number, entry in enumerate(content, start=1):
        text = entry[0] if isinstance(entry, list) and entry else entry
        words = tuple(extract_words(text)) if isinstance(text, str) else ()
        if len(words) != n:
            expected = "one word" if n == 1 else f"{n} words"
            raise InputError(f"{path}: entry {number} is {entry!r}, not {expected}: pass a JSON list of such entries")
        entries.add(words)
    return entries


_EXAMPLES = {1: '["tapestry", "testament"]', 3: '["voice barely whisper", "took deep breath"]'}


def _read_statistics(path: Path) -> Mapping[int, Mapping[NGram, float]]:
    content = read_json(path, advice="pass statistics of slop-forensics")
    try:
        (statistics,) = content.values()
        shares = {}
        for n, name in ((2, "top_bigrams"), (3, "top_trigrams")):
            counts = {tuple(entry["ngram"].split()): float(entry["frequency"]) for entry in statistics[name]}
            total = sum(counts.values())
            shares[n] = {gram: count / total for gram, count in counts.items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path}: contains no top_bigrams and top_trigrams of a single source: pass statistics of slop-forensics"
        ) from error
    return shares


# -- contrasts and the score ------------------------------------------------------------------------------------------


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
"""While a text goes on, matches in so many last characters are not counted yet: what follows may change them."""
SEARCHED_AT_ONCE = 16_000
"""A text is searched whenever so many characters have come; a shorter text is searched once, at its end."""
_CONTEXT = 100  # characters kept before the next match, for lookbehinds


class PatternSearch:
    """Searches a text that comes in pieces; finds the matches of `finditer` of up to `LONGEST_MATCH` characters."""

    def __init__(self, patterns: Sequence[regex.Pattern[str]]) -> None:
        self._patterns = patterns
        self._text, self._start = "", 0  # the rest of the text, and the number of characters before
        self._nexts = [0] * len(patterns)

    def read(self, piece: str, *, is_last: bool) -> list[tuple[int, int, int]]:
        """Return the new matches, sorted: (start, end, index of the pattern)."""
        self._text += piece
        limit = len(self._text) - (0 if is_last else LONGEST_MATCH)
        if not is_last and (limit <= 0 or len(self._text) < SEARCHED_AT_ONCE):
            return []
        found = []
        for number, pattern in enumerate(self._patterns):
            place = self._nexts[number] - self._start
            for match in pattern.finditer(self._text, place):
                if match.start() >= limit and not is_last:
                    break
                place = match.end()
                found.append((self._start + match.start(), self._start + place, number))
            self._nexts[number] = self._start + max(place, limit)
        kept = max(0, limit - _CONTEXT)
        self._text, self._start = self._text[kept:], self._start + kept
        return sorted(found)


class ContrastCount:
    """Counts the contrasts of a text that comes in pieces; of overlapping contrasts, only the first.

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
    return tuple(regex.compile(each.ban.text) for each in read_constructions(*CONTRASTS))


def score_slop(rates: Mapping[str, Floats], scale: Scale) -> Floats:
    """Return the slop score, 0 to 100, from the rates that `WEIGHTS` names; NaN if the scale lacks a range of them."""
    score = np.zeros_like(rates["slop_words"])
    for name, weight in WEIGHTS.items():
        if name not in scale.ranges:
            return np.full_like(score, np.nan)
        low, high = scale.ranges[name].widen()
        score += 100 * weight * np.clip((rates[name] - low) / (high - low), 0, 1)
    return score

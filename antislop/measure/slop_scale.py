"""The scale of measurements: lists of slop, the ranges of the slop score, and human rates of n-grams."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Literal, NamedTuple

from antislop.data import FOLDER
from antislop.errors import InputError
from antislop.files.disk import read_json
from antislop.measure.blocks import NGram
from antislop.measure.words import extract_words

RANGE_MARGIN = 0.1  # of the width, on both sides

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
    ranges: of slop_words, slop_trigrams and contrasts, before the margin; empty if there is no score.
    human: by length (2 and 3), the shares of n-grams in human writing among all of that length; empty if unknown.
    source: the origin of the scale, for reports.
    """

    words: frozenset[str]
    trigrams: frozenset[NGram]
    over: Over = "content"
    ranges: Mapping[str, Range] = field(default_factory=dict)
    human: Mapping[int, Mapping[NGram, float]] = field(default_factory=dict)
    source: str = "lists given"

    @classmethod
    @cache
    def load(cls) -> Scale:
        """Load the bundled scale: 567 words and 182 trigrams of content words that models overuse.

        It was measured in this project: data/metrics/README.md of the repository.
        """
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
        """Read lists in the form of the published ones.

        words, trigrams: JSON lists of texts, or of lists whose first item is a text.
        human: statistics of slop-forensics, with `top_bigrams` and `top_trigrams`; by default the bundled ones.
        over: the published score counts any three words, although its list has no stop words.
        ranges: without them there is no slop score; `PUBLISHED_RANGES` belong to the published lists.

        Raises `InputError` with the path for a file of another kind, and for empty lists.
        """
        return cls(
            frozenset(word for (word,) in _read_list(words, 1)),
            frozenset(_read_list(trigrams, 3)),
            over,
            ranges or {},
            load_ngrams() if human is None else _read_statistics(Path(human)),
            f"{_name(words)}, {_name(trigrams)}",
        )

    @property
    def fingerprint(self) -> str:
        """16 digits that identify words, trigrams, `over`, and ranges."""
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


def _name(path: str | os.PathLike[str] | None) -> str:
    return "nothing" if path is None else Path(path).name


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

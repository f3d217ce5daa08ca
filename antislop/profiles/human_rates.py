"""How often people write what models write: counts of human texts, and what they say of rates today.

A baseline is counts only. Since freely licensed books are old, rates of phrases are carried over to the present by
their words, whose frequency today is known from the package `wordfreq`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from antislop.errors import InputError
from antislop.files import read_json, replace_text
from antislop.metrics.quantiles import find_gamma
from antislop.metrics.segmentation import drop_stop_words
from antislop.profiles.counting import Census
from antislop.profiles.ngrams import Kind, cut_words

FORMAT = "antislop baseline 1"
RAREST = 1e-8
"""The share of all words below which wordfreq lists none: one in 100 million (https://pypi.org/project/wordfreq)."""


@dataclass(frozen=True, slots=True)
class HumanRate:
    """How often people write something.

    count: occurrences in the baseline; None where there are fewer than it lists.
    rate: as a share of all words; an upper bound where count is None.
    low, high: its interval; high is None where rate is a bound, and both are rate where that counts as known.
    """

    count: int | None
    rate: float
    low: float
    high: float | None


@dataclass(frozen=True, slots=True)
class Baseline:
    """Counts of what stands in human texts.

    least: the smallest count of words and n-grams that is listed; constructions are listed from 1 on.
    """

    name: str
    words: int
    least: int
    counts: Mapping[Kind, Mapping[str, int]]
    made_with: Mapping[str, Any]

    @classmethod
    def of(cls, census: Census, *, name: str, made_with: Mapping[str, Any] | None = None) -> Baseline:
        """Make one of what was counted."""
        counts: dict[Kind, dict[str, int]] = {"word": {}, "phrase": {}, "content": {}, "construction": {}}
        for (kind, text), occurrences in zip(census.names, census.counts, strict=True):
            counts[kind][text] = occurrences
        return cls(name, census.words, census.min_count, counts, made_with or {})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Baseline:
        """Read one from a file, compressed if it ends in .gz. Raises `InputError` where it is none."""
        whole = read_json(path, advice=_ADVICE)
        if not isinstance(whole, dict) or whole.get("format") != FORMAT:
            raise InputError(f"{path}: no baseline of this package: {_ADVICE}")
        return cls(whole["name"], whole["words"], whole["least"], whole["counts"], whole["made_with"])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file, compressed if its name ends in .gz; the same counts make the same bytes."""
        whole = {
            "format": FORMAT,
            "name": self.name,
            "words": self.words,
            "least": self.least,
            "made_with": self.made_with,
            "counts": {kind: dict(sorted(counts.items())) for kind, counts in self.counts.items()},
        }
        replace_text(path, json.dumps(whole, ensure_ascii=False, separators=(",", ":")))

    def count(self, kind: Kind, text: str) -> int | None:
        """Return how often something stands in the texts, None where less often than is listed."""
        return self.counts.get(kind, {}).get(text)

    def bound(self, kind: Kind) -> int:
        """Return how often what is not listed may stand in the texts, at least 1."""
        return 1 if kind == "construction" else max(1, self.least - 1)


_ADVICE = "make one with: antislop profile BOOKS --as-baseline -o human.json.gz"


class HumanRates:
    """Human rates of a baseline, extrapolated to the present.

    A word's rate is the larger of those in the baseline and in wordfreq. A phrase is assumed to have gained since the
    baseline as much as the word in it that has gained most, but not to be more frequent than its rarest word.

    also: further baselines, however small or incomplete; the lower end of their interval counts if it is higher. For a
        phrase that one does not list, its content words in a row count, which are at least as frequent. language: of
        wordfreq. modern: False ignores wordfreq, so that rates are those of the baseline.
    """

    def __init__(
        self, baseline: Baseline, *, also: Sequence[Baseline] = (), language: str = "en", modern: bool = True
    ) -> None:
        self.baseline, self.is_modern = baseline, modern
        self._also = also
        self._frequency = load_frequency(language) if modern else None
        self._words: dict[str, tuple[float, float]] = {}

    def rate(self, kind: Kind, text: str) -> HumanRate:
        """Return the human rate of an entry."""
        base = self.baseline
        count = base.count(kind, text)
        shown = (base.bound(kind) if count is None else count) / base.words
        low, high = (shown, None) if count is None else (edge / base.words for edge in interval(count))
        rate = shown
        if self._frequency is None:
            return self._veto(kind, text, HumanRate(count, rate, low, high))
        if kind == "word":
            rate = max(self._frequency(text), RAREST if count is None else shown)
        elif kind != "construction":
            gains, rarest = zip(*map(self._judge, cut_words(text)), strict=True)
            expected = min(shown * max(gains), *rarest)
            rate = expected if count is None else max(shown, expected)
        if kind == "word" and rate != shown:
            low, high = rate, rate if self._frequency(text) else None
        elif rate != shown:
            low, high = low * rate / shown, None if high is None else high * rate / shown
        return self._veto(kind, text, HumanRate(count, rate, low, high))

    def _veto(self, kind: Kind, text: str, known: HumanRate) -> HumanRate:
        for other in self._also:
            count = other.count(kind, text)
            if count is None and kind == "phrase":  # at the most as frequent as its content words in a row
                count = other.count("content", " ".join(drop_stop_words(cut_words(text))))
            if count is not None:
                certain = interval(count)[0] / other.words
                seen = count if known.count is None else known.count
                known = (
                    HumanRate(seen, certain, certain, certain) if certain > known.rate else replace(known, count=seen)
                )
        return known

    def _judge(self, word: str) -> tuple[float, float]:
        """Return by how much a word has gained since the baseline, 1 if it has not, and its rate."""
        assert self._frequency is not None
        if word not in self._words:
            count, today = self.baseline.count("word", word), self._frequency(word)
            shown = (self.baseline.bound("word") if count is None else count) / self.baseline.words
            rate = max(today, RAREST if count is None else shown)
            self._words[word] = max(1.0, today / shown), rate
        return self._words[word]


@cache
def interval(count: int, *, level: float = 0.95) -> tuple[float, float]:
    """Return the exact interval of a Poisson count (Garwood 1936, doi 10.1093/biomet/28.3-4.437).

    >>> [round(edge, 3) for edge in interval(10)]
    [4.795, 18.39]
    """
    tail = (1 - level) / 2
    return find_gamma(tail, count) if count else 0.0, find_gamma(1 - tail, count + 1)


def load_frequency(language: str) -> Callable[[str], float]:
    """Return what tells the share of a word among all words of a language today, 0 where it is unknown.

    Raises `InputError` where the package wordfreq is not installed.
    """
    try:
        from wordfreq import get_frequency_dict
    except ImportError as error:
        raise InputError("rates of words today need the package wordfreq: pip install 'antislop[eval]'") from error
    known = get_frequency_dict(language, wordlist="best")
    return lambda word: float(known.get(word, 0.0))

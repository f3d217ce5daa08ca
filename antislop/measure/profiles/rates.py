"""Rates of words and phrases in human writing, and the ratios of models' rates to them, with intervals.

A baseline has the counts of human texts. Since free books are old, rates are extrapolated to the present by the current
frequencies of words, from the package `wordfreq`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import atan, cos, exp, inf, lgamma, log, pi, sin, sqrt
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from antislop.errors import InputError
from antislop.files.disk import read_json, replace_text
from antislop.measure.blocks import Longs
from antislop.measure.languages import ENGLISH, RAREST_RATE, Language
from antislop.measure.profiles.counting import Census
from antislop.measure.profiles.ngrams import Kind

FORMAT = "antislop baseline 1"
_ADVICE = "make one with: antislop profile BOOKS --as-baseline -o human.json.gz"
_REACH = 12.0  # standard deviations beyond which Poisson probabilities sum to less than 1e-30
_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class HumanRate:
    """The rate of an entry in human writing, per word, with its interval.

    count: occurrences in the baseline; None if the baseline does not list the entry, and then `rate` is an upper bound.
    low, high: the interval. `high` is None where `rate` is an upper bound; both equal a rate that counts as exact.
    """

    count: int | None
    rate: float
    low: float
    high: float | None


@dataclass(frozen=True, slots=True)
class Baseline:
    """Counts of words, n-grams and constructions in human texts.

    min_count: the smallest count from which words and n-grams are listed; constructions are listed from 1 on.
    """

    name: str
    words: int
    min_count: int
    counts: Mapping[Kind, Mapping[str, int]]
    made_with: Mapping[str, Any]

    @classmethod
    def of(cls, census: Census, *, name: str, made_with: Mapping[str, Any] | None = None) -> Baseline:
        counts: dict[Kind, dict[str, int]] = {"word": {}, "phrase": {}, "content": {}, "construction": {}}
        for (kind, text), occurrences in zip(census.names, census.counts, strict=True):
            counts[kind][text] = occurrences
        return cls(name, census.words, census.min_count, counts, made_with or {})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Baseline:
        """Read a baseline from a file, compressed if its name ends in .gz. Raises `InputError` for any other file."""
        content = read_json(path, advice=_ADVICE)
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise InputError(f"{path}: is not a baseline of this package: {_ADVICE}")
        return cls(content["name"], content["words"], content["least"], content["counts"], content["made_with"])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the baseline to a file, compressed if its name ends in .gz; equal baselines give equal bytes."""
        content = {
            "format": FORMAT,
            "name": self.name,
            "words": self.words,
            "least": self.min_count,
            "made_with": self.made_with,
            "counts": {kind: dict(sorted(counts.items())) for kind, counts in self.counts.items()},
        }
        replace_text(path, json.dumps(content, ensure_ascii=False, separators=(",", ":")))

    def count(self, kind: Kind, text: str) -> int | None:
        return self.counts.get(kind, {}).get(text)

    def bound(self, kind: Kind) -> int:
        """Return an upper bound of the occurrences of entries that are not listed, at least 1."""
        return 1 if kind == "construction" else max(1, self.min_count - 1)


class HumanRates:
    """Human rates of a baseline, extrapolated to the present.

    also: further baselines, however small: a rate is raised to the low end of each of their intervals, if it is below.
    modern: whether rates are extrapolated to the present by wordfreq.

    A word's rate is the larger of its rates in the baseline and in wordfreq. The rate of a phrase is assumed to have
    grown by the largest factor of its words, up to the rate of its rarest word.
    """

    def __init__(
        self, baseline: Baseline, *, also: Sequence[Baseline] = (), modern: bool = True, language: Language = ENGLISH
    ) -> None:
        self.baseline, self.language, self._modern = baseline, language, modern
        self._also = also
        self._words: dict[str, tuple[float, float]] = {}

    @property
    def is_modern(self) -> bool:
        return self._modern and bool(self.language.frequencies)  # loaded when texts are counted, since it takes 30 MB

    def rate(self, kind: Kind, text: str) -> HumanRate:
        base = self.baseline
        count = base.count(kind, text)
        shown = (base.bound(kind) if count is None else count) / base.words
        low, high = (shown, None) if count is None else (edge / base.words for edge in interval(count))
        rate = shown
        if self.is_modern and kind == "word":
            rate = self._extrapolate(text)[1]
        elif self.is_modern and kind != "construction":
            gains, rarest = zip(*map(self._extrapolate, text.split(" ")), strict=True)
            expected = min(shown * max(gains), *rarest)
            rate = expected if count is None else max(shown, expected)
        if kind == "word" and rate != shown:
            low, high = rate, rate if self.language.find_share(text) else None
        elif rate != shown:
            low, high = low * rate / shown, None if high is None else high * rate / shown
        human_rate = HumanRate(count, rate, low, high)
        for baseline in self._also:  # each of these baselines may raise the rate
            count = baseline.count(kind, text)
            if count is None and kind == "phrase":  # the n-gram of its content words is at least as frequent
                count = baseline.count("content", " ".join(self.language.drop_stop_words(text.split(" "))))
            if count is not None:
                floor = interval(count)[0] / baseline.words
                if human_rate.count is None:
                    human_rate = replace(human_rate, count=count)
                if floor > human_rate.rate:
                    human_rate = HumanRate(human_rate.count, floor, floor, floor)
        return human_rate

    def _extrapolate(self, word: str) -> tuple[float, float]:
        """Return the factor by which a word's rate grew since the baseline, at least 1, and the rate now."""
        if word not in self._words:
            count, today = self.baseline.count("word", word), self.language.find_share(word)
            shown = (self.baseline.bound("word") if count is None else count) / self.baseline.words
            if self.language.is_english:
                rate = max(today, RAREST_RATE if count is None else shown)
                self._words[word] = max(1.0, today / shown), rate
            else:  # human texts of today and of the same kind are the yardstick, and only too few
                self._words[word] = 1.0, max(today, shown)
        return self._words[word]


@cache
def interval(count: int) -> tuple[float, float]:
    """Return the exact 95 % interval of a Poisson count (Garwood 1936, doi 10.1093/biomet/28.3-4.437)."""
    return find_gamma(0.025, count) if count else 0.0, find_gamma(0.975, count + 1)


class RateRatio(NamedTuple):
    """The models' rate divided by the human rate; high is None if the human rate is only bounded from above."""

    ratio: float
    low: float
    high: float | None


def estimate_error(groups: Longs, group_words: Longs) -> float:
    """Return the relative standard error of a rate, over prompts, since texts to one prompt are not independent.

    The linearized variance of a ratio of sums over clusters (Cochran 1977, Sampling Techniques, 3rd edition, section
    6.3). A single group gives the error of a Poisson count, since the variation between prompts is unknown.
    """
    has_words = group_words > 0
    counts, words = groups[has_words], group_words[has_words]
    total = int(counts.sum())
    if len(words) < 2:
        return 1 / sqrt(total)
    residuals = counts - total / words.sum() * words
    return float(np.sqrt(len(words) / (len(words) - 1) * (residuals**2).sum()) / total)


def estimate_ratio(rate: float, error: float, clusters: int, human: HumanRate) -> RateRatio:
    """Return the ratio of a rate to a human rate, with its 95 % interval.

    error: relative standard error of `rate`.
    clusters: the number of groups of prompts from which the error was estimated, for Student's t.

    Combines both intervals by variance estimates recovery on the log scale (Zou and Donner 2008, doi 10.1002/sim.3095).
    A human rate that is only a bound counts as exact for the lower end, and there is no upper end.
    """
    half = find_half_width(clusters - 1) * error
    ratio = rate / human.rate
    if human.high is None:
        return RateRatio(ratio, ratio * exp(-half), None)
    below = sqrt(half**2 + log(human.high / human.rate) ** 2)
    above = sqrt(half**2 + log(human.rate / human.low) ** 2) if human.low else None
    return RateRatio(ratio, ratio * exp(-below), None if above is None else ratio * exp(above))


@cache
def find_half_width(freedom: int) -> float:
    """Return the half-width of a 95 % interval in standard errors; freedom 0 stands for the normal distribution."""
    return find_student(0.975, freedom) if freedom > 0 else _NORMAL.inv_cdf(0.975)


# -- quantiles of Student's t and gamma distributions: for integer degrees and shapes, finite sums ---------------------


def find_student(probability: float, freedom: int) -> float:
    """Return the quantile of Student's t with `freedom` degrees, 1 or more."""
    if probability < 0.5:
        return -find_student(1 - probability, freedom)
    scale = exp(lgamma((freedom + 1) / 2) - lgamma(freedom / 2)) / sqrt(freedom * pi)

    def density(t: float) -> float:
        return scale * exp(-(freedom + 1) / 2 * log(1 + t * t / freedom))

    return _solve(
        lambda t: (1 + _share_within(t, freedom)) / 2, density, probability, start=_NORMAL.inv_cdf(probability)
    )


def find_gamma(probability: float, shape: int) -> float:
    """Return the quantile of the gamma distribution of scale 1 and an integer shape, 1 or more."""

    def density(x: float) -> float:
        return exp((shape - 1) * log(x) - x - lgamma(shape)) if x > 0 else 0.0

    cube = 1 - 1 / (9 * shape) + _NORMAL.inv_cdf(probability) / (3 * sqrt(shape))  # Wilson and Hilferty 1931
    return _solve(lambda x: 1 - _sum_poisson(shape, x), density, probability, start=max(shape * cube**3, 1e-3))


def _share_within(t: float, freedom: int) -> float:
    """Return the probability of Student's t between -t and t (Abramowitz and Stegun 1964, 26.7.3 and 26.7.4)."""
    angle = atan(t / sqrt(freedom))
    is_odd = freedom % 2
    term, total = (cos(angle) if is_odd else 1.0), 0.0
    for i in range(is_odd, freedom - 1, 2):
        total += term
        term *= cos(angle) ** 2 * (i + 1) / (i + 2)
    return 2 / pi * (angle + sin(angle) * total) if is_odd else sin(angle) * total


def _sum_poisson(count: int, mean: float) -> float:
    """Return the probability of fewer than `count` events if `mean` are expected."""
    reach = _REACH * sqrt(mean) + 4 * _REACH
    start, stop = max(0, int(mean - reach)), min(count - 1, int(mean + reach))
    if stop < start or mean <= 0:
        return float(mean <= 0)
    steps = np.log(mean) - np.log(np.arange(start + 1, stop + 1))
    logs = start * log(mean) - mean - lgamma(start + 1) + np.concatenate([[0.0], np.cumsum(steps)])
    return float(np.exp(logs).sum())


def _solve(
    function: Callable[[float], float], derivative: Callable[[float], float], value: float, *, start: float
) -> float:
    """Return the positive argument at which an increasing function has a value, by Newton's method and bisection."""
    low, high, x = 0.0, inf, start
    for _ in range(200):
        excess = function(x) - value
        low, high = (low, x) if excess > 0 else (x, high)
        slope = derivative(x)
        step = x - excess / slope if slope > 0 else inf
        if not low < step < high:
            step = 2 * x if high == inf else (low + high) / 2
        if abs(step - x) <= 1e-13 * abs(x):
            return step
        x = step
    return x

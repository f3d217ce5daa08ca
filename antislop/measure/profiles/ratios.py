"""Ratios of models' rates to human rates, with intervals; and the entries that longer entries explain."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from math import exp, log, sqrt
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from antislop.measure.blocks import Longs
from antislop.measure.profiles.human_rates import HumanRate
from antislop.measure.profiles.ngrams import Kind, cut_words
from antislop.measure.profiles.quantiles import find_student
from antislop.measure.words import drop_stop_words

EXPLAINED_SHARE = 0.95
"""A longer entry explains an entry if it contains at least this share of the entry's occurrences."""


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
    """Return the ratio of two rates with its 95 % interval.

    error: relative standard error of the first rate.
    clusters: its number of groups of prompts, for Student's t.

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
    return find_student(0.975, freedom) if freedom > 0 else NormalDist().inv_cdf(0.975)


def find_explained(counts: Mapping[tuple[Kind, str], int]) -> set[tuple[Kind, str]]:
    """Return the entries whose occurrences nearly all lie in a longer entry, by the share `EXPLAINED_SHARE`.

    "barely above a whisper" explains "above a whisper". An explained entry explains no other.

    >>> find_explained({("phrase", "a testament to"): 90, ("phrase", "testament to"): 94, ("word", "testament"): 150})
    {('phrase', 'testament to')}
    """
    explained: set[tuple[Kind, str]] = set()
    for entry, count in sorted(counts.items(), key=lambda pair: -pair[0][1].count(" ")):
        if entry not in explained:
            explained |= {part for part in find_parts(*entry) if count >= EXPLAINED_SHARE * counts.get(part, np.inf)}
    return explained


def find_parts(kind: Kind, text: str) -> Iterable[tuple[Kind, str]]:
    """Yield the entries that occur in each occurrence of an entry.

    >>> list(find_parts("phrase", "a deep breath"))[:3]
    [('content', 'deep breath'), ('word', 'a'), ('phrase', 'a deep')]
    """
    if kind not in ("phrase", "content"):
        return
    words = cut_words(text)
    if kind == "phrase":
        yield "content", " ".join(drop_stop_words(words))
    for begin in range(len(words)):
        for end in range(begin + 1, len(words) + 1):
            if end - begin < len(words) and (kind == "phrase" or end - begin > 1):
                yield ("word" if end - begin == 1 else kind), " ".join(words[begin:end])

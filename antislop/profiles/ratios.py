"""Ratios of the models' rates to human rates, with intervals; and which of many entries are redundant.

Neither occurrences nor texts to one prompt are independent: standard errors are over prompts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from math import exp, log, sqrt
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from antislop.metrics.quantiles import find_normal, find_student
from antislop.metrics.segmentation import drop_stop_words
from antislop.profiles.human_rates import HumanRate
from antislop.profiles.ngrams import Kind, cut_words

EXPLAINED = 0.95
"""The share of an entry's occurrences that must lie in a longer one for it to say nothing more."""

Counts = npt.NDArray[np.int64]


class RateRatio(NamedTuple):
    """The models' rate divided by the human rate; high is None if the human rate is only bounded from above."""

    ratio: float
    low: float
    high: float | None


def estimate_error(groups: Counts, group_words: Counts) -> float:
    """Return the relative standard error of a rate, prompts being what varies.

    groups, group_words: occurrences and words per group of prompts; groups without words don't count.

    The linearised variance of a ratio of sums over clusters (Cochran 1977, Sampling Techniques, 3rd edition, section
    6.3). With a single group there is nothing to tell how much prompts differ: then that of a Poisson count.

    >>> round(estimate_error(np.array([5, 5, 5, 5]), np.array([100, 110, 90, 100])), 3)
    0.041
    """
    known = group_words > 0
    counts, words = groups[known], group_words[known]
    total = int(counts.sum())
    if len(words) < 2:
        return 1 / sqrt(total)
    rest = counts - total / words.sum() * words
    return float(np.sqrt(len(words) / (len(words) - 1) * (rest**2).sum()) / total)


def estimate_ratio(rate: float, error: float, clusters: int, human: HumanRate, *, level: float = 0.95) -> RateRatio:
    """Return the ratio of two rates with its interval, by the method of variance estimates recovery on the log scale.

    error: relative, of the first rate. clusters: groups of prompts it comes from, for Student's t.

    Both rates bring their own interval, the people's an exact one (Zou and Donner 2008, doi 10.1002/sim.3095). A human
    rate that is only bounded counts as known for the lower end, and there is no upper one.

    >>> ratio = estimate_ratio(2e-5, 0.1, 30, HumanRate(20, 1e-6, 0.6e-6, 1.5e-6))
    >>> [round(edge, 1) for edge in ratio]
    [20.0, 12.7, 34.7]
    """
    half = quantile(clusters - 1, level) * error
    ratio = rate / human.rate
    if human.high is None:
        return RateRatio(ratio, ratio * exp(-half), None)
    below = sqrt(half**2 + log(human.high / human.rate) ** 2)
    above = sqrt(half**2 + log(human.rate / human.low) ** 2) if human.low else None
    return RateRatio(ratio, ratio * exp(-below), None if above is None else ratio * exp(above))


@cache
def quantile(freedom: int, level: float) -> float:
    """Return how many standard errors an interval reaches to either side: Student's t, normal without clusters."""
    chance = (1 + level) / 2
    return find_student(chance, freedom) if freedom > 0 else find_normal(chance)


def find_explained(counts: Mapping[tuple[Kind, str], int]) -> set[tuple[Kind, str]]:
    """Return the entries of which at least `EXPLAINED` occurrences lie in one longer entry that is not among them.

    Words and phrases lie in phrases, content n-grams in longer ones, and in phrases with just these content words. So
    "above a whisper" goes where "barely above a whisper" stays, and "testament to", of which there is more, stays.

    >>> find_explained({("phrase", "a testament to"): 90, ("phrase", "testament to"): 94, ("word", "testament"): 150})
    {('phrase', 'testament to')}
    """
    gone: set[tuple[Kind, str]] = set()
    for (kind, text), count in sorted(counts.items(), key=lambda pair: -pair[0][1].count(" ")):
        if (kind, text) not in gone:
            gone.update(part for part in find_parts(kind, text) if count >= EXPLAINED * counts.get(part, np.inf))
    return gone


def find_parts(kind: Kind, text: str) -> Iterable[tuple[Kind, str]]:
    """Yield what occurs wherever an entry does.

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

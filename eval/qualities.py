"""Qualities of texts: leaks, surprise under the untouched model, diversity, broken texts."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from antislop import BanList
from antislop.measure.words import extract_words
from eval.speed import measuring

ROWS = 8  # texts that are read at once
RESAMPLES = 2000

Tokens = Sequence[int]
Values = NDArray[np.float64]


class Interval(NamedTuple):
    """A figure and its 95 % interval, by bootstrap over the texts."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        if math.isnan(self.value):
            return "undefined"
        return f"{self.value:.3f} ({self.low:.3f} … {self.high:.3f})"


class Surprise(NamedTuple):
    """Nats per kept token of each text [texts] under the untouched model, given its prompt, at the same temperature.

    nll: minus the logarithm of the tokens' probabilities.
    entropy: of the model, at the same positions.
    """

    nll: Values
    entropy: Values


@torch.no_grad()
def read_surprise(subject: measuring.Subject, prompts: Sequence[Tokens], texts: Sequence[Tokens]) -> Surprise:
    """Read texts with the model that wrote them, without bans."""
    nll, entropy = np.zeros(len(texts)), np.zeros(len(texts))
    for first in range(0, len(texts), ROWS):
        rows = [[*prompts[i], *texts[i]] for i in range(first, min(first + ROWS, len(texts)))]
        longest = max(map(len, rows))
        ids = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows])  # on the right: nobody looks there
        logits = subject.model(ids).logits / subject.temperature
        for place, row in enumerate(rows):
            start = len(prompts[first + place])
            own = torch.log_softmax(logits[place, start - 1 : len(row) - 1].float(), dim=-1)
            nll[first + place] = -own.gather(1, torch.tensor(row[start:])[:, None]).mean()
            entropy[first + place] = -(own.exp() * own).sum(dim=-1).mean()
    return Surprise(nll, entropy)


def decode(subject: measuring.Subject, texts: Sequence[Tokens]) -> list[str]:
    return [str(subject.tokenizer.decode(list(tokens))) for tokens in texts]


def count_leaks(bans: BanList, texts: Sequence[str]) -> int:
    return sum(1 for text in texts for _ in bans.find(text))


def count_words(texts: Sequence[str]) -> int:
    return sum(len(extract_words(text)) for text in texts)


def measure_distinct(texts: Sequence[str], n: int) -> float:
    """Return the share of distinct n-grams of words among all; it falls with the amount of text."""
    grams = Counter(gram for text in texts for gram in _grams(extract_words(text), n))
    return len(grams) / max(1, grams.total())


def measure_overlap(texts: Sequence[str], n: int = 4) -> float:
    """Return the share of the texts' n-grams of words that another text contains too: as self-BLEU, for one n.

    Zhu et al. 2018, https://arxiv.org/abs/1802.01886.
    """
    each = [_grams(extract_words(text), n) for text in texts]
    holders = Counter(gram for grams in each for gram in set(grams))
    total = sum(map(len, each))
    return sum(holders[gram] > 1 for grams in each for gram in grams) / max(1, total)


def _grams(words: Sequence[str], n: int) -> list[tuple[str, ...]]:
    return [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]


def count_broken(texts: Sequence[str], tokens: Sequence[Tokens], wanted: int) -> int:
    """Return the number of texts that contain a replacement character, or don't have the wanted length."""
    return sum("\ufffd" in text or len(own) != wanted for text, own in zip(texts, tokens, strict=True))


def estimate(statistic: Callable[..., Any], *values: Values, seed: int) -> Interval:
    """Return a statistic of paired values [texts] with its percentile interval; NaNs where it is undefined.

    Resamples in which the statistic is undefined are left out.
    """
    from scipy.stats import DegenerateDataWarning, bootstrap

    if len(values[0]) < 2:
        raise ValueError(f"an interval needs two texts at least, not {len(values[0])}")
    value = float(statistic(*values, axis=-1))
    if not math.isfinite(value):
        return Interval(math.nan, math.nan, math.nan)
    rng = np.random.default_rng(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DegenerateDataWarning)  # of resamples without any difference
        found = bootstrap(
            values, statistic, paired=True, vectorized=True, n_resamples=RESAMPLES, method="percentile", rng=rng
        )
    low, high = np.nanpercentile(found.bootstrap_distribution, [2.5, 97.5])
    return Interval(value, float(low), float(high))


def mean_difference(ours: Values, theirs: Values, axis: int = -1) -> Any:
    return (ours - theirs).mean(axis=axis)


def excess_ratio(ours: Values, theirs: Values, plain: Values, axis: int = -1) -> Any:
    """Return the ratio of two mean differences to the same values."""
    with np.errstate(divide="ignore", invalid="ignore"):  # a resample may hold no difference at all
        return (ours - plain).mean(axis=axis) / (theirs - plain).mean(axis=axis)

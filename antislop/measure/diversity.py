"""Measures of the variety of texts, which are arrays with a number for each word; the n-grams that texts overuse."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import exp, log
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from antislop.measure.blocks import BASE, Longs, NGram, encode_known, encode_ngrams
from antislop.measure.estimates import Floats

MOST_OVERUSED = 40
NGRAMS_AT_ONCE = 1 << 19  # n-grams that are counted at once
_EPSILON = 0.1  # replaces 0 hits of an n-gram order: method 1 of Chen and Cherry (doi 10.3115/v1/W14-3346)


def count_distinct(words: Longs, *, window: int) -> Longs:
    """Return the number of distinct words in each window of `window` words, equally fast for any window.

    >>> count_distinct(np.array([1, 2, 1, 1]), window=2)
    array([2, 2, 1])
    """
    if len(words) < window:
        return np.zeros(0, dtype=np.int64)
    places = np.arange(len(words))
    order = np.argsort(words, kind="stable")
    is_repeated = words[order[1:]] == words[order[:-1]]
    previous = np.full(len(words), -1)
    previous[order[1:][is_repeated]] = order[:-1][is_repeated]
    windows = len(words) - window + 1
    begins = np.maximum(previous + 1, places - window + 1)
    ends = np.minimum(places + 1, windows)
    begins, ends = begins[begins < ends], ends[begins < ends]
    changes = np.bincount(begins, minlength=windows + 1) - np.bincount(ends, minlength=windows + 1)
    return np.cumsum(changes)[:windows]


def count_distinct_ngrams(pieces: Longs, n: int) -> Longs:
    """Return the number of distinct n-grams, n up to 3, in each piece; pieces: [pieces, words].

    >>> count_distinct_ngrams(np.array([[1, 2, 1, 2], [1, 2, 3, 4]]), 2)
    array([2, 3])
    """
    ordered = np.sort(encode_ngrams(pieces, n), axis=1)
    distinct: Longs = (ordered[:, 1:] != ordered[:, :-1]).sum(axis=1) + 1
    return distinct


def measure_self_bleu(texts: Sequence[Sequence[int]]) -> Floats:
    """Return the BLEU-4 of each text against the others, 0 to 1; NaN for a text of under four words or without others.

    Grows with the number and length of the texts: compare equal numbers of equal length. Zhu et al. 2018,
    https://arxiv.org/abs/1802.01886.
    """
    if len(texts) < 2:
        return np.full(len(texts), np.nan)
    logs = sum(_log_precisions(texts, n) for n in range(1, 5)) / 4
    lengths = [len(text) for text in texts]
    counts = Counter(lengths)
    penalties = []  # BLEU's penalty for a text that is shorter than the other text of the nearest length
    for length in lengths:
        others = counts if counts[length] > 1 else counts.keys() - {length}
        _, nearest = min((abs(other - length), other) for other in others)
        penalties.append(1.0 if length >= nearest else exp(1 - nearest / max(1, length)))
    return np.where(np.array(lengths) >= 4, np.array(penalties) * np.exp(logs), np.nan)


def _log_precisions(texts: Sequence[Sequence[int]], n: int) -> Floats:
    """Return the logarithm of the share of each text's n-grams that occur as often in some other text."""
    counts = [Counter(zip(*(text[i:] for i in range(n)), strict=False)) for text in texts]
    # by n-gram: its largest count in a text, that text, its largest count in the others
    maxima: dict[tuple[int, ...], tuple[int, int, int]] = {}
    for number, grams in enumerate(counts):
        for gram, count in grams.items():
            maximum, owner, runner_up = maxima.get(gram, (0, -1, 0))
            maxima[gram] = (count, number, maximum) if count > maximum else (maximum, owner, max(runner_up, count))
    logs = []
    for number, grams in enumerate(counts):
        hits = sum(min(count, maxima[gram][2 if maxima[gram][1] == number else 0]) for gram, count in grams.items())
        logs.append(log((hits or _EPSILON) / max(1, grams.total())))
    return np.array(logs)


class Overused(NamedTuple):
    ngrams: tuple[NGram, ...]
    counts: Longs  # [texts]: the occurrences of all these n-grams in each text


def find_overused(
    words: NDArray[np.int32],
    lengths: Longs,
    numbers: Mapping[str, int],
    *,
    shares: Mapping[NGram, float],
    n: int,
    top: int = MOST_OVERUSED,
) -> Overused:
    """Return the n-grams, n up to 3, with the highest ratio of their share in texts to their share in human writing.

    words: the numbers of the words of all texts, below `BASE`.
    lengths: the number of words of each text; n-grams don't cross texts.
    numbers: the number of each known word; another word is returned as "…". Numbers break ties.
    shares: the share of each n-gram in human writing, 0 to 1; a missing n-gram counts as the rarest in `shares`.
    """
    ends = np.cumsum(lengths)
    known, human_codes = encode_known(shares, numbers, n)
    human_shares = np.array([shares[gram] for gram in known], dtype=float)
    parts = max(1, len(words) // NGRAMS_AT_ONCE)
    rarest = min(shares.values(), default=1.0)
    best_codes, best_ratios = np.zeros(0, np.int64), np.zeros(0)
    for part in range(parts):
        of_part = [codes[codes % parts == part] for codes, _ in _read_codes(words, ends, n)]
        distinct, counts = np.unique(np.concatenate(of_part), return_counts=True)
        divisors = np.full(len(distinct), rarest)
        _, places, indices = np.intersect1d(distinct, human_codes, assume_unique=True, return_indices=True)
        divisors[places] = human_shares[indices]
        found, ratios = np.concatenate([best_codes, distinct]), np.concatenate([best_ratios, counts / divisors])
        if len(ratios) > top:  # only what can be among the best, ties included, is worth sorting
            is_high = ratios >= np.partition(ratios, -top)[-top]
            found, ratios = found[is_high], ratios[is_high]
        order = np.lexsort([found, -ratios])[:top]
        best_codes, best_ratios = found[order], ratios[order]
    occurrences = np.zeros(len(lengths), np.int64)
    for codes, texts in _read_codes(words, ends, n):
        occurrences += np.bincount(texts[np.isin(codes, best_codes)], minlength=len(lengths))
    grams = [[int(code) // BASE ** (n - 1 - i) % BASE for i in range(n)] for code in best_codes]
    needed = {number for gram in grams for number in gram}
    words_by_number = {number: word for word, number in numbers.items() if number in needed}
    return Overused(tuple(tuple(words_by_number.get(number, "…") for number in gram) for gram in grams), occurrences)


def _read_codes(words: NDArray[np.int32], ends: Longs, n: int) -> Iterator[tuple[Longs, Longs]]:
    for start in range(0, max(1, len(words)), NGRAMS_AT_ONCE):
        codes = encode_ngrams(words[start : start + NGRAMS_AT_ONCE + n - 1], n)
        texts, last_texts = (
            np.searchsorted(ends, np.arange(start, start + len(codes)) + offset, side="right") for offset in (0, n - 1)
        )
        yield codes[texts == last_texts], texts[texts == last_texts]

"""Measure the variety of texts, which are arrays of a number per word, and find the n-grams that they overuse."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import exp, log
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from antislop.metrics.estimates import Floats

MOST_OVERUSED = 40
BASE = 1 << 21
"""The number of a word is below this, so that three of them are digits of one 64-bit number."""
NGRAMS_AT_ONCE = 1 << 19  # that are counted at once
_EPSILON = 0.1  # replaces 0 hits of an n-gram order: method 1 of Chen and Cherry (doi 10.3115/v1/W14-3346)


def count_distinct(words: NDArray[np.int64], *, window: int) -> NDArray[np.int64]:
    """Return the number of distinct words in each window of `window` words; its time does not depend on the window.

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


def count_distinct_ngrams(pieces: NDArray[np.int64], n: int) -> NDArray[np.int64]:
    """Return the number of distinct n-grams, n up to 3, in each piece; pieces: [pieces, words].

    >>> count_distinct_ngrams(np.array([[1, 2, 1, 2], [1, 2, 3, 4]]), 2)
    array([2, 3])
    """
    ordered = np.sort(_encode(pieces, n), axis=1)
    distinct: NDArray[np.int64] = (ordered[:, 1:] != ordered[:, :-1]).sum(axis=1) + 1
    return distinct


def measure_self_bleu(texts: Sequence[Sequence[int]]) -> Floats:
    """Return the BLEU-4 of each text against the others, 0 to 1; NaN for a single text or one of under four words.

    Grows with the number and length of the texts: compare equal numbers of equal length. Zhu et al. 2018,
    https://arxiv.org/abs/1802.01886.
    """
    if len(texts) < 2:
        return np.full(len(texts), np.nan)
    logs = sum(_log_precisions(texts, n) for n in range(1, 5)) / 4
    lengths = [len(text) for text in texts]
    counts = Counter(lengths)
    penalties = np.array([_penalize(length, counts) for length in lengths])
    return np.where(np.array(lengths) >= 4, penalties * np.exp(logs), np.nan)


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


def _penalize(length: int, lengths: Counter[int]) -> float:
    """Return BLEU's penalty for a text that is shorter than the other text of the nearest length."""
    if lengths[length] > 1:
        return 1.0
    nearest = min(lengths.keys() - {length}, key=lambda candidate: (abs(candidate - length), candidate))
    return 1.0 if length >= nearest else exp(1 - nearest / max(1, length))


class Overused(NamedTuple):
    ngrams: tuple[tuple[str, ...], ...]
    counts: NDArray[np.int64]  # [texts]: the occurrences of all of them in each text


def find_overused(
    words: NDArray[np.int32],
    lengths: NDArray[np.int64],
    numbers: Mapping[str, int],
    *,
    shares: Mapping[tuple[str, ...], float],
    n: int,
    top: int = MOST_OVERUSED,
) -> Overused:
    """Return the n-grams, n up to 3, with the highest ratio of their share in texts to their share in human writing.

    words: the numbers of the words of all texts, below `BASE`.
    lengths: words of each text; n-grams don't cross texts.
    numbers: of words; a word without one is called "…". They break ties.
    shares: of human n-grams, 0 to 1; others count as the rarest of these.
    """
    ends = np.cumsum(lengths)
    human_codes, human_shares = _encode_shares(shares, numbers, n)
    parts = max(1, len(words) // NGRAMS_AT_ONCE)
    rarest = min(shares.values(), default=1.0)
    best_codes, best_ratios = np.zeros(0, np.int64), np.zeros(0)
    for part in range(parts):
        of_part = [codes[codes % parts == part] for codes, _ in _read_codes(words, ends, n)]
        distinct, counts = np.unique(np.concatenate(of_part), return_counts=True)
        divisors = np.full(len(distinct), rarest)
        _, places, indices = np.intersect1d(distinct, human_codes, assume_unique=True, return_indices=True)
        divisors[places] = human_shares[indices]
        best_codes, best_ratios = _take_best(
            np.concatenate([best_codes, distinct]), np.concatenate([best_ratios, counts / divisors]), top
        )
    occurrences = np.zeros(len(lengths), np.int64)
    for codes, texts in _read_codes(words, ends, n):
        occurrences += np.bincount(texts[np.isin(codes, best_codes)], minlength=len(lengths))
    return Overused(_decode(best_codes, numbers, n), occurrences)


def _take_best(codes: NDArray[np.int64], ratios: Floats, top: int) -> tuple[NDArray[np.int64], Floats]:
    if len(ratios) > top:
        is_high = ratios >= np.partition(ratios, -top)[-top]
        codes, ratios = codes[is_high], ratios[is_high]
    order = np.lexsort([codes, -ratios])[:top]
    return codes[order], ratios[order]


def _read_codes(
    words: NDArray[np.int32], ends: NDArray[np.int64], n: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    for start in range(0, max(1, len(words)), NGRAMS_AT_ONCE):
        codes = _encode(words[start : start + NGRAMS_AT_ONCE + n - 1], n)
        texts, last_texts = (
            np.searchsorted(ends, np.arange(start, start + len(codes)) + offset, side="right") for offset in (0, n - 1)
        )
        yield codes[texts == last_texts], texts[texts == last_texts]


def _encode(words: NDArray[np.int64] | NDArray[np.int32], n: int) -> NDArray[np.int64]:
    """Return numbers of the n-grams along the last axis; the numbers of their words are the digits."""
    size = max(0, words.shape[-1] - n + 1)
    codes = np.zeros((*words.shape[:-1], size), dtype=np.int64)
    for i in range(n):
        codes = codes * BASE + words[..., i : i + size]
    return codes


def _decode(codes: NDArray[np.int64], numbers: Mapping[str, int], n: int) -> tuple[tuple[str, ...], ...]:
    grams = [[int(code) // BASE ** (n - 1 - i) % BASE for i in range(n)] for code in codes]
    needed = {number for gram in grams for number in gram}
    words = {number: word for word, number in numbers.items() if number in needed}
    return tuple(tuple(words.get(number, "…") for number in gram) for gram in grams)


def _encode_shares(
    shares: Mapping[tuple[str, ...], float], numbers: Mapping[str, int], n: int
) -> tuple[NDArray[np.int64], Floats]:
    known = [gram for gram in shares if all(word in numbers for word in gram)]
    codes = _encode(np.array([[numbers[word] for word in gram] for gram in known], np.int64).reshape(-1, n), n)
    return codes.ravel(), np.array([shares[gram] for gram in known], dtype=float)

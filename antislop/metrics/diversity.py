"""Measure the variety of texts, alone and compared with each other, and find the n-grams that they overuse.

A text is an array of numbers, one per word; equal words have equal numbers. Knows neither words nor metrics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import exp, log
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from antislop.metrics.bootstrap import Floats

TOP = 40
_EPSILON = 0.1  # replaces 0 hits of an n-gram order: method 1 of Chen and Cherry (doi 10.3115/v1/W14-3346)


def number_ngrams(words: NDArray[np.int64], n: int) -> NDArray[np.int64]:
    """Return a number for the n-gram at each position; only equal n-grams have equal numbers.

    The result is n - 1 shorter than the words; numbers are 0, 1, … in the order of the n-grams' words.

    >>> number_ngrams(np.array([7, 8, 7, 8, 9]), 2)
    array([0, 1, 0, 2])
    """
    numbers = np.unique(words, return_inverse=True)[1]
    for offset in range(1, n):
        following = words[offset:]
        codes = numbers[: len(following)] * (int(words.max(initial=0)) + 1) + following
        numbers = np.unique(codes, return_inverse=True)[1]
    return numbers


def count_distinct(words: NDArray[np.int64], *, window: int) -> NDArray[np.int64]:
    """Return the number of distinct words in each window of `window` words, by its start.

    Takes time proportional to the words, independent of the window: a position is the first occurrence of its word in
    the windows that begin after the previous occurrence.

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
    is_counted = begins < ends
    changes = np.bincount(begins[is_counted], minlength=windows + 1) - np.bincount(
        ends[is_counted], minlength=windows + 1
    )
    return np.cumsum(changes)[:windows]


def count_distinct_ngrams(words: NDArray[np.int64], n: int, *, piece: int) -> tuple[int, int]:
    """Return the sum over pieces of `piece` words of the distinct n-grams in each, and the number of all n-grams.

    A shorter last piece is left out, since shorter pieces repeat less.

    >>> count_distinct_ngrams(np.array([1, 2, 1, 2, 1, 2, 3, 4, 5]), 2, piece=4)
    (5, 6)
    """
    pieces = len(words) // piece
    ngrams_per_piece = piece - n + 1
    if not pieces or ngrams_per_piece < 1:
        return 0, 0
    places = np.arange(pieces)[:, None] * piece + np.arange(ngrams_per_piece)
    ordered = np.sort(number_ngrams(words, n)[places], axis=1)
    return pieces + int(np.count_nonzero(ordered[:, 1:] != ordered[:, :-1])), pieces * ngrams_per_piece


def measure_self_bleu(texts: Sequence[Sequence[int]]) -> Floats:
    """Return the BLEU-4 of each text against the others, 0 to 1: the extent to which it consists of their n-grams.

    Weighs the precisions of 1- to 4-grams equally, with the penalty for texts shorter than the others; an order without
    a hit counts as 0.1 hits. NaN for texts of fewer than four words, and for a single text. The value grows with the
    number and length of the texts: compare equal numbers of texts of equal length.

    Source: Zhu et al. 2018, https://arxiv.org/abs/1802.01886.
    """
    if len(texts) < 2:
        return np.full(len(texts), np.nan)
    logs = sum(_log_precisions(texts, n) for n in range(1, 5)) / 4
    lengths = [len(text) for text in texts]
    counts = Counter(lengths)
    penalties = np.array([_penalize(length, counts) for length in lengths])
    is_defined = np.array(lengths) >= 4
    return np.where(is_defined, penalties * np.exp(logs), np.nan)


def _log_precisions(texts: Sequence[Sequence[int]], n: int) -> Floats:
    """Return the logarithm of the share of each text's n-grams that occur as often in some other text."""
    counts = [Counter(zip(*(text[i:] for i in range(n)), strict=False)) for text in texts]
    maxima: dict[
        tuple[int, ...], tuple[int, int, int]
    ] = {}  # largest count in a text, that text, largest count in the others
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
    nearest = min(
        (candidate for candidate in lengths if candidate != length),
        key=lambda candidate: (abs(candidate - length), candidate),
    )
    return 1.0 if length >= nearest else exp(1 - nearest / max(1, length))


class Overused(NamedTuple):
    """The most overused n-grams. counts: [texts], the occurrences of all of them in each text."""

    ngrams: tuple[tuple[str, ...], ...]
    counts: NDArray[np.int64]


def find_overused(
    texts: Sequence[NDArray[np.int64]],
    words: Sequence[str],
    *,
    shares: Mapping[tuple[str, ...], float],
    n: int,
    top: int = TOP,
) -> Overused:
    """Return the n-grams with the highest ratio of their share in the texts to their share in human writing.

    texts: numbers of words, which are indices of `words`; fewer than 2**(63 / n). shares: of human n-grams, 0 to 1; an
    n-gram that is not listed counts as the rarest listed one. N-grams don't cross texts. Ties are broken by the numbers
    of the words, the smallest first.

    >>> texts = [np.array([0, 1, 0, 1, 2])]
    >>> find_overused(texts, ["deep", "breath", "taken"], shares={("deep", "breath"): 0.5}, n=2, top=1).ngrams
    (('deep', 'breath'),)
    """
    size = len(words)
    codes = [_encode(text, n, size) for text in texts]
    distinct, numbers, counts = np.unique(np.concatenate(codes), return_inverse=True, return_counts=True)
    ratios = counts / _look_up(distinct, words, shares, n)
    top_indices = np.argsort(-ratios, kind="stable")[:top]
    owners = np.repeat(np.arange(len(texts)), [len(code) for code in codes])
    occurrences = np.bincount(owners[np.isin(numbers, top_indices)], minlength=len(texts))
    return Overused(tuple(_decode(int(code), words, n) for code in distinct[top_indices]), occurrences)


def _encode(text: NDArray[np.int64], n: int, size: int) -> NDArray[np.int64]:
    """Return a number for the n-gram at each position: the numbers of its words as digits."""
    code = np.zeros(max(0, len(text) - n + 1), dtype=np.int64)
    for i in range(n):
        code = code * size + text[i : i + len(code)]
    return code


def _decode(code: int, words: Sequence[str], n: int) -> tuple[str, ...]:
    return tuple(words[code // len(words) ** (n - 1 - i) % len(words)] for i in range(n))


def _look_up(
    distinct: NDArray[np.int64], words: Sequence[str], shares: Mapping[tuple[str, ...], float], n: int
) -> NDArray[np.float64]:
    """Return the human share of each distinct n-gram."""
    human_shares = np.full(len(distinct), min(shares.values(), default=1.0))
    ids = {word: number for number, word in enumerate(words)}
    encodable = [(gram, share) for gram, share in shares.items() if all(word in ids for word in gram)]
    if len(distinct) and encodable:
        codes = np.array([_encode(np.array([ids[word] for word in gram]), n, len(words))[0] for gram, _ in encodable])
        places = np.minimum(np.searchsorted(distinct, codes), len(distinct) - 1)
        is_there = distinct[places] == codes
        human_shares[places[is_there]] = np.array([share for _, share in encodable])[is_there]
    return human_shares

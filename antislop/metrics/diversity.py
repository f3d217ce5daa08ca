"""Measure how varied texts are, in themselves and compared with each other, and which n-grams they overuse.

Words are numbers here: a text is an array of them, equal words being equal numbers. Knows neither words nor metrics.
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
_EPSILON = 0.1  # hits of an n-gram order that has none: method 1 of Chen and Cherry (doi 10.3115/v1/W14-3346)


def number_ngrams(words: NDArray[np.int64], n: int) -> NDArray[np.int64]:
    """Return a number for the n words from each place on; equal n-grams, and only those, have equal numbers.

    The result is n - 1 shorter than the words; numbers are 0, 1, … in the order of the n-grams' words.

    >>> number_ngrams(np.array([7, 8, 7, 8, 9]), 2)
    array([0, 1, 0, 2])
    """
    numbers = np.unique(words, return_inverse=True)[1]
    for ahead in range(1, n):
        rest = words[ahead:]
        codes = numbers[: len(rest)] * (int(words.max(initial=0)) + 1) + rest
        numbers = np.unique(codes, return_inverse=True)[1]
    return numbers


def count_distinct(words: NDArray[np.int64], *, window: int) -> NDArray[np.int64]:
    """Return the number of distinct words in each window of `window` words, by its start.

    Takes time proportional to the words, whatever the window: a position is the first of its word in the windows that
    begin after the word's previous occurrence.

    >>> count_distinct(np.array([1, 2, 1, 1]), window=2)
    array([2, 2, 1])
    """
    if len(words) < window:
        return np.zeros(0, dtype=np.int64)
    places = np.arange(len(words))
    order = np.argsort(words, kind="stable")
    is_again = words[order[1:]] == words[order[:-1]]
    before = np.full(len(words), -1)
    before[order[1:][is_again]] = order[:-1][is_again]
    windows = len(words) - window + 1
    begins = np.maximum(before + 1, places - window + 1)
    ends = np.minimum(places + 1, windows)
    is_seen = begins < ends
    changes = np.bincount(begins[is_seen], minlength=windows + 1) - np.bincount(ends[is_seen], minlength=windows + 1)
    return np.cumsum(changes)[:windows]


def count_distinct_ngrams(words: NDArray[np.int64], n: int, *, piece: int) -> tuple[int, int]:
    """Return the number of distinct n-grams in each piece of `piece` words, summed, and of all n-grams in them.

    A shorter last piece is left out, since longer pieces repeat more.

    >>> count_distinct_ngrams(np.array([1, 2, 1, 2, 1, 2, 3, 4, 5]), 2, piece=4)
    (5, 6)
    """
    pieces = len(words) // piece
    each = piece - n + 1
    if not pieces or each < 1:
        return 0, 0
    places = np.arange(pieces)[:, None] * piece + np.arange(each)
    ordered = np.sort(number_ngrams(words, n)[places], axis=1)
    return pieces + int(np.count_nonzero(ordered[:, 1:] != ordered[:, :-1])), pieces * each


def measure_self_bleu(texts: Sequence[Sequence[int]]) -> Floats:
    """Return the BLEU-4 of each text against the others, 0 to 1: how far it consists of their n-grams.

    Precisions of 1- to 4-grams in equal parts, with the penalty for texts shorter than the others; an order without a
    hit counts as 0.1 hits. NaN for texts of fewer than four words, and for one text alone. The more other texts
    there are, and the longer, the higher it is: compare equally many of equal length.

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
    """Return the logarithm of the share of each text's n-grams that another one has, as often as any one has them."""
    counts = [Counter(zip(*(text[i:] for i in range(n)), strict=False)) for text in texts]
    best: dict[tuple[int, ...], tuple[int, int, int]] = {}  # the most in one text, its number, the most in the others
    for number, grams in enumerate(counts):
        for gram, count in grams.items():
            most, whose, second = best.get(gram, (0, -1, 0))
            best[gram] = (count, number, most) if count > most else (most, whose, max(second, count))
    logs = []
    for number, grams in enumerate(counts):
        hits = sum(min(count, best[gram][2 if best[gram][1] == number else 0]) for gram, count in grams.items())
        logs.append(log((hits or _EPSILON) / max(1, grams.total())))
    return np.array(logs)


def _penalize(length: int, lengths: Counter[int]) -> float:
    """Return BLEU's penalty for a text that is shorter than the other one nearest to it in length."""
    if lengths[length] > 1:
        return 1.0
    nearest = min((other for other in lengths if other != length), key=lambda other: (abs(other - length), other))
    return 1.0 if length >= nearest else exp(1 - nearest / max(1, length))


class Overused(NamedTuple):
    """The most overused n-grams, and the number of their occurrences in each text: [texts]."""

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
    """Return the n-grams whose share among those of the texts is highest against their share in human writing.

    texts: words by number, of which `words` holds the names, fewer than 2**(63 / n). shares: of human n-grams, 0 to 1;
    an n-gram that is none of them counts as often as the rarest of them. No n-gram reaches from one text into the
    next. Of equal ratios that one is taken whose words came first.

    >>> texts = [np.array([0, 1, 0, 1, 2])]
    >>> find_overused(texts, ["deep", "breath", "taken"], shares={("deep", "breath"): 0.5}, n=2, top=1).ngrams
    (('deep', 'breath'),)
    """
    size = len(words)
    codes = [_encode(text, n, size) for text in texts]
    distinct, numbers, counts = np.unique(np.concatenate(codes), return_inverse=True, return_counts=True)
    ratios = counts / _look_up(distinct, words, shares, n)
    best = np.argsort(-ratios, kind="stable")[:top]
    owners = np.repeat(np.arange(len(texts)), [len(code) for code in codes])
    held = np.bincount(owners[np.isin(numbers, best)], minlength=len(texts))
    return Overused(tuple(_decode(int(code), words, n) for code in distinct[best]), held)


def _encode(text: NDArray[np.int64], n: int, size: int) -> NDArray[np.int64]:
    """Return a number for the n words from each place on: their own numbers as digits."""
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
    found = np.full(len(distinct), min(shares.values(), default=1.0))
    ids = {word: number for number, word in enumerate(words)}
    known = [(gram, share) for gram, share in shares.items() if all(word in ids for word in gram)]
    if len(distinct) and known:
        codes = np.array([_encode(np.array([ids[word] for word in gram]), n, len(words))[0] for gram, _ in known])
        places = np.minimum(np.searchsorted(distinct, codes), len(distinct) - 1)
        is_there = distinct[places] == codes
        found[places[is_there]] = np.array([share for _, share in known])[is_there]
    return found

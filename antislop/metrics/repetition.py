"""Which n-grams a set of texts overuses, against how often people write them. Knows no metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

TOP = 40


class Overused(NamedTuple):
    """The n-grams that are overused most, and how many of their occurrences each text holds: [texts]."""

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

"""Blocks of texts, and arrays of numbers of their words: the ground on which metrics and profiles count."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from antislop.core.bans import SENTENCE_END

Longs: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]
NGram: TypeAlias = tuple[str, ...]

BLOCK_CHARACTERS = 1 << 19
"""Characters of texts that are counted at once; a longer text is cut."""
LONGEST_BLOCK = 1 << 21
"""Characters without white space or a comma that are cut anywhere, even within a word."""
VOCABULARY = 1 << 19
"""The most words that are stored by their spelling."""
BASE = 1 << 21
"""The number of a word is below this, so that three of them are digits of one 64-bit number."""

CUTS = [re.compile(rf"(?s:.*){place}") for place in (rf"{SENTENCE_END}(?=\s)", r"\S(?=\s)", "[,;，；、]")]
"""Texts up to their last place for a cut: after a sentence, else where white space begins, else after a comma."""


def cut_blocks(pieces: Iterable[str]) -> Iterator[str]:
    """Yield a text in blocks of about `BLOCK_CHARACTERS` characters. A block ends with a sentence, or else with a word.

    The last block may be short, or empty.
    """
    rest = ""
    for piece in pieces:
        for start in range(0, len(piece), BLOCK_CHARACTERS):
            rest += piece[start : start + BLOCK_CHARACTERS]
            if len(rest) >= BLOCK_CHARACTERS:
                found = next(filter(None, (cut.match(rest) for cut in CUTS)), None)
                end = found.end() if found else len(rest) if len(rest) >= LONGEST_BLOCK else 0
                if end:
                    yield rest[:end]
                    rest = rest[end:]
    yield rest


def hash_word(word: str) -> int:
    """Return a hash of 64 bits, the same in each process."""
    return int.from_bytes(blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def encode_ngrams(words: Longs | NDArray[np.int32], n: int) -> Longs:
    """Return numbers of the n-grams along the last axis, n up to 3; the numbers of their words are the digits."""
    size = max(0, words.shape[-1] - n + 1)
    codes = np.zeros((*words.shape[:-1], size), dtype=np.int64)
    for i in range(n):
        codes = codes * BASE + words[..., i : i + size]
    return codes


def encode_known(grams: Iterable[NGram], numbers: Mapping[str, int], n: int) -> tuple[list[NGram], Longs]:
    """Return the n-grams whose words all have numbers, and the numbers of these n-grams."""
    known = [gram for gram in grams if all(word in numbers for word in gram)]
    words = np.array([[numbers[word] for word in gram] for gram in known], np.int64).reshape(-1, n)
    return known, encode_ngrams(words, n).ravel()


def count_up(runs: Longs) -> Longs:
    """Return the place of each number, which is at least 0, in its run of equal ones.

    >>> count_up(np.array([5, 5, 7, 5]))
    array([0, 1, 0, 0])
    """
    begins = np.flatnonzero(np.diff(runs, prepend=-1))
    return np.arange(len(runs)) - np.repeat(begins, np.diff(begins, append=len(runs)))

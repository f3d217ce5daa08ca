"""What metrics and profiles count in: blocks of texts, and arrays with an integer for each word or n-gram."""

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
"""How many characters of texts are counted at once; a longer text is cut into blocks."""
LONGEST_BLOCK = 1 << 21
"""A text of so many characters without white space or a comma is cut anywhere, even within a word."""
VOCABULARY = 1 << 19
"""How many distinct words are stored by their spelling at most."""
BASE = 1 << 21
"""Numbers of words are below this base, so that three of them fit as digits into one 64-bit number."""

CUTS = [re.compile(rf"(?s:.*){place}") for place in (rf"{SENTENCE_END}(?=\s)", r"\S(?=\s)", "[,;，；、]")]
"""Each matches a text up to its last place for a cut: after a sentence, else before white space, else after a comma."""


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
    """Return a number for each n-gram along the last axis, n up to 3: the numbers of its words, as digits."""
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
    """Return the index of each number in its run of equal numbers; numbers are 0 or more.

    >>> count_up(np.array([5, 5, 7, 5]))
    array([0, 1, 0, 0])
    """
    begins = np.flatnonzero(np.diff(runs, prepend=-1))
    return np.arange(len(runs)) - np.repeat(begins, np.diff(begins, append=len(runs)))

"""How often English words are written, from the package `wordfreq`."""

from __future__ import annotations

from collections.abc import Mapping
from math import log10


def load_frequencies() -> Mapping[str, float]:
    """Load the share of each word in all words. Raises `ImportError` without `wordfreq`."""
    from wordfreq import get_frequency_dict

    return get_frequency_dict("en")


def find_zipf(word: str, frequencies: Mapping[str, float]) -> float:
    """Return the Zipf frequency of a word: log10 of its occurrences in a billion words, 0 if it is unknown."""
    share = frequencies.get(word, 0.0)
    return 9 + log10(share) if share else 0.0

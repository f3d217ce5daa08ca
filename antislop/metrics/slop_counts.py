"""Count slop in finished texts: words and trigrams of a scale, contrasts, and the score computed from the three."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from math import nan

import numpy as np
import regex

from antislop.lists.bundled import read_constructions
from antislop.metrics.bootstrap import Floats
from antislop.metrics.segmentation import Segments
from antislop.metrics.slop_scale import MARGIN, Scale

CONTRASTS = (
    "not-x-but-y",
    "not-just-x-it-is-y",
    "was-not-x-it-was-y",
    "not-about-x-about-y",
    "not-only-but-also",
    "did-not-just-x",
    "no-x-no-y-just",
    "less-x-than-y",
)
"""The bundled constructions that deny one thing to assert another, unlike "Not X. Not Y.", which asserts nothing."""

WEIGHTS = {"slop_words": 0.60, "contrasts": 0.25, "slop_trigrams": 0.15}
"""The weight of each metric in the slop score."""


def count_slop_words(segments: Segments, scale: Scale) -> float:
    """Count the words that the scale lists; NaN if it lists none."""
    return sum(map(scale.words.__contains__, segments.words)) if scale.words else nan


def count_slop_trigrams(segments: Segments, scale: Scale) -> float:
    """Count the trigrams that the scale lists, overlapping ones included; NaN if it lists none."""
    words = segments.content_words if scale.over == "content" else segments.words
    trigrams = scale.trigrams
    return sum(map(trigrams.__contains__, zip(words, words[1:], words[2:], strict=False))) if trigrams else nan


def count_contrasts(text: str) -> int:
    """Count the contrasts of a text; of overlapping ones, only the first.

    Searches the text at once, which is faster than `BanList.find`, with equal results except for overlaps.

    >>> count_contrasts("It was not a door, but a mouth. It wasn't open. It was hungry.")
    2
    """
    spans = sorted(match.span() for pattern in _compile_contrasts() for match in pattern.finditer(text))
    count = end = 0
    for start, stop in spans:
        if start >= end:
            count, end = count + 1, stop
    return count


@cache
def _compile_contrasts() -> tuple[regex.Pattern[str], ...]:
    constructions = read_constructions()
    return tuple(
        regex.compile(construction.ban.phrase) for construction in constructions if construction.name in CONTRASTS
    )


def score_slop(rates: Mapping[str, Floats], scale: Scale) -> Floats:
    """Return the slop score, 0 to 100, of the three rates that `WEIGHTS` names; NaN if the scale lacks a range."""
    score = np.zeros_like(rates["slop_words"])
    for name, weight in WEIGHTS.items():
        if name not in scale.ranges:
            return np.full_like(score, np.nan)
        low, high = scale.ranges[name].widen(MARGIN)
        score += 100 * weight * np.clip((rates[name] - low) / (high - low), 0, 1)
    return score

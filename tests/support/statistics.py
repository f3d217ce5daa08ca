"""Tests of counts against a distribution."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from scipy.stats import chisquare


def p_value(drawn: Mapping[tuple[int, ...], int], expected: Mapping[tuple[int, ...], float]) -> float:
    """Return the p-value of a chi-square test of counts; texts expected less than 5 times are one class."""
    times = sum(drawn.values())
    assert all(expected.get(text, 0) > 0 for text in drawn), "a text was drawn that should never be"
    often = [text for text, share in expected.items() if share * times >= 5]
    counts = [drawn.get(text, 0) for text in often]
    shares = [expected[text] * times for text in often]
    rest = times - sum(shares)
    if rest > 1:
        counts.append(times - sum(counts))
        shares.append(rest)
    return float(chisquare(counts, np.array(shares) * (sum(counts) / sum(shares))).pvalue)

"""Tests of counts against a distribution."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from scipy.optimize import brentq
from scipy.stats import chi2, chisquare, ncx2


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
    assert len(counts) > 1, f"{times} draws are too few to tell"
    return float(chisquare(counts, np.array(shares) * (sum(counts) / sum(shares))).pvalue)


def smallest_deviation(times: int, classes: int, *, level: float = 1e-4, power: float = 0.99) -> float:
    """Return the deviation that a test of `times` draws finds with a probability of `power`.

    It is the root mean square of the relative errors of all probabilities; half of it bounds the total variation.
    """
    freedom, limit = classes - 1, chi2.isf(level, classes - 1)
    noncentrality = brentq(lambda value: ncx2.sf(limit, freedom, value) - power, 1, 1000)
    return float((noncentrality / times) ** 0.5)

"""Quantiles of the normal, Student's t and the gamma distribution, for whole degrees of freedom and shapes.

Both distribution functions are finite sums then, so that no package of statistics is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from math import atan, cos, exp, inf, lgamma, log, pi, sin, sqrt
from statistics import NormalDist

import numpy as np

_REACH = 12.0
"""Standard deviations beyond which a Poisson probability is not added: together they come to under 1e-30."""


def find_normal(chance: float) -> float:
    """Return what a standard normal number stays under with this chance."""
    return NormalDist().inv_cdf(chance)


def find_student(chance: float, freedom: int) -> float:
    """Return what Student's t with `freedom` degrees, 1 or more, stays under with this chance, 0 to 1.

    >>> round(find_student(0.975, 4), 4)
    2.7764
    """
    if chance < 0.5:
        return -find_student(1 - chance, freedom)
    scale = exp(lgamma((freedom + 1) / 2) - lgamma(freedom / 2)) / sqrt(freedom * pi)

    def density(t: float) -> float:
        return scale * exp(-(freedom + 1) / 2 * log(1 + t * t / freedom))

    return _solve(lambda t: (1 + _share_within(t, freedom)) / 2, density, chance, start=find_normal(chance))


def find_gamma(chance: float, shape: int) -> float:
    """Return what a gamma number of this shape, 1 or more, and scale 1 stays under with this chance, 0 to 1.

    >>> round(find_gamma(0.025, 10), 3)
    4.795
    """

    def density(x: float) -> float:
        return exp((shape - 1) * log(x) - x - lgamma(shape)) if x > 0 else 0.0

    cube = 1 - 1 / (9 * shape) + find_normal(chance) / (3 * sqrt(shape))  # Wilson and Hilferty 1931
    return _solve(lambda x: 1 - _sum_poisson(shape, x), density, chance, start=max(shape * cube**3, 1e-3))


def _share_within(t: float, freedom: int) -> float:
    """Return the chance that Student's t lies between -t and t (Abramowitz and Stegun 1964, 26.7.3 and 26.7.4)."""
    angle = atan(t / sqrt(freedom))
    first = freedom % 2
    term, total = (cos(angle) if first else 1.0), 0.0
    for i in range(first, freedom - 1, 2):
        total += term
        term *= cos(angle) ** 2 * (i + 1) / (i + 2)
    return 2 / pi * (angle + sin(angle) * total) if first else sin(angle) * total


def _sum_poisson(count: int, mean: float) -> float:
    """Return the chance of fewer than `count` events where `mean` are expected."""
    reach = _REACH * sqrt(mean) + 4 * _REACH
    first, last = max(0, int(mean - reach)), min(count - 1, int(mean + reach))
    if last < first or mean <= 0:
        return float(mean <= 0)
    steps = np.log(mean) - np.log(np.arange(first + 1, last + 1))
    logs = first * log(mean) - mean - lgamma(first + 1) + np.concatenate([[0.0], np.cumsum(steps)])
    return float(np.exp(logs).sum())


def _solve(
    function: Callable[[float], float], derivative: Callable[[float], float], value: float, *, start: float
) -> float:
    """Return where a growing function reaches a value above 0: Newton's method, halving where it would leave."""
    low, high, x = 0.0, inf, start
    for _ in range(200):
        excess = function(x) - value
        low, high = (low, x) if excess > 0 else (x, high)
        slope = derivative(x)
        step = x - excess / slope if slope > 0 else inf
        if not low < step < high:
            step = 2 * x if high == inf else (low + high) / 2
        if abs(step - x) <= 1e-13 * abs(x):
            return step
        x = step
    return x

"""Quantiles of Student's t and gamma distributions: for integer degrees and shapes, finite sums."""

from __future__ import annotations

from collections.abc import Callable
from math import atan, cos, exp, inf, lgamma, log, pi, sin, sqrt
from statistics import NormalDist

import numpy as np

_REACH = 12.0  # standard deviations beyond which Poisson probabilities sum to less than 1e-30
_NORMAL = NormalDist()


def find_student(probability: float, freedom: int) -> float:
    """Return the quantile of Student's t with `freedom` degrees, 1 or more."""
    if probability < 0.5:
        return -find_student(1 - probability, freedom)
    scale = exp(lgamma((freedom + 1) / 2) - lgamma(freedom / 2)) / sqrt(freedom * pi)

    def density(t: float) -> float:
        return scale * exp(-(freedom + 1) / 2 * log(1 + t * t / freedom))

    return _solve(
        lambda t: (1 + _share_within(t, freedom)) / 2, density, probability, start=_NORMAL.inv_cdf(probability)
    )


def find_gamma(probability: float, shape: int) -> float:
    """Return the quantile of the gamma distribution of scale 1 and an integer shape, 1 or more."""

    def density(x: float) -> float:
        return exp((shape - 1) * log(x) - x - lgamma(shape)) if x > 0 else 0.0

    cube = 1 - 1 / (9 * shape) + _NORMAL.inv_cdf(probability) / (3 * sqrt(shape))  # Wilson and Hilferty 1931
    return _solve(lambda x: 1 - _sum_poisson(shape, x), density, probability, start=max(shape * cube**3, 1e-3))


def _share_within(t: float, freedom: int) -> float:
    """Return the probability of Student's t between -t and t (Abramowitz and Stegun 1964, 26.7.3 and 26.7.4)."""
    angle = atan(t / sqrt(freedom))
    is_odd = freedom % 2
    term, total = (cos(angle) if is_odd else 1.0), 0.0
    for i in range(is_odd, freedom - 1, 2):
        total += term
        term *= cos(angle) ** 2 * (i + 1) / (i + 2)
    return 2 / pi * (angle + sin(angle) * total) if is_odd else sin(angle) * total


def _sum_poisson(count: int, mean: float) -> float:
    """Return the probability of fewer than `count` events if `mean` are expected."""
    reach = _REACH * sqrt(mean) + 4 * _REACH
    start, stop = max(0, int(mean - reach)), min(count - 1, int(mean + reach))
    if stop < start or mean <= 0:
        return float(mean <= 0)
    steps = np.log(mean) - np.log(np.arange(start + 1, stop + 1))
    logs = start * log(mean) - mean - lgamma(start + 1) + np.concatenate([[0.0], np.cumsum(steps)])
    return float(np.exp(logs).sum())


def _solve(
    function: Callable[[float], float], derivative: Callable[[float], float], value: float, *, start: float
) -> float:
    """Return the positive argument at which an increasing function has a value, by Newton's method and bisection."""
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

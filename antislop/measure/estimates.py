"""Values computed from sums over texts, each with a bootstrap interval or the reason why it has no interval."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import log
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from antislop.errors import InputError

Floats: TypeAlias = NDArray[np.float64]

_BATCH = 1 << 20  # numbers in memory at a time


class Intervals(NamedTuple):
    """Values and their bounds, [values] each; bounds are NaN if there are none."""

    values: Floats
    lows: Floats
    highs: Floats


def bootstrap(
    sums: Floats, function: Callable[[Floats], Floats], *, resamples: int = 1000, level: float = 0.95, seed: int = 0
) -> Intervals:
    """Return values computed from sums over texts, with percentile intervals (Efron 1979, doi 10.1214/aos/1176344552).

    sums: [texts, columns]: the contribution of each text, or of each group of texts that are resampled together.
    function: from sums [..., columns] to values [values, ...].
    resamples: 0 gives no bounds.

    A single text and a value that is undefined in any resample have no bounds. An event that never occurred gets the
    interval 0 to 0: see `bound_unseen`.

    >>> sums = np.array([[1.0, 100.0], [3.0, 100.0], [2.0, 200.0]])
    >>> bootstrap(sums, lambda total: total[None, ..., 0] / total[None, ..., 1]).values
    array([0.015])
    """
    if resamples < 0 or not 0 < level < 1:
        raise InputError(f"resamples={resamples!r} and level={level!r}: take 0 or more, and a level between 0 and 1")
    values = function(sums.sum(axis=0))
    if len(sums) < 2 or not resamples:
        return Intervals(values, np.full_like(values, np.nan), np.full_like(values, np.nan))
    texts, samples = len(sums), []
    generator, size = np.random.default_rng(seed), max(1, _BATCH // texts)
    for start in range(0, resamples, size):
        drawn = generator.integers(0, texts, (min(size, resamples - start), texts))
        cells = drawn + texts * np.arange(len(drawn))[:, None]  # [resamples, texts], a number for each pair
        counts = np.bincount(cells.ravel(), minlength=drawn.size).reshape(drawn.shape)
        samples.append(function(counts.astype(np.float64) @ sums))
    tail = (1 - level) / 2
    bounds = np.percentile(np.concatenate(samples, axis=-1), [100 * tail, 100 * (1 - tail)], axis=-1)
    return Intervals(values, *bounds)  # NaN if a value of any resample is NaN


def bound_unseen(trials: float, *, level: float = 0.95) -> float:
    """Return the upper bound of the rate of an event that never occurred in `trials` independent trials.

    At a level of 95 % the bound is 3 / trials, the rule of three (Hanley and Lippman-Hand 1983,
    doi 10.1001/jama.1983.03330370053031). The bound is too low if trials are dependent, as words of a text are.
    """
    return -log(1 - level) / trials


Sums: TypeAlias = Mapping[str, Floats]
"""Sums over texts by name: a number for each text or group of texts, or totals of resamples."""


class Estimate(NamedTuple):
    """A value (None if undefined) and the bounds of its interval (None if there is no interval).

    why: the reason for a missing value or interval, or a caution.
    """

    value: float | None
    low: float | None
    high: float | None
    why: str | None = None

    @classmethod
    def undefined(cls, why: str) -> Estimate:
        return cls(None, None, None, why)

    @property
    def is_chance(self) -> bool:
        """Whether there is an interval that contains 0, so that chance may explain the value."""
        return self.low is not None and self.high is not None and self.low <= 0 <= self.high

    def widen(self, *, high: float, low: float | None = None) -> Estimate:
        """Extend the interval to include `low` and `high`; without an interval, return the same estimate."""
        if self.low is None or self.high is None:
            return self
        return self._replace(low=self.low if low is None else min(self.low, low), high=max(self.high, high))

    def with_caution(self, why: str | None) -> Estimate:
        return self if why is None or self.why else self._replace(why=why)


def estimate(
    sides: Sequence[Sums],
    compute: Callable[..., Sums],
    *,
    explain: Callable[[str], str],
    unbounded: str,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> dict[str, Estimate]:
    """Return estimates by name of the values that `compute` returns, bootstrapped over groups of texts.

    sides: the sums of one side, or of several that are compared: [groups] each, the same groups in the same order.
    compute: from the sums [...] of each side to values [...]; NaN and infinity are undefined.
    explain: returns why the value of a name is undefined.
    unbounded: why a defined value has no interval.
    """

    def stack(totals: Floats) -> Floats:
        ordered = iter(np.moveaxis(totals, -1, 0))
        return np.stack(list(compute(*({name: next(ordered) for name in side} for side in sides)).values()))

    columns = np.stack([column for side in sides for column in side.values()], axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        names = list(compute(*({name: column.sum() for name, column in side.items()} for side in sides)))
        intervals = bootstrap(columns, stack, resamples=resamples, level=level, seed=seed)
    estimates = {}
    for name, *numbers in zip(names, *intervals, strict=True):
        value, low, high = map(float, numbers)
        if not np.isfinite(value):
            estimates[name] = Estimate.undefined(explain(name))
        elif not (np.isfinite(low) and np.isfinite(high)):
            estimates[name] = Estimate(value, None, None, f"no interval: {unbounded}")
        else:
            estimates[name] = Estimate(value, low, high)
    return estimates

"""Values computed from sums over texts, each with an interval, or with the reason why there is none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from antislop.metrics.bootstrap import Floats, bootstrap

Sums: TypeAlias = Mapping[str, Floats]
"""Sums over texts by name: a number for each text or group of texts, or totals of resamples."""


class Estimate(NamedTuple):
    """A value and the bounds of its interval.

    value: None if undefined. low, high: None without an interval. why: the reason for a missing value or interval, or
        a caution.
    """

    value: float | None
    low: float | None
    high: float | None
    why: str | None = None

    @classmethod
    def undefined(cls, why: str) -> Estimate:
        """Return an estimate without a value."""
        return cls(None, None, None, why)

    def widen(self, *, high: float, low: float | None = None) -> Estimate:
        """Extend the interval up to `high` and down to `low`; without an interval, return the estimate unchanged."""
        if self.low is None or self.high is None:
            return self
        return self._replace(low=self.low if low is None else min(self.low, low), high=max(self.high, high))

    def without_interval(self, why: str) -> Estimate:
        """Drop the interval, if there is one, for a reason."""
        return self if self.low is None else self._replace(low=None, high=None, why=f"no interval: {why}")

    def with_caution(self, why: str | None) -> Estimate:
        """Add a caution, unless the estimate already has a reason."""
        return self if why is None or self.why else self._replace(why=why)


def estimate(
    sums: Sums,
    compute: Callable[[Sums], Sums],
    *,
    explain: Callable[[str], str],
    unbounded: str,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> dict[str, Estimate]:
    """Return estimates by name of the values that `compute` returns, bootstrapped over groups of texts.

    sums: [groups] each. compute: from sums [...] by name to values [...] by name; NaN and infinity are undefined.
    explain: returns the reason for which the value of a name is undefined. unbounded: the reason for which a defined
    value has no interval.
    resamples, level, seed: see `bootstrap`.
    """

    def stack(totals: Floats) -> Floats:
        return np.stack(list(compute({name: totals[..., i] for i, name in enumerate(sums)}).values()))

    with np.errstate(divide="ignore", invalid="ignore"):
        names = list(compute({name: column.sum() for name, column in sums.items()}))
        columns = np.stack(list(sums.values()), axis=1)
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


def estimate_pairs(
    sides: tuple[Sums, Sums],
    compare: Callable[[Sums, Sums], Sums],
    *,
    explain: Callable[[str], str],
    unbounded: str,
    **options: Any,
) -> dict[str, Estimate]:
    """Return estimates by name of the values that `compare` computes from two sets of texts, resampled together.

    sides: sums [groups] of each set, over the same groups in the same order. Other arguments: see `estimate`.
    """
    sums = {f"{number} {name}": column for number, side in enumerate(sides) for name, column in side.items()}

    def compute(totals: Sums) -> Sums:
        first_sums, second_sums = (
            {name: totals[f"{number} {name}"] for name in side} for number, side in enumerate(sides)
        )
        return compare(first_sums, second_sums)

    return estimate(sums, compute, explain=explain, unbounded=unbounded, **options)

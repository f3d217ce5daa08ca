"""Quantiles and discoveries are those of scipy, which users need not install."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st
from scipy import stats

from antislop.measure.profiles.profiles import control_discoveries
from antislop.measure.profiles.rates import find_gamma, find_student

CHANCES = (0.0005, 0.005, 0.025, 0.5, 0.9, 0.975, 0.9995)


@pytest.mark.parametrize("chance", CHANCES)
def test_quantiles_are_exact(chance: float) -> None:
    for freedom in (1, 2, 3, 4, 29, 30, 511):
        assert find_student(chance, freedom) == pytest.approx(stats.t.ppf(chance, freedom), rel=1e-10, abs=1e-12)
    for shape in (1, 2, 3, 10, 512, 60_000, 3_000_000):
        assert find_gamma(chance, shape) == pytest.approx(stats.gamma.ppf(chance, shape), rel=1e-8)


@given(st.floats(0.001, 0.999), st.integers(1, 600))
def test_values_stay_under_a_quantile_with_its_probability(chance: float, number: int) -> None:
    assert stats.t.cdf(find_student(chance, number), number) == pytest.approx(chance, rel=1e-9)
    assert stats.gamma.cdf(find_gamma(chance, number), number) == pytest.approx(chance, rel=1e-9)


@given(st.lists(st.floats(0, 1), max_size=30))
def test_false_discoveries_are_controlled_as_by_benjamini_and_hochberg(chances: list[float]) -> None:
    expected = stats.false_discovery_control(chances) if chances else []
    assert control_discoveries(chances) == pytest.approx(list(expected))

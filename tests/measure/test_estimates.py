"""Bootstrap intervals are those of scipy, which users need not install."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from antislop.measure.estimates import bootstrap


@pytest.mark.filterwarnings("ignore:The BCa")
@pytest.mark.parametrize("batch", [1 << 23, 40])
def test_the_percentile_interval_is_that_of_scipy(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antislop.measure.estimates._BATCH", batch)
    sums = np.random.default_rng(3).gamma(2.0, size=(17, 2))

    def ratio(total: Any) -> Any:
        return (total[..., 0] / total[..., 1])[None]

    ours = bootstrap(sums, ratio, resamples=500, level=0.9, seed=5)
    theirs = stats.bootstrap(
        (np.arange(17),),
        lambda drawn, axis: ratio(sums[drawn].sum(axis=-2)),
        n_resamples=500,
        batch=max(1, batch // 17),
        confidence_level=0.9,
        method="percentile",
        vectorized=True,
        rng=np.random.default_rng(5),
    ).confidence_interval
    assert ours.lows == pytest.approx(theirs.low)
    assert ours.highs == pytest.approx(theirs.high)

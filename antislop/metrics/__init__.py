"""Metrics of texts: slop, repetition, variety, distance to human writing. No torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from antislop.lazy import import_lazily

if TYPE_CHECKING:
    from antislop.metrics.definitions import Metric
    from antislop.metrics.estimates import Estimate
    from antislop.metrics.metrics import measure
    from antislop.metrics.slop_scale import Scale
    from antislop.metrics.tally import Tally
else:
    __getattr__, __dir__ = import_lazily(
        __name__,
        {
            "definitions": ["Metric"],
            "estimates": ["Estimate"],
            "metrics": ["measure"],
            "slop_scale": ["Scale"],
            "tally": ["Tally"],
        },
    )

__all__ = [
    "Estimate",
    "Metric",
    "Scale",
    "Tally",
    "measure",
]

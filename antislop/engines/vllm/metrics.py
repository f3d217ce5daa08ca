"""What bans did, among the metrics of vLLM's server.

A plug-in for metrics would have vLLM gather them for every engine, also where they are switched off and bans are not
asked for. So the logger that vLLM has anyway counts what the scheduler sends it beside its own figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, wraps
from typing import Any

from antislop.engines.vllm.requests import KEY

COUNTERS = {
    "rewinds": "Rewinds of finished texts",
    "withdrawn_tokens": "Tokens that bans withdrew from finished texts",
    "conceded": "Banned phrases in finished texts that were let through",
    "list_wait_seconds": "How long requests waited until their lists of bans were compiled",
}
CARRIER = "num_kv_fetch_reqs_by_stage"
"""The field of vLLM's statistics that takes whole numbers by name, and whose readers ask for names that they know."""
UNIT = 1e-6
"""Of what is sent."""


def write_counts(stats: Any, counts: Mapping[str, float]) -> None:
    """Add to the statistics of a scheduler what bans have done since the last ones."""
    getattr(stats, CARRIER).update({f"{KEY}:{name}": round(count / UNIT) for name, count in counts.items()})


@cache
def show_counts() -> None:
    """Have vLLM's server show the counts beside its own metrics. Does nothing when called again."""
    from vllm.v1.metrics.loggers import PrometheusStatLogger

    record = PrometheusStatLogger.record

    @wraps(record)
    def record_bans(logger: Any, stats: Any, *args: Any, **kwargs: Any) -> None:
        record(logger, stats, *args, **kwargs)
        for name, counter in make_counters().items():
            sent = 0 if stats is None else getattr(stats, CARRIER).get(f"{KEY}:{name}", 0)
            counter.labels(kwargs.get("engine_idx", 0)).inc(sent * UNIT)

    PrometheusStatLogger.record = record_bans


@cache
def make_counters() -> dict[str, Any]:
    """Register the counters with Prometheus, in the process that shows them."""
    from prometheus_client import Counter

    return {name: Counter(f"{KEY}:{name}", text, ["engine"]) for name, text in COUNTERS.items()}

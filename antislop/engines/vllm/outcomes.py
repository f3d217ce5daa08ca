"""Tell what bans did inside vLLM: for each text as JSON in its output, and for the server among vLLM's metrics.

A plug-in for metrics would have vLLM gather metrics for every engine, also where they are switched off or no bans are
used. So vLLM's existing logger also counts what the scheduler sends about bans beside its own figures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, wraps
from typing import Any

from antislop.core.bans import Ban, Surfaces
from antislop.core.trace import Admitted, Conceded, Drawn, Event, Finished, Report, Rewound
from antislop.engines.vllm.requests import KEY
from antislop.explain.trace_file import read_event, write_event

COUNTS = ("violations", "rewinds", "withdrawn_tokens", "conceded", "admitted")
COUNTERS = {
    "rewinds": "Rewinds of finished texts",
    "withdrawn_tokens": "Tokens that bans withdrew from finished texts",
    "conceded": "Banned phrases in finished texts that were let through",
    "list_wait_seconds": "How long requests waited until their lists of bans were compiled",
}
CARRIER = "num_kv_fetch_reqs_by_stage"
"""The field of vLLM's statistics that carries the counts: it takes whole numbers by name; readers skip other names."""
UNIT = 1e-6
"""The unit in which counts are sent, as whole numbers."""


def describe(report: Report, events: Sequence[Event] | None, bans: Sequence[Ban]) -> dict[str, Any]:
    """Return the counts of a report, and the events unless they are None, for JSON; bans become their list numbers."""
    counts: dict[str, Any] = {name: getattr(report, name) for name in COUNTS}
    if report.rewinds_by_part:
        counts["rewinds_by_part"] = dict(report.rewinds_by_part)
    if events is None:
        return counts
    numbers = {ban: number for number, ban in enumerate(bans)}
    told = [replace(event, alternatives=()) if isinstance(event, Rewound) else event for event in events]
    return {**counts, "events": [write_event(event, numbers) for event in told], "reason": report.reason}


def read_report(
    described: Mapping[str, Any], tokens: Sequence[int], bans: Sequence[Ban], *, surfaces: Surfaces | None = None
) -> Report:
    """Return the report of a text, with its events. described: what `describe` returned, with events."""
    report = Report(surfaces=surfaces)
    outcomes = [read_event(outcome, bans) for outcome in described["events"]]
    for event in rebuild_events(tokens, outcomes):
        report.add(event)
    report.add(Finished(described["reason"] or "done", 0.0))
    return report


def rebuild_events(tokens: Sequence[int], outcomes: Sequence[Event]) -> Iterator[Event]:
    """Yield the outcomes of a text's bans, and the tokens that were drawn between them.

    >>> from antislop import Ban
    >>> from antislop.core.bans import Violation
    >>> rewound = Rewound(1, (7, 8), Violation(Ban("a b"), 1, 2))
    >>> [type(event).__name__ for event in rebuild_events([5, 6], [rewound])]
    ['Drawn', 'Drawn', 'Drawn', 'Rewound', 'Drawn']
    """
    befores, after = list[list[int]](), list(tokens)
    for event in reversed(outcomes):  # the text before each outcome, from the last one to the first
        if isinstance(event, Rewound):
            after = [*after[: event.length], *event.withdrawn]
        befores.append(after)
    text: list[int] = []
    for event, before in zip(outcomes, reversed(befores), strict=True):
        length = len(before)
        if isinstance(event, (Conceded, Admitted)):
            length = min(length, event.violation.end + 1)
        yield from map(Drawn.plain, before[len(text) : length])
        text = before[: max(length, len(text))]
        yield event
        if isinstance(event, Rewound):
            text = before[: event.length]
    yield from map(Drawn.plain, tokens[len(text) :])


def write_counts(stats: Any, counts: Mapping[str, float]) -> None:
    """Add to a scheduler's statistics the counts of what bans have done since the previous statistics."""
    getattr(stats, CARRIER).update({f"{KEY}:{name}": round(count / UNIT) for name, count in counts.items()})


@cache
def show_counts() -> None:
    """Have vLLM's server show the counts of bans beside its own metrics. Does nothing when called again."""
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
    """Register the counters of bans with Prometheus, in the process that shows them, and return them by name."""
    from prometheus_client import Counter

    return {name: Counter(f"{KEY}:{name}", text, ["engine"]) for name, text in COUNTERS.items()}

"""Write what bans did to a text as JSON, for vLLM's output, and make a report from that JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from antislop.core.bans import Ban, Surfaces
from antislop.core.trace import Admitted, Conceded, Drawn, Event, Finished, Report, Rewound, read_event, write_event

COUNTS = ("violations", "rewinds", "withdrawn_tokens", "conceded", "admitted")


def describe(report: Report, events: Sequence[Event] | None, bans: Sequence[Ban]) -> dict[str, Any]:
    """Return the counts of a report, and events that are not None; bans are numbered as in their list."""
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
    """Return the report of a text, with its events. described: with the events."""
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
    for event in reversed(outcomes):  # the text before each outcome, from the end: a rewind leaves its beginning
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

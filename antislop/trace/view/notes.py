"""Sentences about a text that its struck parts don't show: why it ended, what was conceded, what was given up."""

from __future__ import annotations

from collections.abc import Iterator

from antislop.display import make_visible
from antislop.trace.console import describe_conceded
from antislop.trace.events import Dropped, Finished, Forked
from antislop.trace.report import Report
from antislop.trace.traced_row import TracedRow


def list_notes(row: TracedRow) -> list[str]:
    """Return the sentences, in order of importance.

    >>> list_notes(TracedRow((), []))
    ['The text is unfinished: its events end here.']
    """
    return [
        make_visible(note)
        for note in (*_explain_fork(row), *_explain_end(row), *_explain_conceded(row), *_list_dropped(row))
    ]


def _explain_fork(row: TracedRow) -> Iterator[str]:
    for event in row.events:
        if isinstance(event, Forked):
            count = f"{event.length:,} {'token' if event.length == 1 else 'tokens'}"
            yield f"A controller forked this text from text {event.parent} after {count}: branch {event.branch_idx}."


def _explain_end(row: TracedRow) -> Iterator[str]:
    ends = [event for event in row.events if isinstance(event, Finished)]
    if not ends:
        yield "The text is unfinished: its events end here."
    for end in ends:
        if end.reason == "exhausted":
            cause = f", since {end.forced_by} rules out all else" if end.forced_by else ""
            yield f"The text ends early: every continuation was banned{cause}."
        elif end.reason == "failed":
            yield "The text ends early: the model returned no probabilities to draw from."


def _explain_conceded(row: TracedRow) -> Iterator[str]:
    if text := describe_conceded(Report.of(row.events)):
        yield f"{text[:1].upper()}{text[1:]}."


def _list_dropped(row: TracedRow) -> Iterator[str]:
    for event in row.events:
        if isinstance(event, Dropped):
            yield f"The regex {event.ban.phrase!r} took too long, and was no longer searched for."

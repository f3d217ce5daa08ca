"""Rows of a batch in step, for criteria and processors that look at all rows at once.

`generate` calls the criteria with all rows after each token, so no row draws its token n + 1 before all have n tokens
and the criteria were called with these. After a rewind they are called again for the later steps; rows that the first
answers ended then resume, or end elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence

from antislop.core.loop.row import CallbackMemory, Row
from antislop.core.loop.sources import Source


def advance_together(sources: Sequence[Source], history: CallbackMemory) -> None:
    """Ask the criteria about each step that all rows have reached, let the rows walk on, and settle final tokens."""
    while _is_due(sources, history.step_count + 1):
        _ask(sources, history)
        for source in sources:
            source.walk()
    _settle(sources, history)


def _is_due(sources: Sequence[Source], step: int) -> bool:
    rows = [source.row for source in sources]
    is_open = any(row.end is None or row.end >= step for row in rows)
    return is_open and all(row.end is not None or len(row.tokens) >= step for row in rows)


def _ask(sources: Sequence[Source], history: CallbackMemory) -> None:
    # An end that completes a ban rewinds its row, which undoes the answer.
    step = history.step_count + 1
    for source, is_done in zip(sources, history.ask(), strict=True):
        if is_done and (source.row.end is None or source.row.end > step):
            source.end_at(step)
            if history.step_count < step:
                break
    for source in sources:
        source.wait(history.step_count)


def _settle(sources: Sequence[Source], history: CallbackMemory) -> None:
    floor = _find_floor([source.row for source in sources if not source.row.is_finished])
    for source in sources:
        row = source.row
        if row.end is None:
            source.settle(floor)
        elif not row.is_finished and row.end <= floor:
            source.conclude()
    history.settle(floor)


def _find_floor(rows: Sequence[Row]) -> int:
    """Return the length that every row has settled, including rows whose end is provisional.

    A row may be longer than another row and be cut to the other row's length, at which it had fewer settled tokens. The
    returned length allows for one such cut. If a second cut follows from the first, the judge refuses to rewind settled
    text.
    """
    ends = [row.end or 0 for row in rows]
    floor = min((row.settleable for row in rows if row.end is None), default=max(ends, default=0))
    while (lower := min((row.settleable for row in rows if (row.end or 0) > floor), default=floor)) < floor:
        floor = lower
    if len(rows) == 1 or all(floor >= end > 0 for end in ends):
        return floor
    return min(row.settleable_at(min(len(row.tokens), floor + 1)) for row in rows)

"""The loop: one forward pass for all unfinished rows, then each row's source adds tokens until it needs the next one.

It knows neither what the tokens mean nor what computes the logits nor who draws.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import TypeAlias

from antislop.core.loop.drawing import draw_together, fill_paths, select
from antislop.core.loop.engine import Engine, ForwardPass
from antislop.core.loop.lockstep import advance_together
from antislop.core.loop.row import CallbackMemory, Drafter, Row
from antislop.core.loop.scheduler import Scheduler
from antislop.core.loop.sources import Source
from antislop.core.loop.tables import LogitsBatch
from antislop.core.trace.events import Event, Forwarded

StepEvents: TypeAlias = list[tuple[Row, list[Event]]]
"""What happened to some rows after a forward pass."""


def decode(scheduler: Scheduler, engine: Engine) -> Iterator[tuple[Row, Event]]:
    """Generate until the scheduler has no more texts; yield (row, event) as things happen."""
    for step in decode_in_steps(scheduler, engine):
        for row, events in step:
            for event in events:
                yield row, event


def decode_in_steps(scheduler: Scheduler, engine: Engine) -> Iterator[StepEvents]:
    """Generate as `decode` does; yield what follows each forward pass at once."""
    batches: list[LogitsBatch] = []  # with rows that a rewind may still need
    while (yield from _admit(scheduler, engine, batches)):
        scheduler.drop_canceled()
        if not scheduler.is_writing:  # the last text was canceled while the next one was prepared, or read in parts
            continue
        _draft(scheduler.sources)
        step, latest = _advance(scheduler.sources, engine.forward(scheduler.rows))
        # The latest batch is trimmed after the next step only: until then, a row may still make a table of it.
        batches[:] = [batch for batch in batches if batch.trim()] + latest
        yield step
        yield from _place_copies(scheduler, engine)


def _admit(scheduler: Scheduler, engine: Engine, batches: list[LogitsBatch]) -> Generator[StepEvents, None, bool]:
    """Read prompts of new texts, in one pass if written texts wait for it; return whether any text is being written."""
    while scheduler.admit():
        in_parts = scheduler.reads_in_parts
        yield from _read(scheduler, engine, batches, in_parts=in_parts)
        if in_parts:
            break
    if scheduler.has_gaps and engine.can_select:
        engine.select(scheduler.close_gaps())
    return scheduler.is_writing


def _read(scheduler: Scheduler, engine: Engine, batches: list[LogitsBatch], *, in_parts: bool) -> Iterator[StepEvents]:
    sources = scheduler.reading
    prompt_pass = engine.read([source.row for source in sources], in_parts=in_parts)
    for source, fed in zip(sources, prompt_pass.fed, strict=True):
        if fed:
            source.row.events.append(Forwarded(fed, 0))
    if read := [source for source, is_read in zip(sources, prompt_pass.is_read, strict=True) if is_read]:
        scheduler.place(read)
        step, latest = _advance(read, engine.replace(scheduler.rows, [source.row.index for source in read]))
        batches += latest
        yield step
        yield from _place_copies(scheduler, engine)


def _draft(sources: Sequence[Source]) -> None:
    """Have each drafter draft for all of its rows together."""
    # A function, so that a loop that waits for texts refers to no finished one.
    drafting: dict[Drafter, list[Row]] = {}
    for source in sources:
        row = source.row
        if (drafter := row.spec.drafter) is not None and row.tokens and not (row.is_finished or row.is_waiting):
            drafting.setdefault(drafter, []).append(row)
    for drafter, rows in drafting.items():
        for row, draft in zip(rows, drafter.propose(rows), strict=True):
            row.take_draft(draft)


def _advance(sources: Sequence[Source], forward_pass: ForwardPass) -> tuple[StepEvents, list[LogitsBatch]]:
    """Give each unfinished row its logits, draw, and walk on; return what happened, and the logits."""
    _note_costs(sources, forward_pass)
    last = forward_pass.logits[:, -1]
    batches, places, rows = [LogitsBatch(last, last, dtype=forward_pass.dtype)], [], []
    for place, source in enumerate(sources):
        row = source.row
        if not (row.is_finished or row.is_waiting) and source.read(batches[0], place):
            row.unchanged = len(row.tokens)
            places.append(place)
            rows.append(row)
        elif row.is_finished and row.kept is not None:
            row.after_end.append(last[place : place + 1])
    logits = forward_pass.logits if len(places) == len(sources) else select(forward_pass.logits, places)
    if any(row.draft.proposed for row in rows):
        batches.append(fill_paths(rows, logits, dtype=forward_pass.dtype))
        for place in places:
            sources[place].walk()
    elif rows:
        draws = draw_together(rows, logits[:, -1], places=places, batch=len(sources), dtype=forward_pass.dtype)
        batches.append(draws.batch)
        for number, place in enumerate(places):
            sources[place].add_draw(draws, number)
    for group, history in _groups(sources):
        advance_together(group, history)
    return _release(sources), batches


def _release(sources: Sequence[Source]) -> StepEvents:
    rows = [source.row for source in sources if source.row.events]
    return [(row, row.release()) for row in rows]


def _place_copies(scheduler: Scheduler, engine: Engine) -> Iterator[StepEvents]:
    """Place the copies that wait for a row; walk on with them and the rows that they come from."""
    while waiting := [source for source in scheduler.sources if source.copies]:
        for source in waiting:
            copies, source.copies = source.copies, []
            for copy in copies:
                scheduler.place_copy(copy, of=source.row)
            copied = {copy.row.index for copy in copies}
            engine.select([source.row.index if i in copied else i for i in range(len(scheduler.rows))])
            for each in (source, *copies):
                each.walk()
            yield _release([source, *copies])


def _groups(sources: Sequence[Source]) -> list[tuple[list[Source], CallbackMemory]]:
    histories = {id(s.row.history): s.row.history for s in sources if s.row.history is not None}
    return [
        ([s for s in sources if s.row.history is history], history)
        for history in histories.values()
        if history.is_lockstep
    ]


def _note_costs(sources: Sequence[Source], forward_pass: ForwardPass) -> None:
    one_token = Forwarded(1, 0)  # the usual event, which rows can share because it is a value
    for source, fed, cut in zip(sources, forward_pass.fed, forward_pass.cut, strict=True):
        if fed and not source.row.is_finished:
            source.row.events.append(one_token if fed == 1 and not cut else Forwarded(fed, cut))

"""The loop: one forward pass for all unfinished rows, then each row's source adds tokens until it needs the next one.

It knows neither what the tokens mean nor what computes the logits nor who draws.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence

from antislop.control.branches import CapabilityError
from antislop.decoding.drawing import fill_and_draw, fill_paths, select
from antislop.decoding.engine import Engine, ForkingEngine, ForwardPass, SelectingEngine
from antislop.decoding.lockstep import advance_together
from antislop.decoding.row import CallbackMemory, Row
from antislop.decoding.scheduler import Scheduler
from antislop.decoding.sources import Source
from antislop.trace.events import Event, Forwarded


def decode(scheduler: Scheduler, engine: Engine) -> Iterator[tuple[Row, Event]]:
    """Generate until the scheduler has no more texts; yield (row, event) as things happen."""
    for events in decode_in_steps(scheduler, engine):
        yield from events


def decode_in_steps(scheduler: Scheduler, engine: Engine) -> Iterator[list[tuple[Row, Event]]]:
    """Generate as `decode` does; yield the events that follow each forward pass as one list."""
    while (yield from _admit(scheduler, engine)):
        scheduler.drop_canceled()
        _draft(scheduler.sources)
        yield _advance(scheduler.sources, engine.forward(scheduler.rows))
        yield from _place_copies(scheduler, engine)


def _admit(scheduler: Scheduler, engine: Engine) -> Generator[list[tuple[Row, Event]], None, bool]:
    """Read prompts of new texts, in one pass if others wait; return whether any text is being written."""
    while scheduler.admit():
        in_parts = scheduler.reads_in_parts
        yield from _read(scheduler, engine, in_parts=in_parts)
        if in_parts:
            break
    if isinstance(engine, SelectingEngine) and engine.can_select and (places := scheduler.close_gaps()):
        engine.select(places)
    return scheduler.is_writing


def _read(scheduler: Scheduler, engine: Engine, *, in_parts: bool) -> Iterator[list[tuple[Row, Event]]]:
    sources = scheduler.reading
    prompt_pass = engine.read([source.row for source in sources], in_parts=in_parts)
    for source, fed in zip(sources, prompt_pass.fed, strict=True):
        if fed:
            source.row.events.append(Forwarded(fed, 0))
    if read := [source for source, is_read in zip(sources, prompt_pass.is_read, strict=True) if is_read]:
        scheduler.place(read)
        yield _advance(read, engine.replace(scheduler.rows, [source.row.index for source in read]))
        yield from _place_copies(scheduler, engine)


def _draft(sources: Sequence[Source]) -> None:
    # A function, so that a loop that waits for texts refers to no finished one.
    for source in sources:
        source.draft()


def _advance(sources: Sequence[Source], forward_pass: ForwardPass) -> list[tuple[Row, Event]]:
    """Give each unfinished row its logits, draw, and walk on; return what happened."""
    places = [place for place, s in enumerate(sources) if not (s.row.is_finished or s.row.is_waiting)]
    _note_costs(sources, forward_pass)
    places = [place for place in places if sources[place].read(forward_pass.logits, place)]
    rows = [sources[place].row for place in places]
    logits = forward_pass.logits if len(places) == len(sources) else select(forward_pass.logits, places)
    drawn: Sequence[int | None] = [None] * len(rows)
    if any(row.draft.proposed for row in rows):
        fill_paths(rows, logits)
    elif rows:
        drawn = fill_and_draw(rows, logits[:, -1], places=places, batch=len(sources))
    for place, token in zip(places, drawn, strict=True):
        sources[place].row.unchanged = len(sources[place].row.tokens)
        sources[place].walk(token)
    for group, history in _groups(sources):
        advance_together(group, history)
    return _release(sources)


def _release(sources: Sequence[Source]) -> list[tuple[Row, Event]]:
    events = [(source.row, event) for source in sources for event in source.row.events]
    for source in sources:
        source.row.events.clear()
    return events


def _place_copies(scheduler: Scheduler, engine: Engine) -> Iterator[list[tuple[Row, Event]]]:
    """Place the copies that wait for a row; walk on with them and the rows that they come from."""
    while waiting := [source for source in scheduler.sources if source.copies]:
        for source in waiting:
            copies, source.copies = source.copies, []
            for copy in copies:
                scheduler.place_copy(copy, of=source.row)
            if not isinstance(engine, ForkingEngine):
                raise CapabilityError(f"a controller forks, and a {type(engine).__name__} can't copy rows")
            for copy in copies:
                engine.fork(source.row.index, copy.row.index)
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

"""The loop: one forward pass for all unfinished rows, then each row's source adds tokens until it needs the next one.

It knows neither what the tokens mean nor what computes the logits nor who draws.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from typing import TypeAlias, TypeVar

from antislop.core.loop.drawing import draw_together, fill_paths, select
from antislop.core.loop.engine import BatchEngine, Engine, ForwardPass
from antislop.core.loop.protocols import LanguageModel, RewindableCache
from antislop.core.loop.row import CallbackMemory, Drafter, Row, RowSpec
from antislop.core.loop.scheduler import Scheduler
from antislop.core.loop.sources import Source
from antislop.core.loop.tables import LogitsBatch
from antislop.core.trace.events import Event, Forwarded

T = TypeVar("T")
StepEvents: TypeAlias = list[tuple[Row, list[Event]]]
"""What happened to some rows after a forward pass."""


def write_rows(specs: Sequence[RowSpec], model: LanguageModel, cache: RewindableCache, *, filler: int) -> list[Row]:
    """Write texts together to their ends, and return their rows. The cache may hold what precedes their prompts.

    filler: the token that finished rows are fed.
    """
    rows = [Row(spec, number=index, index=index) for index, spec in enumerate(specs)]
    for _ in decode_in_steps(Scheduler(rows=rows), BatchEngine(model, cache, filler=filler)):
        pass
    return rows


def decode_in_steps(scheduler: Scheduler, engine: Engine) -> Iterator[StepEvents]:
    """Generate until the scheduler has no more texts; yield what happened after each forward pass."""
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
            try:
                row.take_draft(draft)
            except Exception as fault:  # noqa: BLE001 - its source raises it, or ends the text
                row.blame(fault)


def _advance(sources: Sequence[Source], forward_pass: ForwardPass) -> tuple[StepEvents, list[LogitsBatch]]:
    """Give each unfinished row its logits, draw, and walk on; return what happened, and the logits."""
    one_token = Forwarded(1, 0)  # the usual event, which rows can share because it is a value
    for source, fed, cut in zip(sources, forward_pass.fed, forward_pass.cut, strict=True):
        if fed and not source.row.is_finished:
            source.row.events.append(one_token if fed == 1 and not cut else Forwarded(fed, cut))
    last = forward_pass.logits[:, -1]
    batches, places, rows = [LogitsBatch(last, last, dtype=forward_pass.dtype)], [], []
    for place, source in enumerate(sources):
        row = source.row
        if not (row.is_finished or row.is_waiting) and go_on(source, partial(source.read, batches[0], place)):
            row.unchanged = len(row.tokens)
            places.append(place)
            rows.append(row)
        elif row.is_finished and row.kept is not None:
            row.after_end.append(last[place : place + 1])
    logits = forward_pass.logits if len(places) == len(sources) else select(forward_pass.logits, places)
    if any(row.draft.proposed for row in rows):
        batches.append(fill_paths(rows, logits, dtype=forward_pass.dtype))
        for place in places:
            go_on(sources[place], sources[place].walk)
    elif rows:
        draws = draw_together(rows, logits[:, -1], places=places, batch=len(sources), dtype=forward_pass.dtype)
        batches.append(draws.batch)
        for number, place in enumerate(places):
            go_on(sources[place], partial(sources[place].add_draw, draws, number))
    histories = {id(source.row.history): source.row.history for source in sources}
    for history in histories.values():
        if history is not None and history.is_lockstep:
            followed = [source for source in sources if source.row.history is history]
            go_on(followed[0], partial(advance_together, followed, history))  # of one text, unless `generate` has more
    return _release(sources), batches


def go_on(source: Source, step: Callable[[], T]) -> T | None:
    """Let a source go on; an error of what is called for its text alone ends this text, and no other one."""
    try:
        if source.row.fault is not None:  # of a call for several rows
            raise source.row.fault
        return step()
    except Exception as fault:  # noqa: BLE001 - it is raised again if it is not the text's own
        source.fail(fault)
        return None


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
                go_on(each, each.walk)
            yield _release([source, *copies])


# -- rows in step, for criteria and processors that look at all rows of a batch at once -------------------------------


def advance_together(sources: Sequence[Source], history: CallbackMemory) -> None:
    """Ask the criteria about each step that all rows have reached, let the rows walk on, and settle final tokens.

    `generate` calls the criteria with all rows after each token, so no row draws its token n + 1 before all have n
    tokens and the criteria were called with these. After a rewind they are called again for the later steps; rows that
    the first answers ended then resume, or end elsewhere.
    """
    while True:
        step, rows = history.step_count + 1, [source.row for source in sources]
        is_open = any(row.end is None or row.end >= step for row in rows)
        if not (is_open and all(row.end is not None or len(row.tokens) >= step for row in rows)):
            break
        _ask_criteria(sources, history)
        for source in sources:
            source.walk()
    floor = _find_floor([source.row for source in sources if not source.row.is_finished])
    for source in sources:
        row = source.row
        if row.end is None:
            source.settle(floor)
        elif not row.is_finished and row.end <= floor:
            source.conclude()
    history.settle(floor)


def _ask_criteria(sources: Sequence[Source], history: CallbackMemory) -> None:
    # An end that completes a ban rewinds its row, which undoes the answer.
    step = history.step_count + 1
    for source, is_done in zip(sources, history.ask(), strict=True):
        if is_done and (source.row.end is None or source.row.end > step):
            source.end_at(step)
            if history.step_count < step:
                break
    for source in sources:
        source.wait(history.step_count)


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

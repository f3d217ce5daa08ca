"""The loop: one forward pass for all unfinished rows, then each row gets tokens until it needs the next pass.

    forward   the engine reads what each row lacks                        logits [rows, positions, vocab]
    scores    processors make scores of the logits that a draw needs      scores [n, vocab]
    draw      one token for each of n rows, as `generate` draws it        tokens [n], and the matcher's states
    take      each row takes its token; bans may rewind it, and it then draws again from stored scores
    settle    tokens that no rewind can reach any more become an event

The loop knows neither what the tokens mean nor what computes the logits.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from typing import TypeAlias, TypeVar

from antislop.core.loop.drawing import draw_together, fill_paths, select
from antislop.core.loop.engine import BatchEngine, Engine, ForwardPass
from antislop.core.loop.protocols import LanguageModel, RewindableCache
from antislop.core.loop.row import Drafter, Row, RowSpec
from antislop.core.loop.scheduler import Scheduler
from antislop.core.loop.tables import LogitsBatch
from antislop.core.loop.writing import conclude, end_at, settle
from antislop.core.trace.events import Event, Forwarded, Truncated

ONE_TOKEN = Forwarded(1, 0)
"""The usual event of a forward pass; rows can share this object, since it never changes."""

T = TypeVar("T")
StepEvents: TypeAlias = list[tuple[Row, list[Event]]]
"""The events of some rows after a forward pass."""


def write_rows(specs: Sequence[RowSpec], model: LanguageModel, cache: RewindableCache, *, filler: int) -> list[Row]:
    """Write texts together to their ends, and return their rows. The cache may hold tokens that precede the prompts.

    filler: the token that finished rows are fed.
    """
    rows = [Row(spec, number=index, index=index) for index, spec in enumerate(specs)]
    for _ in decode_in_steps(Scheduler(rows=rows), BatchEngine(model, cache, filler=filler)):
        pass
    return rows


def decode_in_steps(scheduler: Scheduler, engine: Engine) -> Iterator[StepEvents]:
    """Generate until the scheduler has no more texts; yield the rows' events after each forward pass."""
    batches: list[LogitsBatch] = []  # with rows that a rewind may still need
    while (yield from _admit(scheduler, engine, batches)):
        scheduler.drop_canceled()
        if not scheduler.is_writing:  # the last text was canceled while the next one was prepared, or read in parts
            continue
        _draft(scheduler.rows)
        step, latest = _advance(scheduler.rows, engine.forward(scheduler.rows))
        # The latest batch is trimmed after the next step only: until then, a row may still make a table of it.
        batches[:] = [batch for batch in batches if batch.trim()] + latest
        yield step
        yield from _place_forks(scheduler, engine)


def _admit(scheduler: Scheduler, engine: Engine, batches: list[LogitsBatch]) -> Generator[StepEvents, None, bool]:
    """Read prompts of new texts, in only one pass if other texts wait; return whether a text is being written."""
    while scheduler.admit():
        reading, in_parts = scheduler.reading, scheduler.reads_in_parts
        prompt_pass = engine.read(reading, in_parts=in_parts)
        for row, fed in zip(reading, prompt_pass.fed, strict=True):
            if fed:
                row.events.append(Forwarded(fed, 0))
        if read := [row for row, is_read in zip(reading, prompt_pass.is_read, strict=True) if is_read]:
            scheduler.place(read)
            step, latest = _advance(read, engine.replace(scheduler.rows, [row.index for row in read]))
            batches += latest
            yield step
            yield from _place_forks(scheduler, engine)
        if in_parts:
            break
    if scheduler.has_gaps and engine.can_select:
        engine.select(scheduler.close_gaps())
    return scheduler.is_writing


def _draft(rows: Sequence[Row]) -> None:
    """Have each drafter draft for all of its rows together."""
    # A function, so that no local variable keeps a finished text while the loop waits for new ones.
    drafting: dict[Drafter, list[Row]] = {}
    for row in rows:
        if (drafter := row.spec.drafter) is not None and row.tokens and not (row.is_finished or row.is_waiting):
            drafting.setdefault(drafter, []).append(row)
    for drafter, drafted in drafting.items():
        for row, draft in zip(drafted, drafter.propose(drafted), strict=True):
            try:
                row.take_draft(draft)
            except Exception as fault:  # noqa: BLE001 - the step raises it, or ends the text
                row.blame(fault)


def _advance(rows: Sequence[Row], forward_pass: ForwardPass) -> tuple[StepEvents, list[LogitsBatch]]:
    """Give each unfinished row its logits, draw, and walk on; return the rows' events, and the batches of logits."""
    # -- forward: logits float32 [rows, positions, vocab]; the last position follows the last token of a row
    logits, dtype = forward_pass.logits, forward_pass.dtype
    for row, fed, cut in zip(rows, forward_pass.fed, forward_pass.cut, strict=True):
        if fed and not row.is_finished:
            row.events.append(ONE_TOKEN if fed == 1 and not cut else Forwarded(fed, cut))
    batches, places = list[LogitsBatch](), list[int]()  # places: of the rows that get a token now, [n]
    for place, row in enumerate(rows):
        draws_now: bool | None = not (row.is_finished or row.is_waiting)
        if draws_now and row.spec.controller is not None:  # the controller goes first, and may leave nothing to draw
            batches = batches or [LogitsBatch(logits[:, -1], logits[:, -1], dtype=dtype)]
            draws_now = go_on(row, partial(row.drawing.read, row, batches[0], place))
        if draws_now:
            row.unchanged = len(row.tokens)
            places.append(place)
        elif row.is_finished and row.kept is not None:
            row.after_end.append(logits[place : place + 1, -1])
    drawing = [rows[place] for place in places]
    if len(places) < len(rows):
        logits = select(logits, places)  # [n, positions, vocab]
    # -- scores and draw: one token for each row; along a draft, the rows draw their tokens one after the other
    if any(row.draft.proposed for row in drawing):
        batches.append(fill_paths(drawing, logits, dtype=dtype))
        for row in drawing:
            go_on(row, partial(row.drawing.walk, row))
    elif drawing:
        draws = draw_together(drawing, logits[:, -1], places=places, batch=len(rows), dtype=dtype)
        batches.append(draws.batch)
        # -- take
        for number, row in enumerate(drawing):
            go_on(row, partial(row.drawing.take, row, draws, number))
    # -- settle: a row alone settles tokens as it takes them; rows in lockstep only together, once all have a token
    for follower in {id(row.follower): row.follower for row in rows if row.is_lockstep}.values():
        followed = [row for row in rows if row.follower is follower]
        go_on(followed[0], partial(advance_together, followed))  # one row, unless `generate` has more
    return _release(rows), batches


def go_on(row: Row, step: Callable[[], T]) -> T | None:
    """Call the next step of a text, and return its result; an error of this text's own ends this text, and no other."""
    try:
        if row.fault is not None:  # noted in an earlier call for several rows
            raise row.fault
        return step()
    except Exception as fault:  # noqa: BLE001 - `blame` raises it again if it is not the text's own
        row.blame(fault)
        # The text's own callbacks and controller are not called any more.
        row.follower, row.is_lockstep, row.drawing.forks, row.reason = None, False, [], "failed"
        # Tokens since the step began may not have been judged.
        if (length := max(row.settled, row.unchanged)) < len(row.tokens):
            row.events.append(Truncated(length, row.rewind(length)))
        conclude(row)
        return None


def _release(rows: Sequence[Row]) -> StepEvents:
    return [(row, row.release()) for row in rows if row.events]


def _place_forks(scheduler: Scheduler, engine: Engine) -> Iterator[StepEvents]:
    """Give each waiting fork a row; walk on with the forks and with the rows that they were copied from."""
    while waiting := [row for row in scheduler.rows if row.drawing.forks]:
        for row in waiting:
            forks, row.drawing.forks = row.drawing.forks, []
            for fork in forks:
                scheduler.place_fork(fork, of=row)
            forked = {fork.index for fork in forks}
            engine.select([row.index if i in forked else i for i in range(len(scheduler.rows))])
            for each in (row, *forks):
                go_on(each, partial(each.drawing.walk, each))
            yield _release([row, *forks])


# -- rows in step, for criteria and processors that look at all rows of a batch at once -------------------------------


def advance_together(rows: Sequence[Row]) -> None:
    """Ask the criteria about each step that all rows have reached, let the rows walk on, and settle final tokens.

    `generate` calls the criteria with all rows after each token, so no row draws its token n + 1 before all have n
    tokens and the criteria were called with these. After a rewind they are called again for the later steps; rows that
    the first answers ended then resume, or end elsewhere.
    """
    callbacks = rows[0].follower
    assert callbacks is not None, "rows are in lockstep because of callbacks that follow them"
    while True:
        step = callbacks.step_count + 1
        is_open = any(row.end is None or row.end >= step for row in rows)
        if not (is_open and all(row.end is not None or len(row.tokens) >= step for row in rows)):
            break
        for row, is_done in zip(rows, callbacks.ask(), strict=True):
            if is_done and (row.end is None or row.end > step):
                end_at(row, step)
                if callbacks.step_count < step:  # an end that completes a ban rewinds its row: that undoes the answer
                    break
        asked = callbacks.step_count
        for row in rows:
            if row.end is not None and row.end > asked and not row.ends_itself:
                row.end = None  # the answer that ended it was about withdrawn text
            row.is_waiting = row.end is not None or len(row.tokens) > asked
        for row in rows:
            row.drawing.walk(row)
    floor = _find_floor([row for row in rows if not row.is_finished])
    for row in rows:
        if row.end is None:
            settle(row, floor)
        elif not row.is_finished and row.end <= floor:
            conclude(row)
    callbacks.settle(floor)


def _find_floor(rows: Sequence[Row]) -> int:
    """Return the length that every row has settled, including rows whose end is provisional.

    A row may be longer than another row and be cut to the other row's length, at which it had fewer settled tokens. The
    returned length allows for one such cut. If a second cut follows from the first, the judge refuses to rewind settled
    text. If no ban has begun in any row, no cut could reach below, but that hardly ever holds for eight rows at once.
    """
    ends = [row.end or 0 for row in rows]
    floor = min((row.settleable for row in rows if row.end is None), default=max(ends, default=0))
    while (lower := min((row.settleable for row in rows if (row.end or 0) > floor), default=floor)) < floor:
        floor = lower
    if len(rows) == 1 or all(floor >= end > 0 for end in ends):
        return floor
    return min(row.settleable_at(min(len(row.tokens), floor + 1)) for row in rows)

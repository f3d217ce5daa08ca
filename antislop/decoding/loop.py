"""The loop: one forward pass for all unfinished rows, then each row walks until it needs the next one.

Everything that happens is yielded as an event. The loop knows neither what the tokens mean nor
what computes the logits.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from antislop.control.branches import CapabilityError
from antislop.decoding.controlled import ControlledWalker
from antislop.decoding.drawing import fill_and_draw, fill_paths, select
from antislop.decoding.lockstep import advance_together
from antislop.decoding.row import History, Row
from antislop.decoding.scheduler import Scheduler
from antislop.decoding.walker import Walker
from antislop.trace.events import Event, Forwarded


class ForwardPass(NamedTuple):
    """One forward pass of a batch.

    logits: float32 [rows, positions, vocab]; the last position follows a row's last token, or that of its draft.
    fed, cut: the number of tokens that each row read, and of those that were removed from its cache before.
    """

    logits: Tensor
    fed: Sequence[int]
    cut: Sequence[int]


class Engine(Protocol):
    """What computes the logits: all that the loop needs of a model and its cache."""

    def forward(self, rows: Sequence[Row]) -> ForwardPass:
        """Read the unread tokens of each row and its draft; finished rows are fed fillers to stay in step."""

    def replace(self, rows: Sequence[Row], place: int) -> ForwardPass:
        """Read the prompt of the new row at a place, which belonged to a finished one; the others stay as they are."""


@runtime_checkable
class ForkingEngine(Engine, Protocol):
    """An engine for controllers that fork."""

    def fork(self, place: int, target: int) -> None:
        """Copy the row at a place to another one, or to a new one behind the last."""


def decode(scheduler: Scheduler, engine: Engine) -> Iterator[tuple[Row, Event]]:
    """Generate until the scheduler has no more texts; yield (row, event) as things happen.

    A finished row gives its place to the next text while the others continue.
    """
    for events in decode_in_steps(scheduler, engine):
        yield from events


def decode_in_steps(scheduler: Scheduler, engine: Engine) -> Iterator[list[tuple[Row, Event]]]:
    """Generate as `decode` does; yield the (row, event) pairs that follow each forward pass as one list."""
    while (yield from _admit(scheduler, engine)):
        scheduler.drop_canceled()
        _draft(scheduler.walkers)
        yield _advance(scheduler.walkers, engine.forward(scheduler.rows))
        yield from _fork(scheduler, engine)


def _admit(scheduler: Scheduler, engine: Engine) -> Generator[list[tuple[Row, Event]], None, bool]:
    """Read the prompts of new texts and draw their first tokens; return whether any text is being written."""
    for walker in scheduler.admit():
        yield _advance([walker], engine.replace(scheduler.rows, walker.row.place))
        yield from _fork(scheduler, engine)
    return not scheduler.idle


def _draft(walkers: Sequence[Walker]) -> None:
    """Propose tokens for all rows; a function, so that a loop that waits for texts refers to no finished one."""
    for walker in walkers:
        walker.draft()


def _advance(walkers: Sequence[Walker], forward_pass: ForwardPass) -> list[tuple[Row, Event]]:
    """Fill nodes from a forward pass, draw in all unfinished rows, and walk on from there; return what happened."""
    places = [place for place, w in enumerate(walkers) if not (w.row.is_finished or w.row.is_waiting)]
    _note_costs(walkers, forward_pass)
    places = _walk_controlled(walkers, places, forward_pass.logits)
    rows = [walkers[place].row for place in places]
    logits = forward_pass.logits if len(places) == len(walkers) else select(forward_pass.logits, places)
    drawn: Sequence[int | None] = [None] * len(rows)
    if any(row.draft.proposed for row in rows):
        fill_paths(rows, logits)
    elif rows:
        drawn = fill_and_draw(rows, logits[:, -1], places=places, batch=len(walkers))
    for place, token in zip(places, drawn, strict=True):
        walker = walkers[place]
        walker.row.unchanged = len(walker.row.tokens)
        if walker.row.draft.proposed:
            walker.walk_drafted()
        else:
            walker.walk(token)
    for group, history in _groups(walkers):
        advance_together(group, history)
    return _release(walkers)


def _release(walkers: Sequence[Walker]) -> list[tuple[Row, Event]]:
    """Return what has happened to rows since the last call."""
    events = [(walker.row, event) for walker in walkers for event in walker.events]
    for walker in walkers:
        walker.events.clear()
    return events


def _fork(scheduler: Scheduler, engine: Engine) -> Iterator[list[tuple[Row, Event]]]:
    """Give rows to the branches that wait for one, and let these and the rows that they come from walk on."""
    while forking := scheduler.list_forking():
        for walker in forking:
            copies = [scheduler.fork(walker, fork) for fork in walker.forks]
            if not isinstance(engine, ForkingEngine):
                raise CapabilityError(f"a controller forks, and a {type(engine).__name__} can't copy rows")
            for copy in copies:
                engine.fork(walker.row.place, copy.row.place)
            walker.forks.clear()
            for row_walker in (walker, *copies):
                row_walker.walk()
            yield _release([walker, *copies])


def _walk_controlled(walkers: Sequence[Walker], places: Sequence[int], logits: Tensor) -> list[int]:
    """Let rows walk that have a controller, each by itself; return the places of the others."""
    others = []
    for place in places:
        walker = walkers[place]
        if isinstance(walker, ControlledWalker):
            walker.row.unchanged = len(walker.row.tokens)
            walker.read(logits[place, -1:])
            walker.walk()
        else:
            others.append(place)
    return others


def _groups(walkers: Sequence[Walker]) -> list[tuple[list[Walker], History]]:
    """Return the rows whose criteria are called together, with the history that they share."""
    histories = {id(w.row.history): w.row.history for w in walkers if w.row.history is not None}
    return [
        ([w for w in walkers if w.row.history is history], history)
        for history in histories.values()
        if history.is_together
    ]


def _note_costs(walkers: Sequence[Walker], forward_pass: ForwardPass) -> None:
    """Note what a forward pass cost the unfinished rows."""
    one_token = Forwarded(1, 0)  # the usual event, which rows can share because it is a value
    for walker, fed, cut in zip(walkers, forward_pass.fed, forward_pass.cut, strict=True):
        if fed and not walker.row.is_finished:
            walker.events.append(one_token if fed == 1 and not cut else Forwarded(fed, cut))

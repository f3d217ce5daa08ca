"""The loop: one forward pass for all rows that go on, then each walks as far as it gets.

Everything that happens is yielded as an event, and nothing else is. The loop knows neither what the tokens mean nor
what computes the logits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from antislop.decoding.lockstep import advance_together
from antislop.decoding.protocols import send
from antislop.decoding.row import History, Row
from antislop.decoding.walker import NONE_DRAWN, Drafter, Policy, Walker
from antislop.matching.token_matcher import Matcher
from antislop.trace.events import Event, Forwarded


class Passes(NamedTuple):
    """One forward pass of a batch.

    logits: float32 [rows, positions, vocab]; the last position is the one after a row's last token, or that of its
    draft. fed, cut: the tokens that each row read, and those that were taken out of its cache for that.
    """

    logits: Tensor
    fed: Sequence[int]
    cut: Sequence[int]


class Engine(Protocol):
    """What the loop needs of whatever computes."""

    def forward(self, rows: Sequence[Row]) -> Passes:
        """Read what each row has that was not read yet, and its draft; finished rows are kept up with the others."""

    def replace(self, rows: Sequence[Row], place: int) -> Passes:
        """Read the prompt of the new row at a place, which belonged to a finished one; the others stay as they are."""


def decode(
    rows: Sequence[Row],
    *,
    engine: Engine,
    matcher: Matcher,
    policy: Policy,
    queue: Iterable[Row] = (),
    places: int = 0,
    drafter: Drafter | None = None,
) -> Iterator[tuple[int, Event]]:
    """Generate until every row is finished; yield (number of the text, event) as things happen.

    Texts are numbered as they come: first the rows, then those of the queue, each of which takes the place of a
    finished row while the others go on. Without rows, the first of the queue make up a batch of up to `places`.
    """
    walkers = [Walker(number, row, matcher=matcher, policy=policy, drafter=drafter) for number, row in enumerate(rows)]
    coming: Iterator[Row] | None = iter(queue)
    started = len(walkers)
    while True:
        for place in range(max(len(walkers), 0 if rows else places)) if coming else ():
            while place >= len(walkers) or walkers[place].row.is_finished:
                row = next(coming, None) if coming else None
                if row is None:
                    coming = None
                    break
                row.place = place
                walkers[place : place + 1] = [Walker(started, row, matcher=matcher, policy=policy, drafter=drafter)]
                started += 1
                passes = engine.replace([walker.row for walker in walkers], place)
                yield from _advance([walkers[place]], passes, policy=policy)
        if all(walker.row.is_finished for walker in walkers):
            return
        for walker in walkers if drafter else ():
            walker.draft()
        yield from _advance(walkers, engine.forward([walker.row for walker in walkers]), policy=policy)


def _advance(walkers: Sequence[Walker], passes: Passes, *, policy: Policy) -> Iterator[tuple[int, Event]]:
    """Fill nodes with what a forward pass says, draw in all rows that go on, and walk on from there."""
    going = [number for number, w in enumerate(walkers) if not (w.row.is_finished or w.row.is_waiting)]
    rows = [walkers[number].row for number in going]
    logits = passes.logits if len(going) == len(walkers) else passes.logits[_index(going, passes.logits)]
    _note(walkers, passes)
    first: Sequence[int | None] = [None] * len(rows)
    if any(row.draft.proposed for row in rows):
        _fill_paths(rows, logits)
    else:
        first = _fill_and_draw(rows, logits[:, -1], among=len(walkers), at=going, policy=policy).tolist()
    for number, token in zip(going, first, strict=True):
        walker = walkers[number]
        walker.row.unchanged = len(walker.row.tokens)
        if walker.row.draft.proposed:
            walker.walk_drafted()
        else:
            walker.walk(token)
    for group, history in _groups(walkers):
        advance_together(group, history)
    for walker in walkers:
        for event in walker.events:
            yield walker.number, event
        walker.events.clear()


def _is_in_step(row: Row) -> bool:
    return row.history is not None and row.history.is_together


def _groups(walkers: Sequence[Walker]) -> list[tuple[list[Walker], History]]:
    """Return the rows that are asked about together, with what they share."""
    histories = {id(w.row.history): w.row.history for w in walkers if w.row.history is not None and _is_in_step(w.row)}
    return [([w for w in walkers if w.row.history is history], history) for history in histories.values()]


def _note(walkers: Sequence[Walker], costs: Passes) -> None:
    """Take note of what a pass cost the rows that go on."""
    usual = Forwarded(1, 0)  # most are, and they are values
    for walker, fed, cut in zip(walkers, costs.fed, costs.cut, strict=True):
        if fed and not walker.row.is_finished:
            walker.events.append(usual if fed == 1 and not cut else Forwarded(fed, cut))


def _fill_and_draw(rows: Sequence[Row], logits: Tensor, *, among: int, at: Sequence[int], policy: Policy) -> Tensor:
    """Fill each row's node from logits [n, vocab], and draw its first token there together, as `generate` does: [n].

    `NONE_DRAWN` for a row of its own random numbers that has no probabilities; without these, torch refuses to draw.
    """
    scores = _process(rows, [len(row.tokens) for row in rows], logits)
    for number, row in enumerate(rows):
        row.node.fill(logits, scores, row=number)
    if not policy.do_sample:
        drawn = scores.argmax(dim=-1)  # of a NaN, where there is one
        is_broken = scores.gather(1, drawn[:, None])[:, 0].isnan()
        return drawn.masked_fill(is_broken, NONE_DRAWN) if rows[0].is_alone else drawn
    probs = torch.softmax(scores, dim=-1)
    for row in rows:
        row.node.expect(probs)
    if rows[0].is_alone:
        is_broken = probs[:, 0].isnan()  # then so is the whole row
        if probs.device.type != "cpu" or is_broken.any():  # to ask a device would mean to wait for it
            probs = probs.masked_fill(is_broken[:, None], 1.0)
        each = zip(rows, probs, strict=True)
        drawn = torch.cat([torch.multinomial(own, num_samples=1, generator=row.generator) for row, own in each])
        return drawn.masked_fill(is_broken, NONE_DRAWN)
    if len(rows) == among:
        return torch.multinomial(probs, num_samples=1)[:, 0]
    index = _index(at, probs)  # finished rows take random numbers, too
    everyone = probs.new_ones((among, probs.shape[1])).index_copy(0, index, probs)
    return torch.multinomial(everyone, num_samples=1)[index, 0]


def _index(numbers: Sequence[int], like: Tensor) -> Tensor:
    return send(torch.tensor(numbers), like.device)


def _fill_paths(rows: Sequence[Row], logits: Tensor) -> None:
    """Fill the nodes along each row's draft, its own node first, from logits [rows, positions, vocab]."""
    at = [(row, i, step) for i, row in enumerate(rows) for step in range(len(row.draft.tokens) + 1)]
    flat = torch.stack([logits[i, step - len(row.draft.tokens) - 1] for row, i, step in at])
    scores = _process([row for row, _, _ in at], [len(row.tokens) + step for row, _, step in at], flat)
    for number, (row, _, step) in enumerate(at):
        node = row.node
        for token in row.draft.tokens[:step]:
            node = node.child(token)
        if not node.is_filled:
            node.fill(flat, scores, row=number)


def _process(rows: Sequence[Row], lengths: Sequence[int], logits: Tensor) -> Tensor:
    """Have each row's settings make scores of its logits, those of rows that share them together."""
    settings = rows[0].settings
    if all(row.settings is settings for row in rows):
        return settings.process(rows, lengths, logits)
    scores = [
        row.settings.process([row], [length], logits[i : i + 1])
        for i, (row, length) in enumerate(zip(rows, lengths, strict=True))
    ]
    return torch.cat(scores)

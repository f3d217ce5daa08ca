"""Draw tokens from logits as `generate` does, for many rows together, and again from what a violation has left."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import takewhile

import torch
from torch import Tensor

from antislop.core.bans.token_matcher import State
from antislop.core.loop import tables
from antislop.core.loop.forced import LookAhead
from antislop.core.loop.ledger import Node
from antislop.core.loop.protocols import count_shared, send
from antislop.core.loop.row import NO_DRAFT, Row
from antislop.core.loop.tables import DenseTable, Draws, LogitsBatch, find_dense
from antislop.core.loop.writing import add, end, judge_latest
from antislop.core.trace.events import Drafted, Drawn, Reason, Rewound, Settled

NONE_DRAWN = -1
"""No token can be drawn: all probabilities are NaN."""
NONE_ALLOWED = -2
"""No token can be drawn: the row's restriction and the processors rule out all of them."""


class LogitsDrawing:
    """What `antislop.core.loop.row.Drawing` says, for a row whose tokens are drawn here.

    forks: none; a controller's row has some.
    """

    def __init__(self) -> None:
        self.forks: list[Row] = []

    def read(self, row: Row, batch: LogitsBatch, place: int) -> bool:  # noqa: ARG002
        return True

    def take(self, row: Row, draws: Draws, number: int) -> None:
        drawn, state = draws.events[number], draws.states[number]
        row.set_table(partial(DenseTable, draws.batch, number))
        if drawn.token == NONE_DRAWN:
            self.end(row, "failed")
            return
        row.append(drawn.token, state)
        row.events.append(drawn)
        is_done = row.spec.callbacks.is_done(row)
        # No ban has begun in the latest tokens, as nearly always: the ledger needs no node.
        is_passed = not state.violations and state.settled_length == len(row.tokens) - 1
        if is_passed and not (is_done or row.keeps_ledger or row.spec.matcher.timed_out):
            if tokens := row.pass_over(state.settled_length):
                row.events.append(Settled.of(tuple(tokens)))
            return
        judge_latest(row, drawn.token, is_done=is_done)
        self._draw_known(row)

    def walk(self, row: Row) -> None:
        if not row.draft.proposed:
            self._draw_known(row)
            return
        draft, before, length = row.draft.tokens, len(row.events), len(row.tokens)
        table = find_dense(row.node)
        if draft and table is not None and table.is_broken(do_sample=row.spec.policy.do_sample):
            # The model gave NaN for the text and its draft. The draft may be the reason: read the text without drafts.
            row.spec = replace(row.spec, drafter=None)
            row.node.replace_table(None)
        else:
            self._draw_known(row)
        kept = takewhile(lambda event: not isinstance(event, Rewound), row.events[before:])
        accepted = count_shared([event.token for event in kept if isinstance(event, Drawn)], draft)
        if row.spec.drafter is not None:
            row.spec.drafter.learn(row, proposed=len(draft), accepted=accepted)
        row.draft = NO_DRAFT
        if row.follower is not None and accepted < len(draft):
            row.follower.rewind(row, min(length + accepted, len(row.tokens)))
        row.events.append(Drafted(len(draft), accepted))

    def _draw_known(self, row: Row) -> None:
        """Draw and add tokens as long as the ledger has a distribution: after a rewind, and along a draft."""
        while row.node.table is not None and not (row.is_finished or row.is_waiting):
            token = draw(row)
            if token == NONE_DRAWN:
                self.end(row, "failed")
                return
            add(row, describe(row, token))

    def end(self, row: Row, reason: Reason) -> None:
        end(row, reason)

    def has_choice(self, row: Row, node: Node, *, avoided: Node | None = None) -> bool:
        if not node.is_scarce(row.spec.policy.mass_floor):
            return True
        table = find_dense(node)
        return table is not None and (
            _keep_likely(row, node, table, avoided=avoided, start=node.depth) or _look_further(row, node, table)
        )

    def draws_others(self, node: Node) -> bool:  # noqa: ARG002
        return True

    def is_stuck(self, row: Row, start: Node) -> bool:  # noqa: ARG002
        return False

    def look_ahead(self, row: Row, node: Node) -> LookAhead | None:
        return None if row.follower is None else row.follower.look_ahead(row, node.depth)


def draw(row: Row) -> int:
    """Draw at the row's node, with the draft's token as a proposal as long as the text follows the draft."""
    table, draft, spec = find_dense(row.node), row.draft, row.spec
    assert table is not None, "no forward pass has reached this node"
    do_sample = spec.policy.do_sample
    if row.has_own_generator and table.is_broken(do_sample=do_sample):
        return NONE_DRAWN
    step = len(row.tokens) - row.unchanged
    is_along = step < len(draft.proposed) and row.tokens[row.unchanged :] == draft.tokens[:step]
    if do_sample and draft.proposals is not None and is_along:
        return table.draw_beside(draft.proposed[step], draft.proposals[step], generator=spec.generator)
    return table.draw(do_sample=do_sample, generator=spec.generator)


def describe(row: Row, token: int) -> Drawn:
    """Return a draw at the row's node, with its alternatives if the row records them."""
    count, table = row.spec.alternatives, find_dense(row.node)
    if count is None or table is None:
        return Drawn.plain(token)
    return Drawn(token, table.describe_choice(token, alternatives=count))


def _keep_likely(row: Row, node: Node, table: DenseTable, *, avoided: Node | None, start: int) -> bool:
    """Keep only the likely tokens, at a node and below it; return whether any is left."""
    left = table.remaining
    candidates = _find_likely(row, table, left / table.probs) & (left > 0)
    for token, child in node.children.items():
        below = find_dense(child)
        if candidates[token] and below is not None and child.is_scarce(row.spec.policy.mass_floor, start=start):
            candidates[token] = child is not avoided and _keep_likely(row, child, below, avoided=avoided, start=start)
    if candidates.any():
        table.keep_only(candidates)
        return True
    return False


def _look_further(row: Row, node: Node, table: DenseTable) -> bool:
    """Apply top-k, top-p and min-p to the logits without used-up tokens; return whether a token is left."""
    if row.follower is not None and not row.follower.may_ask_again(node.depth):
        return False
    spent = table.probs > 0
    table.spent = spent = spent if table.spent is None else table.spent | spent
    rest = table.logits.masked_fill(spent.to(table.logits.device), -torch.inf)
    if table.restrict is not None:
        rest = table.restrict(rest[0])[None]
    scores = row.spec.callbacks.process([row], [node.depth], rest)[0].cpu()
    candidates = _find_likely(row, table) & ~spent & (scores > -torch.inf)
    if not candidates.any():
        return False
    table.replace_distribution(torch.softmax(scores.masked_fill(~candidates, -torch.inf), dim=-1))
    node.forget_masses()
    return True


def _find_likely(row: Row, table: DenseTable, share: Tensor | float = 1.0) -> Tensor:
    """Return whether a share of each token is likely under the model's own logits, bool [vocab] on the host."""
    likely = torch.softmax(table.logits[0], dim=-1).cpu() * share >= row.spec.policy.probability_floor
    for token in row.spec.callbacks.eos_token_ids:  # a text does not end merely because the rest is banned
        likely[token : token + 1] = False
    return likely


# -- many rows together ------------------------------------------------------------------------------------------------


def draw_together(
    rows: Sequence[Row], logits: Tensor, *, places: Sequence[int], batch: int, dtype: torch.dtype = torch.float32
) -> Draws:
    """Draw each row's next token from logits [n, vocab], with one wait for their device.

    places: of the rows in a batch of `batch` rows.
    dtype: as in `LogitsBatch`.
    Without probabilities, a row with its own generator gets `NONE_DRAWN`; for others, torch raises. A row whose scores
    are all −inf because of its restriction gets `NONE_ALLOWED`.
    """
    allowed, is_restricted = logits, any(row.restrict for row in rows)
    if is_restricted:
        pairs = zip(rows, logits, strict=True)
        allowed = torch.stack([each if row.restrict is None else row.restrict(each) for row, each in pairs])
    scores = _process(rows, [len(row.tokens) for row in rows], allowed)
    counts = [row.spec.alternatives for row in rows]
    is_recorded = any(count is not None for count in counts)
    has_probs = is_recorded or any(row.spec.policy.do_sample for row in rows)
    probs = torch.softmax(scores, dim=-1) if has_probs else scores
    made = LogitsBatch(logits, scores, dtype=dtype)
    made.probs = probs if has_probs else None
    if is_restricted:
        is_empty = (scores == -torch.inf).all(dim=-1)
        probs = probs.masked_fill(is_empty[:, None], 1.0)
        drawn = _draw(rows, scores, probs, places=places, batch=batch).masked_fill(is_empty, NONE_ALLOWED)
    else:
        drawn = _draw(rows, scores, probs, places=places, batch=batch)
    events = _describe(drawn, probs, counts) if is_recorded else list(map(Drawn.plain, drawn.tolist()))
    return Draws(made, events, _feed(rows, events))


def take_drawn(
    rows: Sequence[Row], tokens: Sequence[int], logits: Tensor, scores: Tensor, *, dtype: torch.dtype
) -> Draws:
    """Return the draws of tokens that an engine has drawn for rows, from scores [n, vocab] made of these logits."""
    events = list(map(Drawn.plain, tokens))
    return Draws(LogitsBatch(logits, scores, dtype=dtype), events, _feed(rows, events))


def _describe(drawn: Tensor, probs: Tensor, counts: Sequence[int | None]) -> list[Drawn]:
    """Read drawn tokens [n], and the choices of those rows that record them, in one transfer to the host."""
    described = tables.describe_draws(probs, probs, drawn.clamp(min=0), max(count or 0 for count in counts))
    rows: list[list[float]] = torch.cat([drawn[:, None].float(), described], dim=1).tolist()
    return [
        Drawn(int(numbers[0]), None if count is None else tables.read_choice(numbers[1:], count))
        for numbers, count in zip(rows, counts, strict=True)
    ]


def _feed(rows: Sequence[Row], events: Sequence[Drawn]) -> list[State]:
    # A clock for each row would cost as much as most tokens do.
    began = time.perf_counter()
    try:
        states = [row.spec.matcher.feed(row.state, event.token) for row, event in zip(rows, events, strict=True)]
    except Exception as fault:  # noqa: BLE001 - each row by itself then raises it, or keeps it
        if len(rows) == 1:
            rows[0].blame(fault)
            return [rows[0].state]
        return [_feed([row], [event])[0] for row, event in zip(rows, events, strict=True)]
    seconds = (time.perf_counter() - began) / len(rows)
    for row in rows:
        row.matcher_seconds += seconds
    return states


def _draw(rows: Sequence[Row], scores: Tensor, probs: Tensor, *, places: Sequence[int], batch: int) -> Tensor:
    """Draw tokens [n]; in groups if some rows sample, or have generators of their own, and others do not."""
    ways = [(row.spec.policy.do_sample, row.spec.generator is None) for row in rows]
    if ways.count(ways[0]) == len(ways):
        return _draw_alike(rows, scores, probs, places=places, batch=batch)
    drawn = torch.empty(len(rows), dtype=torch.long, device=scores.device)
    for way in set(ways):
        numbers = [number for number, row_way in enumerate(ways) if row_way == way]
        index = _index(numbers, scores)
        group = [rows[number] for number in numbers]
        drawn[index] = _draw_alike(group, scores[index], probs[index], places=range(len(group)), batch=len(group))
    return drawn


def _draw_alike(rows: Sequence[Row], scores: Tensor, probs: Tensor, *, places: Sequence[int], batch: int) -> Tensor:
    """Draw [n] in rows that all sample or are all greedy, and all have generators of their own or none has."""
    if not rows[0].spec.policy.do_sample:
        drawn = scores.argmax(dim=-1)  # the index of a NaN, if there is one
        is_broken = scores.gather(1, drawn[:, None])[:, 0].isnan()
        return drawn.masked_fill(is_broken, NONE_DRAWN) if rows[0].has_own_generator else drawn
    if rows[0].has_own_generator:  # so that no text depends on those beside it
        # One NaN makes the whole row NaN.
        return draw_by_inversion(rows, probs).masked_fill(probs[:, 0].isnan(), NONE_DRAWN)
    if len(rows) == batch:
        return torch.multinomial(probs, num_samples=1)[:, 0]
    index = _index(places, probs)  # in `generate`, finished rows consume random numbers, too
    all_probs = probs.new_ones((batch, probs.shape[1])).index_copy(0, index, probs)
    return torch.multinomial(all_probs, num_samples=1)[index, 0]


def draw_by_inversion(rows: Sequence[Row], probs: Tensor) -> Tensor:
    """Draw [n] by one random number for each row, made on the host: a device would be called once for each row."""
    shares = [1 - tables.draw_uniform(row.spec.generator, dtype=torch.float64) for row in rows]
    if probs.device.type == "cpu":  # row by row: new memory for the sums of all rows costs four times as much
        pairs = zip(map(tables.fill_blocks, probs), shares, strict=True)
        return torch.tensor([tables.draw_by_share(own, share, sums=tables.sum_blocks(own)) for own, share in pairs])
    dtype = torch.float32 if probs.device.type == "mps" else torch.float64  # which has no float64
    sums = probs.cumsum(dim=-1, dtype=dtype)
    reached = send(torch.tensor(shares, dtype=dtype)[:, None], probs.device) * sums[:, -1:]
    return torch.searchsorted(sums, reached)[:, 0]


def select(logits: Tensor, places: Sequence[int]) -> Tensor:
    return logits[_index(places, logits)]


def _index(numbers: Sequence[int], like: Tensor) -> Tensor:
    return send(torch.tensor(numbers, dtype=torch.long), like.device)


def fill_paths(rows: Sequence[Row], logits: Tensor, *, dtype: torch.dtype) -> LogitsBatch:
    """Fill the nodes along each row's draft, its own node first, from logits [rows, positions, vocab]."""
    positions = [(row, i, step) for i, row in enumerate(rows) for step in range(len(row.draft.tokens) + 1)]
    flat = torch.stack([logits[i, step - len(row.draft.tokens) - 1] for row, i, step in positions])
    scores = _process([row for row, _, _ in positions], [len(row.tokens) + step for row, _, step in positions], flat)
    batch = LogitsBatch(flat, scores, dtype=dtype)
    for number, (row, _, step) in enumerate(positions):
        node = row.node
        for token in row.draft.tokens[:step]:
            node = node.child(token)
        if node.table is None:
            node.table = DenseTable(batch, number)
    return batch


def _process(rows: Sequence[Row], lengths: Sequence[int], logits: Tensor) -> Tensor:
    """Return the scores of each row, NaN where its processors fail; rows with the same settings share a call."""
    groups: dict[int, list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        groups[id(row.spec.callbacks)].append(number)
    if len(groups) == 1:
        return _process_alike(rows, lengths, logits)
    scores = torch.empty_like(logits)
    for numbers in groups.values():
        index = numbers[0] if len(numbers) == 1 else _index(numbers, logits)
        group_logits = logits[index].view(len(numbers), -1)
        scores[index] = _process_alike([rows[i] for i in numbers], [lengths[i] for i in numbers], group_logits)
    return scores


def _process_alike(rows: Sequence[Row], lengths: Sequence[int], logits: Tensor) -> Tensor:
    try:
        return rows[0].spec.callbacks.process(rows, lengths, logits)
    except Exception as fault:  # noqa: BLE001 - as in `_feed`
        if len(rows) == 1 or not rows[0].has_own_generator:
            if not (rows[0].has_own_generator and logits.isnan().any()):  # of which no token is drawn, whoever fails
                rows[0].blame(fault)
            return torch.full_like(logits, torch.nan)
        alone = zip(rows, lengths, logits, strict=True)  # to see whose error it is
        return torch.cat([_process_alike([row], [length], own[None]) for row, length, own in alone])

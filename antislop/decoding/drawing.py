"""Draw the next token of a row, or of many rows together, as `generate` does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from antislop.decoding.protocols import send
from antislop.decoding.row import Row
from antislop.decoding.tables import DenseTable, find_dense

NONE_DRAWN = -1
"""No token can be drawn: all probabilities are NaN."""


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


def fill_and_draw(rows: Sequence[Row], logits: Tensor, *, places: Sequence[int], batch: int) -> list[int]:
    """Fill each row's node from logits [n, vocab], and draw its next token there.

    places: of the rows in a batch of `batch` rows.
    Without probabilities, a row with its own generator gets `NONE_DRAWN`; for others, torch raises.
    """
    scores = _process(rows, [len(row.tokens) for row in rows], logits)
    ways = [(row.spec.policy.do_sample, row.has_own_generator) for row in rows]
    probs = torch.softmax(scores, dim=-1) if any(do_sample for do_sample, _ in ways) else scores
    for number, (row, (do_sample, _)) in enumerate(zip(rows, ways, strict=True)):
        row.node.table = DenseTable(logits, scores, row=number, probs=probs if do_sample else None)
    if len(set(ways)) == 1:
        return _draw(rows, scores, probs, places=places, batch=batch).tolist()
    drawn = torch.empty(len(rows), dtype=torch.long, device=scores.device)
    for way in set(ways):
        numbers = [number for number, row_way in enumerate(ways) if row_way == way]
        index = _index(numbers, scores)
        group = [rows[number] for number in numbers]
        drawn[index] = _draw(group, scores[index], probs[index], places=range(len(group)), batch=len(group))
    return drawn.tolist()


def _draw(rows: Sequence[Row], scores: Tensor, probs: Tensor, *, places: Sequence[int], batch: int) -> Tensor:
    """Draw [n] in rows that all sample or are all greedy, and all have generators of their own or none has."""
    if not rows[0].spec.policy.do_sample:
        drawn = scores.argmax(dim=-1)  # the index of a NaN, if there is one
        is_broken = scores.gather(1, drawn[:, None])[:, 0].isnan()
        return drawn.masked_fill(is_broken, NONE_DRAWN) if rows[0].has_own_generator else drawn
    if rows[0].has_own_generator:
        return _draw_alone(rows, probs)
    if len(rows) == batch:
        return torch.multinomial(probs, num_samples=1)[:, 0]
    index = _index(places, probs)  # in `generate`, finished rows consume random numbers, too
    all_probs = probs.new_ones((batch, probs.shape[1])).index_copy(0, index, probs)
    return torch.multinomial(all_probs, num_samples=1)[index, 0]


def _draw_alone(rows: Sequence[Row], probs: Tensor) -> Tensor:
    is_broken = probs[:, 0].isnan()  # one NaN makes the whole row NaN
    if probs.device.type != "cpu" or is_broken.any():  # asking another device would mean waiting for it
        probs = probs.masked_fill(is_broken[:, None], 1.0)
    pairs = zip(rows, probs, strict=True)
    drawn = [torch.multinomial(row_probs, num_samples=1, generator=row.spec.generator) for row, row_probs in pairs]
    return torch.cat(drawn).masked_fill(is_broken, NONE_DRAWN)


def select(logits: Tensor, places: Sequence[int]) -> Tensor:
    return logits[_index(places, logits)]


def _index(numbers: Sequence[int], like: Tensor) -> Tensor:
    return send(torch.tensor(numbers, dtype=torch.long), like.device)


def fill_paths(rows: Sequence[Row], logits: Tensor) -> None:
    """Fill the nodes along each row's draft, its own node first, from logits [rows, positions, vocab]."""
    positions = [(row, i, step) for i, row in enumerate(rows) for step in range(len(row.draft.tokens) + 1)]
    flat = torch.stack([logits[i, step - len(row.draft.tokens) - 1] for row, i, step in positions])
    scores = _process([row for row, _, _ in positions], [len(row.tokens) + step for row, _, step in positions], flat)
    for number, (row, _, step) in enumerate(positions):
        node = row.node
        for token in row.draft.tokens[:step]:
            node = node.child(token)
        if node.table is None:
            node.table = DenseTable(flat, scores, row=number)


def _process(rows: Sequence[Row], lengths: Sequence[int], logits: Tensor) -> Tensor:
    """Return the scores of each row; rows with the same settings share a call."""
    groups: dict[int, list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        groups[id(row.spec.settings)].append(number)
    if len(groups) == 1:
        return rows[0].spec.settings.process(rows, lengths, logits)
    scores = torch.empty_like(logits)
    for numbers in groups.values():
        index = numbers[0] if len(numbers) == 1 else _index(numbers, logits)
        group = [rows[number] for number in numbers]
        group_logits = logits[index].view(len(numbers), -1)
        scores[index] = group[0].spec.settings.process(group, [lengths[number] for number in numbers], group_logits)
    return scores

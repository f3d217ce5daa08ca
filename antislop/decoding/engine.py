"""Run a language model for the loop: one forward pass for many rows, over a cache that follows each row's rewinds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from antislop.control.branches import CapabilityError
from antislop.decoding.protocols import ForkableCache, LanguageModel, RewindableCache, fill_left
from antislop.decoding.row import Row

SETTLE_EVERY = 8
"""Settled tokens between calls of the cache's `settle`: a call for each would cost more than it saves."""


class ForwardPass(NamedTuple):
    """One forward pass of a batch.

    logits: float32 [rows, positions, vocab]; the last position follows a row's last token, or its draft's.
    fed: tokens that each row read.
    cut: tokens removed from each row's cache before.
    dtype: in which the model computed the logits.
    """

    logits: Tensor
    fed: Sequence[int]
    cut: Sequence[int]
    dtype: torch.dtype = torch.float32


class Engine(Protocol):
    """All that the loop needs of a model and its cache."""

    def forward(self, rows: Sequence[Row]) -> ForwardPass:
        """Read the unread tokens of each row and its draft; finished rows are fed fillers."""

    def replace(self, rows: Sequence[Row], place: int) -> ForwardPass:
        """Read the prompt of the new row at a place, which belonged to a finished one."""


@runtime_checkable
class ForkingEngine(Engine, Protocol):
    """An engine for controllers that fork."""

    def fork(self, place: int, target: int) -> None:
        """Copy the row at a place to another one, or to a new one behind the last."""


class BatchEngine:
    """Rows on one model and one cache.

    filler: the token that finished rows are fed.
    grows: add rows as texts come, and begin anew with a text that is alone: a pass over few texts then costs less. The
        cache must be a `ForkableCache`.
    """

    def __init__(self, model: LanguageModel, cache: RewindableCache, *, filler: int = 0, grows: bool = False) -> None:
        self._model = model
        self._cache = cache
        self._filler = filler
        self._grows = grows
        self._fed: list[list[int]] = []  # per row the generated tokens in the cache, its draft included
        self._bases: list[int] = []  # per row the tokens in the cache before those
        self._settled: list[int] = []  # per row the length passed to the last `settle` of the cache
        self._is_ragged = False

    @torch.no_grad()
    def forward(self, rows: Sequence[Row]) -> ForwardPass:
        if not self._fed:
            return self._prefill(rows)
        # A waiting row is fed fillers beside the others, and cut only when it resumes: a cut moves the row in the
        # cache, which changes the last bits of all rows. After the first cut of any row, waiting rows are cut at once.
        is_even = not self._is_ragged
        cut = [
            0 if row.is_finished or (row.is_waiting and is_even) else self._cut_back(p, row)
            for p, row in enumerate(rows)
        ]
        queries = [self._query(place, row) for place, row in enumerate(rows)]
        fed = [len(query) for query in queries]
        queries += [self._query_nothing(place) for place in range(len(rows), len(self._cache.lengths))]
        logits = self._model.forward(fill_left(queries), self._cache)
        return ForwardPass(_copy(logits[: len(rows)], rows[0]), fed, cut, logits.dtype)

    @torch.no_grad()
    def replace(self, rows: Sequence[Row], place: int) -> ForwardPass:
        row = rows[place]
        if self._grows:
            self._fit(rows)
        while len(self._fed) <= place:
            self._fed.append([])
            self._bases.append(0)
            self._settled.append(0)
        cache = self._model.new_cache(1)
        cache.settle(0, row.prompt_length)
        logits = self._model.forward(row.ids, cache)
        self._cache.adopt(place, cache)
        self._fed[place], self._bases[place], self._settled[place] = [], row.prompt_length, 0
        self._is_ragged = True
        return ForwardPass(_copy(logits[:, -1:], row), [row.prompt_length], [0], logits.dtype)

    def _fit(self, rows: Sequence[Row]) -> None:
        if len(rows) == 1:
            self._cache = self._model.new_cache(1)
            self._fed, self._bases, self._settled = [], [], []
        while len(self._cache.lengths) < len(rows) and isinstance(self._cache, ForkableCache):
            self._cache.fork(0, len(self._cache.lengths))

    @torch.no_grad()
    def fork(self, place: int, target: int) -> None:
        if not (isinstance(self._cache, ForkableCache) and self._cache.can_fork):
            raise CapabilityError(f"a controller forks, and this {type(self._cache).__name__} can't copy rows")
        self._cache.fork(place, target)
        self._fed[target : target + 1] = [list(self._fed[place])]
        for numbers in (self._bases, self._settled):
            numbers[target : target + 1] = [numbers[place]]
        self._is_ragged = True

    @torch.no_grad()
    def finish(self, row: Row) -> tuple[int, int]:
        """Leave in the cache all tokens of the only row but the last, as `generate` does; return (fed, cut)."""
        cut, missing = self._cut_back(0, row), row.tokens[len(self._fed[0]) : -1]
        if missing:
            self._fed[0] += missing
            self._model.forward(torch.tensor([missing]), self._cache)
        return len(missing), cut

    def excess(self, row: Row) -> int:
        """Return how many tokens of a finished row are in the cache but not in its text."""
        fed, kept = self._fed[row.index], row.tokens[:-1]
        shared = next((i for i, pair in enumerate(zip(fed, kept, strict=False)) if pair[0] != pair[1]), len(kept))
        return len(fed) - min(shared, len(fed))

    def _prefill(self, rows: Sequence[Row]) -> ForwardPass:
        before = self._cache.lengths
        for place, row in enumerate(rows):
            self._cache.settle(place, row.prompt_length)
        logits = self._model.forward(_stack(rows), self._cache)
        self._fed, self._settled = [[] for _ in rows], [0] * len(rows)
        self._bases = list(self._cache.lengths)
        fed = [base - length for base, length in zip(self._bases, before, strict=True)]
        return ForwardPass(_copy(logits[:, -1:], rows[0]), fed[: len(rows)], [0] * len(rows), logits.dtype)

    def _query(self, place: int, row: Row) -> list[int]:
        if row.is_finished:
            return self._query_nothing(place)
        fed = self._fed[place]
        query = row.tokens[len(fed) :]
        if row.is_waiting and not query:
            query = [self._filler]
        if row.draft.proposed:
            query += row.draft.tokens
        fed += query
        return query

    def _query_nothing(self, place: int) -> list[int]:
        if self._is_ragged:  # otherwise it would grow until the last text is finished
            self._cache.rewind(place, 0)
        else:
            self._cache.settle(place, self._cache.lengths[place])
        return [self._filler]

    def _cut_back(self, place: int, row: Row) -> int:
        """Remove from the cache the tokens not in the text, and its last one, which is to be read; return how many."""
        fed, base = self._fed[place], self._bases[place]
        if len(fed) == len(row.tokens) - 1 <= row.unchanged and row.settled < self._settled[place] + SETTLE_EVERY:
            return 0  # most rows in most steps: one token was added
        limit = max(0, min(len(fed), len(row.tokens) - 1))
        shared = min(row.unchanged, limit)
        while shared < limit and fed[shared] == row.tokens[shared]:
            shared += 1
        if row.settled >= self._settled[place] + SETTLE_EVERY:
            self._settled[place] = min(row.settled, shared)
            self._cache.settle(place, base + self._settled[place])
        if shared == len(fed):
            return 0
        kept = self._cache.rewind(place, base + shared) - base
        cut = len(fed) - kept
        del fed[kept:]
        self._is_ragged = True
        return cut


def _copy(logits: Tensor, row: Row) -> Tensor:
    # A slice would keep the logits of a whole prompt in memory. As in `generate`, tokens are drawn where the ids are.
    return logits.to(device=row.spec.prompt.device, dtype=torch.float32, copy=True)


def _stack(rows: Sequence[Row]) -> Tensor:
    if len({row.prompt_length for row in rows}) == 1:
        return torch.cat([row.ids for row in rows])
    return fill_left([row.ids[0].tolist() for row in rows])

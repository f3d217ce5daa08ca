"""A transformers cache whose rows rewind independently, and keep no trace of the withdrawn tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import EncoderDecoderCache, PreTrainedModel
from transformers.cache_utils import Cache

from antislop.caches.borrowed import BorrowedCache
from antislop.caches.layers import Columns, GrowingLayer
from antislop.caches.masks import AttentionMask
from antislop.caches.positions import Positions
from antislop.caches.recurrent_states import SNAPSHOT_EVERY, Snapshots, clear_row, fork_row, put_row, repeat_rows
from antislop.decoding.protocols import KVState, KVStates, RewindableCache

TRIM = 64
"""Free columns on the left of all rows from which on dropping them, which copies all states, is worth it."""


class TransformersCache:
    """Rows of tokens in a transformers cache; a row occupies the columns from its start to the common end.

    Tokens count from the first column of the prompt, padding included. A rewind is an assignment; if rows rewind by
    different numbers of tokens, those that rewound further are moved right before the next forward pass.

    cache: transformers' own, as the model is given it; it may hold tokens already. attention_mask: [rows, columns] of
    them and the prompt, or None if nothing is masked. capacity: the columns that the run will need, if known. prompt:
    the other arguments of the first forward pass.
    """

    def __init__(
        self,
        cache: Cache,
        *,
        rows: int,
        attention_mask: Tensor | None = None,
        capacity: int | None = None,
        prompt: dict[str, Any] | None = None,
        snapshot_every: int = SNAPSHOT_EVERY,
    ) -> None:
        self.cache = cache
        self.prompt = prompt or {}
        self.is_new = True
        self.columns = Columns(capacity=capacity)
        self.positions = Positions(self.columns, rows=rows)
        self._borrowed = BorrowedCache(cache, self.columns)
        self._mask = AttentionMask(attention_mask, rows=rows)
        self._starts, self._lengths, self._settled = [0] * rows, [self.columns.end] * rows, [0] * rows
        self._is_aligned = False  # whether all rows end in the columns' end
        self._is_forked = False  # whether a row may be in the place of another text
        self._emptied: set[int] = set()
        self._snapshots = Snapshots(rows, every=snapshot_every)

    @property
    def layers(self) -> list[Any]:
        """The layers of the decoder: ours while texts are written."""
        return self._borrowed.layers

    @property
    def is_static(self) -> bool:
        """Whether the memory can't grow, and queries come one at a time."""
        return self._borrowed.is_static

    @property
    def is_recurrent(self) -> bool:
        """Whether some layers have a state that can be stored, but not cut."""
        return self._borrowed.is_recurrent

    @property
    def is_ragged(self) -> bool:
        """Whether rows have left the places or the columns in which `generate` would have them."""
        return self._is_forked or any(self._starts) or min(self._lengths) < max(self._lengths)

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self._lengths)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens in each row."""
        return tuple(self._lengths)

    @property
    def device(self) -> torch.device:
        """The device of the first layer's states."""
        devices = (layer.device for layer in self.layers if getattr(layer, "device", None) is not None)
        return next(devices, torch.device("cpu"))

    # -- reading tokens --

    @contextmanager
    def feeding(self, counts: Sequence[int]) -> Iterator[None]:
        """Let a forward pass of max(counts) queries run inside; each row feeds the last `counts[row]` of them."""
        self._borrowed.take_over(rows=self.rows)
        self._align(counts)
        queries, end = max(counts), self.columns.end
        self.columns.counts = None if min(counts) == queries else list(counts)
        self._borrowed.set_lengths()
        if self._borrowed.forgets:
            self.columns.settled = self._count_settled_columns()
        try:
            yield
        finally:
            self.columns.counts = None
        self.columns.end = end + queries
        self._lengths = [length + count for length, count in zip(self._lengths, counts, strict=True)]
        self._is_aligned, self.is_new = True, False
        if self.is_recurrent:
            self._snapshots.take(self._lengths, self.layers)

    @contextmanager
    def feeding_alone(self, row: int) -> Iterator[None]:
        """Let a forward pass of one query run inside, for one row only."""
        if self.is_static and self._starts[row] + self._lengths[row] == self.columns.capacity:
            self._move(row, -self._starts[row])
        end, self.columns.end = self.columns.end, self._starts[row] + self._lengths[row]
        self.columns.row = row
        try:
            with self._borrowed.narrowed(row):
                yield
        finally:
            self.columns.row, self.columns.end = None, end
        self._lengths[row], self._is_aligned = self._lengths[row] + 1, False

    @contextmanager
    def following(self, model: PreTrainedModel) -> Iterator[None]:
        """Let a prompt be read in several forward passes inside: each writes behind the one before it."""
        if self.is_static:  # its layers count for themselves
            yield
            return

        def extend(*_: object) -> None:
            self.columns.end = max((layer.reached for layer in self._borrowed.growing), default=self.columns.end)

        handle = model.register_forward_hook(extend)
        try:
            yield
        finally:
            handle.remove()

    def attention_mask(self, queries: int, *, row: int | None = None) -> Tensor | None:
        """Return which columns hold tokens, the next queries included: int64 [rows, columns], or None for all."""
        columns = self.columns.end + queries
        mask = self._mask.of(self._starts, columns, room=self.columns.room(columns), device=self.device)
        return mask if mask is None or row is None else mask[row : row + 1]

    def mask_prompts(self, attention_mask: Tensor) -> None:
        """Leave the columns out of attention that are 0 in attention_mask [rows, columns], the columns of a prompt."""
        self._mask.set_prompts(attention_mask)

    def repeat(self, times: int) -> None:
        """Repeat the states of each row: a prompt that occurs in several rows is read once."""
        for layer in self._borrowed.growing:
            layer.repeat(times)
        repeat_rows(self.layers, times)

    def take_layers(self, other: Cache) -> None:
        """Take over the layers of a cache that the model made by itself, because it read a prompt from the start."""
        self._borrowed.take_layers(other)

    def give_back(self, *, is_whole: bool) -> bool:
        """Put transformers' own layers back into the cache; return whether it holds the texts of the rows.

        It does if the call was completed (`is_whole`) with all rows in the same columns, which are then their tokens.
        Otherwise the cache is as it was before the call: a cache that is too short is safe.
        """
        is_whole = is_whole and not self.is_ragged
        if is_whole and self._borrowed.is_taken:
            self._align([0] * self.rows)
        return self._borrowed.give_back(is_whole=is_whole) and is_whole

    # -- rows that rewind and are replaced --

    def rewind(self, row: int, length: int) -> int:
        """Keep the first `length` tokens of one row, or fewer; return how many. Nothing is copied before a forward."""
        before = self._lengths[row]
        if not 0 <= length <= before:
            raise ValueError(f"row {row} of the cache holds {before} tokens, so it can't be rewound to {length}")
        if 0 < length < self._settled[row]:
            raise ValueError(
                f"row {row} was settled at {self._settled[row]} tokens, so it can't be rewound to {length}"
            )
        if 0 < length < before and self.is_recurrent:
            length = self._snapshots.restore(row, length, self.layers)
        self._lengths[row], self._is_aligned = length, False
        if length == 0:
            self._empty(row)
        return length

    def settle(self, row: int, length: int) -> None:
        """Note that no rewind of a row, except to 0, goes below `length` tokens."""
        self._settled[row] = max(self._settled[row], length)
        self._snapshots.settle(row, length)

    def forget(self, row: int) -> None:
        """Remove the token that a row was fed only so that others could be fed theirs."""
        self._lengths[row], self._is_aligned = self._lengths[row] - 1, False

    def adopt(self, row: int, other: RewindableCache) -> None:
        """Replace a row by the only row of another cache of the same model."""
        if not isinstance(other, TransformersCache) or other.rows != 1:
            raise ValueError("a cache of one row and of the same kind is expected")
        if self.is_static:
            raise ValueError("a row of a static cache can't be replaced: use a dynamic one")
        if isinstance(self.cache, EncoderDecoderCache):
            raise ValueError("a row of an encoder-decoder model can't be replaced: its encoder's states stay behind")
        self._borrowed.take_over(rows=self.rows)
        length = other.columns.end
        if self.columns.end < length:
            self._shift_all(length - self.columns.end)
        for layer, new in zip(self.layers, other.layers, strict=True):
            if isinstance(layer, GrowingLayer):
                layer.adopt(row, new, length, rows=self.rows)
        put_row(self.layers, row, other.layers, rows=self.rows)
        self.is_new = False
        self._snapshots.adopt(row, other._snapshots)
        self._starts[row], self._lengths[row] = self.columns.end - length, length
        self._settled[row], self._is_aligned = other._settled[0], False
        self._emptied.discard(row)
        self._mask.adopt(row, other._mask, self._starts[row])
        self.positions.adopt(row, other.positions)

    @property
    def can_fork(self) -> bool:
        """Whether rows can be copied within this cache."""
        return not (self.is_static or isinstance(self.cache, EncoderDecoderCache))

    def fork(self, row: int, target: int) -> None:
        """Copy a row, with its states, to another one; a `target` behind the last row is added."""
        if not self.can_fork:
            raise ValueError("a row of a static cache, or of an encoder-decoder model, can't be copied")
        self._borrowed.take_over(rows=self.rows)
        for layer in self._borrowed.growing:
            layer.fork(row, target)
        fork_row(self.layers, row, target)
        self.positions.fork(row, target)
        self._snapshots.fork(row, target)
        self._mask.fork(row, target)
        for numbers in (self._starts, self._lengths, self._settled):
            numbers[target : target + 1] = [numbers[row]]
        self._is_aligned, self._is_forked = False, True
        self._emptied.discard(target)

    def _empty(self, row: int) -> None:
        """Forget everything about a row, so that another text can begin in it."""
        self._settled[row], self._starts[row] = 0, 0
        self._mask.clear_row(row, 0)
        clear_row(self.layers, row)
        self._snapshots.forget(row)
        if row not in self._emptied:
            self.positions.restart_row(row)
        self._emptied.add(row)

    # -- states as tensors --

    def get_num_tokens(self) -> int:
        """Return how many tokens the longest row holds."""
        return max(self._lengths)

    def get_kv_states(self) -> KVStates:
        """Return keys and values per attention layer, [rows, heads, tokens, head_dim]; an empty list for a new cache.

        Shorter rows are filled on the left; layers with a window give the states that they still hold.
        """
        self._borrowed.take_over(rows=self.rows)
        self._align([0] * self.rows)
        states = [(store.keys, store.values) for store in self._borrowed.stores]
        return [KVState(keys, values) for keys, values in states if keys is not None and values is not None]

    def update(self, kv_states: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Hold these states and no others, all of their tokens in every row."""
        sizes = {(states.shape[0], states.shape[2]) for pair in kv_states for states in pair}
        if len(sizes) > 1 or any(rows != self.rows for rows, _ in sizes):
            raise ValueError(f"states of {self.rows} rows and equally many tokens are expected, not {sorted(sizes)}")
        self._borrowed.take_over(rows=self.rows)
        if any(type(layer) is not GrowingLayer for layer in self.layers):
            raise ValueError("only a cache of full attention in every layer can be given other states")
        if self.layers and kv_states and len(self.layers) != len(kv_states):
            raise ValueError(f"states of {len(self.layers)} layers are expected, not of {len(kv_states)}")
        self.columns.end, self.columns.settled = next(iter(sizes))[1] if sizes else 0, 0
        layers = [GrowingLayer(self.columns) for _ in kv_states or self.layers]
        for layer, (keys, values) in zip(layers, kv_states, strict=False):
            layer.take_over(keys, values)
        self._borrowed.replace_layers(layers)
        self._starts, self._lengths = [0] * self.rows, [self.columns.end] * self.rows
        self._settled, self._mask = [0] * self.rows, AttentionMask(None, rows=self.rows)
        self.is_new, self._is_aligned = self.columns.end == 0, False
        self.positions.clear()

    def crop(self, num_tokens: int) -> None:
        """Remove the latest `num_tokens` tokens of every row."""
        if not 0 <= num_tokens <= min(self._lengths):
            raise ValueError(f"{num_tokens} tokens can't be taken out of a cache of {min(self._lengths)}")
        for row, length in enumerate(self._lengths):
            if self.rewind(row, length - num_tokens) != length - num_tokens:
                raise ValueError("the states of recurrent layers can't be cropped to any length; use rewind")

    # -- columns --

    def _align(self, counts: Sequence[int]) -> None:
        """Have all rows end in the same column once they have fed `counts` tokens."""
        queries = max(counts)
        if self._is_aligned and min(counts) == queries and not any(self._starts):
            return
        self._trim(max(self._ends(counts)))
        ends = self._ends(counts)
        target = max(ends)
        is_full = self.is_static and self.columns.capacity is not None and target > self.columns.capacity
        if min(ends) == target and not is_full:
            self.columns.end = target - queries
            return
        if is_full:
            target = max(length + count for length, count in zip(self._lengths, counts, strict=True))
        self.columns.end = target - queries
        self.columns.settled = self._count_settled_columns()
        for store in self._borrowed.stores:
            store.reserve(target)
        for row, end in enumerate(ends):
            if end != target:
                self._move(row, target - end)

    def _ends(self, counts: Sequence[int]) -> list[int]:
        """Return the columns in which the rows will end."""
        return [sum(row) for row in zip(self._starts, self._lengths, counts, strict=True)]

    def _count_settled_columns(self) -> int:
        """Return the columns below which no row rewinds; rows that hold nothing don't count."""
        rows = zip(self._starts, self._settled, self._lengths, strict=True)
        return min((start + settled for start, settled, length in rows if length), default=0)

    def _trim(self, target: int) -> None:
        """Drop columns to the left of all rows, if they are many or no others can be had."""
        if self.is_static:
            return
        spare = min((start for start, length in zip(self._starts, self._lengths, strict=True) if length), default=0)
        is_needed = self.columns.capacity is not None and target > self.columns.capacity
        if spare >= TRIM or (spare and is_needed):
            self._shift_all(-spare)
        if not any(self._lengths):
            for store in self._borrowed.stores:
                store.begin()

    def _shift_all(self, by: int) -> None:
        """Move all rows by the same number of columns."""
        self.columns.end += by
        for store in self._borrowed.stores:
            store.drop(-by) if by < 0 else store.insert(by)
        self._starts = [max(start + by, 0) for start in self._starts]
        self._mask.discard()

    def _move(self, row: int, by: int) -> None:
        """Move a row's tokens to the right, or in a static cache to the left if `by` is negative."""
        start, stop = self._starts[row], self._starts[row] + self._lengths[row]
        for store in self._borrowed.stores if stop > start else ():
            store.move(row, start, stop, by)
        self._starts[row] += by
        self._mask.move_row(row, self._starts[row])

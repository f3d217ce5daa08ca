"""A transformers cache whose rows rewind independently.

The state of a Mamba or linear-attention layer summarizes all past tokens and can't be truncated, so it is copied every
few tokens. A rewind to a length restores the latest copy made at that length or before, and the model reads the tokens
after that copy again, one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import EncoderDecoderCache, PreTrainedModel
from transformers.cache_utils import Cache, LinearAttentionCacheLayerMixin

from antislop.core.hf.caches.borrowed import BorrowedCache, decoder_part, is_begun
from antislop.core.hf.caches.layers import Columns, GrowingLayer, WindowLayer
from antislop.core.hf.caches.positions import AttentionMask, Positions
from antislop.core.loop.protocols import KVState, RewindableCache

UNUSED_COLUMNS = 64
"""The number of unused columns on the left from which on they are dropped; dropping copies all keys and values."""
SNAPSHOT_EVERY = 4
"""Tokens between two copies of recurrent states. A rewind reads half of them again on average; copies take memory."""


class TransformersCache(BorrowedCache):
    """Rows of tokens in a transformers cache; a row occupies the columns from its start to the common end.

    A rewind only sets a row's length. If rows rewind by different numbers of tokens, the rows that rewound further are
    moved right before the next forward pass, which copies their keys and values. Here row 1 was rewound by two tokens:

        column      0   1   2   3   4  end 5           0   1   2   3   4   5  end 6
        row 0       a   b   c   d   e                  a   b   c   d   e   f   start 0, length 6
        row 1       k   l   m   .   .      moved:      .   .   k   l   m   n   start 2, length 4
        row 2       .   p   q   r   s                  .   p   q   r   s   t   start 1, length 5; a shorter prompt

    Columns before a row's start are masked. The length of a row includes the padding of its prompt.

    attention_mask: [rows, columns] of the prompt and the tokens that `cache` holds; None if nothing is masked.
    capacity: the number of columns that the call will need; None if unknown.
    prompt: the other arguments of the first forward pass.
    reads_prompts: whether the next forward pass reads parts of prompts, of which only the last logits are needed.
    is_fixed: whether each row starts in column 0, since the model takes a token's column for its position.
    """

    def __init__(
        self,
        cache: Cache,
        *,
        rows: int,
        attention_mask: Tensor | None = None,
        capacity: int | None = None,
        prompt: dict[str, Any] | None = None,
        is_fixed: bool = False,
    ) -> None:
        super().__init__(cache, Columns(capacity=capacity))
        self.prompt = prompt or {}
        self.is_new = True
        self.reads_prompts = False
        self.is_fixed = is_fixed
        self.positions = Positions(self.columns, rows=rows)
        self._mask = AttentionMask(attention_mask, rows=rows)
        self._starts, self._lengths, self._settled = [0] * rows, [self.columns.end] * rows, [0] * rows
        self._is_aligned = False  # whether all rows end at `columns.end`
        self._is_forked = False  # whether a row may be a copy of another row
        self._emptied: set[int] = set()
        self._snapshots = Snapshots(rows)

    @property
    def is_begun(self) -> bool:
        """Whether the cache holds tokens."""
        return is_begun(decoder_part(self.cache))

    @property
    def is_ragged(self) -> bool:
        """Whether rows are in columns where `generate` would not put them, or have been copied."""
        return self._is_forked or any(self._starts) or min(self._lengths) < max(self._lengths)

    def is_even(self, counts: Sequence[int]) -> bool:
        """Return whether all rows occupy the same columns, now and after row i has fed `counts[i]` more tokens."""
        return not any(self._starts) and min(self._lengths) == max(self._lengths) and min(counts) == max(counts)

    @property
    def rows(self) -> int:
        return len(self._lengths)

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(self._lengths)

    @property
    def device(self) -> torch.device:
        devices = (layer.device for layer in self.layers if getattr(layer, "device", None) is not None)
        return next(devices, torch.device("cpu"))

    # -- reading tokens --

    @contextmanager
    def feeding(self, counts: Sequence[int]) -> Iterator[None]:
        """Run a forward pass of max(counts) queries in the block; each row feeds its last `counts[row]` queries."""
        self.take_over(rows=self.rows)
        self._align(counts)
        queries, end = max(counts), self.columns.end
        self.columns.counts = None if min(counts) == queries else list(counts)
        self.set_lengths(queries)
        if any(isinstance(layer, WindowLayer) for layer in self.layers):  # these drop settled columns
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

    def store_states(self) -> None:
        """Copy the recurrent states at the end of a prompt, the shortest length that a text is rewound to."""
        self._snapshots.take(self._lengths, self.layers, is_due=True)

    @contextmanager
    def feeding_alone(self, row: int) -> Iterator[None]:
        """Run a forward pass in the block that reads one query of one row only."""
        if self.is_static and self._starts[row] + self._lengths[row] == self.columns.capacity:
            self._move(row, -self._starts[row])
        end, self.columns.end = self.columns.end, self._starts[row] + self._lengths[row]
        self.columns.row = row
        try:
            with ExitStack() as stack:
                stack.enter_context(_narrow_states(self.layers, row))
                for store in self._static:
                    store.set_length(1)
                    stack.enter_context(store.narrowed(row))
                yield
        finally:
            self.columns.row, self.columns.end = None, end
        self._lengths[row], self._is_aligned = self._lengths[row] + 1, False

    @contextmanager
    def following(self, model: PreTrainedModel) -> Iterator[None]:
        """Read a prompt in several forward passes in the block; each writes after the columns of the previous pass."""
        if self.is_static:  # static layers count columns by themselves
            yield
            return

        def extend(*_: object) -> None:
            self.columns.end = max((layer.reached for layer in self.growing), default=self.columns.end)

        handle = model.register_forward_hook(extend)
        try:
            yield
        finally:
            handle.remove()

    def attention_mask(self, queries: int, *, row: int | None = None) -> Tensor | None:
        """Return the mask of all columns with the next queries, int64 [rows, columns]; None if nothing is masked."""
        columns = self.columns.end + queries
        mask = self._mask.of(self._starts, columns, room=self.columns.room(columns), device=self.device)
        return mask if mask is None or row is None else mask[row : row + 1]

    def static_mask(self) -> Tensor:
        """Return the mask of the next query of each row in a static cache, bool [rows, 1, 1, columns]."""
        columns, capacity = self.columns.end + 1, self.columns.capacity
        assert capacity is not None, "the memory of a static cache is as large as it will be"
        return self._mask.of_static(self._starts, columns, capacity=capacity, device=self.device)

    def mask_prompts(self, attention_mask: Tensor) -> None:
        self._mask = AttentionMask(attention_mask, rows=self.rows)

    def drop_padding(self, counts: Sequence[int]) -> None:
        """Exclude padding from the rows of a new cache: row i then holds the `counts[i]` tokens of its prompt."""
        self._lengths = list(counts)
        self._starts = [self.columns.end - count for count in counts]
        self._mask = AttentionMask(None, rows=self.rows)
        self.positions.restart()

    def give_back(self, *, is_whole: bool) -> bool:
        """Put transformers' own layers back into the cache; return whether the cache holds the texts of the rows.

        This is so if `is_whole` and all rows are in the same columns. If not, the cache is as it was before the call.
        """
        is_whole = is_whole and not self.is_ragged
        if is_whole and self._originals is not None:
            self._align([0] * self.rows)
        return super().give_back(is_whole=is_whole) and is_whole

    # -- rows that rewind and are replaced --

    def rewind(self, row: int, length: int) -> int:
        """Cut a row to its first `length` tokens, or fewer if its states are recurrent; return how many are kept."""
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
            self._settled[row], self._starts[row] = 0, 0
            self._mask.clear_row(row)
            for state in _states_of(self.layers):
                state[row] = 0
            self._snapshots.forget(row)
            if row not in self._emptied:
                self.positions.restart_row(row)
            self._emptied.add(row)
        return length

    def settle(self, row: int, length: int) -> None:
        """Declare that no later rewind of a row goes below `length` tokens, except to 0."""
        self._settled[row] = max(self._settled[row], length)
        self._snapshots.settle(row, length)

    def forget(self, row: int) -> None:
        """Remove the latest token of a row: padding that it was fed because other rows were fed a token."""
        self._lengths[row], self._is_aligned = self._lengths[row] - 1, False

    @property
    def can_share(self) -> bool:
        return self.can_select and not (self.is_recurrent or self.is_fixed)

    def copyable(self, row: int, length: int) -> int:
        """Return `length` if a row's first `length` tokens can be copied; 0 if a window has dropped some of them."""
        start = self._starts[row]
        is_kept = self.can_share and all(layer.reaches(start, start + length) for layer in self.growing)
        return length if is_kept else 0

    def copy(self, row: int, other: RewindableCache, *, source: int, length: int) -> None:
        """Replace a row by the first `length` tokens of row `source` of `other`, or by all its tokens if recurrent."""
        if not isinstance(other, TransformersCache):
            raise ValueError(f"a TransformersCache is expected, not a {type(other).__name__}")
        if self.is_static:
            raise ValueError("a row of a static cache can't be replaced: use a dynamic one")
        if isinstance(self.cache, EncoderDecoderCache):
            raise ValueError("a row of an encoder-decoder model can't be replaced: its encoder's states stay behind")
        self.take_over(rows=self.rows)
        if self.is_fixed:
            self.columns.end = length
            for store in self.stores:
                store.reserve(length)
        elif self.columns.end < length:
            self._shift_all(length - self.columns.end)
        start, layers = other._starts[source], other.layers
        self.layers.extend(layer.emptied(self.columns) for layer in layers[len(self.layers) :])
        for layer, new in zip(self.layers, other.layers, strict=True):
            if isinstance(layer, GrowingLayer):
                layer.copy(row, new, source, start, start + length, rows=self.rows)
        _put_row(self.layers, row, other.layers, source, rows=self.rows)
        self.is_new = False
        self._snapshots.copy(row, other._snapshots, source)
        self._starts[row], self._lengths[row] = self.columns.end - length, length
        self._settled[row], self._is_aligned = 0, False
        self._emptied.discard(row)
        self._mask.copy(row, other._mask, source, self._starts[row])
        self.positions.copy(row, other.positions, source)

    @property
    def can_select(self) -> bool:
        return not (self.is_static or isinstance(self.cache, EncoderDecoderCache))

    def select(self, rows: Sequence[int]) -> None:
        """Keep these rows, in this order; a row that is listed twice is copied."""
        self.take_over(rows=self.rows)
        self.select_states(rows)
        self.positions.select(rows)
        self._snapshots.select(rows)
        self._mask.select(rows)
        self._starts, self._lengths, self._settled = (
            [numbers[row] for row in rows] for numbers in (self._starts, self._lengths, self._settled)
        )
        self._emptied = {number for number, row in enumerate(rows) if row in self._emptied}
        self._is_aligned, self._is_forked = False, True

    def select_states(self, rows: Sequence[int]) -> None:
        """Copy the layers' rows for a prompt that was read once but begins several rows of the batch."""
        for layer in self.growing:
            layer.select(rows)
        for states in _dicts_of(self.layers):
            for key, state in states.items():
                states[key] = None if state is None else state[rows]

    # -- the protocol KVCache --

    def get_num_tokens(self) -> int:
        return max(self._lengths)

    def get_kv_states(self) -> list[KVState]:
        """Return keys and values of the attention layers; a sliding-window layer has those it still stores."""
        self.take_over(rows=self.rows)
        self._align([0] * self.rows)
        states = [(store.keys, store.values) for store in self.stores]
        return [KVState(keys, values) for keys, values in states if keys is not None and values is not None]

    def update(self, kv_states: Sequence[tuple[Tensor, Tensor]]) -> None:
        sizes = {(states.shape[0], states.shape[2]) for pair in kv_states for states in pair}
        if len(sizes) > 1 or any(rows != self.rows for rows, _ in sizes):
            raise ValueError(f"states of {self.rows} rows and equally many tokens are expected, not {sorted(sizes)}")
        self.take_over(rows=self.rows)
        if any(type(layer) is not GrowingLayer for layer in self.layers):
            raise ValueError("only a cache of full attention in every layer can be given other states")
        if self.layers and kv_states and len(self.layers) != len(kv_states):
            raise ValueError(f"states of {len(self.layers)} layers are expected, not of {len(kv_states)}")
        self.columns.end, self.columns.settled = next(iter(sizes))[1] if sizes else 0, 0
        layers = [GrowingLayer(self.columns) for _ in kv_states or self.layers]
        for layer, (keys, values) in zip(layers, kv_states, strict=False):
            layer.take_over(keys, values)
        decoder_part(self.cache).layers = layers
        self._starts, self._lengths = [0] * self.rows, [self.columns.end] * self.rows
        self._settled, self._mask = [0] * self.rows, AttentionMask(None, rows=self.rows)
        self.is_new, self._is_aligned = self.columns.end == 0, False
        self.positions.offsets = None

    def crop(self, num_tokens: int) -> None:
        if not 0 <= num_tokens <= min(self._lengths):
            raise ValueError(f"{num_tokens} tokens can't be taken out of a cache of {min(self._lengths)}")
        for row, length in enumerate(self._lengths):
            if self.rewind(row, length - num_tokens) != length - num_tokens:
                raise ValueError("recurrent states can't be truncated to any length: use rewind")

    # -- columns --

    def _align(self, counts: Sequence[int]) -> None:
        """Move rows so that all end in the same column after row i has fed `counts[i]` more tokens."""
        queries = max(counts)
        if self._is_aligned and min(counts) == queries and not any(self._starts):
            return
        # Drop unused columns on the left if there are many, or if the capacity would be exceeded.
        spare = min((start for start, length in zip(self._starts, self._lengths, strict=True) if length), default=0)
        is_needed = self.columns.capacity is not None and max(self._ends(counts)) > self.columns.capacity
        if not self.is_static and (spare >= UNUSED_COLUMNS or (spare and is_needed)):
            self._shift_all(-spare)
        if not any(self._lengths):
            for layer in self.growing:
                layer.base = 0  # no row holds a token: start at column 0 again
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
        for store in self.stores:
            store.reserve(target)
        for row, end in enumerate(ends):
            if end != target:
                self._move(row, target - end)

    def _ends(self, counts: Sequence[int]) -> list[int]:
        return [sum(row) for row in zip(self._starts, self._lengths, counts, strict=True)]

    def _count_settled_columns(self) -> int:
        """Return the number of columns, from the left, that no rewind removes from any row that holds tokens."""
        rows = zip(self._starts, self._settled, self._lengths, strict=True)
        return min((start + settled for start, settled, length in rows if length), default=0)

    def _shift_all(self, by: int) -> None:
        self.columns.end += by
        for store in self.stores:
            store.drop(-by) if by < 0 else store.insert(by)
        self._starts = [max(start + by, 0) for start in self._starts]
        self._mask.discard()

    def _move(self, row: int, by: int) -> None:
        """Move a row to the right, or to the left if `by` is negative."""
        if self.is_fixed and by:
            raise ValueError("rows of different lengths can't end in the same column: the model counts its columns")
        start, stop = self._starts[row], self._starts[row] + self._lengths[row]
        for store in self.stores if stop > start else ():
            store.move(row, start, stop, by)
        self._starts[row] += by
        self._mask.move_row(row, self._starts[row])


# -- recurrent states --------------------------------------------------------------------------------------------------


class Snapshots:
    """Copies of the recurrent layers' states, taken at some lengths of each row."""

    def __init__(self, rows: int) -> None:
        self._due = 0  # forward passes until the next copy
        # for each row, tuples (length, index of the row in states, states); rows share the tensors of a copy
        self._rows: list[list[tuple[int, int, list[Tensor]]]] = [[] for _ in range(rows)]

    def take(self, lengths: Sequence[int], layers: Sequence[object], *, is_due: bool = False) -> None:
        """Copy the current states, at which the rows have these lengths, if a copy is due."""
        self._due -= 1
        if self._due > 0 and not is_due:
            return
        self._due = SNAPSHOT_EVERY
        states = [state.clone() for state in _states_of(layers)]
        for row, length in enumerate(lengths):
            self._rows[row].append((length, row, states))

    def restore(self, row: int, length: int, layers: Sequence[object]) -> int:
        """Restore a row's latest copy at `length` tokens or fewer; return the copy's length, 0 if there is no copy."""
        kept = self._rows[row]
        while kept and kept[-1][0] > length:
            kept.pop()
        if not kept:
            return 0
        length, stored_row, states = kept[-1]
        for state, stored in zip(_states_of(layers), states, strict=True):
            state[row] = stored[stored_row]
        self._due = min(self._due, 1)
        return length

    def settle(self, row: int, length: int) -> None:
        """Drop a row's copies that no rewind to `length` tokens or more would restore."""
        kept = self._rows[row]
        while len(kept) > 1 and kept[1][0] <= length:
            kept.pop(0)

    def forget(self, row: int) -> None:
        self._rows[row].clear()
        self._due = 0  # the next call of `take` makes a copy

    def copy(self, row: int, other: Snapshots, source: int) -> None:
        self._rows[row] = list(other._rows[source])

    def select(self, rows: Sequence[int]) -> None:
        self._rows = [list(self._rows[row]) for row in rows]


def _put_row(layers: Sequence[object], row: int, others: Sequence[object], source: int, *, rows: int) -> None:
    """Replace the recurrent states of a row by those of row `source` of another cache; `rows`: rows in this cache."""
    for layer, new in zip(_recurrent(layers), _recurrent(others), strict=True):
        for name in ("conv", "recurrent"):
            for key, state in getattr(new, f"{name}_states").items():
                if state is not None and getattr(layer, f"{name}_states")[key] is None:
                    layer.lazy_initialization(
                        **{f"{name}_states": state[:1].expand(rows, *state.shape[1:]), "state_idx": key}
                    )
        layer.has_previous_state = dict(new.has_previous_state)
    for state, other in zip(_states_of(layers), _states_of(others), strict=True):
        state[row] = other[source]


@contextmanager
def _narrow_states(layers: Sequence[object], row: int) -> Iterator[None]:
    before = [dict(states) for states in _dicts_of(layers)]
    for states in _dicts_of(layers):
        for key, state in states.items():
            states[key] = None if state is None else state[row : row + 1]
    try:
        yield
    finally:
        for states, originals in zip(_dicts_of(layers), before, strict=True):
            for key, state in originals.items():
                if state is not None and (after := states[key]) is not None:
                    state[row : row + 1] = after  # the model may have replaced the tensor
                states[key] = state


def _recurrent(layers: Sequence[object]) -> list[LinearAttentionCacheLayerMixin]:
    return [layer for layer in layers if isinstance(layer, LinearAttentionCacheLayerMixin)]


def _dicts_of(layers: Sequence[object]) -> list[dict[int, Tensor | None]]:
    return [states for layer in _recurrent(layers) for states in (layer.conv_states, layer.recurrent_states)]


def _states_of(layers: Sequence[object]) -> list[Tensor]:
    return [state for states in _dicts_of(layers) for state in states.values() if state is not None]

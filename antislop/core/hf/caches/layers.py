"""Cache layers whose rows rewind independently, with memory allocated ahead.

All rows end in the same column: a batch is always left-padded, as all models and attention implementations support. If
all rows rewind by as many tokens, only the common end moves left; a row that rewinds further is moved right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import (
    CacheLayerMixin,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionLayer,
    StaticLayer,
)

from antislop.core.hf.private import join_layers
from antislop.core.hf.refusals import refusal

SPARE_COLUMNS = 256
"""Columns allocated ahead: with more, more stay unused when a text ends; with fewer, memory is copied more often."""
SPARE_COLUMNS_IN_WINDOW = 64
"""Columns allocated ahead for sliding-window layers, which are small."""


@dataclass
class Columns:
    """The state that all layers of a cache share.

    end: the number of columns in use, which is also the index of the next query's column.
    settled: the number of columns, from the left, that no rewind will remove from any row.
    capacity: the number of columns that the call will need; None if unknown.
    counts: the number of tokens that each row feeds in this forward pass; None if all rows feed the same number.
    row: the only row of this forward pass; None if the pass runs all rows.
    """

    end: int = 0
    settled: int = 0
    capacity: int | None = None
    counts: list[int] | None = None
    row: int | None = None

    def __deepcopy__(self, memo: object) -> Columns:
        return self  # Dory adds copies of layers to its cache: all layers of a cache share their columns

    def room(self, columns: int) -> int:
        """Return how many columns to allocate if `columns` are needed now."""
        ahead = columns + SPARE_COLUMNS
        return ahead if self.capacity is None else max(columns, min(ahead, self.capacity))


class GrowingLayer(CacheLayerMixin):  # type: ignore[misc]
    """The keys and values of a layer with full attention.

    keys, values: the columns in use, [rows, heads, columns, head_dim].
    base: the index of the first column in memory.
    reached: the index of the column after the latest query.
    """

    is_sliding = False
    is_croppable = True

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self.base = 0
        self.reached = 0
        self.is_initialized = False
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.dtype, self.device, self.is_initialized = key_states.dtype, key_states.device, True
        room = self.columns.room(self.columns.end - self.base + key_states.shape[2])
        self._keys, self._values = (_allocate(states[:, :, :0], room) for states in (key_states, value_states))

    @property
    def keys(self) -> Tensor | None:
        return None if self._keys is None else self._keys[:, :, : self.columns.end - self.base]

    @property
    def values(self) -> Tensor | None:
        return None if self._values is None else self._values[:, :, : self.columns.end - self.base]

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write keys and values [rows, heads, queries, head_dim]; return all keys and values up to and with these."""
        columns, count = self.columns, key_states.shape[2]
        self.reached = columns.end + count
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.reserve(self.reached)
        column = columns.end - self.base  # index in memory
        assert self._keys is not None and self._values is not None
        if columns.counts is not None or columns.row is not None:
            return self._write(self._keys, key_states, column), self._write(self._values, value_states, column)
        self._keys.narrow(2, column, count).copy_(key_states)
        self._values.narrow(2, column, count).copy_(value_states)
        return self._keys.narrow(2, 0, column + count), self._values.narrow(2, 0, column + count)

    def get_seq_length(self) -> int:
        return self.columns.end if self.is_initialized else 0

    def get_max_length(self) -> int:
        return -1  # no limit

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def reserve(self, columns: int) -> None:
        if self._keys is not None and columns - self.base > self._keys.shape[2]:
            self._keep(0, self._keys.shape[2], room=self.columns.room(columns))

    def move(self, row: int, start: int, stop: int, by: int) -> None:
        """Move the columns start..stop of a row to the right by `by` columns, overwriting what was there."""
        if self._keys is None:
            return
        if by > stop - start:
            self.clear(row, stop, start + by)
        start, stop = max(start - self.base, 0), stop - self.base
        for states in (self._keys, self._values):
            states[row, :, start + by : stop + by] = states[row, :, start:stop].clone()  # type: ignore[index]

    def clear(self, row: int, start: int, stop: int) -> None:
        """Set the columns start..stop of a row to 0: a forward pass may have left NaN there, see `_allocate`."""
        for states in (self._keys, self._values) if self._keys is not None else ():
            states[row, :, max(start - self.base, 0) : max(stop - self.base, 0)] = 0  # type: ignore[index]

    def drop(self, count: int) -> None:
        """Remove the first `count` columns of all rows; the caller has already lowered `columns.end`."""
        if self._keys is None:
            return
        inside = max(count - self.base, 0)
        self.base = max(self.base - count, 0)
        if inside:
            self._keep(inside, self._keys.shape[2], room=self._keys.shape[2])

    def insert(self, count: int) -> None:
        """Insert `count` empty columns on the left."""
        if self._keys is not None:
            self._keys, self._values = (_insert(s, count) for s in (self._keys, self._values))  # type: ignore[arg-type]

    def copy(self, row: int, other: GrowingLayer, source: int, start: int, stop: int, *, rows: int) -> None:
        """Replace one of `rows` rows by columns start..stop of row `source` of `other`, to end at `columns.end`."""
        if other._keys is None or other._values is None:
            return
        start = max(start, other.base)
        first = self.columns.end - (stop - start)
        if not self.is_initialized:
            self.base = first  # before memory is allocated: a window's base is near the end until then
            self.lazy_initialization(*(s[:1, :, :0].expand(rows, -1, -1, -1) for s in (other._keys, other._values)))
        assert self._keys is not None and self._values is not None
        lacking = self.base - first
        if lacking > 0:  # the new row may rewind further than the others
            self._keys, self._values = _insert(self._keys, lacking), _insert(self._values, lacking)
            self.base -= lacking
        here, there = first - self.base, start - other.base
        self.clear(row, 0, first)
        self._keys[row, :, here : here + stop - start] = other._keys[source, :, there : there + stop - start]
        self._values[row, :, here : here + stop - start] = other._values[source, :, there : there + stop - start]

    def reaches(self, start: int, stop: int) -> bool:  # noqa: ARG002
        """Return whether memory has all columns that a query in column `stop` of a row that begins at `start` reads."""
        return self.base <= start

    def emptied(self, columns: Columns) -> GrowingLayer:
        """Return an empty layer of this kind for the cache to which `columns` belongs."""
        layer = copy(self)
        layer.columns, layer.base, layer.is_initialized, layer._keys, layer._values = columns, 0, False, None, None
        return layer

    def select(self, rows: Sequence[int]) -> None:
        if self._keys is not None and self._values is not None:
            self._keys, self._values = _select(self._keys, rows), _select(self._values, rows)

    def as_standard(self) -> DynamicLayer:
        layer = DynamicLayer()
        if self.is_initialized:
            layer.lazy_initialization(self.keys, self.values)
            layer.keys, layer.values = self.keys, self.values
        return layer

    def take_over(self, keys: Tensor, values: Tensor) -> None:
        """Fill an empty layer with keys and values [rows, heads, columns, head_dim] that end at `columns.end`."""
        self.reached = self.columns.end
        if keys.numel():
            self.base = self.columns.end - keys.shape[2]
            self.lazy_initialization(keys[:, :, :0], values[:, :, :0])
            assert self._keys is not None and self._values is not None
            self._keys[:, :, : keys.shape[2]] = keys
            self._values[:, :, : values.shape[2]] = values

    def _write(self, memory: Tensor, states: Tensor, column: int) -> Tensor:
        """Write keys or values of a single row, or of rows that feed different numbers of tokens."""
        count, row = states.shape[2], self.columns.row
        if row is not None:
            memory = memory[row : row + 1]
            memory.narrow(2, column, count).copy_(states)
        else:
            for number, fed in enumerate(self.columns.counts or ()):
                if fed:  # to the right of the tokens that the row holds already
                    memory[number, :, column + count - fed : column + count] = states[number, :, count - fed :]
        return memory.narrow(2, 0, column + count)

    def _keep(self, start: int, stop: int, *, room: int) -> None:
        """Keep only the columns start..stop; afterwards memory has room for `room` columns."""
        assert self._keys is not None and self._values is not None
        if room == self._keys.shape[2]:
            for states in (self._keys, self._values):
                states[:, :, : stop - start] = states[:, :, start:stop].clone()
        else:
            self._keys = _allocate(self._keys[:, :, start:stop], room)
            self._values = _allocate(self._values[:, :, start:stop], room)


class WindowLayer(GrowingLayer):
    """Keys and values of a sliding-window layer; columns that no query can reach after any rewind are dropped."""

    is_sliding = True

    def __init__(self, columns: Columns, sliding_window: int) -> None:
        super().__init__(columns)
        self.sliding_window = sliding_window

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized and self.columns.end == 0:
            # Return the whole prompt for its queries to attend to, but keep only its end.
            self.reached = length = key_states.shape[2]
            self.base = max(min(self.columns.settled, length) - self.sliding_window + 1, 0)
            self.dtype, self.device, self.is_initialized = key_states.dtype, key_states.device, True
            room = length - self.base + SPARE_COLUMNS_IN_WINDOW
            self._keys, self._values = (_allocate(s[:, :, self.base :], room) for s in (key_states, value_states))
            return key_states, value_states
        keys, values = super().update(key_states, value_states)
        reach = max(self.columns.end - self.sliding_window + 1, self.base) - self.base
        return keys[:, :, reach:], values[:, :, reach:]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        first = max(self.get_seq_length() - self.sliding_window + 1, self.base)
        return self.get_seq_length() - first + query_length, first

    def get_max_length(self) -> int:
        return self.sliding_window

    def reaches(self, start: int, stop: int) -> bool:
        return self.base <= max(start, stop - self.sliding_window + 1)

    def insert(self, count: int) -> None:
        """Insert `count` empty columns on the left; memory is used only for those that a window reaches."""
        self.base += count
        lacking = self.base - max(self.columns.end - self.sliding_window + 1, 0)
        if lacking > 0:
            super().insert(lacking)
            self.base -= lacking

    def as_standard(self) -> DynamicLayer:
        layer = DynamicSlidingWindowLayer(self.sliding_window)
        if self.keys is not None and self.values is not None:
            layer.lazy_initialization(self.keys, self.values)
            layer.cumulative_length = self.columns.end
            layer.keys = self.keys[:, :, -self.sliding_window + 1 :]
            layer.values = self.values[:, :, -self.sliding_window + 1 :]
        return layer

    def reserve(self, columns: int) -> None:
        if self._keys is not None and columns - self.base > self._keys.shape[2]:
            reach = min(self.columns.settled, self.columns.end) - self.sliding_window + 1
            start = max(reach - self.base, 0)  # after any rewind, no query reaches a column before this
            room = columns - self.base - start + SPARE_COLUMNS_IN_WINDOW
            self._keep(start, self._keys.shape[2], room=max(room, self._keys.shape[2] - start))
            self.base += start


class HybridLayer(GrowingLayer, LinearAttentionAndFullAttentionLayer):  # type: ignore[misc]
    def __init__(self, columns: Columns, number_of_states: int) -> None:
        GrowingLayer.__init__(self, columns)
        LinearAttentionLayer.__init__(self, number_of_states=number_of_states)

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        # Keys and values are passed by position, recurrent states by name.
        owner = GrowingLayer if args else LinearAttentionLayer
        owner.lazy_initialization(self, *args, **kwargs)

    def as_standard(self) -> DynamicLayer:
        layer = LinearAttentionAndFullAttentionLayer(self.number_of_states)
        return join_layers(layer, states=self, attention=super().as_standard())


class HybridWindowLayer(WindowLayer, LinearAttentionAndSlidingWindowAttentionLayer):  # type: ignore[misc]
    def __init__(self, columns: Columns, sliding_window: int, number_of_states: int) -> None:
        WindowLayer.__init__(self, columns, sliding_window)
        LinearAttentionLayer.__init__(self, number_of_states=number_of_states)

    lazy_initialization = HybridLayer.lazy_initialization

    def as_standard(self) -> DynamicLayer:
        layer = LinearAttentionAndSlidingWindowAttentionLayer(self.sliding_window, self.number_of_states)
        return join_layers(layer, states=self, attention=super().as_standard())


@dataclass(eq=False)
class StaticStore:
    """Move rows inside the tensors of a `StaticLayer`, which compiled models expect at the same addresses."""

    layer: StaticLayer
    columns: Columns
    _counted: int | None = None  # the layer's own count of columns, if known

    @property
    def keys(self) -> Tensor | None:
        return self.layer.keys[:, :, : self.columns.end] if self.layer.is_initialized else None

    @property
    def values(self) -> Tensor | None:
        return self.layer.values[:, :, : self.columns.end] if self.layer.is_initialized else None

    def reserve(self, columns: int) -> None:
        if columns > self.layer.max_cache_len:
            raise refusal("full static cache", room=self.layer.max_cache_len, needed=columns)

    def set_length(self, queries: int = 0) -> None:
        """Have the layer write the next `queries` tokens at `columns.end`; the layer then counts them by itself."""
        if self.layer.is_initialized and self._counted != self.columns.end:
            self.layer.cumulative_length.fill_(self.columns.end)
        self._counted = self.columns.end + queries

    def move(self, row: int, start: int, stop: int, by: int) -> None:
        for states in self._states():
            states[row, :, start + by : stop + by] = states[row, :, start:stop].clone()

    @contextmanager
    def narrowed(self, row: int) -> Iterator[None]:
        layer, all_rows = self.layer, (self.layer.keys, self.layer.values)
        if layer.is_initialized:
            layer.keys, layer.values = (states[row : row + 1] for states in all_rows)
        try:
            yield
        finally:
            layer.keys, layer.values = all_rows

    def drop(self, count: int) -> None:
        for states in self._states():
            states[:, :, : self.columns.end] = states[:, :, count : count + self.columns.end].clone()

    def insert(self, count: int) -> None:
        self.reserve(self.columns.end)
        for states in self._states():
            states[:, :, count : self.columns.end] = states[:, :, : self.columns.end - count].clone()

    def _states(self) -> list[Tensor]:
        layer = self.layer
        return [layer.keys, layer.values] if layer.is_initialized else []


def _allocate(states: Tensor, room: int) -> Tensor:
    # Zeros, since a masked column is multiplied by 0 and must not be NaN; `clear` does the same for a row that moves.
    memory = states.new_zeros((*states.shape[:2], room, states.shape[3]))
    memory[:, :, : states.shape[2]] = states
    return memory


def _select(states: Tensor, rows: Sequence[int]) -> Tensor:
    if len(rows) > len(states) or any(source < target and rows[source] != source for target, source in enumerate(rows)):
        return states[rows]
    for target, source in enumerate(rows):  # in place: new memory of this size takes longer than the copy
        if source != target:
            states[target] = states[source]
    return states[: len(rows)]


def _insert(states: Tensor, count: int) -> Tensor:
    return torch.cat([states.new_zeros((*states.shape[:2], count, states.shape[3])), states], dim=2)

"""The layers of a cache whose rows rewind independently: memory is allocated ahead, and rows end in the same column.

A text occupies the columns from its row's start to the common end, so a batch is left-padded at all times, which every
family and attention implementation of transformers supports. If all rows rewind equally, the end is moved; a row that
rewinds further than others is moved right. Nothing is concatenated in a decoding step.
"""

from __future__ import annotations

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
)

from antislop.caches.private import join_layers
from antislop.caches.recurrent_states import put_copy

AHEAD = 256
"""Columns that are allocated at once: more would stay unused at the end of a text, fewer would be copied more often."""
AHEAD_IN_WINDOW = 64
"""The same for layers with a window, which are small and copied when they are full."""


@dataclass
class Columns:
    """The state that all layers of a cache share.

    end: the number of columns in use, and the column of the next query. settled: columns below which no row rewinds.
    capacity: the columns that the whole run will need, if known. counts: the tokens that each row feeds, if rows feed
    different numbers of them. row: the one row that is being run alone, if any.
    """

    end: int = 0
    settled: int = 0
    capacity: int | None = None
    counts: list[int] | None = None
    row: int | None = None

    def room(self, columns: int) -> int:
        """Return how many columns to allocate for a cache that needs `columns` now."""
        ahead = columns + AHEAD
        return ahead if self.capacity is None else max(columns, min(ahead, self.capacity))


class GrowingLayer(CacheLayerMixin):  # type: ignore[misc]
    """Full attention. Keys and values [rows, heads, columns, head_dim]; the first of those in memory is `base`."""

    is_sliding = False
    is_croppable = True

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self.base = 0
        self.reached = 0  # the columns after the latest query
        self.is_initialized = False
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate memory for states like these and for those to come."""
        self.dtype, self.device, self.is_initialized = key_states.dtype, key_states.device, True
        room = self.columns.room(self.columns.end - self.base + key_states.shape[2])
        self._keys, self._values = (_allocate(states[:, :, :0], room) for states in (key_states, value_states))

    @property
    def keys(self) -> Tensor | None:
        """The keys that are in use, [rows, heads, columns, head_dim]."""
        return None if self._keys is None else self._keys[:, :, : self.columns.end - self.base]

    @property
    def values(self) -> Tensor | None:
        """The values that are in use, [rows, heads, columns, head_dim]."""
        return None if self._values is None else self._values[:, :, : self.columns.end - self.base]

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write the states of a query [rows, heads, queries, head_dim]; return all that it may attend to."""
        columns, count = self.columns, key_states.shape[2]
        self.reached = columns.end + count
        place = columns.end - self.base
        is_together = columns.counts is None and columns.row is None
        if self._keys is None or self._values is None or place + count > self._keys.shape[2]:
            self._make_room(key_states, value_states)
            place = columns.end - self.base
        assert self._keys is not None and self._values is not None
        if not is_together:
            return self._write(self._keys, key_states, place), self._write(self._values, value_states, place)
        self._keys.narrow(2, place, count).copy_(key_states)
        self._values.narrow(2, place, count).copy_(value_states)
        return self._keys.narrow(2, 0, place + count), self._values.narrow(2, 0, place + count)

    def get_seq_length(self) -> int:
        """Return the columns in use."""
        return self.columns.end if self.is_initialized else 0

    def get_max_length(self) -> int:
        """Return -1: there is no limit."""
        return -1

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return how many columns `update` will return, and which is the first of them."""
        return self.get_seq_length() + query_length, 0

    def reserve(self, columns: int) -> None:
        """Have memory for this many columns; the states in memory stay."""
        if self._keys is not None and columns - self.base > self._keys.shape[2]:
            self._keep(0, self._keys.shape[2], room=self.columns.room(columns))

    def move(self, row: int, start: int, stop: int, by: int) -> None:
        """Move the columns start..stop of a row to the right by `by`, over those that are there."""
        if self._keys is None:
            return
        start, stop = max(start - self.base, 0), stop - self.base
        for states in (self._keys, self._values):
            states[row, :, start + by : stop + by] = states[row, :, start:stop].clone()  # type: ignore[index]

    def drop(self, count: int) -> None:
        """Forget the first `count` columns of all rows; the end has been moved already."""
        if self._keys is None:
            return
        inside = max(count - self.base, 0)
        self.base = max(self.base - count, 0)
        if inside:
            self._keep(inside, self._keys.shape[2], room=self._keys.shape[2])

    def begin(self) -> None:
        """Start the memory at column 0 again, since no row holds a token."""
        self.base = 0

    def insert(self, count: int) -> None:
        """Put `count` empty columns before all others."""
        if self._keys is not None:
            self._keys, self._values = (_insert(s, count) for s in (self._keys, self._values))  # type: ignore[arg-type]

    def repeat(self, times: int) -> None:
        """Repeat each row."""
        if self._keys is not None and self._values is not None:
            self._keys = self._keys.repeat_interleave(times, dim=0)
            self._values = self._values.repeat_interleave(times, dim=0)

    def adopt(self, row: int, other: GrowingLayer, length: int, *, rows: int) -> None:
        """Put another layer's only row in the place of one of `rows`; its `length` columns end where ours do."""
        if other._keys is None or other._values is None:
            return
        if not self.is_initialized:
            self.lazy_initialization(*(s[:, :, :0].expand(rows, -1, -1, -1) for s in (other._keys, other._values)))
            self.base = other.base
        assert self._keys is not None and self._values is not None
        lacking = self.base - (self.columns.end - length + other.base)
        if lacking > 0:  # the new row may rewind further than the others
            self._keys, self._values = _insert(self._keys, lacking), _insert(self._values, lacking)
            self.base -= lacking
        here, there = self.columns.end - self.base, length - other.base
        count = min(here, there)
        self._keys[row, :, here - count : here] = other._keys[0, :, there - count : there]
        self._values[row, :, here - count : here] = other._values[0, :, there - count : there]

    def fork(self, row: int, target: int) -> None:
        """Copy a row to another one; a `target` behind the last row is added."""
        if self._keys is not None and self._values is not None:
            self._keys, self._values = put_copy(self._keys, row, target), put_copy(self._values, row, target)

    def as_standard(self) -> DynamicLayer:
        """Return a layer of transformers' own that holds the same."""
        layer = DynamicLayer()
        if self.is_initialized:
            layer.lazy_initialization(self.keys, self.values)
            layer.keys, layer.values = self.keys, self.values
        return layer

    def take_over(self, keys: Tensor, values: Tensor) -> None:
        """Start with states [rows, heads, columns, head_dim] that end at the columns' end."""
        self.reached = self.columns.end
        if keys.numel():
            self.base = self.columns.end - keys.shape[2]
            self.lazy_initialization(keys[:, :, :0], values[:, :, :0])
            assert self._keys is not None and self._values is not None
            self._keys[:, :, : keys.shape[2]] = keys
            self._values[:, :, : values.shape[2]] = values

    def _make_room(self, key_states: Tensor, value_states: Tensor) -> None:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.reserve(self.columns.end + key_states.shape[2])

    def _write(self, memory: Tensor, states: Tensor, place: int) -> Tensor:
        """Write states of one row, or of rows that feed different numbers of them."""
        count, row = states.shape[2], self.columns.row
        if row is not None:
            memory = memory[row : row + 1]
            memory.narrow(2, place, count).copy_(states)
        else:
            for number, fed in enumerate(self.columns.counts or ()):
                if fed:  # to the left of the tokens that a row feeds are those that it holds
                    memory[number, :, place + count - fed : place + count] = states[number, :, count - fed :]
        return memory.narrow(2, 0, place + count)

    def _keep(self, start: int, stop: int, *, room: int) -> None:
        """Keep only the columns start..stop, in memory for `room` columns: the same memory if it has that size."""
        assert self._keys is not None and self._values is not None
        if room == self._keys.shape[2]:
            for states in (self._keys, self._values):
                states[:, :, : stop - start] = states[:, :, start:stop].clone()
        else:
            self._keys = _allocate(self._keys[:, :, start:stop], room)
            self._values = _allocate(self._values[:, :, start:stop], room)


class WindowLayer(GrowingLayer):
    """Attention to the latest `sliding_window` tokens; forgets the columns that no query can reach after any rewind."""

    is_sliding = True

    def __init__(self, columns: Columns, sliding_window: int) -> None:
        super().__init__(columns)
        self.sliding_window = sliding_window

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write the states of a query [rows, heads, queries, head_dim]; return those within its window."""
        if not self.is_initialized and self.columns.end == 0:
            return self._start(key_states, value_states)
        keys, values = super().update(key_states, value_states)
        reach = max(self.columns.end - self.sliding_window + 1, self.base) - self.base
        return keys[:, :, reach:], values[:, :, reach:]

    def _count_unreachable(self) -> int:
        """Return how many of the first columns in memory no query can reach any more, whatever is rewound."""
        reach = min(self.columns.settled, self.columns.end) - self.sliding_window + 1
        return max(reach - self.base, 0)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return how many columns `update` will return, and which is the first of them."""
        first = max(self.get_seq_length() - self.sliding_window + 1, self.base)
        return self.get_seq_length() - first + query_length, first

    def get_max_length(self) -> int:
        """Return the window."""
        return self.sliding_window

    def insert(self, count: int) -> None:
        """Put `count` empty columns before all others, in memory only those that a window may reach."""
        self.base += count
        lacking = self.base - max(self.columns.end - self.sliding_window + 1, 0)
        if lacking > 0:
            super().insert(lacking)
            self.base -= lacking

    def as_standard(self) -> DynamicLayer:
        """Return a layer of transformers' own that holds the same, as far as the window reaches."""
        layer = DynamicSlidingWindowLayer(self.sliding_window)
        if self.keys is not None and self.values is not None:
            layer.lazy_initialization(self.keys, self.values)
            layer.cumulative_length = self.columns.end
            layer.keys = self.keys[:, :, -self.sliding_window + 1 :]
            layer.values = self.values[:, :, -self.sliding_window + 1 :]
        return layer

    def _start(self, key_states: Tensor, value_states: Tensor) -> tuple[Tensor, Tensor]:
        """Attend to a whole prompt, but keep only the end of it."""
        self.reached = length = key_states.shape[2]
        self.base = max(min(self.columns.settled, length) - self.sliding_window + 1, 0)
        self.dtype, self.device, self.is_initialized = key_states.dtype, key_states.device, True
        room = length - self.base + AHEAD_IN_WINDOW
        self._keys, self._values = (_allocate(s[:, :, self.base :], room) for s in (key_states, value_states))
        return key_states, value_states

    def reserve(self, columns: int) -> None:
        """Have memory for this many columns, in the place of those that no query can reach any more."""
        if self._keys is not None and columns - self.base > self._keys.shape[2]:
            start = self._count_unreachable()
            room = columns - self.base - start + AHEAD_IN_WINDOW
            self._keep(start, self._keys.shape[2], room=max(room, self._keys.shape[2] - start))
            self.base += start


class HybridLayer(GrowingLayer, LinearAttentionAndFullAttentionLayer):  # type: ignore[misc]
    """Full attention and a recurrent state side by side."""

    def __init__(self, columns: Columns, number_of_states: int) -> None:
        GrowingLayer.__init__(self, columns)
        LinearAttentionLayer.__init__(self, number_of_states=number_of_states)

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        """Allocate memory: for keys and values by position, for recurrent states by name."""
        owner = GrowingLayer if args else LinearAttentionLayer
        owner.lazy_initialization(self, *args, **kwargs)

    def as_standard(self) -> DynamicLayer:
        """Return a layer of transformers' own that holds the same."""
        layer = LinearAttentionAndFullAttentionLayer(self.number_of_states)
        return join_layers(layer, states=self, attention=super().as_standard())


class HybridWindowLayer(WindowLayer, LinearAttentionAndSlidingWindowAttentionLayer):  # type: ignore[misc]
    """Attention to a window and a recurrent state side by side."""

    def __init__(self, columns: Columns, sliding_window: int, number_of_states: int) -> None:
        WindowLayer.__init__(self, columns, sliding_window)
        LinearAttentionLayer.__init__(self, number_of_states=number_of_states)

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        """Allocate memory: for keys and values by position, for recurrent states by name."""
        owner = WindowLayer if args else LinearAttentionLayer
        owner.lazy_initialization(self, *args, **kwargs)

    def as_standard(self) -> DynamicLayer:
        """Return a layer of transformers' own that holds the same, as far as the window reaches."""
        layer = LinearAttentionAndSlidingWindowAttentionLayer(self.sliding_window, self.number_of_states)
        return join_layers(layer, states=self, attention=super().as_standard())


def _allocate(states: Tensor, room: int) -> Tensor:
    """Return states [rows, heads, columns, head_dim] in memory for `room` columns."""
    # Zeros: columns that are masked are multiplied by 0, and must not be NaN.
    memory = states.new_zeros((*states.shape[:2], room, states.shape[3]))
    memory[:, :, : states.shape[2]] = states
    return memory


def _insert(states: Tensor, count: int) -> Tensor:
    return torch.cat([states.new_zeros((*states.shape[:2], count, states.shape[3])), states], dim=2)

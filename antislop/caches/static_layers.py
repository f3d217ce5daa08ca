"""Layers of a static cache, whose tensors must stay where they are for compiled models: rows are moved inside them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers.cache_utils import StaticLayer

from antislop.caches.layers import Columns


class StaticStore:
    """The memory of a transformers `StaticLayer`, which has `max_cache_len` columns; moves the rows inside it."""

    def __init__(self, layer: StaticLayer, columns: Columns) -> None:
        self.layer = layer
        self.columns = columns

    @property
    def keys(self) -> Tensor | None:
        """The keys that are in use, [rows, heads, columns, head_dim]."""
        return self.layer.keys[:, :, : self.columns.end] if self.layer.is_initialized else None

    @property
    def values(self) -> Tensor | None:
        """The values that are in use, [rows, heads, columns, head_dim]."""
        return self.layer.values[:, :, : self.columns.end] if self.layer.is_initialized else None

    def reserve(self, columns: int) -> None:
        """Raise `ValueError` if there is no memory for this many columns."""
        if columns > self.layer.max_cache_len:
            raise ValueError(
                f"the static cache has room for {self.layer.max_cache_len} tokens, and {columns} are needed: "
                "pass one with a larger max_cache_len, or none"
            )

    def set_length(self) -> None:
        """Write the next query at the columns' end."""
        if self.layer.is_initialized:
            self.layer.cumulative_length.fill_(self.columns.end)

    def move(self, row: int, start: int, stop: int, by: int) -> None:
        """Move the columns start..stop of a row to the right by `by`."""
        for states in self._states():
            states[row, :, start + by : stop + by] = states[row, :, start:stop].clone()

    @contextmanager
    def narrowed(self, row: int) -> Iterator[None]:
        """Reduce the layer to one row inside; it keeps the states that are written to it."""
        layer, all_rows = self.layer, (self.layer.keys, self.layer.values)
        if layer.is_initialized:
            layer.keys, layer.values = (states[row : row + 1] for states in all_rows)
        try:
            yield
        finally:
            layer.keys, layer.values = all_rows

    def begin(self) -> None:
        """Do nothing: the first column in memory is always the same."""

    def drop(self, count: int) -> None:
        """Forget the first `count` columns of all rows; the end has been moved already."""
        for states in self._states():
            states[:, :, : self.columns.end] = states[:, :, count : count + self.columns.end].clone()

    def insert(self, count: int) -> None:
        """Put `count` empty columns before all others; the end has been moved already."""
        self.reserve(self.columns.end)
        for states in self._states():
            states[:, :, count : self.columns.end] = states[:, :, : self.columns.end - count].clone()

    def _states(self) -> list[Tensor]:
        layer = self.layer
        return [layer.keys, layer.values] if layer.is_initialized else []


def without_window(layer: StaticLayer, room: int) -> StaticLayer:
    """Return a layer that keeps the columns that a window would forget; the mask still leaves them out of attention."""
    unlimited = StaticLayer(max_cache_len=room)
    unlimited.cumulative_length = torch.zeros_like(layer.cumulative_length)
    return unlimited

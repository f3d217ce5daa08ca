"""Layers of a static cache, whose tensors must stay where they are for compiled models: rows are moved inside them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers.cache_utils import StaticLayer

from antislop.caches.layers import Columns


class FixedLayer:
    """Stands beside a transformers `StaticLayer` and moves what it holds; it has room for `max_cache_len` columns."""

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
        """Have memory for so many columns; raise `ValueError` where there is none."""
        if columns > self.layer.max_cache_len:
            raise ValueError(
                f"the static cache has room for {self.layer.max_cache_len} tokens, and {columns} are needed: "
                "pass one with a larger max_cache_len, or none"
            )

    def set_length(self) -> None:
        """Have the next query written at the columns' end."""
        if self.layer.is_initialized:
            self.layer.cumulative_length.fill_(self.columns.end)

    def move(self, row: int, start: int, stop: int, by: int) -> None:
        """Move the columns start..stop of a row to the right by `by`."""
        for states in self._states():
            states[row, :, start + by : stop + by] = states[row, :, start:stop].clone()

    @contextmanager
    def narrowed(self, row: int) -> Iterator[None]:
        """Let the layer have one row only; what is written to it is written to its memory."""
        layer, whole = self.layer, (self.layer.keys, self.layer.values)
        if layer.is_initialized:
            layer.keys, layer.values = (states[row : row + 1] for states in whole)
        try:
            yield
        finally:
            layer.keys, layer.values = whole

    def begin(self) -> None:
        """Take note that no row holds anything."""

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
    """Return a layer that keeps what a window would forget; the mask leaves it out of attention all the same."""
    whole = StaticLayer(max_cache_len=room)
    whole.cumulative_length = torch.zeros_like(layer.cumulative_length)
    return whole

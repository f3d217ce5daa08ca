"""Copies of recurrent states, to which a row can be rewound.

The state of a Mamba or linear-attention layer summarizes the whole past and can't be cut. It is copied every few
tokens; a rewind restores the latest copy that is not too late, and the tokens after it are read again, one at a time as
they were read first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers.cache_utils import LinearAttentionCacheLayerMixin

SNAPSHOT_EVERY = 4
"""Tokens between two copies: about half of them are read again per rewind; copies of unsettled text are in memory."""

_States = list[Tensor]


class Snapshots:
    """States of the recurrent layers at some lengths of each row; several rows share the tensors of one moment."""

    def __init__(self, rows: int, *, every: int = SNAPSHOT_EVERY) -> None:
        if every < 1:
            raise ValueError(f"snapshots are taken every {every} tokens; at least 1 is expected")
        self._every = every
        self._due = 0
        self._rows: list[list[tuple[int, int, _States]]] = [[] for _ in range(rows)]  # (length, row in states, states)

    def take(self, lengths: Sequence[int], layers: Sequence[object]) -> None:
        """Copy the states after the rows have read some tokens, if a copy is due."""
        self._due -= 1
        if self._due > 0:
            return
        self._due = self._every
        states = [state.clone() for state in _states_of(layers)]
        for row, length in enumerate(lengths):
            self._rows[row].append((length, row, states))

    def restore(self, row: int, length: int, layers: Sequence[object]) -> int:
        """Restore a row's latest states at `length` tokens or before; return their length, 0 if there are none."""
        kept = self._rows[row]
        while kept and kept[-1][0] > length:
            kept.pop()
        if not kept:
            return 0
        length, place, states = kept[-1]
        for state, stored in zip(_states_of(layers), states, strict=True):
            state[row] = stored[place]
        self._due = min(self._due, 1)
        return length

    def settle(self, row: int, length: int) -> None:
        """Drop the copies before the latest one at `length` tokens or before."""
        kept = self._rows[row]
        while len(kept) > 1 and kept[1][0] <= length:
            kept.pop(0)

    def forget(self, row: int) -> None:
        """Drop all copies of a row; its states are copied after the next tokens that it reads."""
        self._rows[row].clear()
        self._due = 0

    def adopt(self, row: int, other: Snapshots) -> None:
        """Take over the copies of another's only row for a row."""
        self._rows[row] = list(other._rows[0])

    def fork(self, row: int, target: int) -> None:
        """Give a row the copies of another one; a `target` behind the last row is added."""
        self._rows[target : target + 1] = [list(self._rows[row])]


def put_copy(states: Tensor, row: int, target: int) -> Tensor:
    """Return states [rows, …] with a copy of a row at another one, or behind the last: only then others are copied."""
    if target == states.shape[0]:
        return torch.cat([states, states[row : row + 1]])
    states[target] = states[row]
    return states


def fork_row(layers: Sequence[object], row: int, target: int) -> None:
    """Copy the states of a row to another one; a `target` behind the last row is added."""
    for states in _dicts_of(layers):
        for key, state in states.items():
            states[key] = None if state is None else put_copy(state, row, target)


def put_row(layers: Sequence[object], row: int, others: Sequence[object], *, rows: int) -> None:
    """Put the states of another cache's only row in the place of one of `rows`."""
    for layer, new in zip(_recurrent(layers), _recurrent(others), strict=True):
        for name in ("conv", "recurrent"):
            for key, state in getattr(new, f"{name}_states").items():
                if state is not None and getattr(layer, f"{name}_states")[key] is None:
                    layer.lazy_initialization(
                        **{f"{name}_states": state.expand(rows, *state.shape[1:]), "state_idx": key}
                    )
        layer.has_previous_state = dict(new.has_previous_state)
    for state, other in zip(_states_of(layers), _states_of(others), strict=True):
        state[row] = other[0]


def clear_row(layers: Sequence[object], row: int) -> None:
    """Reset a row's states to those before any token."""
    for state in _states_of(layers):
        state[row] = 0


def repeat_rows(layers: Sequence[object], times: int) -> None:
    """Repeat the states of each row."""
    for states in _dicts_of(layers):
        for key, state in states.items():
            states[key] = None if state is None else state.repeat_interleave(times, dim=0)


@contextmanager
def narrow_states(layers: Sequence[object], row: int) -> Iterator[None]:
    """Reduce the layers to one row inside; they keep the states that are written to it."""
    before = [dict(states) for states in _dicts_of(layers)]
    for states in _dicts_of(layers):
        for key, state in states.items():
            states[key] = None if state is None else state[row : row + 1]
    try:
        yield
    finally:
        for states, originals, narrow in zip(
            _dicts_of(layers), before, list(map(dict, _dicts_of(layers))), strict=True
        ):
            for key, state in originals.items():
                after = narrow[key]
                if state is not None and after is not None:
                    state[row : row + 1] = after  # a model may have bound another tensor
                states[key] = state


def _recurrent(layers: Sequence[object]) -> list[LinearAttentionCacheLayerMixin]:
    return [layer for layer in layers if isinstance(layer, LinearAttentionCacheLayerMixin)]


def _dicts_of(layers: Sequence[object]) -> list[dict[int, Tensor | None]]:
    return [states for layer in _recurrent(layers) for states in (layer.conv_states, layer.recurrent_states)]


def _states_of(layers: Sequence[object]) -> list[Tensor]:
    return [state for states in _dicts_of(layers) for state in states.values() if state is not None]

"""Copies of recurrent states, to which a row can be rewound.

The state of a Mamba or linear-attention layer summarizes the whole past and can't be truncated. It is copied every few
tokens. A rewind restores the latest copy at or before its target, and the tokens after that copy are read again, one by
one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor
from transformers.cache_utils import LinearAttentionCacheLayerMixin

SNAPSHOT_EVERY = 4
"""Tokens between two copies. A rewind reads about half of them again; each copy of unsettled text takes memory."""


class Snapshots:
    """States of the recurrent layers at some lengths of each row."""

    def __init__(self, rows: int) -> None:
        self._due = 0  # forward passes until the next copy
        # (length, row in states, states); rows share the tensors of one copy
        self._rows: list[list[tuple[int, int, list[Tensor]]]] = [[] for _ in range(rows)]

    def take(self, lengths: Sequence[int], layers: Sequence[object], *, is_due: bool = False) -> None:
        """Copy the states at these lengths of the rows, if a copy is due."""
        self._due -= 1
        if self._due > 0 and not is_due:
            return
        self._due = SNAPSHOT_EVERY
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
        length, stored_row, states = kept[-1]
        for state, stored in zip(_states_of(layers), states, strict=True):
            state[row] = stored[stored_row]
        self._due = min(self._due, 1)
        return length

    def settle(self, row: int, length: int) -> None:
        """Drop the copies before the latest one at `length` tokens or before."""
        kept = self._rows[row]
        while len(kept) > 1 and kept[1][0] <= length:
            kept.pop(0)

    def forget(self, row: int) -> None:
        self._rows[row].clear()
        self._due = 0  # a copy follows the next tokens

    def copy(self, row: int, other: Snapshots, source: int) -> None:
        self._rows[row] = list(other._rows[source])

    def select(self, rows: Sequence[int]) -> None:
        self._rows = [list(self._rows[row]) for row in rows]


def select_rows(layers: Sequence[object], rows: Sequence[int]) -> None:
    for states in _dicts_of(layers):
        for key, state in states.items():
            states[key] = None if state is None else state[rows]


def put_row(layers: Sequence[object], row: int, others: Sequence[object], source: int, *, rows: int) -> None:
    """Replace one of `rows` rows by a row of another cache."""
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


def clear_row(layers: Sequence[object], row: int) -> None:
    for state in _states_of(layers):
        state[row] = 0


@contextmanager
def narrow_states(layers: Sequence[object], row: int) -> Iterator[None]:
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

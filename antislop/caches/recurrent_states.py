"""Remember recurrent states, so that a row can go back to one of them.

A state of a Mamba or linear-attention layer holds the whole past and can't be cut. A copy is kept every few tokens;
going back is putting the latest one that is not too late in place, and reading the tokens after it again, one at a time
as they were read first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor
from transformers.cache_utils import LinearAttentionCacheLayerMixin

SNAPSHOT_EVERY = 4
"""Tokens between two copies: about half of them are read again per rewind, and all unsettled ones are in memory."""

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
        """Copy the states after the rows read some tokens, if that is due."""
        self._due -= 1
        if self._due > 0:
            return
        self._due = self._every
        states = [state.clone() for state in _states_of(layers)]
        for row, length in enumerate(lengths):
            self._rows[row].append((length, row, states))

    def go_back(self, row: int, length: int, layers: Sequence[object]) -> int:
        """Put a row's latest states at `length` tokens or before in place; return at how many tokens, 0 for none."""
        kept = self._rows[row]
        while kept and kept[-1][0] > length:
            kept.pop()
        if not kept:
            return 0
        at, place, states = kept[-1]
        for current, old in zip(_states_of(layers), states, strict=True):
            current[row] = old[place]
        self._due = min(self._due, 1)
        return at

    def settle(self, row: int, length: int) -> None:
        """Forget what lies before the latest states at `length` tokens or before."""
        kept = self._rows[row]
        while len(kept) > 1 and kept[1][0] <= length:
            kept.pop(0)

    def forget(self, row: int) -> None:
        """Remember nothing of a row any more; what it reads next is copied."""
        self._rows[row].clear()
        self._due = 0

    def adopt(self, row: int, other: Snapshots) -> None:
        """Remember of a row what another's only row does."""
        self._rows[row] = list(other._rows[0])


def put_row(layers: Sequence[object], row: int, others: Sequence[object], *, rows: int) -> None:
    """Put the states of another cache's one row in the place of one of `rows`."""
    for own, new in zip(_recurrent(layers), _recurrent(others), strict=True):
        for name in ("conv", "recurrent"):
            for key, state in getattr(new, f"{name}_states").items():
                if state is not None and getattr(own, f"{name}_states")[key] is None:
                    own.lazy_initialization(
                        **{f"{name}_states": state.expand(rows, *state.shape[1:]), "state_idx": key}
                    )
        own.has_previous_state = dict(new.has_previous_state)
    for mine, other in zip(_states_of(layers), _states_of(others), strict=True):
        mine[row] = other[0]


def clear_row(layers: Sequence[object], row: int) -> None:
    """Put a row's states back to what they are before anything is read."""
    for state in _states_of(layers):
        state[row] = 0


def repeat_rows(layers: Sequence[object], times: int) -> None:
    """Repeat the states of each row."""
    for states in _dicts_of(layers):
        for key, state in states.items():
            states[key] = None if state is None else state.repeat_interleave(times, dim=0)


@contextmanager
def narrowed(layers: Sequence[object], row: int) -> Iterator[None]:
    """Let the layers have one row only; what is written to it is written to theirs."""
    whole = [dict(states) for states in _dicts_of(layers)]
    for states in _dicts_of(layers):
        for key, state in states.items():
            states[key] = None if state is None else state[row : row + 1]
    try:
        yield
    finally:
        for states, old, narrow in zip(_dicts_of(layers), whole, list(map(dict, _dicts_of(layers))), strict=True):
            for key, state in old.items():
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

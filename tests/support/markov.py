"""The engine protocols without transformers: a Markov model of order 2 whose cache contains its tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from antislop.decoding.protocols import KVState, KVStates, RewindableCache, count_queries, fill_left


class MarkovCache:
    """Tokens per row; as states they are keys and values of one layer, one head and one dimension."""

    def __init__(self, rows: int) -> None:
        self._rows: list[list[int]] = [[] for _ in range(rows)]
        self._settled = [0] * rows

    @property
    def lengths(self) -> Sequence[int]:
        return [len(tokens) for tokens in self._rows]

    def get_num_tokens(self) -> int:
        return max(self.lengths)

    def get_kv_states(self) -> KVStates:
        """Return the tokens twice, float32 [rows, 1, tokens, 1]; -1 stands left of shorter rows."""
        states = fill_left(self._rows).float()[:, None, :, None]
        return [KVState(states, states.clone())] if self.get_num_tokens() else []

    def update(self, kv_states: Sequence[tuple[Tensor, Tensor]]) -> None:
        shapes = {tuple(states.shape) for pair in kv_states for states in pair}
        if len(kv_states) > 1 or any(shape != (len(self._rows), 1, shape[2], 1) for shape in shapes) or len(shapes) > 1:
            raise ValueError(f"states of one layer, [{len(self._rows)}, 1, tokens, 1], are expected, not {shapes}")
        rows = len(self._rows)
        self._rows = [keys[0, :, 0].long().tolist() for keys in kv_states[0][0]] if kv_states else [[]] * rows
        self._rows, self._settled = [list(tokens) for tokens in self._rows], [0] * rows

    def crop(self, num_tokens: int) -> None:
        if not 0 <= num_tokens <= min(self.lengths):
            raise ValueError(f"{num_tokens} tokens can't be taken out of {min(self.lengths)}")
        for row, length in enumerate(self.lengths):
            self.rewind(row, length - num_tokens)

    def rewind(self, row: int, length: int) -> int:
        if not 0 <= length <= len(self._rows[row]) or 0 < length < self._settled[row]:
            raise ValueError(f"row {row} holds {len(self._rows[row])}, settled at {self._settled[row]}: not {length}")
        del self._rows[row][length:]
        if length == 0:
            self._settled[row] = 0
        return length

    def settle(self, row: int, length: int) -> None:
        self._settled[row] = max(self._settled[row], length)

    def adopt(self, row: int, other: RewindableCache) -> None:
        if not isinstance(other, MarkovCache) or len(other._rows) != 1:
            raise ValueError("a MarkovCache of one row is expected")
        self._rows[row], self._settled[row] = list(other._rows[0]), other._settled[0]

    def read(self, row: int, tokens: Sequence[int]) -> tuple[int, int]:
        """Append tokens to a row; return its latest two, with 0 for missing ones."""
        self._rows[row] += tokens
        before, last = [0, 0, *self._rows[row][-2:]][-2:]
        return before, last


class MarkovModel:
    """The token after two tokens has the logits table[before, last], [vocab]."""

    def __init__(self, table: Tensor, *, eos: frozenset[int] = frozenset()) -> None:
        self._table = table
        self.eos_token_id = eos
        self.fed: list[list[int]] = []  # tokens per row and forward

    def new_cache(self, rows: int) -> MarkovCache:
        return MarkovCache(rows)

    def forward(self, query_token_ids: Tensor, kv_cache: RewindableCache) -> Tensor:
        if not isinstance(kv_cache, MarkovCache):
            raise ValueError(f"a MarkovCache is expected, not a {type(kv_cache).__name__}")
        counts = count_queries(query_token_ids)
        self.fed.append(counts)
        logits = self._table.new_full((*query_token_ids.shape, self._table.shape[-1]), torch.nan)
        for row, (queries, count) in enumerate(zip(query_token_ids.tolist(), counts, strict=True)):
            for place in range(len(queries) - count, len(queries)):
                logits[row, place] = self._table[kv_cache.read(row, [queries[place]])]
        return logits

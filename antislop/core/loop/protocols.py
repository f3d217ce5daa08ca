"""The protocols of the models and caches that the sampler runs on, and helpers for their tensors of token ids.

docs/reference/engines.md shows how to add a model of another kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

PAD = -1
"""Stands for no token in `query_token_ids`: fills up, on the left, rows that feed fewer tokens than others."""


class RewindableCache(Protocol):
    """What a model remembers of the tokens that it read, row by row."""

    @property
    def lengths(self) -> Sequence[int]:
        """The number of tokens in each row."""

    def rewind(self, row: int, length: int) -> int:
        """Keep the first `length` tokens of one row, leave the other rows as they are, and return the length kept.

        The next forward sees the row as if the rest had never been read. Fewer tokens may be kept than asked for, if
        states are only stored at some lengths: the caller feeds the missing tokens again. A length of 0 always empties
        the row. Raises `ValueError` for other lengths below the settled one, for less than 0, and beyond the row's end.
        """

    def settle(self, row: int, length: int) -> None:
        """Note that no rewind of a row, except to 0, goes below `length`: earlier states may be dropped."""

    def copy(self, row: int, other: RewindableCache, *, source: int, length: int) -> None:
        """Replace a row by the first `length` tokens of row `source` of another cache of the same model, none settled.

        Unless both are `SharingCache`s, the other cache has one row, and `length` is all of it.
        """


@runtime_checkable
class SharingCache(RewindableCache, Protocol):
    """A cache whose rows can be selected, and copied up to a length, so that equal beginnings of prompts are read once.

    reads_prompts: set while prompts are read: a model may then leave out all but the last logits of a pass.
    """

    reads_prompts: bool

    @property
    def can_share(self) -> bool:
        """Whether prompts may be read several at a time, in parts, and after a beginning copied from another row."""

    def copyable(self, row: int, length: int) -> int:
        """Return how many of the first `length` tokens of a row `copy` can copy."""

    @property
    def can_select(self) -> bool:
        """Whether `select` may be called: for controllers that fork, and to drop the rows of finished texts."""

    def select(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order; copy a row that is listed several times, with its settled length."""


class LanguageModel(Protocol):
    """Computes the logits of the next token."""

    @property
    def eos_token_id(self) -> frozenset[int]:
        """The tokens that end a text; may be empty."""

    def new_cache(self, rows: int) -> RewindableCache:
        """Return an empty cache for `rows` rows."""

    def forward(self, query_token_ids: Tensor, kv_cache: RewindableCache) -> Tensor:
        """Read more tokens, and return the logits that follow each of them.

        query_token_ids: int64 [rows, queries], on any device; `PAD` on the left of rows that have fewer.
        Returns logits [rows, queries, vocab] of any floating dtype; position i holds logits for token i + 1. For the
        first tokens of a new cache, a model may leave out all but the last logits: callers count from the right. Logits
        at `PAD` are undefined.
        """


class KVState(NamedTuple):
    """Keys and values of one layer, both [rows, heads, tokens, head_dim]."""

    keys: Tensor
    values: Tensor


def identity(ids: Tensor, scores: Tensor) -> Tensor:  # noqa: ARG001
    """Return the scores as they are."""
    return scores


def count_queries(query_token_ids: Tensor) -> list[int]:
    """Return how many tokens each row feeds; raise `ValueError` if a row feeds none, or `PAD` is not on the left.

    >>> count_queries(torch.tensor([[PAD, 5], [6, 7]]))
    [1, 2]
    """
    if int(query_token_ids.min()) > PAD:
        return [query_token_ids.shape[1]] * query_token_ids.shape[0]
    is_token = query_token_ids != PAD
    if bool((is_token[:, :-1] & ~is_token[:, 1:]).any()):
        raise ValueError(f"PAD ({PAD}) occurs to the right of a token: fill shorter rows on their left")
    counts: list[int] = is_token.sum(dim=1).tolist()
    if 0 in counts:
        raise ValueError(f"row {counts.index(0)} feeds no token: feed at least one in each row")
    return counts


def fill_left(rows: Sequence[Sequence[int]]) -> Tensor:
    """Return rows of tokens as one tensor, `PAD` on the left of the shorter ones.

    >>> fill_left([[5], [6, 7]]).tolist()
    [[-1, 5], [6, 7]]
    """
    longest = max(map(len, rows))
    if longest == min(map(len, rows)):
        return torch.tensor(rows)
    return torch.tensor([[PAD] * (longest - len(tokens)) + list(tokens) for tokens in rows])


def send(numbers: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to a device. A copy from the CPU to a GPU does not wait for the work that is queued on the GPU."""
    is_pinned = numbers.device.type == "cpu" and device.type == "cuda"
    return numbers.pin_memory().to(device, non_blocking=True) if is_pinned else numbers.to(device)


def count_shared(items: Sequence[object], others: Sequence[object], *, start: int = 0) -> int:
    """Return the length of the longest beginning that two sequences share. start: a length known to be shared.

    >>> count_shared([5, 6, 7], [5, 6, 8, 9])
    2
    """
    stop = min(len(items), len(others))
    return next((place for place in range(start, stop) if items[place] != others[place]), stop)

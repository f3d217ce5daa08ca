"""The protocols that the sampler runs on. docs/engines.md shows how to add a model of another kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

PAD = -1
"""In query_token_ids: no token. Fills rows that feed fewer tokens than others on their left."""


class KVState(NamedTuple):
    """Keys and values of one layer, both [rows, heads, tokens, head_dim]."""

    keys: Tensor
    values: Tensor


KVStates: TypeAlias = list[KVState]
"""The states of each layer."""


class RewindableCache(Protocol):
    """What a model remembers of the tokens that it read, row by row."""

    @property
    def lengths(self) -> Sequence[int]:
        """The number of tokens in each row."""

    def rewind(self, row: int, length: int) -> int:
        """Keep the first `length` tokens of one row, leave the other rows as they are, and return the length kept.

        The next forward sees the row as if the rest had never been read. Fewer tokens may be kept than asked for, if
        states are only stored at some lengths: the caller feeds the missing ones again. 0 always empties the row.
        Raises `ValueError` for less than 0 or the settled length, and for more than the row holds.
        """

    def settle(self, row: int, length: int) -> None:
        """Note that no rewind of a row, except to 0, goes below `length`: earlier states may be dropped."""

    def copy(self, row: int, other: RewindableCache, *, source: int, length: int) -> None:
        """Replace a row by the first `length` tokens of a row of another cache of the same model, none settled.

        Unless both are `SharingCache`s, the other cache has one row, and `length` is all of it.
        """


@runtime_checkable
class SharingCache(RewindableCache, Protocol):
    """A cache whose rows can be copied in part, and selected: prompts are read together, in parts, or once.

    reads_prompts: set while prompts are read: a model may then leave out all but the last logits of a pass.
    """

    reads_prompts: bool

    @property
    def can_share(self) -> bool:
        """Whether prompts may be read beside others, in parts, and after a beginning that another row has read."""

    def copyable(self, row: int, length: int) -> int:
        """Return how many of the first `length` tokens of a row `copy` can copy."""

    @property
    def can_select(self) -> bool:
        """Whether `select` may be called: for controllers that fork, and to drop the rows of finished texts."""

    def select(self, rows: Sequence[int]) -> None:
        """Keep these rows, in this order; a row that is listed several times is copied, with its settled length."""


class KVCache(RewindableCache, Protocol):
    """A cache that also hands out its states, left-padded. Optional: the sampler calls none of this."""

    def get_num_tokens(self) -> int:
        """Return the number of tokens in the longest row; 0 for a new cache."""

    def get_kv_states(self) -> KVStates:
        """Return the states; an empty list for a new cache.

        The next forward may overwrite them: clone them to keep them.
        """

    def update(self, kv_states: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Replace the contents of the cache by these states, with all of their tokens in every row.

        Raises `ValueError` for states whose layers, rows or tokens disagree, and for a cache that stores something
        else, too.
        """

    def crop(self, num_tokens: int) -> None:
        """Remove the latest `num_tokens` tokens from every row.

        Raises `ValueError` below 0, beyond the shortest row, and for a cache that can't be rewound to any length.
        """


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
        Returns logits [rows, queries, vocab] of any floating dtype; position i holds those for token i + 1. For the
        first tokens of a new cache, a model may leave out all but the last logits: callers count from the right. Logits
        at `PAD` are undefined.
        """


ScoreFunction: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Makes scores [rows, vocab] of ids [rows, tokens] and logits [rows, vocab], as transformers' processors do."""


def identity(ids: Tensor, scores: Tensor) -> Tensor:  # noqa: ARG001
    """Return the scores as they are."""
    return scores


class SampleStrategy(NamedTuple):
    """How a token is chosen: drawn from the softmax of the processed logits, or the likeliest one."""

    do_sample: bool = True
    process: ScoreFunction = identity


class PrefillOutput(NamedTuple):
    """The token that follows each prompt, and the model's own logits.

    token_ids: int64 [rows, 1].
    token_logits: float32 [rows, 1, vocab]; with `all_logits` [rows, queries, vocab], those after each token of the
        prompts, 0 at `PAD`.
    """

    token_ids: Tensor
    token_logits: Tensor


class DecodeOutput(NamedTuple):
    """Tokens, and the model's own logits before them.

    token_ids: int64 [rows, tokens]; after its end a row is filled with an end token, or 0 where the model has none.
    token_logits: float32 [rows, tokens, vocab], 0 after a row's end. With `all_logits` [rows, queries - 1 + tokens,
        vocab]: before these, those after each query but the last, 0 at `PAD`.
    """

    token_ids: Tensor
    token_logits: Tensor


class Inferencer(Protocol):
    """Generates with a language model in two steps, so that a cache can be reused between them."""

    @property
    def eos_token_id(self) -> frozenset[int]:
        """The tokens that end a text; raises `ValueError` if the model has none."""

    def prefill(
        self,
        query_token_ids: Tensor,
        kv_cache: RewindableCache,
        sample_strategy: SampleStrategy,
        *,
        all_logits: bool = False,
    ) -> PrefillOutput:
        """Read a prompt, int64 [rows, tokens] with `PAD` on the left of shorter ones, and choose one token a row.

        all_logits: return the logits after every token of the prompt.
        """

    def decode(
        self,
        query_token_ids: Tensor,
        kv_cache: RewindableCache,
        *,
        max_new_tokens: int,
        sample_strategy: SampleStrategy,
        all_logits: bool = False,
    ) -> DecodeOutput:
        """Continue after query_token_ids, the tokens of the text that the cache does not hold yet.

        The strategy does not see the tokens that the cache held before.
        Stops at an end token or after `max_new_tokens`; raises `ValueError` unless that is positive.
        all_logits: return the logits after every query, too.
        """


def count_queries(query_token_ids: Tensor) -> list[int]:
    """Return the number of tokens that each row feeds; raise `ValueError` if it is 0, or `PAD` is not on the left.

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


def count_shared(items: Sequence[object], others: Sequence[object], *, start: int = 0) -> int:
    """Return the length of the longest beginning that two sequences share. start: a length known to be shared.

    >>> count_shared([5, 6, 7], [5, 6, 8, 9])
    2
    """
    stop = min(len(items), len(others))
    return next((place for place in range(start, stop) if items[place] != others[place]), stop)

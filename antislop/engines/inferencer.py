"""Interfaces for other engines, which the sampler itself never calls: `prefill`, `decode`, and the states of caches.

docs/reference/engines.md shows how to write a model for these interfaces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from antislop.core.bans import Matcher
from antislop.core.loop import (
    PAD,
    Callbacks,
    Drafter,
    KVState,
    LanguageModel,
    Policy,
    RewindableCache,
    Row,
    RowSpec,
    identity,
    write_rows,
)
from antislop.core.trace import TokenSurfaces


class KVCache(RewindableCache, Protocol):
    """A cache that also returns its states, left-padded. It is optional: the sampler never calls these methods."""

    def get_num_tokens(self) -> int:
        """Return the number of tokens in the longest row; 0 for a new cache."""

    def get_kv_states(self) -> list[KVState]:
        """Return the states; an empty list for a new cache.

        The next forward may overwrite them: clone them to keep them.
        """

    def update(self, kv_states: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Replace the contents of the cache by these states, with all of their tokens in every row.

        Raises `ValueError` for states whose layers, rows or tokens disagree, and for a cache that also stores anything
        other than keys and values.
        """

    def crop(self, num_tokens: int) -> None:
        """Remove the latest `num_tokens` tokens from every row.

        Raises `ValueError` below 0, beyond the shortest row's length, and if the cache can't be rewound to any length.
        """


class SampleStrategy(NamedTuple):
    """How a token is chosen: drawn from the softmax of the processed logits, or the likeliest one.

    process: makes scores [rows, vocab] of ids [rows, tokens] and logits [rows, vocab], as transformers' processors do.
    """

    do_sample: bool = True
    process: Callable[[Tensor, Tensor], Tensor] = identity


class PrefillOutput(NamedTuple):
    """The token that follows each prompt, and the model's own logits.

    token_ids: int64 [rows, 1].
    token_logits: float32 [rows, 1, vocab]; with `all_logits` [rows, queries, vocab]: the logits after each token of
        the prompts, 0 at `PAD`.
    """

    token_ids: Tensor
    token_logits: Tensor


class DecodeOutput(NamedTuple):
    """The written tokens, and the model's own logits from which each was drawn.

    token_ids: int64 [rows, tokens]; after its end a row is filled with an end token, or 0 if the model has none.
    token_logits: float32 [rows, tokens, vocab], 0 after a row's end. With `all_logits` [rows, queries - 1 + tokens,
        vocab]: the logits after each query but the last come first, 0 at `PAD`.
    """

    token_ids: Tensor
    token_logits: Tensor


class Inferencer:
    """Generates with a language model in two steps, so that a cache can be reused between them.

    It writes nothing that the matcher finds, unless nothing else is left to write.

    For `decode`, the token that `prefill` chose belongs to the prompt and is never withdrawn: to apply the bans to
    every token, pass the last token of the prompt to `decode`.
    """

    def __init__(self, model: LanguageModel, *, matcher: Matcher | None = None, drafter: Drafter | None = None) -> None:
        self._model = model
        self._drafter = drafter
        self._matcher = Matcher([], TokenSurfaces({})) if matcher is None else matcher

    @property
    def eos_token_id(self) -> frozenset[int]:
        """The tokens that end a text; raises `ValueError` if the model has none."""
        tokens = self._model.eos_token_id
        if not tokens:
            raise ValueError("the model has no end token: set eos_token_id in its generation config, or in your model")
        return tokens

    @torch.no_grad()
    def prefill(
        self,
        query_token_ids: Tensor,
        kv_cache: RewindableCache,
        sample_strategy: SampleStrategy,
        *,
        all_logits: bool = False,
    ) -> PrefillOutput:
        """Read a prompt, int64 [rows, tokens] with `PAD` on the left of shorter ones, and choose one token a row.

        all_logits: return the logits after every token of the prompt; some models then read it twice.
        """
        model = _LogitsKeeper(self._model) if all_logits else self._model
        queries = model.forward(query_token_ids, kv_cache)
        logits = queries[:, -1].float()
        pairs = zip(query_token_ids, logits, strict=True)
        scores = torch.cat([sample_strategy.process(i[None, i != PAD], row_logits[None]) for i, row_logits in pairs])
        if sample_strategy.do_sample:
            tokens = torch.multinomial(torch.softmax(scores, dim=-1), num_samples=1)
        else:
            tokens = scores.argmax(dim=-1, keepdim=True)
        return PrefillOutput(tokens, queries if all_logits else logits[:, None])

    def decode(
        self,
        query_token_ids: Tensor,
        kv_cache: RewindableCache,
        *,
        max_new_tokens: int,
        sample_strategy: SampleStrategy,
        all_logits: bool = False,
    ) -> DecodeOutput:
        """Continue after query_token_ids, the tokens of the text that the cache does not hold yet, at least one a row.

        The strategy does not see the tokens that the cache held before. A row stops at an end token or after
        `max_new_tokens` tokens. Raises `ValueError` if `max_new_tokens` is below 1.
        all_logits: return the logits after every query, too.
        """
        if max_new_tokens < 1:
            raise ValueError(f"max_new_tokens is {max_new_tokens}; at least 1 is expected")
        callbacks = _Strategy(sample_strategy, self._model.eos_token_id)
        policy = Policy(sample_strategy.do_sample, "exact", "concede")
        specs = [
            RowSpec(
                prompt=prompt[None],
                matcher=self._matcher,
                state=self._matcher.start(prompt.tolist()),
                policy=policy,
                callbacks=callbacks,
                max_new_tokens=max_new_tokens,
                drafter=self._drafter,
                keep_scores=True,
            )
            for prompt in (query[query != PAD] for query in query_token_ids)
        ]
        filler = min(self._model.eos_token_id, default=0)
        model = _LogitsKeeper(self._model) if all_logits else self._model
        rows = write_rows(specs, model, kv_cache, filler=filler)
        ids = pad_sequence([torch.tensor(row.tokens) for row in rows], batch_first=True, padding_value=filler)
        kept = [torch.cat([logits for logits, _ in row.kept or []]) for row in rows]
        token_logits = pad_sequence(kept, batch_first=True)
        if isinstance(model, _LogitsKeeper) and model.prompt_logits is not None:
            prompts = model.prompt_logits[:, :-1].to(token_logits)
            token_logits = torch.cat([prompts, token_logits], dim=1)
        return DecodeOutput(ids, token_logits)


class _LogitsKeeper:
    """Keeps the logits after all tokens that a language model reads first: float32 [rows, queries, vocab], 0 at `PAD`.

    For the first tokens of a cache, a model may leave out all but the last logits: the tokens are then read again.
    """

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self.eos_token_id = model.eos_token_id
        self.new_cache = model.new_cache
        self.prompt_logits: Tensor | None = None

    def forward(self, query_token_ids: Tensor, kv_cache: RewindableCache) -> Tensor:
        queries, was_empty = query_token_ids.shape[1], not any(kv_cache.lengths)
        logits = self._model.forward(query_token_ids, kv_cache)
        if self.prompt_logits is not None:
            return logits
        if logits.shape[1] < queries and was_empty:
            for row in range(len(kv_cache.lengths)):
                kv_cache.rewind(row, 0)
            logits = self._model.forward(query_token_ids, kv_cache)
        if logits.shape[1] < queries:
            raise ValueError(
                f"{type(self._model).__name__}.forward returned the logits after {logits.shape[1]} of {queries} "
                "queries: leave out all_logits, or have it return those after each query"
            )
        is_pad = (query_token_ids == PAD).to(logits.device)
        self.prompt_logits = logits.float().masked_fill(is_pad[:, :, None], 0.0)
        return self.prompt_logits


@dataclass(eq=False)
class _Strategy(Callbacks):
    strategy: SampleStrategy
    eos_token_ids: frozenset[int]

    def process(self, rows: Sequence[Row], lengths: Sequence[int], logits: Tensor) -> Tensor:
        scores = [
            self.strategy.process(row.ids_up_to(length), row_logits[None])
            for row, length, row_logits in zip(rows, lengths, logits, strict=True)
        ]
        return torch.cat(scores)

    def is_done(self, row: Row) -> bool:
        return len(row.tokens) >= row.max_new_tokens or row.tokens[-1] in self.eos_token_ids

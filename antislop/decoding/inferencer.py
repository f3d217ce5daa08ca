"""Generate with any `LanguageModel` under bans: prefill, then decode. docs/engines.md shows how to write a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor

from antislop.decoding.batch_engine import BatchEngine
from antislop.decoding.loop import decode
from antislop.decoding.policy import Policy
from antislop.decoding.protocols import PAD, Inferred, LanguageModel, RewindableCache, SampleStrategy
from antislop.decoding.row import Row, TextSpec
from antislop.decoding.scheduler import Scheduler
from antislop.matching.token_matcher import Matcher


class BanningInferencer:
    """An `Inferencer` that writes nothing its matcher finds, unless nothing else is left to write.

    When `decode` begins, the token that `prefill` chose belongs to the prompt: a ban that begins in it is found, but
    that token is not withdrawn. To apply the bans to every token, pass the last token of the prompt to `decode`.
    """

    def __init__(self, model: LanguageModel, *, matcher: Matcher | None = None) -> None:
        self._model = model
        self._matcher = Matcher([], _Blank()) if matcher is None else matcher

    @torch.no_grad()
    def prefill(self, query_token_ids: Tensor, kv_cache: RewindableCache, sample_strategy: SampleStrategy) -> Inferred:
        """Read a prompt [rows, tokens], `PAD` on the left of shorter ones, and choose one token a row."""
        logits = self._model.forward(query_token_ids, kv_cache)[:, -1].float()
        pairs = zip(query_token_ids, logits, strict=True)
        scores = torch.cat([sample_strategy.process(i[None, i != PAD], row_logits[None]) for i, row_logits in pairs])
        if sample_strategy.do_sample:
            tokens = torch.multinomial(torch.softmax(scores, dim=-1), num_samples=1)
        else:
            tokens = scores.argmax(dim=-1, keepdim=True)
        return Inferred(tokens, logits[:, None])

    def decode(
        self,
        query_token_ids: Tensor,
        kv_cache: RewindableCache,
        *,
        max_new_tokens: int,
        sample_strategy: SampleStrategy,
    ) -> Inferred:
        """Continue after query_token_ids [rows, tokens], at least one a row, which the cache does not hold yet.

        Stops in each row at an end token or after `max_new_tokens`; raises `ValueError` unless that is positive.
        """
        if max_new_tokens < 1:
            raise ValueError(f"max_new_tokens is {max_new_tokens}; at least 1 is expected")
        settings = _Strategy(sample_strategy, self._model.eos_token_id)
        policy = Policy(sample_strategy.do_sample, "exact", "concede", max_rewinds=100)
        prompts = [query[query != PAD] for query in query_token_ids]
        specs = [
            TextSpec(
                prompt=prompt[None],
                matcher=self._matcher,
                state=self._matcher.start(prompt.tolist()),
                policy=policy,
                settings=settings,
                capacity=max_new_tokens,
                keep_scores=True,
            )
            for prompt in prompts
        ]
        rows = [Row(spec, number=place, place=place) for place, spec in enumerate(specs)]
        engine = BatchEngine(self._model, kv_cache, filler=min(self._model.eos_token_id, default=0))
        for _ in decode(Scheduler(rows=rows), engine):
            pass
        return _collect(rows, filler=min(self._model.eos_token_id, default=0))


class _Strategy:
    """A `SampleStrategy` as the loop's settings."""

    def __init__(self, strategy: SampleStrategy, eos_token_ids: frozenset[int]) -> None:
        self._strategy = strategy
        self.eos_token_ids = eos_token_ids

    def follow(self, rows: Sequence[Row]) -> None:
        pass

    def process(self, rows: Sequence[Row], lengths: Sequence[int], logits: Tensor) -> Tensor:
        scores = [
            self._strategy.process(row.ids_up_to(length), row_logits[None])
            for row, length, row_logits in zip(rows, lengths, logits, strict=True)
        ]
        return torch.cat(scores)

    def is_done(self, row: Row) -> bool:
        return len(row.tokens) >= row.capacity or row.tokens[-1] in self.eos_token_ids


class _Blank:
    """Surfaces of tokens whose text does not matter."""

    breaks: Mapping[int, str] = MappingProxyType({})
    byte_tokens: frozenset[int] = frozenset()

    def surface(self, token_id: int) -> bytes:  # noqa: ARG002
        return b""


def _collect(rows: Sequence[Row], *, filler: int) -> Inferred:
    longest = max(len(row.tokens) for row in rows)
    ids = torch.tensor([row.tokens + [filler] * (longest - len(row.tokens)) for row in rows])
    logits = []
    for row in rows:
        kept = torch.cat([token_logits for token_logits, _ in row.kept or []])
        logits.append(torch.cat([kept, kept.new_zeros((longest - len(kept), kept.shape[1]))]))
    return Inferred(ids, torch.stack(logits))

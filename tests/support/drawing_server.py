"""A server without a network: it draws from a Markov model, and tells what a real one would."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, log

import torch

from antislop.core.loop.sampling import Sampling
from antislop.engines.endpoint.endpoint import ServerFeatures, StreamEnd, StreamItem, StreamRequest, StreamToken
from tests.support.naive_samplers import dry, xtc
from tests.support.toys import Markov


@dataclass
class DrawingServer:
    """The methods of a `StreamingClient` that an `EndpointText` calls.

    forgets: the share of written tokens whose probability it does not tell.
    """

    model: Markov
    features: ServerFeatures
    forgets: float = 0.0
    requests: list[StreamRequest] = field(default_factory=list)
    written: int = 0
    _tables: dict[object, list[float]] = field(default_factory=dict)

    async def stream(self, request: StreamRequest) -> AsyncGenerator[StreamItem, None]:
        """Yield tokens until the text or the request ends."""
        self.requests.append(request)
        draws, tokens = random.Random(request.seed), list(request.prompt)
        for _ in range(request.max_tokens):
            item = self._write(tokens, request, draws)
            assert isinstance(item, StreamToken) and item.token is not None
            yield item
            tokens.append(item.token)
            if item.token in self.model.eos:
                return
        yield StreamEnd("length")

    async def draw(self, request: StreamRequest, count: int) -> list[StreamItem]:
        """Return draws of the next token."""
        self.requests.append(request)
        draws = random.Random(request.seed)
        return [self._write(request.prompt, request, draws) for _ in range(count)]

    def _write(self, tokens: Sequence[int], request: StreamRequest, draws: random.Random) -> StreamItem:
        ids = tuple(tokens[-2:])
        drawn = self._probs(ids, request.sampling, request.bias)
        self.written += 1
        threshold = request.sampling.xtc_threshold
        if draws.random() < request.sampling.xtc_probability:
            drawn = xtc([log(p) if p else -inf for p in drawn], probability=1.0, threshold=threshold)
        if request.sampling.do_sample:
            token = draws.choices(range(len(drawn)), drawn)[0]
        else:
            token = max(range(len(drawn)), key=drawn.__getitem__)
        if request.logprobs is None or draws.random() < self.forgets:
            return StreamToken(token)
        assert request.logprobs in self.features.logprobs
        told = drawn if request.logprobs == "drawn" else self._probs(ids, Sampling(), {})
        top = sorted(range(len(told)), key=told.__getitem__, reverse=True)[: request.top_logprobs]
        return StreamToken(
            token, log(told[token]), alternatives=tuple((t, log(told[t]) if told[t] else -inf) for t in top)
        )

    def _probs(self, ids: tuple[int, ...], sampling: Sampling, bias: Mapping[int, float]) -> list[float]:
        """Return what is drawn from: a bias acts first, then DRY, temperature and truncation, last the coin of XTC."""
        key = (ids, sampling, tuple(sorted(bias.items())))
        if key not in self._tables:
            logits = self.model.logits(torch.tensor([ids]))[0].double()
            for token, value in bias.items():
                logits[token] += value
            if sampling.dry_multiplier:
                names = ("multiplier", "base", "allowed_length", "penalty_last_n")
                options = {name: getattr(sampling, f"dry_{name}") for name in names}
                logits = torch.tensor(dry([*ids], logits.tolist(), [], **options), dtype=torch.float64)
            probs = torch.softmax(logits / (sampling.temperature or 1.0), dim=-1)
            if sampling.do_sample and sampling.top_p < 1:
                ordered, order = probs.sort()
                probs[order[ordered.cumsum(0) <= 1 - sampling.top_p]] = 0
            if sampling.do_sample and sampling.min_p > 0:
                probs[probs < sampling.min_p * probs.max()] = 0
            self._tables[key] = (probs / probs.sum()).tolist()
        return self._tables[key]

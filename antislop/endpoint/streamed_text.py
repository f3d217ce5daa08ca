"""Write one text from the streams of a server that draws the tokens itself.

At a violation the text closes its stream, rewinds, and asks again from there. Where the ledger has subtracted mass, the
next token comes by thinning or by a bias.
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from math import ceil, exp
from types import MappingProxyType
from typing import NamedTuple, Protocol

from antislop.decoding.lockstep import advance_together
from antislop.decoding.row import Row, RowSpec
from antislop.decoding.stream_source import SparseTable, StreamSource
from antislop.endpoint.endpoint import EndpointError
from antislop.endpoint.methods import MIN_MASS_TO_THIN, MethodPlan
from antislop.endpoint.sampling import Sampling
from antislop.endpoint.streams import StreamBroken, StreamEnd, StreamItem, StreamRequest, StreamToken
from antislop.trace.events import Event

NO_BIAS: Mapping[int, float] = MappingProxyType({})
MAX_DRAWS = 16
"""Draws of one token that are requested together, if thinning would discard most of them."""
EXPECTED_KEPT_DRAWS = 3
"""Expected number of accepted draws per batch: P(none) is about 5 %."""
MAX_EMPTY_REQUESTS = 4
"""Requests in a row that bring no token."""


class StreamClient(Protocol):
    """What a text needs of a server."""

    def stream(self, request: StreamRequest) -> AsyncGenerator[StreamItem, None]:
        """See `StreamingClient.stream`."""

    async def draw(self, request: StreamRequest, count: int) -> Sequence[StreamItem]:
        """See `StreamingClient.draw`."""


@dataclass
class Traffic:
    """The requests for one text.

    retries: answers that broke off and were continued by another request.
    received_tokens: of these, the text keeps a part.
    thinned: received tokens that were drawn again, because bans left only a part of their probability.
    """

    requests: int = 0
    retries: int = 0
    received_tokens: int = 0
    thinned: int = 0


class DrawnToken(NamedTuple):
    """The next token, drawn from what the ledger has left. probability: in the whole distribution."""

    token: int
    probability: float | None
    alternatives: tuple[tuple[int, float], ...] = ()


class EndpointText:
    """A text that is being written. end_token: stands for an end token that the server does not name."""

    def __init__(
        self,
        client: StreamClient,
        spec: RowSpec,
        plan: MethodPlan,
        sampling: Sampling,
        *,
        seed: int,
        end_token: int | None = None,
    ) -> None:
        self.row = Row(spec)
        self.row.history = spec.settings.follow([self.row])
        self.traffic = Traffic()
        self._source = StreamSource(self.row, visible=plan.max_top_logprobs)
        self._client = client
        self._plan = plan
        self._sampling = sampling
        self._seeds = random.Random(seed)
        self._end_token = end_token
        self._has_ended = False  # the server ended the text by the latest token that was read
        self._prompt: list[int] = spec.prompt[0].tolist()

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yield what happens to the text. Raises `EndpointError` if the server fails."""
        empty_requests = 0
        while not self.row.is_finished:
            received = self.traffic.received_tokens
            try:
                async with aclosing(self._draw()) as drawn_tokens:
                    async for drawn in drawn_tokens:
                        stays = self._source.take(*drawn)
                        stays = self._ask_criteria() and stays
                        for event in self._source.row.release():
                            yield event
                        if self.row.is_finished or not stays:
                            break
                if self._has_ended and not self.row.is_finished:
                    self._end()
                    self._ask_criteria()
                    for event in self._source.row.release():
                        yield event
            except StreamBroken:  # everything received was judged: continue from there
                self.traffic.retries += 1
            empty_requests = 0 if self.traffic.received_tokens > received else empty_requests + 1
            if empty_requests > MAX_EMPTY_REQUESTS:
                raise EndpointError(
                    f"the server answered {empty_requests} requests in a row without a token: try again later"
                )

    def _ask_criteria(self) -> bool:
        """Ask the caller's stopping criteria; return whether the text stays."""
        history, length = self.row.history, len(self.row.tokens)
        if history is not None and history.is_lockstep:
            advance_together([self._source], history)
        return len(self.row.tokens) == length

    def _end(self) -> None:
        self._has_ended = False
        if self.row.tokens:
            self._source.end_at(len(self.row.tokens))
        else:
            self._source.end("done")

    def _draw(self) -> AsyncGenerator[DrawnToken, None]:
        """Return the tokens of one request, up to the first that needs another one."""
        table = self._source.table
        is_noise = table.mass_left() < self.row.spec.policy.mass_floor  # the judge then concedes what comes
        method = self._plan.choose(table)
        if table.touched and not is_noise and method == "bias":
            return self._draw_biased(table)
        if table.touched and not is_noise and method == "thin" and table.mass_left() < MIN_MASS_TO_THIN:
            return self._draw_many()
        return self._stream(is_thinned=not is_noise)

    async def _stream(self, *, is_thinned: bool) -> AsyncGenerator[DrawnToken, None]:
        async with aclosing(self._read(self._request())) as drawn_tokens:
            async for drawn in drawn_tokens:
                if is_thinned and not self._keeps(drawn):
                    return
                yield drawn

    async def _draw_many(self) -> AsyncGenerator[DrawnToken, None]:
        """Yield the first kept one of some draws."""
        count = min(MAX_DRAWS, ceil(EXPECTED_KEPT_DRAWS / self._source.table.mass_left()))
        self.traffic.requests += 1 if self._plan.draws_together else count
        self.traffic.received_tokens += count
        for item in await self._client.draw(self._request(max_tokens=1), count):
            drawn = self._receive(item)
            if drawn is None or self._keeps(drawn):
                if drawn is not None:
                    yield drawn
                self._has_ended = isinstance(item, StreamEnd)
                return

    async def _draw_biased(self, table: SparseTable) -> AsyncGenerator[DrawnToken, None]:
        scale = self._sampling.temperature or 1.0
        bias = {token: scale * value for token, value in table.biases().items()}
        # The server tells probabilities of what is left, which is this share of the whole distribution.
        share = table.mass_left() if self._plan.logprobs == "drawn" else 1.0
        async with aclosing(self._read(self._request(max_tokens=1, bias=bias))) as drawn_tokens:
            async for drawn in drawn_tokens:
                yield drawn if drawn.probability is None else drawn._replace(probability=drawn.probability * share)

    def _keeps(self, drawn: DrawnToken) -> bool:
        """Return whether a token drawn from the whole distribution is kept; count it otherwise."""
        is_kept = self._source.keeps(drawn.token)
        self.traffic.thinned += not is_kept
        return is_kept

    def _request(self, *, max_tokens: int | None = None, bias: Mapping[int, float] = NO_BIAS) -> StreamRequest:
        row, plan = self.row, self._plan
        # The biased tokens are usually the likeliest: more are asked for, so that others are among them.
        top_logprobs = plan.top_logprobs and min(plan.top_logprobs + len(bias), plan.max_top_logprobs)
        return StreamRequest(
            prompt=self._prompt + row.tokens,
            max_tokens=max_tokens or row.max_new_tokens - len(row.tokens),
            seed=self._seeds.getrandbits(31),
            sampling=self._sampling,
            bias=bias,
            logprobs=plan.logprobs if row.node.rewinds >= plan.rewinds_before_logprobs else None,
            top_logprobs=top_logprobs,
        )

    async def _read(self, request: StreamRequest) -> AsyncGenerator[DrawnToken, None]:
        self.traffic.requests += 1
        received = 0
        async with aclosing(self._client.stream(request)) as items:
            async for item in items:
                if isinstance(item, StreamEnd) and item.reason == "length":
                    if received < request.max_tokens:
                        raise EndpointError(
                            f"the server ended a text after {len(request.prompt) + received:,} tokens with the prompt: "
                            "its context is too short for this prompt and max_new_tokens"
                        )
                    return
                received += 1
                self.traffic.received_tokens += 1
                drawn = self._receive(item)
                if drawn is not None:
                    yield drawn
                if isinstance(item, StreamEnd):
                    self._has_ended = True  # reached only if all tokens have stayed
                    return

    def _receive(self, item: StreamItem) -> DrawnToken | None:
        """Return an item's token; None for an end without one."""
        if isinstance(item, StreamToken) and item.token is None:
            raise EndpointError(
                f"the server wrote {item.text!r}, which is not a single token of the tokenizer: a server that names "
                "tokens by their ids is needed"
            )
        token = self._end_token if item.token is None else item.token
        if token is None:
            return None
        alternatives = tuple((other, exp(logprob)) for other, logprob in item.alternatives)
        return DrawnToken(token, None if item.logprob is None else exp(item.logprob), alternatives)

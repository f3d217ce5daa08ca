"""Write one text from the streams of a server that draws the tokens itself.

At a violation the text closes its stream, rewinds, and asks again from there. Where violations were, it asks for the
likeliest tokens, too, and draws from what the ledger has left of them; elsewhere the next token comes by thinning or by
a bias.
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from math import ceil, exp
from types import MappingProxyType
from typing import NamedTuple, Protocol

from antislop.core.loop import Node, Row, RowSpec, Sampling, advance_together, end_at
from antislop.core.trace import Event
from antislop.engines.endpoint.endpoint import (
    EndpointError,
    StreamBroken,
    StreamEnd,
    StreamItem,
    StreamRequest,
    StreamToken,
)
from antislop.engines.endpoint.methods import FURTHER_ALTERNATIVES, MethodPlan
from antislop.engines.stream_source import LOWEST_BIAS, SparseTable, StreamDrawing, StreamSource

NO_BIAS: Mapping[int, float] = MappingProxyType({})
MAX_DRAWS = 16
"""Draws of one token that are requested together, if thinning would discard most of them."""
EXPECTED_KEPT_DRAWS = 3
"""Expected number of accepted draws per batch: P(none) is about 5 %."""
CONVINCING_DRAWS = 30
"""Expected number of unknown tokens among draws of which none is one: there is none, but for a chance of 1e-13."""
TOLD_TOKENS = 16
"""Tokens for which the likeliest ones are requested, after a violation."""
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
    chosen: tokens that were drawn here, among those that the server told.
    """

    requests: int = 0
    retries: int = 0
    received_tokens: int = 0
    thinned: int = 0
    chosen: int = 0


class DrawnToken(NamedTuple):
    """The next token, drawn from what the ledger has left. probability: in the whole distribution."""

    token: int
    probability: float | None
    alternatives: tuple[tuple[int, float], ...] = ()


class EndpointText:
    """A text that is being written.

    end_token: stands for an end token that the server does not name.
    special: tokens without text, which end the text if the server says so.
    """

    def __init__(
        self,
        client: StreamClient,
        spec: RowSpec,
        plan: MethodPlan,
        sampling: Sampling,
        *,
        seed: int,
        end_token: int | None = None,
        special: Collection[int] = (),
    ) -> None:
        self.row = Row(spec)
        self.traffic = Traffic()
        drawing = StreamDrawing(visible=plan.max_top_logprobs, looks_further=plan.further is not None)
        self._source = StreamSource(self.row, drawing)
        self._client = client
        self._plan = plan
        self._sampling = sampling
        self._seeds = random.Random(seed)
        self._end_token = end_token
        self._doubtful = set(special) - spec.callbacks.eos_token_ids  # special tokens that may end a text
        self._ends = set[int]()  # the doubtful tokens that ended one
        self._has_ended = False  # the server ended the text by the latest token that was read
        self._prompt: list[int] = spec.prompt[0].tolist()

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yield what happens to the text. Raises `EndpointError` if the server fails."""
        empty_requests = 0
        while not self.row.is_finished:
            received = self.traffic.received_tokens + self.traffic.chosen
            try:
                async with aclosing(self._draw()) as drawn_tokens:
                    async for drawn in drawn_tokens:
                        stays = self._source.take(*drawn)
                        stays = self._ask_criteria() and stays
                        for event in self.row.release():
                            yield event
                        if self.row.is_finished or not stays:
                            break
                if self._has_ended and not self.row.is_finished:
                    self._has_ended = False
                    if self.row.tokens:
                        end_at(self.row, len(self.row.tokens))
                    else:
                        self.row.drawing.end(self.row, "done")
                    self._ask_criteria()
                    for event in self.row.release():
                        yield event
            except StreamBroken:  # everything received was judged: continue from there
                self.traffic.retries += 1
            is_empty = self.traffic.received_tokens + self.traffic.chosen == received
            empty_requests = empty_requests + 1 if is_empty else 0
            if empty_requests > MAX_EMPTY_REQUESTS:
                raise EndpointError(
                    f"the server answered {empty_requests} requests in a row without a token: try again later"
                )

    def _ask_criteria(self) -> bool:
        """Ask the caller's stopping criteria; return whether the text stays."""
        length = len(self.row.tokens)
        if self.row.is_lockstep:
            advance_together([self.row])
        return len(self.row.tokens) == length

    def _draw(self) -> AsyncGenerator[DrawnToken, None]:
        """Return the tokens of one request, up to the first that needs another one, or a token that is drawn here."""
        if self._source.must_look_further:  # the likeliest tokens before truncation
            request = replace(self._request(max_tokens=1), sampling=Sampling(), logprobs=self._plan.further)
            return self._ask_likeliest(request, self._source.look_further)
        if self._source.dense is not None:
            return self._choose() if self.row.node.mass_left() > 0 else self._stream(is_thinned=False)
        table = self._source.table
        is_noise = table.mass_left() < self.row.spec.policy.mass_floor  # the judge then concedes what comes
        method = self._plan.choose(table)
        if method == "here" and self._plan.wants_more(table) and self.row.node.memory is None:
            self.row.node.memory = "told more"  # once at a place
            return self._ask_likeliest(self._request(max_tokens=1), self._source.tell)
        if method == "here" and table.mass_left() > 0:
            return self._choose()
        if method == "bias" and not is_noise:
            return self._draw_biased(table.biases(), share=table.mass_left())
        return self._stream(is_thinned=not is_noise)

    async def _stream(self, *, is_thinned: bool) -> AsyncGenerator[DrawnToken, None]:
        async with aclosing(self._read(self._request())) as drawn_tokens:
            async for drawn in drawn_tokens:
                if is_thinned and not self._source.keeps(drawn.token):
                    self.traffic.thinned += 1
                    self._source.tell(drawn.alternatives)
                    return
                yield drawn

    async def _choose(self) -> AsyncGenerator[DrawnToken, None]:
        """Draw from what was told; or, by the same chance, ask for one of the other tokens."""
        token = self._source.draw()
        if token is not None:
            self.traffic.chosen += 1
            yield DrawnToken(token, None)
            self._has_ended = token in self._ends
            return
        table = self._source.table
        bias = dict.fromkeys(table.known, LOWEST_BIAS)
        others = self._draw_biased(bias, share=table.unknown) if self._plan.fits(bias) else self._draw_other(table)
        async with aclosing(others):
            async for drawn in others:
                yield drawn

    async def _draw_other(self, table: SparseTable) -> AsyncGenerator[DrawnToken, None]:
        """Yield the first of some draws that is an unknown token, as long as there may be one."""
        left = CONVINCING_DRAWS / table.unknown
        while left > 0:
            count = min(MAX_DRAWS, ceil(EXPECTED_KEPT_DRAWS / table.unknown))
            left -= count
            for item in await self._ask(self._request(max_tokens=1), count):
                drawn = self._receive(item)
                if drawn is None or not table.knows(drawn.token):
                    if drawn is not None:
                        yield drawn
                    self._has_ended = isinstance(item, StreamEnd)
                    return
                self.traffic.thinned += 1
        table.is_whole = True

    def _draw_biased(self, bias: Mapping[int, float], *, share: float) -> AsyncGenerator[DrawnToken, None]:
        """Draw one token under a bias. share: of the whole distribution, which the bias leaves."""
        scale = self._sampling.temperature or 1.0
        request = self._request(max_tokens=1, bias={token: scale * value for token, value in bias.items()})
        # The server tells probabilities of what is left.
        return self._read(request, share=share if self._plan.logprobs == "drawn" else 1.0)

    async def _ask_likeliest(
        self, request: StreamRequest, tell: Callable[[Sequence[tuple[int, float]]], object]
    ) -> AsyncGenerator[DrawnToken, None]:
        """Tell many of the likeliest tokens, and yield none."""
        request = replace(request, top_logprobs=min(FURTHER_ALTERNATIVES, self._plan.max_top_logprobs))
        (item,) = await self._ask(request, 1)
        drawn = self._receive(item)
        tell(drawn.alternatives if drawn else ())
        return
        yield

    async def _ask(self, request: StreamRequest, count: int) -> Sequence[StreamItem]:
        """Return draws of one token."""
        self.traffic.requests += 1 if self._plan.draws_together else count
        self.traffic.received_tokens += count
        return await self._client.draw(request, count)

    def _request(self, *, max_tokens: int | None = None, bias: Mapping[int, float] = NO_BIAS) -> StreamRequest:
        row, plan, alternatives = self.row, self._plan, 0
        node: Node | None = row.node
        rewinds = 0  # the most to a place to which the text may still return
        while node is not None:
            rewinds, node = max(rewinds, node.rewinds), node.parent
        logprobs = plan.logprobs if rewinds >= plan.rewinds_before_logprobs else None
        length = max_tokens or row.max_new_tokens - len(row.tokens)
        if not row.spec.policy.do_sample:
            # The biased tokens are usually the likeliest: more are asked for, so that others are among them.
            alternatives = min(plan.top_logprobs + len(bias), plan.max_top_logprobs)
        elif logprobs is not None and rewinds and not bias:
            alternatives, length = plan.top_logprobs, min(length, TOLD_TOKENS)
        return StreamRequest(
            prompt=self._prompt + row.tokens,
            max_tokens=length,
            seed=self._seeds.getrandbits(31),
            sampling=self._sampling,
            bias=bias,
            logprobs=logprobs,
            top_logprobs=alternatives,
        )

    async def _read(self, request: StreamRequest, *, share: float = 1.0) -> AsyncGenerator[DrawnToken, None]:
        self.traffic.requests += 1
        received = 0
        async with aclosing(self._client.stream(request)) as items:
            async for item in items:
                if isinstance(item, StreamEnd) and item.reason == "length":
                    if received < request.max_tokens:
                        raise EndpointError(
                            f"the server ended a text at a length of {len(request.prompt) + received:,}, the prompt "
                            "included: its context is too short for this prompt and max_new_tokens"
                        )
                    return
                received += 1
                self.traffic.received_tokens += 1
                drawn = self._receive(item)
                if drawn is not None:
                    yield drawn if drawn.probability is None else drawn._replace(probability=drawn.probability * share)
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
        self._doubtful.discard(token)
        if isinstance(item, StreamEnd):
            self._ends.add(token)
        alternatives = tuple(
            (other, exp(logprob)) for other, logprob in item.alternatives if other not in self._doubtful
        )
        return DrawnToken(token, None if item.logprob is None else exp(item.logprob), alternatives)

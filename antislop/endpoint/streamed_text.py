"""Write one text from the streams of a server that draws the tokens itself.

The text reads one long stream. At a violation it closes the stream, rewinds, and asks again from there; tokens that
were not read yet continue the withdrawn text, so nothing depends on them. Where the ledger has subtracted mass, the
next token comes by thinning or by a bias (exact_methods.py), and all others from an ordinary stream.
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from math import ceil, exp
from types import MappingProxyType
from typing import NamedTuple, Protocol

from antislop.decoding.row import Row, TextSpec
from antislop.endpoint.methods import HEAVY, MethodPlan
from antislop.endpoint.old_dialects import EndpointError
from antislop.endpoint.sampling import Sampling
from antislop.endpoint.stream_source import SparseTable, StreamSource
from antislop.endpoint.streams.messages import Ended, Message, StreamBroken, StreamedToken, StreamRequest
from antislop.endpoint.traffic import Traffic
from antislop.trace.events import Event

NO_BIAS: Mapping[int, float] = MappingProxyType({})
MAX_DRAWS = 16
"""Limit of the draws of one token that are requested together if thinning would discard most of them."""
USEFUL_DRAWS = 3
"""Of them, those that are expected to be kept: with 3, hardly any request brings none."""
MAX_STALLS = 4
"""Limit of requests in a row that bring no token."""


class StreamClient(Protocol):
    """What a text needs of a server."""

    def stream(self, request: StreamRequest) -> AsyncGenerator[Message, None]:
        """Yield the tokens that follow a prompt, and how they end; closing the generator ends the request.

        Raises `StreamBroken` if it breaks off after the first token.
        """

    async def draw(self, request: StreamRequest, count: int) -> Sequence[Message]:
        """Return `count` independent draws of the next token."""


class Candidate(NamedTuple):
    """The next token, drawn from what the ledger has left.

    probability: of the token in the whole distribution; None if unknown. alternatives: of other tokens there.
    """

    token: int
    probability: float | None
    alternatives: tuple[tuple[int, float], ...] = ()


class StreamedText:
    """A text that is being written.

    plan: the exact ways of its settings. seed: determines the seeds of the requests. end_token: is added to the text if
    the server does not name the token that ended it.
    """

    def __init__(
        self,
        client: StreamClient,
        spec: TextSpec,
        plan: MethodPlan,
        sampling: Sampling,
        *,
        seed: int,
        end_token: int | None = None,
    ) -> None:
        self.row = Row(spec)
        self.row.history = spec.settings.follow([self.row])
        self.traffic = Traffic()
        self._source = StreamSource(self.row, visible=plan.max_alternatives)
        self._client = client
        self._plan = plan
        self._sampling = sampling
        self._seeds = random.Random(seed)
        self._end_token = end_token
        self._has_ended = False  # the server ended the text by the latest token that was read
        self._prompt: list[int] = spec.prompt[0].tolist()

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yield what happens until the text is finished. Raises `EndpointError` if the server fails."""
        stalls = 0
        while not self.row.is_finished:
            written = self.traffic.written
            try:
                async with aclosing(self._candidates()) as candidates:
                    async for candidate in candidates:
                        stays = self._source.take(*candidate)
                        for event in self._source.release():
                            yield event
                        if self.row.is_finished or not stays:
                            break
                if self._has_ended and not self.row.is_finished:
                    self._end()
                    for event in self._source.release():
                        yield event
            except StreamBroken:  # everything received was judged: continue from there
                self.traffic.retries += 1
            stalls = 0 if self.traffic.written > written else stalls + 1
            if stalls > MAX_STALLS:
                raise EndpointError(f"the server answered {stalls} requests in a row without a token: try again later")

    def _end(self) -> None:
        """End the text where the server did: its end token may be none of those that are known here."""
        self._has_ended = False
        if self.row.tokens:
            self._source.end_at(len(self.row.tokens))
        else:
            self._source.end("done")

    def _candidates(self) -> AsyncGenerator[Candidate, None]:
        """Return the tokens of one request, until the ledger needs another one."""
        table = self._source.table
        is_noise = table.mass_left() < self.row.spec.policy.mass_floor  # the judge then concedes what comes
        method = self._plan.choose(table)
        if table.touched and not is_noise and method == "bias":
            return self._stream_biased(table)
        if table.touched and not is_noise and method == "thin" and table.mass_left() < HEAVY:
            return self._draw_many()
        return self._stream(is_thinned=not is_noise)

    async def _stream(self, *, is_thinned: bool) -> AsyncGenerator[Candidate, None]:
        """Yield tokens until one is not kept."""
        async with aclosing(self._read(self._request())) as candidates:
            async for candidate in candidates:
                if is_thinned and not self._keeps(candidate):
                    return
                yield candidate

    async def _draw_many(self) -> AsyncGenerator[Candidate, None]:
        """Yield the first of some draws that is kept."""
        count = min(MAX_DRAWS, ceil(USEFUL_DRAWS / self._source.table.mass_left()))
        self.traffic.requests += 1 if self._plan.draws_together else count
        self.traffic.written += count
        for message in await self._client.draw(self._request(max_tokens=1), count):
            candidate = self._receive(message)
            if candidate is None or self._keeps(candidate):
                if candidate is not None:
                    yield candidate
                self._has_ended = isinstance(message, Ended)
                return

    async def _stream_biased(self, table: SparseTable) -> AsyncGenerator[Candidate, None]:
        """Yield a token drawn under a bias, and those that follow it without one if the same request writes them."""
        scale = self._sampling.temperature or 1.0
        bias, left = {token: scale * value for token, value in table.biases().items()}, table.mass_left()
        touched = len(bias)  # the likeliest tokens, usually: more are asked for, so that others are among them
        if self._plan.has_first_bias:
            request = self._request(first_bias=bias, touched=touched)
        else:
            request = self._request(bias=bias, touched=touched, max_tokens=1)
        is_first = True
        async with aclosing(self._read(request)) as candidates:
            async for candidate in candidates:
                if is_first and candidate.probability is not None and self._plan.logprobs == "drawn":
                    yield candidate._replace(probability=candidate.probability * left)  # all of the rest is `left`
                elif is_first or self._keeps(candidate):
                    yield candidate
                else:
                    return
                is_first = False

    def _keeps(self, candidate: Candidate) -> bool:
        """Return whether a token drawn from the whole distribution counts; count it otherwise."""
        is_kept = self._source.keeps(candidate.token)
        self.traffic.thinned += not is_kept
        return is_kept

    def _request(
        self,
        *,
        max_tokens: int | None = None,
        bias: Mapping[int, float] = NO_BIAS,
        first_bias: Mapping[int, float] = NO_BIAS,
        touched: int = 0,
    ) -> StreamRequest:
        row, plan = self.row, self._plan
        return StreamRequest(
            prompt=self._prompt + row.tokens,
            max_tokens=max_tokens or row.capacity - len(row.tokens),
            seed=self._seeds.getrandbits(31),
            sampling=self._sampling,
            bias=bias,
            first_bias=first_bias,
            logprobs=plan.logprobs if row.node.rewinds >= plan.patience else None,
            alternatives=min(plan.alternatives and plan.alternatives + touched, plan.max_alternatives),
        )

    async def _read(self, request: StreamRequest) -> AsyncGenerator[Candidate, None]:
        """Yield the tokens of a stream, the end token included."""
        self.traffic.requests += 1
        received = 0
        async with aclosing(self._client.stream(request)) as messages:
            async for message in messages:
                if isinstance(message, Ended) and message.reason == "length":
                    if received < request.max_tokens:
                        raise EndpointError(
                            f"the server ended a text after {len(request.prompt) + received:,} tokens with the prompt: "
                            "its context is too short for this prompt and max_new_tokens"
                        )
                    return
                received += 1
                self.traffic.written += 1
                candidate = self._receive(message)
                if candidate is not None:
                    yield candidate
                if isinstance(message, Ended):
                    self._has_ended = True  # reached only if all tokens have stayed
                    return

    def _receive(self, message: Message) -> Candidate | None:
        """Return the token of a message, None for an end without one. Raises `EndpointError` for one without an id."""
        token = message.token
        if token is None and isinstance(message, StreamedToken):
            raise EndpointError(
                f"the server wrote {message.text!r}, which is no single token of the tokenizer: a server that names "
                "tokens by their ids is needed"
            )
        token = self._end_token if token is None else token
        if token is None:
            return None
        alternatives = tuple((other, exp(logprob)) for other, logprob in message.alternatives)
        return Candidate(token, None if message.logprob is None else exp(message.logprob), alternatives)

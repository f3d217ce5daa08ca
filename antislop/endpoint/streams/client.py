"""The client of one server: streams of tokens, draws of one token, and what the server can do."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from reprlib import repr as shorten
from typing import Any

from transformers import PreTrainedTokenizerBase

from antislop.endpoint.endpoint import ANSWER_BASE, ANSWER_PART, Endpoint
from antislop.endpoint.old_dialects import EndpointError
from antislop.endpoint.streams.connection import StreamConnection
from antislop.endpoint.streams.dialect import StreamDialect, check_id, check_settings, complete_body, end_stream
from antislop.endpoint.streams.hidden_tokens import HiddenSpeller, HiddenTokens
from antislop.endpoint.streams.llama_cpp import LlamaCppStream, read_reason
from antislop.endpoint.streams.messages import (
    Ended,
    Message,
    Server,
    ServerFeatures,
    StreamBroken,
    StreamedToken,
    StreamRequest,
)
from antislop.endpoint.streams.openai import OpenaiStream
from antislop.endpoint.streams.probe import ServerProbe
from antislop.endpoint.streams.sglang import SglangStream
from antislop.endpoint.streams.vllm import VllmStream
from antislop.endpoint.token_names import TokenNames
from antislop.hf.vocabulary import Vocabulary

NAMING_TRIES = 16
"""Limit of requests for the names of hidden tokens."""
REPEATS = 4
"""Of those, the first ones, which repeat the seed."""
TOKEN_PART = 64
"""Bytes of a token's id and log-probability."""
DIALECTS_OF_STREAMS: dict[Server, type[StreamDialect]] = {
    "vllm": VllmStream,
    "llama.cpp": LlamaCppStream,
    "sglang": SglangStream,
    "openai": OpenaiStream,
}


class StreamingClient:
    """Requests tokens from an endpoint; for one event loop at a time.

    tokenizer, vocabulary: of the served model, which the probe checks. streams: the limit of open requests; further
    ones wait. Everything raises `EndpointError`.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        tokenizer: PreTrainedTokenizerBase,
        vocabulary: Vocabulary,
        *,
        streams: int = 64,
    ) -> None:
        self._endpoint = endpoint
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._names = TokenNames(tokenizer, vocabulary)
        self._speller = HiddenSpeller(vocabulary)
        self._connection = StreamConnection(endpoint, streams=streams)
        self._features: ServerFeatures | None = None
        self._probing = asyncio.Lock()

    async def probe(self) -> ServerFeatures:
        """Return what the server can do; asked once, by few requests."""
        async with self._probing:
            if self._features is None:
                probe = ServerProbe(self._connection, self._endpoint, self._tokenizer, self._vocabulary)
                self._features = await probe.run()
            return self._features

    async def stream(self, request: StreamRequest) -> AsyncGenerator[Message, None]:
        """Yield the server's tokens, and `Ended` last.

        Closing the generator ends the text on the server. Raises `StreamBroken` if
        the answer ends early: the tokens so far are valid, and a new request can continue after them.
        """
        while True:
            dialect, seen, unnamed = await self._start(request), list[int](), None
            async with aclosing(self._messages(dialect, request)) as messages:
                async for message in messages:
                    if isinstance(message, HiddenTokens):
                        tokens = self._speller.find(message)
                        if tokens is None:
                            unnamed = message
                            break
                        seen += tokens
                        for token in tokens:
                            yield StreamedToken(token)
                    else:
                        if isinstance(message, StreamedToken) and message.token is not None:
                            seen.append(message.token)
                        yield message
            if unnamed is None:
                return
            tokens = await self._name(request, seen, unnamed)
            seen += tokens
            reason = "length" if len(seen) == request.max_tokens and unnamed.reason is None else unnamed.reason
            named = [StreamedToken(token) for token in tokens]
            for last in named if reason is None else end_stream(named, reason):
                yield last
            if reason is not None:
                return
            request = _continue(request, seen)

    async def draw(self, request: StreamRequest, count: int) -> list[Message]:
        """Return independent draws of the first token: a `StreamedToken`, or `Ended` if the server names no end token.

        Their seeds are those from `request.seed` on.
        """
        request = replace(request, max_tokens=1)
        dialect = await self._start(request)
        if isinstance(dialect, VllmStream):
            answers = await self._ask(dialect, request, n=count)
            return [message for message in answers if message != Ended("length")]
        requests = [replace(request, seed=request.seed + i) for i in range(count)]
        draws = await asyncio.gather(*(self._ask(type(dialect)(each), each) for each in requests))
        return [messages[0] for messages in draws]

    async def close(self) -> None:
        """Close the connections; they are opened again when needed, also by another event loop."""
        self._probing = asyncio.Lock()
        await self._connection.close()

    async def _start(self, request: StreamRequest) -> StreamDialect:
        """Return the dialect of a request."""
        server = (await self.probe()).server
        dialect = DIALECTS_OF_STREAMS[server](request)
        check_settings(request.sampling, dialect, server=server)
        return dialect

    async def _messages(
        self, dialect: StreamDialect, request: StreamRequest
    ) -> AsyncGenerator[Message | HiddenTokens, None]:
        """Yield the messages of one request; the connection of a finished one is kept for others."""
        if request.max_tokens == 1 and isinstance(dialect, LlamaCppStream):  # only unstreamed answers name all tokens
            for only in await self._ask(dialect, request):
                yield only
            return
        ended: Ended | None = None
        url = self._connection.address(dialect.path)
        body = complete_body(dialect.ask(), self._endpoint)
        async with aclosing(
            self._connection.stream(url, body, max_bytes=_limit_bytes(request), is_last=not dialect.keeps_connection)
        ) as events:
            async for event in events:
                for message in self._read(dialect, event):
                    if isinstance(message, Ended):
                        ended = message
                    else:
                        yield message
        if ended is None:
            raise StreamBroken(f"{url} ended its answer before the text was finished")
        yield ended

    async def _ask(self, dialect: StreamDialect, request: StreamRequest, **fields: Any) -> list[Message]:
        """Return the messages of an answer that is not streamed."""
        url, body = self._connection.address(dialect.path), complete_body(dialect.ask(), self._endpoint)
        answer = await self._connection.ask(url, body | {"stream": False} | fields, max_bytes=_limit_bytes(request))
        return [message for message in self._read(dialect, answer) if not isinstance(message, HiddenTokens)]

    def _read(self, dialect: StreamDialect, event: Any) -> list[Message | HiddenTokens]:
        """Return the messages of an event, with the ids of tokens that have a text of their own."""
        try:
            messages = list(dialect.read(event))
        except (LookupError, TypeError, ValueError, AttributeError):
            url = self._connection.address(dialect.path)
            raise EndpointError(f"{url} is no completions endpoint: it answered {shorten(event)}") from None
        if isinstance(dialect, OpenaiStream):
            return [self._find(message) for message in messages]
        return messages

    def _find(self, message: Message | HiddenTokens) -> Message | HiddenTokens:
        """Return a message with the id of its token, if one token has its text."""
        if isinstance(message, StreamedToken):
            return message._replace(token=self._names.find(message.text.encode()))
        return message

    async def _name(self, request: StreamRequest, seen: list[int], hidden: HiddenTokens) -> list[int]:
        """Return tokens that the server wrote and did not name, and those after them; see `hidden_tokens`."""
        count = hidden.number + len(hidden.after)
        again = replace(request, max_tokens=len(seen) + count)
        for attempt in range(NAMING_TRIES):
            if attempt < REPEATS:
                start, tried = len(seen), again
            else:
                start, tried = 0, replace(_continue(request, seen, attempt), max_tokens=count)
            body = complete_body(LlamaCppStream(tried).ask(), self._endpoint) | {"stream": False}
            answer = await self._connection.ask(self._connection.address(LlamaCppStream.path), body)
            tokens = [check_id(token) for token in answer["tokens"]]
            has_same_end = hidden.reason is None or hidden.reason == read_reason(answer)
            if (
                tokens[:start] == seen[:start]
                and self._speller.agree(tokens[start:], hidden)
                and answer["content"].endswith(hidden.text)
                and has_same_end
            ):
                return tokens[start:]
        raise EndpointError(
            f"{self._endpoint.base_url} hid {hidden.number} tokens that end within a character, and did not repeat "
            f"them in {NAMING_TRIES} further answers: use a server that honors seeds"
        )


def _continue(request: StreamRequest, tokens: Sequence[int], attempt: int = 0) -> StreamRequest:
    """Return the request for what follows some tokens, with a seed of its own."""
    seed = random.Random(f"{request.seed} {len(tokens)} {attempt}").getrandbits(31)
    left = request.max_tokens - len(tokens)
    return replace(request, prompt=[*request.prompt, *tokens], max_tokens=left, seed=seed)


def _limit_bytes(request: StreamRequest) -> int:
    """Return the limit of bytes of an answer; SGLang sends all tokens with each one."""
    told = request.alternatives + 1
    tokens = len(request.prompt) + len(request.bias) + request.max_tokens * told
    return ANSWER_BASE + ANSWER_PART * tokens + TOKEN_PART * request.max_tokens**2 * told

"""The client of one server: streams of tokens, draws of one token, features."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import cached_property
from typing import Any

from transformers import PreTrainedTokenizerBase

from antislop.core.hf import Vocabulary
from antislop.engines.endpoint.connection import StreamConnection
from antislop.engines.endpoint.dialects import (
    DIALECTS,
    LlamaCppStream,
    OpenaiStream,
    StreamDialect,
    VllmStream,
    check_id,
    complete_body,
    end_stream,
    read_items,
    read_reason,
)
from antislop.engines.endpoint.endpoint import (
    Endpoint,
    EndpointError,
    ServerFeatures,
    StreamBroken,
    StreamEnd,
    StreamItem,
    StreamRequest,
    StreamToken,
)
from antislop.engines.endpoint.hidden_tokens import HiddenSpeller, HiddenTokens
from antislop.engines.endpoint.probe import ServerProbe

MAX_NAMING_TRIES = 16
"""Requests for the ids of hidden tokens."""
TRIES_WITH_SAME_SEED = 4
"""How many of these tries reuse the original seed."""
ANSWER_BASE_BYTES = 1 << 20
"""Limit of an answer without tokens."""
TOKEN_BYTES = 1 << 10
"""Limit of a token with its text."""


class StreamingClient:
    """Requests tokens from an endpoint, for one event loop at a time. Everything raises `EndpointError`."""

    def __init__(self, endpoint: Endpoint, tokenizer: PreTrainedTokenizerBase, vocabulary: Vocabulary) -> None:
        self._endpoint = endpoint
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._speller = HiddenSpeller(vocabulary)
        self._connection = StreamConnection(endpoint)
        self._features: ServerFeatures | None = None
        self._probing = asyncio.Lock()

    async def probe(self) -> ServerFeatures:
        """Return what the server can do; the first call makes a few requests."""
        async with self._probing:
            if self._features is None:
                probe = ServerProbe(self._connection, self._endpoint, self._tokenizer, self._vocabulary)
                self._features = await probe.run()
            return self._features

    async def stream(self, request: StreamRequest) -> AsyncGenerator[StreamItem, None]:
        """Yield tokens and a last `StreamEnd`; closing the generator ends the text on the server.

        Raises `StreamBroken` if the answer ends early.
        """
        while True:
            dialect, seen, unnamed = await self._start(request), list[int](), None
            async with aclosing(self._items(dialect, request)) as items:
                async for item in items:
                    if isinstance(item, HiddenTokens):
                        tokens = self._speller.find(item)
                        if tokens is None:
                            unnamed = item
                            break
                        seen += tokens
                        for token in tokens:
                            yield StreamToken(token)
                    else:
                        if isinstance(item, StreamToken) and item.token is not None:
                            seen.append(item.token)
                        yield item
            if unnamed is None:
                return
            tokens = await self._name(request, seen, unnamed)
            seen += tokens
            reason = "length" if len(seen) == request.max_tokens and unnamed.reason is None else unnamed.reason
            named = [StreamToken(token) for token in tokens]
            for last in named if reason is None else end_stream(named, reason):
                yield last
            if reason is not None:
                return
            request = _continue(request, seen)

    async def draw(self, request: StreamRequest, count: int) -> list[StreamItem]:
        """Return independent draws of the first token, whose seeds count up from `request.seed`."""
        request = replace(request, max_tokens=1)
        dialect = await self._start(request)
        if isinstance(dialect, VllmStream):
            answers = await self._ask(dialect, request, n=count)
            return [item for item in answers if item != StreamEnd("length")]
        requests = [replace(request, seed=request.seed + i) for i in range(count)]
        draws = await asyncio.gather(*(self._ask(type(dialect)(each), each) for each in requests))
        return [items[0] for items in draws]

    async def close(self) -> None:
        """Close the connections; another event loop may open them again."""
        self._probing = asyncio.Lock()
        await self._connection.close()

    async def _start(self, request: StreamRequest) -> StreamDialect:
        return DIALECTS[(await self.probe()).server](request)

    async def _items(
        self, dialect: StreamDialect, request: StreamRequest
    ) -> AsyncGenerator[StreamItem | HiddenTokens, None]:
        """Yield the items of one request, the end when its connection may be used again."""
        if request.max_tokens == 1 and isinstance(dialect, LlamaCppStream):  # only unstreamed answers name all tokens
            for only in await self._ask(dialect, request):
                yield only
            return
        end: StreamEnd | None = None
        url, body = self._connection.address(dialect.path), complete_body(dialect.ask(), self._endpoint)
        async with aclosing(
            self._connection.stream(url, body, max_bytes=_limit_bytes(request), is_last=not dialect.keeps_connection)
        ) as events:
            async for event in events:
                for item in self._read(dialect, event):
                    if isinstance(item, StreamEnd):
                        end = item
                    else:
                        yield item
        if end is None:
            raise StreamBroken(f"{url} ended its answer before the text was finished")
        yield end

    async def _ask(self, dialect: StreamDialect, request: StreamRequest, **fields: Any) -> list[StreamItem]:
        url, body = self._connection.address(dialect.path), complete_body(dialect.ask(), self._endpoint)
        answer = await self._connection.ask(url, body | {"stream": False} | fields, max_bytes=_limit_bytes(request))
        return [item for item in self._read(dialect, answer) if not isinstance(item, HiddenTokens)]

    def _read(self, dialect: StreamDialect, event: Any) -> list[StreamItem | HiddenTokens]:
        items = read_items(dialect, event, self._connection.address(dialect.path))
        if isinstance(dialect, OpenaiStream):
            return [
                item._replace(token=self._ids.get(item.text.encode())) if isinstance(item, StreamToken) else item
                for item in items
            ]
        return items

    @cached_property
    def _ids(self) -> dict[bytes, int | None]:
        """The token of each text; None for a text of several tokens."""
        surfaces = self._vocabulary.surfaces
        texts = [(token, surface) for token, surface in enumerate(surfaces) if surface]
        special = [token for token in self._vocabulary.breaks if token < len(surfaces)]
        texts += [(token, self._tokenizer.convert_ids_to_tokens(token).encode()) for token in special]
        ids: dict[bytes, int | None] = {}
        for token, text in texts:
            ids[text] = None if text in ids else token
        return ids

    async def _name(self, request: StreamRequest, seen: list[int], hidden: HiddenTokens) -> list[int]:
        """Return hidden tokens and those after them."""
        count = hidden.number + len(hidden.after)
        again = replace(request, max_tokens=len(seen) + count)
        for attempt in range(MAX_NAMING_TRIES):
            if attempt < TRIES_WITH_SAME_SEED:
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
            f"them in {MAX_NAMING_TRIES} further answers: use a server that honors seeds"
        )


def _continue(request: StreamRequest, tokens: Sequence[int], attempt: int = 0) -> StreamRequest:
    """Return the request for what follows some tokens, with a seed of its own."""
    seed = random.Random(f"{request.seed} {len(tokens)} {attempt}").getrandbits(31)
    left = request.max_tokens - len(tokens)
    return replace(request, prompt=[*request.prompt, *tokens], max_tokens=left, seed=seed)


def _limit_bytes(request: StreamRequest) -> int:
    """Return the maximum size of an answer."""
    per_position = request.top_logprobs + 1
    tokens = len(request.prompt) + len(request.bias) + request.max_tokens * per_position
    return ANSWER_BASE_BYTES + TOKEN_BYTES * tokens

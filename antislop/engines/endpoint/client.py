"""The client of one server: it streams tokens, draws single tokens, and probes what the server can do.

A probe takes three or four requests; if it fails on a server of unknown kind, three more find out what that one lacks.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from reprlib import repr as shorten
from typing import Any

from transformers import PreTrainedTokenizerBase

from antislop.core.hf import Vocabulary
from antislop.core.loop import Sampling
from antislop.engines.endpoint.connection import Refused, StreamConnection
from antislop.engines.endpoint.dialects import (
    DIALECTS,
    HiddenSpeller,
    HiddenTokens,
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
    Logprobs,
    Server,
    ServerFeatures,
    StreamBroken,
    StreamEnd,
    StreamItem,
    StreamRequest,
    StreamToken,
    sentence,
)

MAX_NAMING_TRIES = 16
"""Most requests that ask again for the ids of hidden tokens."""
TRIES_WITH_SAME_SEED = 4
"""How many of these tries reuse the original seed."""
ANSWER_BASE_BYTES = 1 << 20
"""Maximum size of an answer, tokens not counted."""
TOKEN_BYTES = 1 << 10
"""Maximum size of a token with its text in an answer."""
PROBE_TEXT = "Once upon a time, in 1999, she said: “Let's go!”"
SERVER_OWNERS: dict[str, Server] = {"vllm": "vllm", "llamacpp": "llama.cpp"}
"""Servers by the `owned_by` of their models."""
OTHER_OWNERS = {"library": "Ollama", "organization_owner": "LM Studio"}
"""Names of other servers, by the `owned_by` of their models, for error messages."""
PROBE_BYTES = 1 << 20
NO_ROUTE_STATUSES = (404, 405, 501)
"""HTTP statuses with which servers answer if they lack a route."""
VLLM_TOP_LOGPROBS = 20
"""How many of the likeliest tokens vLLM returns, unless it was started with another `--max-logprobs`."""
MANY_TOKENS = 1025
"""One more biased token than vLLM's second runner accepts."""
DECISIVE_BIAS = 100.0
CERTAIN_LOGPROB = -1e-4
"""A forced token with a higher log-probability shows that the server reports the distribution drawn from."""


class StreamingClient:
    """Requests tokens from an endpoint, for one event loop at a time. Each request may raise `EndpointError`."""

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
            dialect, seen, unnamed = DIALECTS[(await self.probe()).server](request), list[int](), None
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
        dialect = DIALECTS[(await self.probe()).server](request)
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

    async def _items(
        self, dialect: StreamDialect, request: StreamRequest
    ) -> AsyncGenerator[StreamItem | HiddenTokens, None]:
        """Yield the items of one request; the `StreamEnd` comes last, when the connection may be used again."""
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
        """The id of the token with each text; None if several tokens have the same text."""
        surfaces = self._vocabulary.surfaces
        texts = [(token, surface) for token, surface in enumerate(surfaces) if surface]
        special = [token for token in self._vocabulary.breaks if token < len(surfaces)]
        texts += [(token, self._tokenizer.convert_ids_to_tokens(token).encode()) for token in special]
        ids: dict[bytes, int | None] = {}
        for token, text in texts:
            ids[text] = None if text in ids else token
        return ids

    async def _name(self, request: StreamRequest, seen: list[int], hidden: HiddenTokens) -> list[int]:
        """Return the ids of hidden tokens and of the tokens after them, by asking the server again."""
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
            f"{self._endpoint.base_url} hid tokens that end within a character ({hidden.number}), and did not repeat "
            f"them in {MAX_NAMING_TRIES} further answers: use a server that honors seeds"
        )


def _continue(request: StreamRequest, tokens: Sequence[int], attempt: int = 0) -> StreamRequest:
    """Return the request that continues after `tokens`, with a new seed that also depends on `attempt`."""
    seed = random.Random(f"{request.seed} {len(tokens)} {attempt}").getrandbits(31)
    left = request.max_tokens - len(tokens)
    return replace(request, prompt=[*request.prompt, *tokens], max_tokens=left, seed=seed)


def _limit_bytes(request: StreamRequest) -> int:
    """Return the maximum size in bytes of the answer to a request."""
    per_position = request.top_logprobs + 1
    tokens = len(request.prompt) + len(request.bias) + request.max_tokens * per_position
    return ANSWER_BASE_BYTES + TOKEN_BYTES * tokens


# -- what a server can do ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ServerProbe:
    connection: StreamConnection
    endpoint: Endpoint
    tokenizer: PreTrainedTokenizerBase
    vocabulary: Vocabulary

    async def run(self) -> ServerFeatures:
        """Return what the server can do; raises `EndpointError`, also if the tokenizer is another model's."""
        try:
            answer = await self.connection.ask(self.connection.address("/v1/models"))
        except Refused as refused:
            if refused.status not in NO_ROUTE_STATUSES and refused.status < 500:  # transformers serve without a cache
                raise
            answer = {}
        cards = [card for card in answer.get("data", ()) if isinstance(card, dict)] if isinstance(answer, dict) else []
        named = [card for card in cards if card.get("id") == self.endpoint.model]
        card = next(iter(named or cards), {})
        server = SERVER_OWNERS.get(str(card.get("owned_by")), "openai")
        known = ServerFeatures(
            server=server,
            model=self.endpoint.model or card.get("id"),
            context_length=card.get("max_model_len") or (card.get("meta") or {}).get("n_ctx"),
        )
        prompt: list[int] = self.tokenizer(PROBE_TEXT, add_special_tokens=False)["input_ids"]
        await self._check_tokenizer(known, prompt)
        # A tokenizer may have no token for any part of the text.
        prompt = prompt or [next(token for token, surface in enumerate(self.vocabulary.surfaces) if surface)]
        tries = {"vllm": self._try_vllm, "llama.cpp": self._try_llama_cpp}
        try:
            return await tries.get(server, self._try_other)(known, prompt)
        except EndpointError as error:
            if not (lacks := await self._find_lacks(prompt) if server == "openai" else []):
                raise
            name = OTHER_OWNERS.get(str(card.get("owned_by")), "the server")
            raise EndpointError(sentence("lacking server", name=name, lacks=" and ".join(lacks), fault=error)) from None

    async def _find_lacks(self, prompt: list[int]) -> list[str]:
        """Return what is missing in a server that refused a request; nothing if the server can't even complete a text.

        Each ability is tried alone, without other settings: a server may refuse fields that it does not know, as
        `transformers serve` does, or values, as `mlx_lm.server` refuses a `top_k` of -1.
        """
        url = self.connection.address(OpenaiStream.path)

        async def ask(**more: Any) -> Any:
            body = complete_body({"prompt": PROBE_TEXT, "max_tokens": 1, "stream": False, **more}, self.endpoint)
            with suppress(EndpointError, LookupError, TypeError):
                choice = (await self.connection.ask(url, body))["choices"][0]
                return choice["logprobs"]["tokens"] if "logprobs" in more else choice
            return None

        if not await ask():
            return []
        lacks = [] if await ask(prompt=prompt) else ["takes no prompt of token ids"]
        return lacks if await ask(logprobs=1) else [*lacks, "does not name its tokens for logprobs=1"]

    async def _check_tokenizer(self, known: ServerFeatures, prompt: list[int]) -> None:
        """Raise `EndpointError` if this tokenizer decodes the server's tokens of a text to another text."""
        if known.server == "openai":  # `_try_other` compares the texts of its tokens instead
            return
        body = {"content": PROBE_TEXT, "prompt": PROBE_TEXT, "add_special_tokens": False, "model": self.endpoint.model}
        url = self.connection.address("/tokenize")
        try:
            answer = await self.connection.ask(url, {name: value for name, value in body.items() if value is not None})
            tokens = [check_id(token) for token in answer["tokens"]]
        except Refused as refused:
            if refused.status in NO_ROUTE_STATUSES:
                return
            raise
        except (LookupError, TypeError):
            raise EndpointError(f"{url} answered no tokens: {shorten(answer)}") from None
        # Other tokens of the same text prove nothing: llama.cpp splits some texts in other places than transformers.
        if self._read(tokens) != self._read(prompt):
            raise _refuse_tokenizer(known, f"it reads the server's tokens of {PROBE_TEXT!r} as {self._read(tokens)!r}")

    def _read(self, tokens: Sequence[int]) -> str:
        return self.vocabulary.decode(tokens).strip()

    async def _try_vllm(self, known: ServerFeatures, prompt: list[int]) -> ServerFeatures:
        """Return what a vLLM server can do, by forcing a token with a bias beside as many other biases as possible."""
        token = min(prompt)
        many = dict.fromkeys(range(min(MANY_TOKENS, len(self.vocabulary.surfaces))), -1.0) | {token: DECISIVE_BIAS}
        bias: Mapping[int, float]
        for bias in (many, {token: DECISIVE_BIAS}, {}):
            try:
                written = await self._write(VllmStream, prompt, bias, top_k=1)
                break
            except Refused as refused:  # too many biased tokens, or speculative decoding, which excludes biases
                if refused.status != 400 or not bias:
                    raise
        return replace(
            known,
            has_ids=True,
            # vLLM crashes if it is asked for more of the likeliest tokens than its vocabulary has.
            max_top_logprobs=min(VLLM_TOP_LOGPROBS, len(self.vocabulary.surfaces)),
            logprobs=_name_logprobs(written[0].logprob),
            has_bias=bool(bias) and written[0].token == token,
            bias_limit=None if len(bias) == len(many) else MANY_TOKENS - 1,
            penalizes_prompt=True,
        )

    async def _try_llama_cpp(self, known: ServerFeatures, prompt: list[int]) -> ServerFeatures:
        """Return what a llama.cpp server can do: a forced token's log-probability shows whether it includes a bias."""
        token = min(prompt)
        written = await self._write(LlamaCppStream, prompt, {token: DECISIVE_BIAS})
        if known.context_length is None:  # servers from before 2026 tell it here only
            settings = (await self.connection.ask(self.connection.address("/props")))["default_generation_settings"]
            known = replace(known, context_length=settings.get("n_ctx"))
        is_drawn = _name_logprobs(written[0].logprob) == {"drawn"}
        return replace(
            known,
            has_ids=True,
            max_top_logprobs=len(self.vocabulary.surfaces),
            logprobs=frozenset({"raw", "drawn"} if is_drawn else {"raw"}),
            has_bias=written[0].token == token,
            penalizes_prompt=True,
        )

    async def _try_other(self, known: ServerFeatures, prompt: list[int]) -> ServerFeatures:
        """Raise `EndpointError` unless the server names the text of each token, and the tokenizer has these tokens."""
        items = await self._write(OpenaiStream, prompt, {}, max_tokens=8)
        # koboldcpp names the tokens only of answers that are not streamed, but texts are streamed.
        items += await self._write(OpenaiStream, prompt, {}, max_tokens=8, streams=True)
        texts = [item.text for item in items if isinstance(item, StreamToken)]
        surfaces = {*self.vocabulary.surfaces, *(text.encode() for text in self.vocabulary.breaks.values())}
        unknown = [text for text in texts if "\ufffd" not in text and text.encode() not in surfaces]
        if unknown:
            raise _refuse_tokenizer(known, f"it has no token {unknown[0]!r}, which the server wrote")
        return known

    async def _write(
        self,
        dialect: type[StreamDialect],
        prompt: list[int],
        bias: Mapping[int, float],
        *,
        max_tokens: int = 1,
        top_k: int = 0,
        streams: bool = False,
    ) -> list[StreamItem]:
        """Have the server write a few tokens, at a temperature that tells both kinds of log-probabilities apart."""
        request = StreamRequest(
            prompt=prompt,
            max_tokens=max_tokens,
            seed=1,
            sampling=Sampling(temperature=0.5, top_k=top_k),
            bias=bias,
            logprobs="drawn",
        )
        asked = dialect(request)
        body, url = complete_body(asked.ask(), self.endpoint), self.connection.address(dialect.path)
        if streams:
            answers = [event async for event in self.connection.stream(url, body, max_bytes=PROBE_BYTES)]
        else:
            answers = [await self.connection.ask(url, body | {"stream": False})]
        items = [item for answer in answers for item in read_items(asked, answer, url)]
        written = [item for item in items if item != StreamEnd("length") and not isinstance(item, HiddenTokens)]
        if not written:
            raise EndpointError(f"{url} is not a completions endpoint: it answered {shorten(answers[0])}")
        return written


def _refuse_tokenizer(known: ServerFeatures, sign: str) -> EndpointError:
    model = known.model or "the served model"
    return EndpointError(f"the tokenizer is not that of {model}: {sign}; pass the served model's tokenizer")


def _name_logprobs(logprob: float | None) -> frozenset[Logprobs]:
    """Return which kind a forced token's log-probability is of: it is 0 only in the distribution drawn from."""
    if logprob is None:
        return frozenset()
    return frozenset({"drawn" if logprob > CERTAIN_LOGPROB else "raw"})


def describe(features: ServerFeatures) -> str:
    """Return one line on a server.

    >>> describe(ServerFeatures(server="vllm", model="tiny", has_ids=True, context_length=512))
    'vllm, model tiny, 512 tokens: names tokens by id, no log-probabilities'
    """
    kinds = " and ".join(f"{kind}" for kind in sorted(features.logprobs))
    parts = [
        "names tokens by id" if features.has_ids else "names tokens by their texts",
        f"log-probabilities {kinds}" if kinds else "no log-probabilities",
    ]
    if features.has_bias:
        parts.append("logit_bias" + (f" of {features.bias_limit:,} tokens" if features.bias_limit else ""))
    model = f", model {features.model}" if features.model else ""
    length = f", {features.context_length:,} tokens" if features.context_length else ""
    return f"{features.server}{model}{length}: {', '.join(parts)}"

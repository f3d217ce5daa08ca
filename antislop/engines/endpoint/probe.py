"""Find out by three or four requests what a server can do, and by three more what it lacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from reprlib import repr as shorten
from typing import Any

from transformers import PreTrainedTokenizerBase

from antislop.core.hf import Vocabulary
from antislop.core.loop import Sampling
from antislop.engines.endpoint.connection import Refused, StreamConnection
from antislop.engines.endpoint.dialects import (
    LlamaCppStream,
    OpenaiStream,
    StreamDialect,
    VllmStream,
    check_id,
    complete_body,
    read_items,
)
from antislop.engines.endpoint.endpoint import (
    Endpoint,
    EndpointError,
    Logprobs,
    Server,
    ServerFeatures,
    StreamEnd,
    StreamItem,
    StreamRequest,
    StreamToken,
)
from antislop.engines.endpoint.hidden_tokens import HiddenTokens

PROBE_TEXT = "Once upon a time, in 1999, she said: “Let's go!”"
SERVER_OWNERS: dict[str, Server] = {"vllm": "vllm", "llamacpp": "llama.cpp"}
"""Servers by the `owned_by` of their models."""
OTHER_OWNERS = {"library": "Ollama", "organization_owner": "LM Studio"}
"""The same of other servers, for errors."""
PROBE_BYTES = 1 << 20
NO_ROUTE_STATUSES = (404, 405, 501)
"""Of servers that lack a route."""
VLLM_TOP_LOGPROBS = 20
"""What vLLM returns unless it was started with another `--max-logprobs`."""
MANY_TOKENS = 1025
"""One more biased token than vLLM's second runner accepts."""
DECISIVE_BIAS = 100.0
CERTAIN_LOGPROB = -1e-4
"""Above it, a log-probability is that of a forced token in the distribution drawn from."""


@dataclass(frozen=True)
class ServerProbe:
    connection: StreamConnection
    endpoint: Endpoint
    tokenizer: PreTrainedTokenizerBase
    vocabulary: Vocabulary

    async def run(self) -> ServerFeatures:
        """Return the features; raises `EndpointError`, also for another model's tokenizer."""
        card = await self._find_model()
        server = SERVER_OWNERS.get(str(card.get("owned_by")), "openai")
        known = ServerFeatures(
            server=server,
            model=self.endpoint.model or card.get("id"),
            context_length=card.get("max_model_len") or (card.get("meta") or {}).get("n_ctx"),
        )
        prompt: list[int] = self.tokenizer(PROBE_TEXT, add_special_tokens=False)["input_ids"]
        await self._check_tokenizer(known, prompt)
        # A vocabulary may have none of its words.
        prompt = prompt or [next(token for token, surface in enumerate(self.vocabulary.surfaces) if surface)]
        tries = {"vllm": self._try_vllm, "llama.cpp": self._try_llama_cpp}
        try:
            return await tries.get(server, self._try_other)(known, prompt)
        except EndpointError as error:
            if not (lacks := await self._find_lacks(prompt) if server == "openai" else []):
                raise
            name = OTHER_OWNERS.get(str(card.get("owned_by")), "the server")
            raise EndpointError(
                f"{name} {' and '.join(lacks)}, which texts under bans need: serve the model with vLLM or llama.cpp's "
                f"llama-server, or in this process ({error})"
            ) from None

    async def _find_lacks(self, prompt: list[int]) -> list[str]:
        """Return what a server lacks that has refused a request; nothing if it completes no text either.

        Each is asked for alone, and without any setting: a server may refuse fields that it does not know, as
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

    async def _find_model(self) -> Mapping[str, Any]:
        try:
            answer = await self.connection.ask(self.connection.address("/v1/models"))
        except Refused as refused:
            if refused.status in NO_ROUTE_STATUSES or refused.status >= 500:  # transformers serve without a cache
                return {}
            raise
        cards = [card for card in answer.get("data", ()) if isinstance(card, dict)] if isinstance(answer, dict) else []
        named = [card for card in cards if card.get("id") == self.endpoint.model]
        return next(iter(named or cards), {})

    async def _check_tokenizer(self, known: ServerFeatures, prompt: list[int]) -> None:
        """Raise `EndpointError` if this tokenizer reads the server's tokens of a text as another text."""
        if known.server == "openai":  # `_try_other` compares the texts of its tokens
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
        # Other tokens of the same text are no sign: llama.cpp splits some texts in other places than transformers.
        if self._read(tokens) != self._read(prompt):
            raise _refuse_tokenizer(known, f"it reads the server's tokens of {PROBE_TEXT!r} as {self._read(tokens)!r}")

    def _read(self, tokens: Sequence[int]) -> str:
        return self.vocabulary.decode(tokens).strip()

    async def _try_vllm(self, known: ServerFeatures, prompt: list[int]) -> ServerFeatures:
        """Force a token by a bias, beside as many others as possible."""
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
            # vLLM ends if it is asked for more tokens than there are.
            max_top_logprobs=min(VLLM_TOP_LOGPROBS, len(self.vocabulary.surfaces)),
            logprobs=_name_logprobs(written[0].logprob),
            has_bias=bool(bias) and written[0].token == token,
            bias_limit=None if len(bias) == len(many) else MANY_TOKENS - 1,
            penalizes_prompt=True,
        )

    async def _try_llama_cpp(self, known: ServerFeatures, prompt: list[int]) -> ServerFeatures:
        """Force a token by a bias, and see whether its log-probability includes the bias."""
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
        """See that texts of tokens come with an answer, and that they are tokens."""
        items = await self._write(OpenaiStream, prompt, {}, max_tokens=8)
        # koboldcpp's answers name their tokens only if they are not streamed, and texts are.
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
        """Return a few tokens, drawn at a temperature that distinguishes both kinds of log-probabilities."""
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
    """Return the kind of a forced token's log-probability: 0 only in the distribution drawn from."""
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

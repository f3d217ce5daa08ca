"""What a server can do, found out by three or four requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from reprlib import repr as shorten
from typing import Any

from transformers import PreTrainedTokenizerBase

from antislop.hf.vocabulary import Vocabulary
from antislop.serving.completions import Endpoint
from antislop.serving.dialects import EndpointError
from antislop.serving.sampling import Sampling
from antislop.serving.streams.connection import Refused, StreamConnection
from antislop.serving.streams.dialect import StreamDialect, complete_body
from antislop.serving.streams.llama_cpp import LlamaCppStream
from antislop.serving.streams.messages import Logprobs, Server, ServerFeatures, StreamedToken, StreamRequest
from antislop.serving.streams.sglang import SglangStream
from antislop.serving.streams.vllm import VllmStream

TEXT = "Once upon a time, in 1999, she said: “Let's go!”"
"""The probe's prompt."""
OWNERS: dict[str, Server] = {"vllm": "vllm", "llamacpp": "llama.cpp", "sglang": "sglang"}
"""Servers by the `owned_by` of their models."""
MAX_ALTERNATIVES = 20
"""What vLLM returns unless it was started with another `--max-logprobs`."""
MANY_TOKENS = 1025
"""One more biased token than vLLM's second runner accepts."""
FORCE, FIRST_FORCE = 100.0, 200.0
"""Biases that decide a draw; the second one decides it against the first."""
CERTAIN = -1e-4
"""Log-probabilities above it are those of a forced token in the distribution that it was drawn from."""


@dataclass(frozen=True)
class ServerProbe:
    """Finds out what one server can do."""

    connection: StreamConnection
    endpoint: Endpoint
    tokenizer: PreTrainedTokenizerBase
    vocabulary: Vocabulary

    async def run(self) -> ServerFeatures:
        """Return the features; raises `EndpointError`, also for a tokenizer that is not the served model's."""
        card = await self._find_model()
        server = OWNERS.get(str(card.get("owned_by")), "sglang" if self.endpoint.api == "sglang" else "openai")
        known = ServerFeatures(
            server=server,
            model=self.endpoint.model or card.get("id"),
            context_length=card.get("max_model_len") or (card.get("meta") or {}).get("n_ctx"),
        )
        prompt: list[int] = self.tokenizer(TEXT, add_special_tokens=False)["input_ids"]
        await self._check_tokenizer(known, prompt)
        if server == "vllm":
            return await self._try_vllm(known, prompt)
        if server == "llama.cpp":
            return await self._try_llama_cpp(known, prompt)
        return await self._try_sglang(known, prompt) if server == "sglang" else known

    async def _find_model(self) -> Mapping[str, Any]:
        """Return what the server tells of its model; nothing if it does not tell its models."""
        try:
            answer = await self.connection.ask(self.connection.address("/v1/models"))
        except Refused as refused:
            if refused.status in (404, 405, 501):
                return {}
            raise
        cards = [card for card in answer.get("data", ()) if isinstance(card, dict)] if isinstance(answer, dict) else []
        named = [card for card in cards if card.get("id") == self.endpoint.model]
        return next(iter(named or cards), {})

    async def _check_tokenizer(self, known: ServerFeatures, prompt: list[int]) -> None:
        """Raise `EndpointError` if the server's tokens of a text spell another one, read with this tokenizer."""
        if known.server == "openai":
            return
        body = {"content": TEXT, "prompt": TEXT, "add_special_tokens": False}
        try:
            answer = await self.connection.ask(
                self.connection.address("/tokenize"), complete_body(body, replace(self.endpoint, extra={}))
            )
        except Refused as refused:
            if refused.status in (404, 405, 501):
                return
            raise
        # Other tokens of the same text are no sign: llama.cpp splits some texts in other places than transformers.
        text, own_text = (self.vocabulary.decode(tokens).strip() for tokens in (answer["tokens"], prompt))
        if text != own_text:
            raise EndpointError(
                f"the tokenizer is not that of {known.model or 'the served model'}: it reads the server's tokens of "
                f"{TEXT!r} as {text!r}; pass the served model's tokenizer"
            )

    async def _try_vllm(self, known: ServerFeatures, prompt: list[int]) -> ServerFeatures:
        """Force a token by a bias, and another one before it by a bias for the first token only."""
        always, first = sorted(set(prompt))[:2]
        many = dict.fromkeys(range(min(MANY_TOKENS, len(self.vocabulary.surfaces))), -1.0) | {always: FORCE}
        bias: Mapping[int, float]
        for bias, first_bias in ((many, {first: FIRST_FORCE}), ({always: FORCE}, {first: FIRST_FORCE}), ({}, {})):
            try:
                written = await self._write(VllmStream, prompt, bias, first_bias)
                break
            except Refused as refused:  # too many biased tokens, or speculative decoding, which excludes biases
                if refused.status != 400 or not bias:
                    raise
        tokens = [token.token for token in written]
        return replace(
            known,
            has_ids=True,
            max_alternatives=MAX_ALTERNATIVES,
            logprobs=_name_logprobs([token.logprob for token in written]),
            has_bias=bool(bias) and tokens[-1] == always,
            bias_limit=None if len(bias) == len(many) else MANY_TOKENS - 1,
            has_first_bias=bool(bias) and tokens == [first, always],
            penalizes_prompt=True,
        )

    async def _try_llama_cpp(self, known: ServerFeatures, prompt: list[int]) -> ServerFeatures:
        """Force a token by a bias, and see that its probability is that of the biased distribution."""
        token = min(prompt)
        written = await self._write(LlamaCppStream, prompt, {token: FORCE}, {}, max_tokens=1)
        if known.context_length is None:  # servers of before 2026 tell it here only
            settings = (await self.connection.ask(self.connection.address("/props")))["default_generation_settings"]
            known = replace(known, context_length=settings.get("n_ctx"))
        is_drawn = _name_logprobs([written[0].logprob]) == {"drawn"}
        return replace(
            known,
            has_ids=True,
            max_alternatives=len(self.vocabulary.surfaces),
            logprobs=frozenset({"raw", "drawn"} if is_drawn else {"raw"}),
            has_bias=written[0].token == token,
            penalizes_prompt=True,
        )

    async def _try_sglang(self, known: ServerFeatures, prompt: list[int]) -> ServerFeatures:
        """Force a token by a bias, which the log-probability includes unless the server returns the model's own."""
        token = min(prompt)
        written = await self._write(SglangStream, prompt, {token: FORCE}, {}, max_tokens=1)
        return replace(
            known,
            has_ids=True,
            max_alternatives=len(self.vocabulary.surfaces),
            logprobs=_name_logprobs([written[0].logprob]),
            has_bias=written[0].token == token,
            penalizes_prompt=True,
        )

    async def _write(
        self,
        dialect: type[StreamDialect],
        prompt: list[int],
        bias: Mapping[int, float],
        first_bias: Mapping[int, float],
        *,
        max_tokens: int = 2,
    ) -> list[StreamedToken]:
        """Return a few tokens, drawn at a temperature other than 1, from which log-probabilities can't abstract."""
        request = StreamRequest(
            prompt=prompt,
            max_tokens=max_tokens,
            seed=1,
            sampling=Sampling(temperature=0.5),
            bias=bias,
            first_bias=first_bias,
            logprobs="drawn",
        )
        asked = dialect(request)
        body = complete_body(asked.ask(), self.endpoint) | {"stream": False}
        answer = await self.connection.ask(self.connection.address(dialect.path), body)
        try:
            written = [message for message in asked.read(answer) if isinstance(message, StreamedToken)]
        except (LookupError, TypeError, ValueError, AttributeError):
            written = []
        if not written:
            raise EndpointError(f"{self.endpoint.base_url} is no completions endpoint: it answered {shorten(answer)}")
        return written


def _name_logprobs(logprobs: Sequence[float | None]) -> frozenset[Logprobs]:
    """Return the kind of the log-probabilities of forced tokens: near 0 only in the distribution drawn from."""
    if None in logprobs:
        return frozenset()
    return frozenset({"drawn" if all(value is not None and value > CERTAIN for value in logprobs) else "raw"})


def describe(features: ServerFeatures) -> str:
    """Return one line: the server, its model, and what it can do.

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
    if features.has_first_bias:
        parts.append("bias for the first token alone")
    model = f", model {features.model}" if features.model else ""
    length = f", {features.context_length:,} tokens" if features.context_length else ""
    return f"{features.server}{model}{length}: {', '.join(parts)}"

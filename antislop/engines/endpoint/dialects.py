"""The formats of vLLM, llama.cpp and other servers: the bodies of requests, and the events of streamed answers.

https://docs.vllm.ai/en/latest/serving/openai_compatible_server/
https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import log
from operator import index
from reprlib import repr as shorten
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple

from antislop.core.hf import Vocabulary
from antislop.core.loop import Sampling
from antislop.engines.endpoint.endpoint import (
    Endpoint,
    EndpointError,
    Server,
    StreamEnd,
    StreamItem,
    StreamRequest,
    StreamToken,
    sentence,
)

MIN_LOGPROB = -1e4
"""The lowest log-probability that is stored: its probability is 0 in every number format. Prevents overflow."""
LOGPROB_ROUNDING = 1e-3
"""Largest log-probability that is accepted as 0: some servers compute in low precision."""
COMMON_SETTINGS = {name: name for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")}
"""The names that fields of `Sampling` have in requests to vLLM and many other servers."""
LLAMA_CPP_SETTINGS = COMMON_SETTINGS | {
    name: name
    for name in Sampling.limits
    if name in ("typical_p", "min_keep") or name.startswith(("dry_", "xtc_", "top_n_"))
}
LLAMA_CPP_SAMPLERS = ("penalties", "dry", "top_n_sigma", "temperature", "top_k", "top_p", "min_p", "typ_p", "xtc")
"""llama.cpp's samplers in the order of `generate`; the server's own order has the temperature last."""
LEAD_BYTES = ((0xE0, 0xC0, 2), (0xF0, 0xE0, 3), (0xF8, 0xF0, 4))
"""Mask and value of a character's first byte, and the character's length in bytes."""
LLAMA_CPP_REASONS: dict[str, Literal["stop", "length"]] = {"eos": "stop", "limit": "length"}


class HiddenTokens(NamedTuple):
    """Tokens that a server has written, but whose ids it did not send.

    text: the text of the hidden tokens and of the tokens in `after`; "" at the end of a text.
    after: the ids, which the server sent, of the tokens after the hidden ones.
    reason: why the text ended, if the hidden tokens are its last ones.
    """

    number: int
    text: str
    after: Sequence[int]
    reason: Literal["stop", "length"] | None = None


class StreamDialect(ABC):
    """Writes the body of one request and reads the events of its answer, in the format of one kind of server.

    settings: the names in requests for fields of `Sampling`; fields without a name are refused.
    cuts_min_p_first: whether the server applies `min_p` before `top_p`, and so leaves fewer tokens than `generate`.
    keeps_connection: whether a connection can be used again after a stream.
    """

    path: ClassVar[str]
    settings: ClassVar[Mapping[str, str]] = COMMON_SETTINGS
    cuts_min_p_first: ClassVar[bool] = False
    keeps_connection: ClassVar[bool] = True

    def __init__(self, request: StreamRequest) -> None:
        self._request = request

    @abstractmethod
    def ask(self) -> dict[str, Any]:
        """Return the body of the request."""

    @abstractmethod
    def read(self, event: Any) -> Iterable[StreamItem | HiddenTokens]:
        """Yield the items of one event; raises `EndpointError`, or for a missing field the lookup's own error."""


class VllmStream(StreamDialect):
    """vLLM: an event holds one token or several; the last event has a `finish_reason` and ends with the end token."""

    path = "/v1/completions"
    cuts_min_p_first = True

    def ask(self) -> dict[str, Any]:
        request = self._request
        return {
            **_completions_body(request),
            "return_token_ids": True,
            "min_tokens": 0,
            "ignore_eos": False,
            "logprobs": request.top_logprobs if request.logprobs else None,  # 0: only the written token's
            "return_tokens_as_token_ids": bool(request.top_logprobs),
        }

    def read(self, event: Any) -> Iterable[StreamItem]:
        for choice in event["choices"]:
            tokens, reason = list(self._read_tokens(choice)), choice.get("finish_reason")
            yield from tokens if reason is None else end_stream(tokens, reason)

    def _read_tokens(self, choice: Any) -> Iterable[StreamToken]:
        ids, text = choice.get("token_ids"), choice.get("text", "")
        if ids is None:
            raise EndpointError("the answer has no token ids: use vLLM 0.10.2 or later")
        logprobs = choice["logprobs"] if self._request.logprobs and ids else None
        for i, token in enumerate(ids):
            received = StreamToken(check_id(token), None, "" if i else text)
            if logprobs is not None:
                received = received._replace(logprob=_check_logprob(logprobs["token_logprobs"][i]))
            if logprobs is not None and self._request.top_logprobs:
                top = logprobs["top_logprobs"][i].items()  # their names are of the form "token_id:5"
                pairs = ((check_id(int(name.removeprefix("token_id:"))), _check_logprob(value)) for name, value in top)
                received = received._replace(alternatives=tuple(pairs))
            yield received


class OpenaiStream(StreamDialect):
    """Any other server: events hold text, and if the request asks for `logprobs`, the text of each token.

    It is undocumented which distribution the log-probabilities belong to, so they are not read.
    """

    path = "/v1/completions"

    def ask(self) -> dict[str, Any]:
        penalty = self._request.sampling.repetition_penalty
        return {**_completions_body(self._request), "repeat_penalty": penalty, "logprobs": 1}

    def read(self, event: Any) -> Iterable[StreamItem]:
        for choice in event["choices"]:
            texts = (choice.get("logprobs") or {}).get("tokens")
            if texts is None and choice.get("text"):
                raise EndpointError(sentence("text without tokens"))
            yield from (StreamToken(None, None, _check_text(text)) for text in texts or ())
            reason = choice.get("finish_reason")
            if reason is not None:
                yield from end_stream([], reason)


class LlamaCppStream(StreamDialect):
    """llama.cpp: one event for each token, the end token included, then an event without a token for the end."""

    path = "/completion"
    settings = MappingProxyType(LLAMA_CPP_SETTINGS | {"repetition_penalty": "repeat_penalty"})
    keeps_connection = False  # although its answers say otherwise

    def __init__(self, request: StreamRequest) -> None:
        super().__init__(request)
        self._received = 0
        self._held: list[StreamToken] = []  # tokens without text, of which the last one may be the end token

    def ask(self) -> dict[str, Any]:
        request, length = self._request, len(self._request.prompt) + self._request.max_tokens
        return {
            "prompt": list(request.prompt),
            "n_predict": request.max_tokens,
            "seed": request.seed,
            "stream": True,
            "return_tokens": True,
            "cache_prompt": True,
            "samplers": list(LLAMA_CPP_SAMPLERS),
            **request.sampling.translate(self.settings),
            "dry_sequence_breakers": request.sampling.dry_sequence_breakers or [""],  # llama.cpp refuses an empty list
            "top_n_sigma": request.sampling.top_n_sigma or -1.0,
            "repeat_last_n": length,  # new servers take no -1
            "dry_penalty_last_n": length if (last_n := request.sampling.dry_penalty_last_n) == -1 else last_n,
            "frequency_penalty": 0.0,
            "presence_penalty": 0.0,
            "dynatemp_range": 0.0,
            "mirostat": 0,
            "ignore_eos": False,
            "n_probs": max(1, request.top_logprobs) if request.logprobs else 0,
            "post_sampling_probs": request.logprobs == "drawn",
            "logit_bias": _name_bias(request.bias),
        }

    def read(self, event: Any) -> Iterable[StreamItem | HiddenTokens]:
        ids, held = [check_id(token) for token in event["tokens"]], self._held
        text, count = _check_text(event["content"]), index(event["tokens_predicted"])
        hidden = count - self._received - len(ids)
        self._received, self._held = count, []
        if hidden < 0:
            raise EndpointError("the answer has more tokens than were predicted: use another version of llama.cpp")
        if hidden:
            yield from held
            held = []
            yield HiddenTokens(hidden, text, ids, read_reason(event) if event["stop"] else None)
        held += self._read_tokens(event, ids)
        if event["stop"]:
            yield from end_stream(held, read_reason(event))
        elif text:
            yield from held
        else:
            self._held = held

    def _read_tokens(self, event: Any, ids: Sequence[int]) -> list[StreamToken]:
        known = event.get("completion_probabilities", ()) if self._request.logprobs else ()
        if len(known) != len(ids):
            return [StreamToken(token) for token in ids]
        tokens = []
        for token, entry in zip(ids, known, strict=True):
            top = entry.get("top_probs", entry.get("top_logprobs", ()))[: self._request.top_logprobs]
            alternatives = tuple((check_id(other["id"]), _read_logprob(other)) for other in top)
            tokens.append(StreamToken(token, _read_logprob(entry), event["content"], alternatives))
        return tokens


DIALECTS: dict[Server, type[StreamDialect]] = {
    "vllm": VllmStream,
    "llama.cpp": LlamaCppStream,
    "openai": OpenaiStream,
}


def read_items(dialect: StreamDialect, event: Any, url: str) -> list[StreamItem | HiddenTokens]:
    """Return the items of an event; raises `EndpointError` if the event does not have the dialect's structure."""
    try:
        return list(dialect.read(event))
    except (LookupError, TypeError, ValueError, AttributeError):
        raise EndpointError(f"{url} is not a completions endpoint: it answered {shorten(event)}") from None


def complete_body(body: Mapping[str, Any], endpoint: Endpoint) -> dict[str, Any]:
    """Return a body with the endpoint's model and extra fields, without the fields that are None."""
    whole = {**body, "model": endpoint.model, **endpoint.extra}
    return {name: value for name, value in whole.items() if value is not None}


def end_stream(tokens: Sequence[StreamToken], reason: Any) -> Iterator[StreamItem]:
    if reason not in ("stop", "length"):
        raise EndpointError(f"the server ended the text because of {shorten(reason)}, not 'stop' or 'length'")
    if reason == "stop" and tokens:
        *tokens, last = tokens
        yield from tokens
        yield StreamEnd(reason, last.token, last.logprob, last.alternatives)
    else:
        yield from tokens
        yield StreamEnd(reason)


def read_reason(event: Any) -> Literal["stop", "length"]:
    try:
        return LLAMA_CPP_REASONS[event["stop_type"]]
    except KeyError:
        raise EndpointError(f"the server ended the text with stop_type {event['stop_type']!r}") from None


def check_id(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise EndpointError(f"the answer has {shorten(value)} as the id of a token: a whole number is needed")
    return value


def _check_text(value: Any) -> str:
    text: str = value
    text.encode()  # lone surrogates are an error, too
    return text


def _completions_body(request: StreamRequest) -> dict[str, Any]:
    """Return the fields of a body that vLLM and other servers with OpenAI's completions API read alike."""
    return {
        "prompt": list(request.prompt),
        "max_tokens": request.max_tokens,
        "seed": request.seed,
        "stream": True,
        **request.sampling.translate(COMMON_SETTINGS),
        "top_k": request.sampling.top_k or -1,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        **({"logit_bias": _name_bias(request.bias)} if request.bias else {}),
    }


def _name_bias(bias: Mapping[int, float]) -> dict[str, float]:
    """Return a bias by token as JSON takes it: names are strings, and infinities are replaced by large numbers."""
    return {str(token): min(max(value, MIN_LOGPROB), -MIN_LOGPROB) for token, value in bias.items()}


def _read_logprob(entry: Any) -> float:
    """Return the log-probability of an entry, in which llama.cpp sends it either directly or as a probability."""
    if "prob" not in entry:
        return _check_logprob(entry["logprob"])
    value = entry["prob"]
    if isinstance(value, (int, float)) and 0 <= value <= 1 + LOGPROB_ROUNDING:
        return _check_logprob(log(value)) if value > 0 else MIN_LOGPROB
    raise EndpointError(f"the answer has {shorten(value)} as a probability: a number from 0 to 1 is needed")


def _check_logprob(value: Any) -> float:
    if isinstance(value, (int, float)) and value <= LOGPROB_ROUNDING:  # False for NaN
        return min(0.0, float(max(value, MIN_LOGPROB)))
    raise EndpointError(sentence("wrong log-probability", value=shorten(value)))


# -- the tokens that llama.cpp writes and does not name in a stream ----------------------------------------------------


def ends_within_character(text: bytes) -> bool:
    """Return whether a text's last character lacks bytes, as llama.cpp decides it: by that character's first byte."""
    return any(
        text[-back] & mask == value for mask, value, size in LEAD_BYTES for back in range(1, min(size, len(text) + 1))
    )


class HiddenSpeller:
    """Finds which tokens a server merged into one piece of text, because they split a character.

    While a text ends within a character, the server streams nothing; then it sends the character's text, and the id of
    its last token only. If several sequences of tokens spell the text, an answer that is not streamed names them.

    Why this is exact: the second answer is used only if it agrees with all that was seen of the first. Either the
    server repeated its draw, and these are the tokens; or it drew independently, and conditioned on what was seen they
    have the same distribution. (Drawing again at this place alone would make tokens that end within a character too
    rare.) The first stream is then abandoned, since it continues different tokens.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._ids: dict[bytes, list[int]] = {}

    def find(self, hidden: HiddenTokens) -> list[int] | None:
        """Return the hidden tokens; None unless exactly one sequence spells their text."""
        text, last = hidden.text.encode(), self._vocabulary.join(hidden.after)
        if "\ufffd" in hidden.text or not last or not text.endswith(last):
            return None
        spellings = self._spell(text.removesuffix(last), 0, hidden.number)
        tokens = next(spellings, None)
        # Tokens without text can hide too, so a spelling of fewer tokens would be another possibility.
        return tokens if tokens and len(tokens) == hidden.number and next(spellings, None) is None else None

    def agree(self, tokens: Sequence[int], hidden: HiddenTokens) -> bool:
        """Return whether these tokens would be streamed just as the hidden tokens and those after them were."""
        names, text = tokens[: hidden.number], b""
        for token in names:
            text += self._vocabulary.surface(token)
            if not ends_within_character(text):
                return False
        return len(names) == hidden.number and list(tokens[hidden.number :]) == list(hidden.after)

    def _spell(self, text: bytes, start: int, limit: int) -> Iterator[list[int]]:
        """Yield the sequences of up to `limit` tokens that spell `text[start:]`, each token ending in a character."""
        if start == len(text):
            yield []
            return
        for stop in range(start + 1, len(text) + 1) if limit else ():
            if ends_within_character(text[:stop]):
                for token in self._index().get(text[start:stop], ()):
                    yield from ([token, *rest] for rest in self._spell(text, stop, limit - 1))

    def _index(self) -> dict[bytes, list[int]]:
        """Return tokens by their bytes, without the tokens of ASCII, which never end within a character."""
        if not self._ids:
            for token, surface in enumerate(self._vocabulary.surfaces):
                if surface and not surface.isascii():
                    self._ids.setdefault(surface, []).append(token)
        return self._ids

"""The address of a server with a model, and the values that pass between a text and the client of the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Literal, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from antislop.core.loop import Sampling
from antislop.errors import InputError, sentences_of

sentence = sentences_of(__file__)


class EndpointError(RuntimeError):
    """Raised if an endpoint gives no usable answer; the same request may succeed later."""


@dataclass(frozen=True)
class Endpoint:
    """A completions endpoint. Makes no requests, and uses no proxies.

    base_url: the URL before `/completions`, such as "http://127.0.0.1:8000/v1".
    model: the model's name on the server; some servers need none.
    api_key: sent as a bearer token.
    timeout: seconds to connect, and between two parts of an answer.
    retries: maximum number of repeated requests after a failed connection, a time-out, 429 or 5xx.
    backoff: seconds before the first repeated request, doubled each time, less up to half at random; a longer
        `Retry-After` is obeyed, up to 30 seconds.
    extra: additional fields of each request; `None` removes one that is sent by default.

    Raises `InputError` for an unusable URL, key or field, without the secrets in them.
    """

    base_url: str
    model: str | None = None
    api_key: str | None = field(default=None, repr=False)
    timeout: float = 120.0
    retries: int = 4
    backoff: float = 0.5
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if set("@?#") & set(str(self.base_url)):
            raise InputError(sentence("url with secrets"))
        example = "something like http://127.0.0.1:8000/v1 is expected"
        try:
            parts = urlsplit(str(self.base_url))
            is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
            (parts.hostname or "").encode("idna")
        except ValueError as error:
            raise InputError(sentence("invalid url", url=self.base_url, reason=error, example=example)) from None
        if not is_url or not _is_plain(self.base_url):
            raise InputError(f"base_url is {self.base_url!r}; {example}")
        if not (isinstance(self.timeout, int | float) and isfinite(self.timeout) and self.timeout > 0):
            raise InputError(f"timeout is {self.timeout!r}; seconds above 0 are expected")
        if not isinstance(self.retries, int) or self.retries < 0 or not (isfinite(self.backoff) and self.backoff >= 0):
            raise InputError(f"retries is {self.retries!r} and backoff {self.backoff!r}; neither can be below 0")
        if not _is_plain(self.api_key or ""):
            raise InputError("the API key contains white space or a character that is not ASCII: pass the key alone")
        if not isinstance(self.extra, Mapping):
            raise InputError(f"extra is {self.extra!r:.40}; the fields of requests are expected: pass a dict")
        if self.extra.get("id_slot") is not None:
            raise InputError("extra names a slot (id_slot), with which llama.cpp draws wrong tokens: leave it out")


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable() and " " not in text


Server = Literal["vllm", "llama.cpp", "openai"]
"""The kinds of servers; "openai" is any other server, which names tokens by their texts."""
Logprobs = Literal["raw", "drawn"]
"""Log-probabilities are those of the model ("raw"), or those after bias, penalties, temperature and truncation."""
EndpointMethod = Literal["auto", "reject", "thin", "bias"]
"""How a sampler keeps bans on a server; "auto" takes the cheapest of the other methods at each token."""


@dataclass(frozen=True, kw_only=True)
class StreamRequest:
    """A request for the tokens that follow a prompt.

    bias: by token, what the server adds to its logit before temperature and truncation.
    logprobs: the kind to return, None for none. top_logprobs: number of likeliest tokens to return per position.
    """

    prompt: Sequence[int]
    max_tokens: int
    seed: int
    sampling: Sampling
    bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: Logprobs | None = None
    top_logprobs: int = 0


class StreamToken(NamedTuple):
    """A token that the server wrote.

    token: its id; None if the server sent text that no single token spells.
    logprob: natural logarithm of the probability, of the requested kind; None if unknown.
    alternatives: likely tokens and their log-probabilities; may contain the token itself.
    """

    token: int | None
    logprob: float | None = None
    text: str = ""
    alternatives: tuple[tuple[int, float], ...] = ()


class StreamEnd(NamedTuple):
    """The end of a stream, with the end token, for which no `StreamToken` is sent.

    reason: "stop" if the model ended the text, "length" if `max_tokens` were written. token: None if not sent.
    """

    reason: Literal["stop", "length"]
    token: int | None = None
    logprob: float | None = None
    alternatives: tuple[tuple[int, float], ...] = ()


StreamItem: TypeAlias = StreamToken | StreamEnd


class StreamBroken(RuntimeError):
    """Raised if a stream breaks off after its first token. The received tokens are valid."""


@dataclass(frozen=True, kw_only=True)
class ServerFeatures:
    """What a server can do, as found out by a probe.

    model: the model's name on the server, if known.
    logprobs: the kinds of log-probabilities that the server returns.
    max_top_logprobs: maximum of `StreamRequest.top_logprobs`.
    has_ids: whether the server names tokens by id.
    has_bias: whether `logit_bias` acts before temperature and truncation.
    bias_limit: maximum number of biased tokens per request; None for any.
    penalizes_prompt: whether `repetition_penalty` counts the prompt's tokens.
    context_length: maximum number of tokens of prompt and text, if known.
    """

    server: Server
    model: str | None = None
    logprobs: frozenset[Logprobs] = frozenset()
    max_top_logprobs: int = 0
    has_ids: bool = False
    has_bias: bool = False
    bias_limit: int | None = None
    penalizes_prompt: bool = False
    context_length: int | None = None

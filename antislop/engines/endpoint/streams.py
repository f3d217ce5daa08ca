"""The values that pass between a text and the client of a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from antislop.core.loop import Sampling

Server = Literal["vllm", "llama.cpp", "openai"]
"""The kinds of servers; "openai" is any other one, which names tokens by their texts."""
Logprobs = Literal["raw", "drawn"]
"""Log-probabilities are those of the model ("raw"), or those after bias, penalties, temperature and truncation."""
EndpointMethod = Literal["auto", "reject", "thin", "bias"]
"""How a sampler keeps bans on a server; "auto" is the cheapest of the others at each token."""


@dataclass(frozen=True, kw_only=True)
class StreamRequest:
    """A request for the tokens that follow a prompt.

    bias: added to the logits, before temperature and truncation.
    top_logprobs: number of likeliest tokens to return per position.
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
    logprob: natural, of the requested kind; None if unknown.
    alternatives: likely tokens and their log-probabilities; may contain the token itself.
    """

    token: int | None
    logprob: float | None = None
    text: str = ""
    alternatives: tuple[tuple[int, float], ...] = ()


class StreamEnd(NamedTuple):
    """The end of a stream, with the end token, of which no `StreamToken` is sent; None if the server does not name it.

    reason: "stop" if the model ended the text, "length" if `max_tokens` were written.
    """

    reason: Literal["stop", "length"]
    token: int | None = None
    logprob: float | None = None
    alternatives: tuple[tuple[int, float], ...] = ()


StreamItem: TypeAlias = StreamToken | StreamEnd


class StreamBroken(RuntimeError):
    """Raised if a stream breaks off after its first token. What was received is valid."""


@dataclass(frozen=True, kw_only=True)
class ServerFeatures:
    """What a server can do, as found out by a probe.

    model: its name on the server, if known.
    logprobs: the kinds of log-probabilities that it returns.
    max_top_logprobs: maximum of `StreamRequest.top_logprobs`.
    has_ids: whether it names tokens by id.
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

"""The values that pass between a text and the client of a server. No network, no tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from antislop.endpoint.sampling import Sampling

Server = Literal["vllm", "llama.cpp", "sglang", "openai"]
"""The kinds of servers; "openai" is any other one, whose answers name tokens by their texts."""
Logprobs = Literal["raw", "drawn"]
"""The distribution of log-probabilities: "raw" is the model's own, "drawn" what remains of it after bias, penalties,
temperature and truncation, from which the token was drawn."""


@dataclass(frozen=True, kw_only=True)
class StreamRequest:
    """A request for the tokens that follow a prompt.

    bias: added to the logits of tokens, at each position, before temperature and truncation.
    logprobs: the kind of log-probability to return with each token, one of `ServerFeatures.logprobs`; None for none.
    top_logprobs: how many of the likeliest tokens to return with each token, up to `ServerFeatures.max_top_logprobs`.
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

    token: its id; None if the server names tokens by their texts, and this text is not that of exactly one token.
    logprob: its natural log-probability, of the requested kind; None if unknown.
    text: as the server wrote it, "" if it sent none.
    alternatives: likely tokens at this position and their log-probabilities; the token itself may be among them.
    """

    token: int | None
    logprob: float | None = None
    text: str = ""
    alternatives: tuple[tuple[int, float], ...] = ()


class StreamEnd(NamedTuple):
    """The end of a stream.

    The end token is not sent as a `StreamToken` too: servers end texts at tokens that the tokenizer does not know as
    end tokens.

    reason: "stop" if the model ended the text, "length" if `max_tokens` were written.
    token: the end token; None if the server does not name it.
    logprob: of the end token, as in `StreamToken`.
    alternatives: to the end token, as in `StreamToken`.
    """

    reason: Literal["stop", "length"]
    token: int | None = None
    logprob: float | None = None
    alternatives: tuple[tuple[int, float], ...] = ()


StreamItem: TypeAlias = StreamToken | StreamEnd


class StreamBroken(RuntimeError):
    """Raised if a stream breaks off after its first token; what was received is valid."""


@dataclass(frozen=True, kw_only=True)
class ServerFeatures:
    """What a server can do, as found out by a probe.

    model: its name on the server, if known.
    logprobs: the kinds of log-probabilities that it can return for a written token.
    has_truncated_logprobs: whether "drawn" ones come after truncation; if not, they serve no settings that truncate.
    max_top_logprobs: the maximum of `StreamRequest.top_logprobs`.
    has_ids: whether it names tokens by id.
    has_bias: whether `StreamRequest.bias` works for all tokens, and before temperature and truncation.
    bias_limit: the maximum number of biased tokens per request; None for any.
    penalizes_prompt: whether `repetition_penalty` counts the prompt's tokens like the text's.
    context_length: the maximum number of tokens of prompt and text, if known.
    """

    server: Server
    model: str | None = None
    logprobs: frozenset[Logprobs] = frozenset()
    has_truncated_logprobs: bool = True
    max_top_logprobs: int = 0
    has_ids: bool = False
    has_bias: bool = False
    bias_limit: int | None = None
    penalizes_prompt: bool = False
    context_length: int | None = None

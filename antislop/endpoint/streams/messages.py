"""The values that pass between a sampler and the client of a server. No network, no tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from antislop.endpoint.sampling import Sampling

Server = Literal["vllm", "llama.cpp", "sglang", "openai"]
"""The kinds of servers; "openai" is any other one, whose answers name tokens by their texts."""
Logprobs = Literal["raw", "drawn"]
"""The distribution of log-probabilities: the model's own, or the one that the token was drawn from, after bias,
penalties, temperature and truncation."""


@dataclass(frozen=True, kw_only=True)
class StreamRequest:
    """A request for the tokens that follow a prompt.

    bias: added to the logits of tokens, at each position, before temperature and truncation. first_bias: the same for
    the first token only, for servers with `ServerFeatures.has_first_bias`. logprobs: the kind of log-probability that
    is needed of each written token, one of `ServerFeatures.logprobs`; None for none. alternatives: the number of
    likeliest tokens whose log-probabilities are needed beside it, up to `ServerFeatures.max_alternatives`.
    """

    prompt: Sequence[int]
    max_tokens: int
    seed: int
    sampling: Sampling
    bias: Mapping[int, float] = field(default_factory=dict)
    first_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: Logprobs | None = None
    alternatives: int = 0


class StreamedToken(NamedTuple):
    """A token that the server wrote.

    token: its id; None if the server names tokens by their texts and this text is none or several tokens.
    logprob: its natural log-probability, of the kind that was requested; None if unknown.
    text: as the server wrote it, "" if it sent none. alternatives: likely tokens at its place and their
    log-probabilities, as many as were requested; the token itself may be among them.
    """

    token: int | None
    logprob: float | None = None
    text: str = ""
    alternatives: tuple[tuple[int, float], ...] = ()


class Ended(NamedTuple):
    """The end of a stream. reason: "stop" if the model ended the text, "length" if `max_tokens` were written.

    token, logprob, alternatives: of the end token, as in `StreamedToken`; None if the server does not name it. It is
    not sent as a `StreamedToken` too, since servers end texts at tokens that the tokenizer does not know as ends.
    """

    reason: Literal["stop", "length"]
    token: int | None = None
    logprob: float | None = None
    alternatives: tuple[tuple[int, float], ...] = ()


Message: TypeAlias = StreamedToken | Ended


class StreamBroken(RuntimeError):
    """Raised if a stream breaks off after its first token; what was received is valid."""


@dataclass(frozen=True, kw_only=True)
class ServerFeatures:
    """What a server can do, as found out by a probe.

    logprobs: the kinds of log-probabilities that it can return for a written token, none, one or both.
    has_truncated_logprobs: whether "drawn" ones are of the distribution after truncation; if not, they are of no use
    where settings truncate.
    max_alternatives: the maximum of `StreamRequest.alternatives`.
    has_ids: whether it names tokens by id. has_bias: whether `StreamRequest.bias` works, over the whole vocabulary and
    before temperature and truncation. bias_limit: the maximum of biased tokens per request, None for any.
    has_first_bias: whether `StreamRequest.first_bias` works. penalizes_prompt: whether `repetition_penalty` counts the
    prompt's tokens like the text's. context_length: the maximum of tokens of prompt and text, if known. end_tokens:
    further end tokens that the server told.
    """

    server: Server
    model: str | None = None
    logprobs: frozenset[Logprobs] = frozenset()
    has_truncated_logprobs: bool = True
    max_alternatives: int = 0
    has_ids: bool = False
    has_bias: bool = False
    bias_limit: int | None = None
    has_first_bias: bool = False
    penalizes_prompt: bool = False
    context_length: int | None = None
    end_tokens: frozenset[int] = frozenset()

"""The contract between the HTTP app and whatever writes its texts."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from transformers import PreTrainedTokenizerBase

from antislop.decoding.policy import Method
from antislop.endpoint.sampling import Sampling
from antislop.hf.compiled_bans import CompiledBans
from antislop.trace.events import Event, TokenChoice


@dataclass(frozen=True, kw_only=True)
class TextRequest:
    """A text that a client of the server asks for.

    prompt: ids. bans: compiled for the backend's tokenizer. stop: the text ends after any of these strings, which are
    its last characters then. seed: determines the text's random numbers; None for other ones each time.
    schema: the text is JSON that is valid by this JSON schema, unless it is cut; None for any text.
    logit_bias: added to the logits of tokens before all else that changes them.
    alternatives: the number of alternatives that each `Drawn` event records in its `choice`, None for no choice.
    echo: the prompt's text, with which the answer's text begins; None for an answer without it. With `alternatives`,
    `PromptChoices` come before all events. Only then may `max_new_tokens` be 0.
    """

    prompt: Sequence[int]
    bans: CompiledBans
    max_new_tokens: int
    sampling: Sampling
    stop: Sequence[str] = ()
    seed: int | None = None
    method: Method = "exact"
    schema: str | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    alternatives: int | None = None
    echo: str | None = None

    @property
    def scores_prompt(self) -> bool:
        """Whether the log-probabilities of the prompt's tokens are asked for."""
        return self.echo is not None and self.alternatives is not None


@dataclass(frozen=True)
class PromptChoices:
    """How likely the model, without any setting, finds each token of the prompt; None for the first one."""

    choices: Sequence[TokenChoice | None]


class BackendError(RuntimeError):
    """Raised if a backend fails to write a text that is no fault of the request."""


class Busy(BackendError):
    """Raised if a backend has too many waiting texts, or is shutting down."""


class Backend(Protocol):
    """Writes texts. One event loop uses it; any number of texts may be under way at once."""

    @property
    def name(self) -> str:
        """The model's name."""

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The model's tokenizer."""

    @property
    def bans(self) -> CompiledBans:
        """The server's own bans, by which other lists are compiled with `with_bans`."""

    @property
    def context_length(self) -> int:
        """The maximum of tokens of prompt and text together."""

    @property
    def cuts_min_p_first(self) -> bool:
        """Whether `min_p` acts before `top_p`, which leaves other tokens than in `generate`, where it acts after it."""

    @property
    def active(self) -> int:
        """The number of texts being written or waiting."""

    def write(self, request: TextRequest) -> AsyncGenerator[Event | PromptChoices, None]:
        """Yield the events of one text until `Finished`; closing the generator frees its row within a step.

        The first `anext` raises `InputError` for a request that can't be served and `Busy` if the queue is full; any
        may raise `BackendError`.
        """

    async def check(self) -> None:
        """Raise `BackendError` if no text can be written now."""

    async def close(self, *, timeout: float | None = None) -> None:
        """Take no more texts, and return when those under way are finished; cut them off after `timeout` seconds."""

"""The interface of backends, which generate texts for the HTTP app: requests, errors, and the protocol itself."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from transformers import PreTrainedTokenizerBase

from antislop.core.hf import CompiledBans, ResponseTemplate, StopStrings
from antislop.core.loop import Method, OnExhausted, Policy, Sampling
from antislop.core.trace import Event, TokenChoice


@dataclass(frozen=True, kw_only=True)
class GenerationRequest:
    """One text that a client asks for.

    bans: compiled for the backend's tokenizer.
    stop: the text ends after the first of these strings in the answer, and includes that string.
    seed: the seed of the draws; None for a random seed.
    method, on_exhausted, max_rewinds: as in `AntiSlop`.
    schema: a JSON schema that the text follows; None for any text.
    lark: a grammar that the text follows, in llguidance's variant of Lark; None for any text.
    logit_bias: numbers to add to logits, by token id, before all other sampling settings apply.
    alternatives: number of alternatives in each `Drawn.choice`; None records no choice.
    echo: the prompt's text, if the answer repeats it. With `alternatives`, `PromptChoices` come before all events,
        and `max_new_tokens` may be 0.
    spelled: special tokens whose names are part of the answer's text.
    request_id: the id of the HTTP request. Texts of different requests take turns in the batch.
    """

    prompt: Sequence[int]
    bans: CompiledBans
    max_new_tokens: int
    sampling: Sampling
    stop: Sequence[str] = ()
    seed: int | None = None
    method: Method = "exact"
    on_exhausted: OnExhausted = "concede"
    max_rewinds: int = Policy.max_rewinds
    schema: str | None = None
    lark: str | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    alternatives: int | None = None
    echo: str | None = None
    spelled: Mapping[int, str] = field(default_factory=dict)
    request_id: str = field(default="", compare=False)

    @property
    def policy(self) -> Policy:
        return Policy(self.sampling.do_sample, self.method, self.on_exhausted, self.max_rewinds)

    @property
    def stopping_criteria(self) -> list[StopStrings]:
        """The criterion that ends the text at a stop string, unless that string begins in the prompt."""
        spell = self.bans.vocabulary.spell
        return [StopStrings(self.stop, spell, skipped=len(self.prompt))] if self.stop else []

    @property
    def scores_prompt(self) -> bool:
        """Whether the log-probabilities of the prompt's tokens are asked for."""
        return self.echo is not None and self.alternatives is not None


@dataclass(frozen=True)
class PromptChoices:
    """How likely each token of the prompt is under the model without bans; None for the first token."""

    choices: Sequence[TokenChoice | None]


class BackendError(RuntimeError):
    """Raised if the backend, not the request, is at fault."""


class Busy(BackendError):
    """Raised if the queue is full, or the backend is shutting down."""


class Backend(Protocol):
    """Generates texts for one event loop, any number of them at once.

    name: the model's name for clients.
    bans: the server's own list; its method `with_bans` compiles other lists.
    response_template: how to parse the model's messages, as `find_response_template` returns it.
    cuts_min_p_first: whether `min_p` acts before `top_p`; in `generate` it acts after, and keeps other tokens.
    """

    name: str
    tokenizer: PreTrainedTokenizerBase
    bans: CompiledBans
    response_template: ResponseTemplate | None
    cuts_min_p_first: bool

    @property
    def context_length(self) -> int | None:
        """Maximum tokens of prompt and text together; None if unknown."""

    @property
    def active(self) -> int:
        """The number of requests that run or wait."""

    def write(self, request: GenerationRequest) -> AsyncGenerator[Event | PromptChoices, None]:
        """Yield a text's events until `Finished`; closing the generator frees the request's batch row within a step.

        The first `anext` raises `InputError` for a request that can't be served and `Busy` if the queue is full; any
        may raise `BackendError`.
        """

    async def check(self) -> None:
        """Raise `BackendError` if nothing can be generated now."""

    async def close(self, *, timeout: float | None = None) -> None:
        """Refuse new requests and finish the running ones; cut them off after `timeout` seconds."""

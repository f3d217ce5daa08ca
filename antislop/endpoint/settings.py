"""The settings of texts from an endpoint, as keywords of `generate`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MinPLogitsWarper,
    PreTrainedTokenizerBase,
    StoppingCriteria,
    StoppingCriteriaList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation import EosTokenCriteria, StopStringCriteria

from antislop.decoding.policy import Policy
from antislop.decoding.row import TextSpec
from antislop.endpoint.sampling import Sampling
from antislop.hf.compiled_bans import CompiledBans
from antislop.processors.settings import Settings


@dataclass(frozen=True, kw_only=True)
class TextSettings:
    """What decides when a text ends and how it is drawn; see `EndpointSampler`."""

    max_new_tokens: int
    do_sample: bool = True
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    stop_strings: str | list[str] | None = None
    stopping_criteria: Sequence[StoppingCriteria] = ()

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens is {self.max_new_tokens}; at least 1 is expected")
        if self.do_sample and self.temperature == 0:
            raise ValueError("temperature is 0; write do_sample=False for the likeliest tokens")

    @property
    def sampling(self) -> Sampling:
        """The settings that a server draws by."""
        if not self.do_sample:
            return Sampling(temperature=0.0, repetition_penalty=self.repetition_penalty or 1.0)
        return Sampling(
            temperature=float(self.temperature),
            top_k=self.top_k or 0,
            top_p=1.0 if self.top_p is None else self.top_p,
            min_p=self.min_p or 0.0,
            typical_p=1.0 if self.typical_p is None else self.typical_p,
            repetition_penalty=self.repetition_penalty or 1.0,
        )

    def make_warpers(self) -> LogitsProcessorList:
        """Return the processors that do in this process what a server would do, in the order of `generate`.

        Raises `ValueError` for settings that only a server can follow.
        """
        for name in ("typical_p", "repetition_penalty"):
            if getattr(self, name) not in (None, 1, 1.0):
                raise ValueError(
                    f"{name} needs a server that draws the tokens: leave it out with method='alternatives'"
                )
        warpers: list[LogitsProcessor] = []
        if self.do_sample:
            warpers += [TemperatureLogitsWarper(float(self.temperature))] if self.temperature != 1 else []
            warpers += [TopKLogitsWarper(self.top_k)] if self.top_k else []
            warpers += [TopPLogitsWarper(self.top_p)] if self.top_p is not None and self.top_p < 1 else []
            warpers += [MinPLogitsWarper(self.min_p)] if self.min_p is not None else []
        return LogitsProcessorList(warpers)

    def make_criteria(self, tokenizer: PreTrainedTokenizerBase, end_tokens: Sequence[int]) -> StoppingCriteriaList:
        """Return what ends a text: end tokens, stop strings and the caller's criteria."""
        criteria: list[StoppingCriteria] = [EosTokenCriteria(eos_token_id=list(end_tokens))] if end_tokens else []
        if self.stop_strings:
            criteria.append(StopStringCriteria(tokenizer=tokenizer, stop_strings=self.stop_strings))
        return StoppingCriteriaList([*criteria, *self.stopping_criteria])


def make_spec(
    prompt: Sequence[int],
    bans: CompiledBans,
    *,
    policy: Policy,
    warpers: LogitsProcessorList,
    criteria: StoppingCriteriaList,
    capacity: int,
    seed: int,
) -> TextSpec:
    """Return the spec of a text, with its own random generator."""
    return TextSpec(
        prompt=torch.tensor([prompt]),
        matcher=bans.matcher,
        state=bans.read_prompt(prompt),
        policy=policy,
        settings=Settings(
            logits_processor=warpers, stopping_criteria=criteria, rows=1, shares_processors=True, shares_criteria=True
        ),
        capacity=capacity,
        generator=torch.Generator().manual_seed(seed),
    )

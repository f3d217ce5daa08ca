"""The settings of texts from an endpoint, as keywords of `generate`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase, StoppingCriteria, StoppingCriteriaList
from transformers.generation import EosTokenCriteria, StopStringCriteria

from antislop.endpoint.sampling import Sampling
from antislop.errors import InputError


@dataclass(frozen=True, kw_only=True)
class EndpointSettings:
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
            raise InputError(f"max_new_tokens is {self.max_new_tokens}; at least 1 is expected")
        if self.do_sample and self.temperature == 0:
            raise InputError("temperature is 0; write do_sample=False for the likeliest tokens")

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

    def make_criteria(self, tokenizer: PreTrainedTokenizerBase, end_tokens: Sequence[int]) -> StoppingCriteriaList:
        """Return what ends a text: end tokens, stop strings and the caller's criteria."""
        criteria: list[StoppingCriteria] = [EosTokenCriteria(eos_token_id=list(end_tokens))] if end_tokens else []
        if self.stop_strings:
            criteria.append(StopStringCriteria(tokenizer=tokenizer, stop_strings=self.stop_strings))
        return StoppingCriteriaList([*criteria, *self.stopping_criteria])

"""The settings of texts from an endpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase, StoppingCriteria, StoppingCriteriaList
from transformers.generation import EosTokenCriteria, StopStringCriteria

from antislop.endpoint.sampling import Sampling
from antislop.errors import InputError


@dataclass(frozen=True, kw_only=True)
class EndpointSettings:
    """How a text is drawn and when it ends."""

    max_new_tokens: int
    sampling: Sampling
    stop_strings: str | list[str] | None = None
    stopping_criteria: Sequence[StoppingCriteria] = ()

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise InputError(f"max_new_tokens is {self.max_new_tokens}; at least 1 is expected")

    @classmethod
    def of(
        cls,
        *,
        do_sample: bool = True,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        typical_p: float | None = None,
        repetition_penalty: float | None = None,
        **others: Any,
    ) -> EndpointSettings:
        """Read keywords of `generate`. Raises `InputError` for values out of range."""
        if do_sample and temperature == 0:
            raise InputError("temperature is 0; write do_sample=False for the likeliest tokens")
        penalty = repetition_penalty or 1.0
        if not do_sample:
            return cls(sampling=Sampling(temperature=0.0, repetition_penalty=penalty), **others)
        sampling = Sampling(
            temperature=float(temperature),
            top_k=top_k or 0,
            top_p=1.0 if top_p is None else top_p,
            min_p=min_p or 0.0,
            typical_p=1.0 if typical_p is None else typical_p,
            repetition_penalty=penalty,
        )
        return cls(sampling=sampling, **others)

    def make_criteria(self, tokenizer: PreTrainedTokenizerBase, end_tokens: Sequence[int]) -> StoppingCriteriaList:
        """Return what ends a text: end tokens, stop strings and the caller's criteria."""
        criteria: list[StoppingCriteria] = [EosTokenCriteria(eos_token_id=list(end_tokens))] if end_tokens else []
        if self.stop_strings:
            criteria.append(StopStringCriteria(tokenizer=tokenizer, stop_strings=self.stop_strings))
        return StoppingCriteriaList([*criteria, *self.stopping_criteria])

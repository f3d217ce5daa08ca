"""The settings by which a server or a model draws."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

from antislop.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the next token is drawn; the defaults draw from the model's own distribution.

    temperature: 0 for the likeliest token.
    top_k: number of tokens; 0 for all.
    top_p, min_p, typical_p: probabilities, 0 to 1.
    repetition_penalty: divides the scores of tokens in prompt and text, as in `generate`.

    Raises `InputError` for values out of range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        if not (isfinite(self.temperature) and 0 <= self.temperature <= 100):
            raise InputError(f"temperature is {self.temperature!r}; 0 to 100 was expected")
        if self.top_k < 0:
            raise InputError(f"top_k is {self.top_k!r}; a number of tokens was expected, 0 for all")
        for name, lowest in (("top_p", 0.0), ("typical_p", 0.0), ("min_p", -1.0)):
            if not lowest < getattr(self, name) <= 1 or self.min_p < 0:
                raise InputError(f"{name} is {getattr(self, name)!r}; a probability up to 1 was expected")
        if not 0 < self.repetition_penalty < inf:
            raise InputError(f"repetition_penalty is {self.repetition_penalty!r}; a number above 0 was expected")

    @property
    def do_sample(self) -> bool:
        return self.temperature > 0

    @property
    def truncates(self) -> bool:
        return self.do_sample and (self.top_k > 0 or self.top_p < 1 or self.min_p > 0 or self.typical_p < 1)

    @property
    def generate_arguments(self) -> dict[str, Any]:
        """The arguments of `generate`, which replace all of the model's generation config."""
        arguments: dict[str, Any] = {
            "do_sample": self.do_sample,
            "repetition_penalty": self.repetition_penalty,
            **dict.fromkeys(("temperature", "top_k", "top_p", "min_p", "typical_p")),
        }
        if self.do_sample:
            arguments |= {
                "temperature": self.temperature,
                "top_k": self.top_k,
                "top_p": self.top_p,
                "typical_p": self.typical_p,
                "min_p": self.min_p or None,
            }
        return arguments

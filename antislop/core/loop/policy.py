"""The rules by which a text is drawn."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from antislop.errors import InputError

Method = Literal["exact", "token", "text"]
"""Where a violation leads: to its start; there, by the classic first-token rule; to the start of the text."""
OnExhausted = Literal["concede", "stop", "raise"]

MAX_REWINDS = 100
REJECTION_FACTOR = 10
"""Factor on the limits of plain rejection, which may hit the same phrase again."""
MASS_FLOOR = 1e-3
PROBABILITY_FLOOR = 1e-4


class Exhausted(RuntimeError):
    """Raised if every alternative to a ban is used up, with on_exhausted="raise"."""


@dataclass(frozen=True)
class Policy:
    """What to draw, and what to do about bans.

    max_rewinds: to one position; with method="text", of one text.
    max_withdrawn_ratio: most tokens withdrawn for each of `max_new_tokens`; not with method="text".
    mass_floor: if bans leave less than this share of a distribution, the rest may be noise.
    probability_floor: below `mass_floor`, tokens less likely than this under the model are not drawn.
    """

    do_sample: bool
    method: Method
    on_exhausted: OnExhausted
    max_rewinds: int = MAX_REWINDS
    max_withdrawn_ratio: float = 16
    mass_floor: float = MASS_FLOOR
    probability_floor: float = PROBABILITY_FLOOR

    def __post_init__(self) -> None:
        _check_choice("method", self.method, get_args(Method))
        _check_choice("on_exhausted", self.on_exhausted, get_args(OnExhausted))
        if isinstance(self.max_rewinds, bool) or not isinstance(self.max_rewinds, int) or self.max_rewinds < 0:
            raise InputError(
                f"max_rewinds is {self.max_rewinds!r}; the limit of rewinds to one position, 0 or more, was expected"
            )
        _check_share("mass_floor", self.mass_floor)
        _check_share("probability_floor", self.probability_floor)

    def for_rejection(self) -> Policy:
        """Return the same rules for texts whose probabilities are unknown."""
        return replace(
            self,
            max_rewinds=self.max_rewinds * REJECTION_FACTOR,
            max_withdrawn_ratio=self.max_withdrawn_ratio * REJECTION_FACTOR,
        )


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InputError(f"{name} is {value!r}; it is one of {', '.join(map(repr, choices))}")


def _check_share(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise InputError(f"{name} is {value!r}; it is a share of probability, 0.0 to 1.0")


_SEED_STEP = 2654435769


def seed_of(seed: int, number: int) -> int:
    """Return the seed of one of several texts."""
    return seed + number * _SEED_STEP  # differs in the lower 32 bits, all that torch's CPU generators read

"""The rules by which a text is drawn, and what to do if bans leave nothing to draw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Method = Literal["exact", "token", "text"]
"""What a violation rewinds to: its start; its start, by the classic first-token rule; the start of the text."""
OnExhausted = Literal["concede", "stop", "raise"]

MASS_FLOOR = 1e-3
"""If less than this is left of a distribution, the rest may be noise."""
PROBABILITY_FLOOR = 1e-4
"""If little is left, tokens that the model finds less likely than this are no alternative."""


class Exhausted(RuntimeError):
    """Raised if every alternative to a ban is used up and the policy is to raise."""


@dataclass(frozen=True)
class Policy:
    """The rules by which a text is drawn.

    max_rewinds: per position, which with method="text" means per text. max_withdrawn_ratio: tokens that a text may
        withdraw for each token of its capacity, with the other methods.
    mass_floor, probability_floor: if less than `mass_floor` of a distribution is left, only tokens are drawn to which
        the model itself gives at least `probability_floor`.
    """

    do_sample: bool
    method: Method
    on_exhausted: OnExhausted
    max_rewinds: int
    max_withdrawn_ratio: float = 16
    mass_floor: float = MASS_FLOOR
    probability_floor: float = PROBABILITY_FLOOR

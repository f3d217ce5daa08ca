"""What happens while tokens are drawn, as small frozen records.

The loop yields events and nothing else. Streaming, reports and pictures are folds over them; replaying `Drawn`,
`Rewound` and `Shortened` gives the text. Plain data: no torch, no transformers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from antislop.matching.bans import Ban
from antislop.matching.token_matcher import Violation

Reason = Literal["done", "exhausted", "failed"]


class ConcededWarning(RuntimeWarning):
    """A banned phrase was let through, because nothing else was left to write."""


@dataclass(frozen=True, slots=True)
class Forwarded:
    """The model read `fed` tokens in one forward pass, if any, after `cut` were taken out of its cache.

    A pass that was run ahead comes before the events of the token that it read.
    """

    fed: int
    cut: int


@dataclass(frozen=True, slots=True)
class Drafted:
    """The latest forward pass also read `proposed` tokens that might follow, of which `accepted` were drawn."""

    proposed: int
    accepted: int


@dataclass(frozen=True, slots=True)
class Drawn:
    """A token was added to the text."""

    token: int


@dataclass(frozen=True, slots=True)
class Rewound:
    """The text went back to `length` tokens; `withdrawn` are those that it lost.

    alternatives: the likeliest tokens that may come instead of the first of them, with their share of what is left.
    """

    length: int
    withdrawn: tuple[int, ...]
    violation: Violation
    alternatives: tuple[tuple[int, float], ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Shortened:
    """The text was cut to `length` tokens: a criterion that looks at all rows ends it there since another rewound."""

    length: int
    withdrawn: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Admitted:
    """A ban was completed and stays, as its weight allows."""

    violation: Violation


@dataclass(frozen=True, slots=True)
class Conceded:
    """A ban was completed and stays, because there was nothing else to say."""

    violation: Violation


@dataclass(frozen=True, slots=True)
class Dropped:
    """A regex took too long, here or before, and is not looked for any more."""

    ban: Ban


@dataclass(frozen=True, slots=True)
class Settled:
    """These tokens, the next in the text, can't be withdrawn any more."""

    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """The text ends: a stopping criterion is met ("done"), nothing was left to say ("exhausted"), or no token could be
    drawn ("failed"), since the model gave no probabilities.
    """

    reason: Reason
    matcher_seconds: float


Event: TypeAlias = (
    Forwarded | Drafted | Drawn | Rewound | Shortened | Admitted | Conceded | Dropped | Settled | Finished
)

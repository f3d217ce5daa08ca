"""How much of a call is recorded."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Literal, get_args

from antislop.errors import InputError

RecordLevel = Literal["none", "events", "top", "full"]
"""Nothing; events; also the likeliest alternatives of each draw; or all alternatives."""


@dataclass(frozen=True)
class Recording:
    """What a call records. top_k: alternatives for each draw."""

    level: RecordLevel = "events"
    top_k: int = 10

    def __post_init__(self) -> None:
        if self.level not in get_args(RecordLevel):
            raise InputError(f"record is {self.level!r}; it is one of {', '.join(map(repr, get_args(RecordLevel)))}")
        if isinstance(self.top_k, bool) or not isinstance(self.top_k, int) or self.top_k < 1:
            raise InputError(f"record_top_k is {self.top_k!r}; a number of alternatives, 1 or more, was expected")

    @property
    def has_choices(self) -> bool:
        """Whether the distribution of each draw is recorded."""
        return self.level in ("top", "full")

    @property
    def alternatives(self) -> int:
        """The number of likely tokens that are recorded with each draw."""
        return sys.maxsize if self.level == "full" else self.top_k


EVENTS = Recording()
NOTHING = Recording("none")

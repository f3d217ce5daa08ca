"""How much of each draw is recorded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from antislop.decoding.ledger import Node
from antislop.trace.events import TokenChoice
from antislop.trace.recording import RecordLevel


@dataclass(frozen=True)
class Recording:
    """The level of a call's recording, and the number of alternatives recorded for each draw.

    Raises `ValueError` for any other level, and for a number below 1.
    """

    level: RecordLevel = "events"
    top_k: int = 10

    def __post_init__(self) -> None:
        if self.level not in get_args(RecordLevel):
            raise ValueError(f"record is {self.level!r}; it is one of {', '.join(map(repr, get_args(RecordLevel)))}")
        if isinstance(self.top_k, bool) or not isinstance(self.top_k, int) or self.top_k < 1:
            raise ValueError(f"record_top_k is {self.top_k!r}; a number of alternatives, 1 or more, was expected")

    @property
    def has_choices(self) -> bool:
        """Whether the distribution of each draw is recorded."""
        return self.level in ("top", "full")

    def record_choice(self, node: Node, token: int) -> TokenChoice:
        """Return the distribution at a node, of which a token was drawn."""
        return node.describe_choice(token, top_k=None if self.level == "full" else self.top_k)


EVENTS = Recording()
"""Events alone."""

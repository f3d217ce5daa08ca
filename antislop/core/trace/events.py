"""The events of a generation: all that the decoding loop yields.

`WrittenText` makes the text of them, for streams and pages, and `Report` the counts. `Drawn`, `Rewound` and
`Truncated` alone give the tokens of the text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from antislop.core.bans.bans import Ban
    from antislop.core.bans.token_matcher import Matcher, State, Violation

SHARED = 1 << 13
"""Maximum events of each kind that texts share, 5 MB in all: most events equal an earlier one."""

Reason = Literal["done", "exhausted", "repetition", "failed"]


@dataclass(frozen=True, slots=True)
class Forwarded:
    """The model read `fed` tokens in one pass, after `cut` tokens were removed from its cache."""

    fed: int
    cut: int


@dataclass(frozen=True, slots=True)
class Drafted:
    """The latest forward pass also read `proposed` draft tokens, of which `accepted` were drawn."""

    proposed: int
    accepted: int


class TokenChoice(NamedTuple):
    """The distribution that a token was drawn from, as far as it was recorded.

    probability: of the token under the processed scores, as `generate` would draw it.
    share: its part of what bans had left of that distribution.
    rank: among the tokens left, 1 for the likeliest.
    alternatives: the likeliest tokens left and their shares, the drawn one among them if it is likely enough.
    """

    probability: float
    share: float
    rank: int
    alternatives: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Drawn:
    """A token was added to the text. choice: None if it was not recorded."""

    token: int
    choice: TokenChoice | None = field(default=None, compare=False)

    @staticmethod
    @lru_cache(SHARED)
    def plain(token: int) -> Drawn:
        """Return the event without a choice; equal ones are one object."""
        return Drawn(token)


@dataclass(frozen=True, slots=True)
class Rewound:
    """A violation cut the text to `length` tokens.

    alternatives: the likeliest next tokens, with probabilities renormalized without the banned tokens.
    part: of a chat message in which the ban begins: "answer", "thinking" or "tool_calls"; None if no scope of the bans
        knows the parts.
    """

    length: int
    withdrawn: tuple[int, ...]
    violation: Violation
    alternatives: tuple[tuple[int, float], ...] = field(default=(), compare=False)
    part: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Truncated:
    """The text was cut to `length` tokens by a controller, or because another row of the batch rewound.

    A criterion over all rows may end the text there after such a rewind.
    """

    length: int
    withdrawn: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Forked:
    """A controller forked the text `parent`: this text begins with its first `length` tokens, and their events.

    branch_idx: the branch that this text follows.
    """

    parent: int
    length: int
    branch_idx: int


@dataclass(frozen=True, slots=True)
class Admitted:
    """A ban was completed and stays in the text, as its weight allows."""

    violation: Violation


@dataclass(frozen=True, slots=True)
class Conceded:
    """A ban was completed and stays in the text, because every alternative was banned as well.

    constrained_by: the caller's logits processor, such as a grammar, that ruled out more than 99 % of the vocabulary
        where the ban starts, if any.
    """

    violation: Violation
    constrained_by: str | None = None


@dataclass(frozen=True, slots=True)
class Forced:
    """A ban used up its tries, and the latest `length` tokens were written in its place, as its `then` says."""

    length: int
    violation: Violation


@dataclass(frozen=True, slots=True)
class TimedOut:
    """A regex took too long, here or in an earlier text, and is no longer searched for."""

    ban: Ban


@dataclass(frozen=True, slots=True)
class Settled:
    """The next tokens of the text that can no longer be withdrawn."""

    tokens: tuple[int, ...]

    @staticmethod
    @lru_cache(SHARED)
    def of(tokens: tuple[int, ...]) -> Settled:
        """Return the event; equal ones are one object."""
        return Settled(tokens)


@dataclass(frozen=True, slots=True)
class Finished:
    """The text ends.

    reason: "done": a stopping criterion is met; "exhausted": every continuation is banned, or the tries of a ban with
        then="stop" are used up; "repetition": the same for one that finds repeated text, such as a loop; "failed": the
        model returned no probabilities to draw from.
    constrained_by: if the text is exhausted, as in `Conceded`.
    violation: of the ban whose `then` ended the text, if one did.
    """

    reason: Reason
    matcher_seconds: float
    constrained_by: str | None = None
    violation: Violation | None = None


Event: TypeAlias = (
    Forwarded
    | Drafted
    | Drawn
    | Rewound
    | Truncated
    | Forked
    | Admitted
    | Conceded
    | Forced
    | TimedOut
    | Settled
    | Finished
)


def mark_conceded(events: Iterable[Event], matcher: Matcher, state: State) -> Iterator[Event]:
    """Yield the events of a run without bans, and occurrences as `Conceded`. state: of the matcher after the prompt."""
    tokens: list[int] = []
    settled = 0
    for event in events:
        if isinstance(event, Settled):  # too early: a ban may still reach these tokens
            continue
        if isinstance(event, Finished):
            yield from map(Conceded, matcher.finish(state))
            yield Settled(tuple(tokens[settled:]))
        yield event
        if isinstance(event, Drawn):
            tokens.append(event.token)
            state = matcher.feed(state, event.token)
            yield from map(Conceded, state.violations)
            if state.earliest_start > settled:
                yield Settled(tuple(tokens[settled : state.earliest_start]))
                settled = state.earliest_start

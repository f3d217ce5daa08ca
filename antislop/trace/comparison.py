"""Compare the events of a text with those that were expected, one by one. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from math import isnan

from antislop.matching.characters import decode
from antislop.matching.token_matcher import Surfaces, Violation
from antislop.trace.events import (
    Admitted,
    Conceded,
    Drafted,
    Drawn,
    Dropped,
    Event,
    Finished,
    Forked,
    Forwarded,
    Rewound,
    Settled,
    Shortened,
    TokenChoice,
)

TOLERANCE = 1e-4
"""Difference of probabilities that is due to rounding."""


class EventComparison:
    """The comparison of one text: the events that were expected, and the place that it has reached.

    number: of the text in its batch. surfaces: the bytes of all tokens. An unfinished text, whose events don't include
    `Finished`, is compared up to where it ended.
    """

    def __init__(self, expected: Sequence[Event], *, number: int, surfaces: Surfaces) -> None:
        self._expected = expected
        self._number = number
        self._surfaces = surfaces
        self._is_finished = any(isinstance(event, Finished) for event in expected)
        self._draws = self._length = 0
        self.compared = 0

    @property
    def is_over(self) -> bool:
        """Whether all events of an unfinished text were compared, so that any event may follow."""
        return self.compared == len(self._expected) and not self._is_finished

    @property
    def place(self) -> str:
        """The place that the comparison has reached."""
        return f"text {self._number}, draw {self._draws}, token {self._length}"

    @property
    def expected(self) -> str:
        """The next event that is expected, in words."""
        return self._describe(self._expected[self.compared] if self.compared < len(self._expected) else None)

    def find_difference(self, event: Event | None) -> str | None:
        """Compare the next event, None for the end of all; return how it differs, with its place, or None."""
        if self.is_over:
            return None
        expected = self._expected[self.compared] if self.compared < len(self._expected) else None
        if not _is_same(expected, event):
            return f"{self.place}: {self._describe(expected)} was expected, {self._describe(event)} came"
        if event is None or expected is None:
            return None
        if change := self._compare_numbers(expected, event):
            return f"{self.place}: {change}"
        self.compared += 1
        if isinstance(event, Drawn):
            self._draws += 1
            self._length += 1
        elif isinstance(event, (Rewound, Shortened)):
            self._length = event.length
        return None

    def _compare_numbers(self, expected: Event, found: Event) -> str | None:
        """Return how the recorded probabilities of equal events differ, or None."""
        if isinstance(expected, Drawn) and isinstance(found, Drawn):
            return self._compare_choices(expected.token, expected.choice, found.choice)
        if isinstance(expected, Rewound) and isinstance(found, Rewound):
            return self._compare_pairs("after the rewind", expected.alternatives, found.alternatives)
        return None

    def _compare_choices(self, token: int, expected: TokenChoice | None, found: TokenChoice | None) -> str | None:
        name = f"of {self._name(token)}"
        if expected is None or found is None:
            return None if expected is found else _put(f"a recorded distribution {name}", *map(_say, (expected, found)))
        for kind in ("probability", "share"):
            numbers = getattr(expected, kind), getattr(found, kind)
            if not _are_close(*numbers):
                return _put(f"the {kind} {name}", *numbers)
        if not _is_same_rank(expected, found):
            return _put(f"the rank {name}", expected.rank, found.rank)
        return self._compare_pairs(f"beside {self._name(token)}", expected.alternatives, found.alternatives)

    def _compare_pairs(
        self, where: str, expected: Sequence[tuple[int, float]], found: Sequence[tuple[int, float]]
    ) -> str | None:
        """Compare the likeliest tokens and their shares, in order; equally likely ones may change places."""
        shares, found_shares = dict(expected), dict(found)
        for pair, found_pair in zip_longest(expected, found):
            if pair and found_pair and _are_close(pair[1], found_pair[1]):
                token, found_token = pair[0], found_pair[0]
                known = found_shares.get(token, found[-1][1]), shares.get(found_token, expected[-1][1])
                if _are_close(pair[1], known[0]) and _are_close(found_pair[1], known[1]):
                    continue
            elif (pair or found_pair or (0, 0.0))[1] <= TOLERANCE and not (pair and found_pair):
                continue
            return _put(f"an alternative {where}", self._describe_pair(pair), self._describe_pair(found_pair))
        return None

    def _describe_pair(self, pair: tuple[int, float] | None) -> str:
        return "none" if pair is None else f"{self._name(pair[0])} with {_round(pair[1])}"

    def _describe(self, event: Event | None) -> str:
        """Return an event with all of its fields in words."""
        if event is None:
            return "nothing more"
        if isinstance(event, Drawn):
            return self._name(event.token)
        if isinstance(event, (Rewound, Shortened)):
            cause = f" because of {_describe_violation(event.violation)}" if isinstance(event, Rewound) else ""
            return f"a rewind to {event.length} tokens{cause}, withdrawing {self._list(event.withdrawn)},"
        if isinstance(event, (Admitted, Conceded)):
            cause = f" (forced by {event.forced_by})" if isinstance(event, Conceded) and event.forced_by else ""
            return f"{_describe_violation(event.violation)} {type(event).__name__.lower()}{cause}"
        if isinstance(event, Finished):
            return f"the end of the text ({event.reason}{f', forced by {event.forced_by}' if event.forced_by else ''})"
        if isinstance(event, Settled):
            return f"settled {self._list(event.tokens)}"
        if isinstance(event, Forked):
            return f"a fork of text {event.parent} at {event.length} tokens, branch {event.branch_idx}"
        return _describe_cost(event)

    def _list(self, tokens: Sequence[int]) -> str:
        return f"{decode(self._surfaces, tokens)!r} (ids {', '.join(map(str, tokens))})"

    def _name(self, token: int) -> str:
        """Return a token as text and id."""
        text = self._surfaces.breaks.get(token)
        return f"{decode(self._surfaces, [token]) if text is None else text!r} (id {token})"


def _describe_cost(event: Forwarded | Drafted | Dropped) -> str:
    if isinstance(event, Forwarded):
        return f"a forward pass of {event.fed} tokens with {event.cut} removed from the cache"
    if isinstance(event, Drafted):
        return f"a draft of {event.proposed} tokens with {event.accepted} accepted"
    return f"giving up {event.ban.phrase!r}, which took too long,"


def _describe_violation(violation: Violation) -> str:
    return f"{violation.ban.phrase!r} at tokens {violation.start} to {violation.end}"


def _is_same(expected: Event | None, found: Event | None) -> bool:
    """Return whether events are equal, except for seconds and probabilities."""
    if isinstance(expected, Finished) and isinstance(found, Finished):
        return (expected.reason, expected.forced_by) == (found.reason, found.forced_by)
    return expected == found


def _is_same_rank(expected: TokenChoice, found: TokenChoice) -> bool:
    """Return whether ranks are equal but for tokens that are equally likely, as far as these are recorded."""
    if expected.rank == found.rank:
        return True
    if expected.rank <= len(found.alternatives):
        return _are_close(found.alternatives[expected.rank - 1][1], found.share)
    return min(expected.rank, found.rank) > len(found.alternatives) and found.share <= TOLERANCE


def _are_close(expected: float, found: float) -> bool:
    return abs(expected - found) <= TOLERANCE or (isnan(expected) and isnan(found))


def _say(choice: TokenChoice | None) -> str:
    return "none" if choice is None else "one"


def _put(what: str, expected: float | str, found: float | str) -> str:
    return f"{what}: {_round(expected)} was expected, {_round(found)} came"


def _round(value: float | str) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)

"""Find out whether a grammar forces what a ban forbids, whichever tokens spell it.

A single token without an alternative shows in the probabilities. A longer text does not: a grammar that knows no
spellings allows all of them, and each would be withdrawn before nothing is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from antislop.core.bans.bans import Ban
from antislop.core.bans.characters import REPLACEMENT
from antislop.core.bans.token_matcher import Matcher, State, Violation

FEW = 8
"""Characters that may follow; more of them are a choice."""


class LookAhead(Protocol):
    """A grammar's matcher at a place in the text, which reads characters from there; xgrammar's has these methods."""

    def fork(self) -> LookAhead:
        """Return a copy that advances independently."""

    def find_jump_forward_string(self) -> str:
        """Return the characters that are certain to follow."""

    def accept_string(self, text: str | bytes, /) -> bool:
        """Advance by characters; return False, and change nothing, if they can't follow."""

    def rollback(self, count: int, /) -> None:
        """Undo the latest `count` advances."""

    def is_completed(self) -> bool:
        """Return whether the text may end."""


def is_forced(
    ban: Ban, ahead: LookAhead, matcher: Matcher, start: State, *, room: int, begun: str = "", branches: int = 1
) -> bool:
    """Report whether each text that may follow a state completes a ban that leads back to there, or not as far.

    ahead: the grammar after the state and the characters that have `begun`.
    room: number of tokens that may follow. Shorter texts may end before the ban is complete.
    branches: how often the text may go on in several ways; more of them count as a choice.
    """
    try:
        forced = begun + ahead.find_jump_forward_string()
    except UnicodeDecodeError:  # the latest token ended within a character
        return False
    text = forced.encode()[:room].decode(errors="ignore")  # a token has one byte at least
    states = [start, *matcher.read_characters(start, text)]
    if any(_has_one(state.violations, ban, start) for state in states[1:]):
        return True
    if len(forced.encode()) >= room:
        return False
    ahead.accept_string(forced.removeprefix(begun))
    following = _list_next(ahead)
    ends = [_has_one(matcher.finish(states[-1]), ban, start)] if "" in following else []
    if following == [""]:
        return ends[0]
    if len(following) > FEW or REPLACEMENT in following or not branches:
        return False
    for character in filter(None, following):
        branch = ahead.fork()
        branch.accept_string(character)
        if character.isspace() and _list_next(branch) == following:
            continue  # any number of spaces: they only put off what follows
        begun, rest = forced + character, branches - 1
        ends.append(is_forced(ban, branch, matcher, start, room=room, begun=begun, branches=rest))
    return bool(ends) and all(ends)


def _has_one(completed: Sequence[Violation], ban: Ban, start: State) -> bool:
    # The coin of a weight is tossed for the place, which may depend on the spelling.
    places = [each.target - start.length for each in completed if each.ban == ban]
    return 0 in places or (ban.weight == 0 and max(places, default=-1) > 0)


def _list_next(ahead: LookAhead) -> list[str]:
    """Return the characters that may follow, and "" for the end of the text; U+FFFD for any that is not ASCII."""
    allowed = [""] * ahead.is_completed()
    for byte in range(256):
        if ahead.accept_string(bytes([byte])):
            ahead.rollback(1)
            allowed.append(chr(byte) if byte < 128 else REPLACEMENT)
    return allowed

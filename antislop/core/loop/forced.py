"""Find out whether a grammar forces a banned phrase, whichever tokens spell it: a search over texts that may follow.

Rejection draws again where an occurrence of the phrase begins. If every text that the grammar allows from there
completes the phrase, this would go on for ever; to subtract one spelling after the other would leave the last one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import suppress
from typing import Literal, Protocol, TypeAlias

from antislop.core.bans.bans import Ban
from antislop.core.bans.token_matcher import Matcher, State, Violation

FEW = 2_000
"""Most characters that one search tries: 20 ms with xgrammar and 40 ms with llguidance."""
PROBES = "\"\\,:]}[{ \n0aA.-'"
"""Characters by which states of a grammar are told apart: those of JSON, letters and a digit."""
ASCII = sorted(map(chr, range(128)), key=lambda character: (character in '"]}', not character.isspace()))
"""White space first; last those that close a JSON string, list or object, which the search then follows first."""

Answer: TypeAlias = Literal["forced", "avoidable", "unknown"]


class LookAhead(Protocol):
    """A grammar's matcher that reads characters from a place in the text on; xgrammar's matcher has these methods."""

    def fork(self) -> LookAhead:
        """Return a copy that advances independently."""

    def find_jump_forward_string(self) -> str:
        """Return the characters that are certain to follow."""

    def accept_string(self, text: str | bytes, /) -> bool:
        """Advance by characters; return False, and change nothing, if they can't follow."""

    def is_completed(self) -> bool:
        """Return whether the text may end."""


def find_place(ban: Ban, matcher: Matcher, start: State, tokens: Sequence[int]) -> str | None:
    """Return the characters between a state and the place to which a ban leads back if `tokens` complete the ban.

    That place is within the first token. None if the tokens' characters by themselves do not complete the ban.
    """
    try:
        first, rest = (matcher.spell(part).decode() for part in (tokens[:1], tokens[1:]))
    except UnicodeDecodeError:
        return None
    states = [start, *matcher.read_characters(start, first + rest)]
    completed = [*(each for state in states[1:] for each in state.violations), *matcher.finish(states[-1])]
    places = [each.target - start.length for each in completed if each.ban == ban]
    place = next((place for place in places if 0 <= place < max(1, len(first))), None)
    return None if place is None else first[:place]


def ask(ban: Ban, ahead: LookAhead, matcher: Matcher, start: State, *, is_here: bool) -> Answer:
    """Answer whether each whole text that may follow a state completes a ban.

    ahead: the grammar at the state.
    is_here: whether only occurrences count that lead back to the state itself, not later ones. White space after which
        the grammar is as before then only puts off the occurrence, and is no way to avoid it.

    "avoidable": a text was found that does not complete the ban, or the beginning of a text that can't complete it.
    """
    first, waiting, left, is_all, seen = ahead, [(ahead, start)], FEW, True, set[Hashable]()
    while waiting:
        ahead, state = waiting.pop()  # the latest state first: it is nearer to the end of a text
        if ahead.is_completed() and not _has_one(matcher.finish(state), ban, start, is_here=is_here):
            return "avoidable"
        for text, after, is_certain in _list_next(ahead):
            left, is_all = left - 1, is_all and (is_certain or text.isascii())
            if left < 0:
                return "unknown"
            if is_here and state is start and text.isspace() and _describe(after, ASCII) == _describe(first, ASCII):
                continue
            read = state
            for read in matcher.read_characters(state, text):
                if _has_one(read.violations, ban, start, is_here=is_here):
                    break
                if is_here and read.earliest_start > start.length:
                    return "avoidable"
            else:
                # An occurrence that is forced here is conceded, so two different states must not be taken for the same.
                described = object() if is_certain else _describe(after, ASCII if is_here else PROBES)
                key = is_here and read.length, matcher.identify(read), described
                if key not in seen:
                    seen.add(key)
                    waiting.append((after, read))
    return "forced" if is_all else "unknown"


def _has_one(completed: Sequence[Violation], ban: Ban, start: State, *, is_here: bool) -> bool:
    places = [each.target - start.length for each in completed if each.ban == ban]
    return 0 in places or (not is_here and max(places, default=-1) > 0)


def _list_next(ahead: LookAhead) -> Iterator[tuple[str, LookAhead, bool]]:
    """Yield texts that may follow, each with the grammar after it, and whether it is certain.

    If none is certain, these are the ASCII characters, and up to two more, which stand for all beyond ASCII.
    """
    after = ahead.fork()
    try:
        certain = ahead.find_jump_forward_string()
    except UnicodeDecodeError:  # the beginning of a character
        certain = ""
    if certain:
        after.accept_string(certain)
        yield certain, after, True
        return
    for character in ASCII:
        if after.accept_string(character):
            yield character, after, False
            after = ahead.fork()
    for beyond_ascii in (range(128, 256), range(255, 127, -1)):
        data, character = bytearray(), ""
        while not character and len(data) < 4:
            byte = next((byte for byte in beyond_ascii if after.accept_string(bytes([byte]))), None)
            if byte is None:
                break
            data.append(byte)
            with suppress(UnicodeDecodeError):
                character = data.decode()
        if character:
            yield character, after, False
        after = ahead.fork()


def _describe(ahead: LookAhead, characters: Sequence[str]) -> Hashable:
    """Return a key of a grammar's state, by which of some characters may follow; takes 0.5 ms for all of ASCII."""
    may_follow = [ahead.fork().accept_string(character) for character in characters]
    try:
        return ahead.find_jump_forward_string(), ahead.is_completed(), *may_follow
    except UnicodeDecodeError:
        return object()

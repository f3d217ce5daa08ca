"""Search a text for many regexes while the text is being written.

Regexes of which nothing is in the making are tried together, in groups; the others go on one by one from where their
match may begin. Knows nothing of bans or tokens.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import regex

from antislop.patterns import Hit, Reading
from antislop.regexes import BRIEF, TIME_LIMIT, Match, Regex, join


class SearchState(NamedTuple):
    """Where reading stands.

    text: as much of what was read as later matches can depend on. starts: (regex, place) of those in which a match may
    have begun, counted back from the end of the text.
    """

    text: str = ""
    starts: tuple[tuple[int, int], ...] = ()


class Searches:
    """Regexes, compiled. Of each, matches that overlap an earlier one don't count.

    A regex that once takes longer than `TIME_LIMIT` for one piece is not searched for any more, by anybody who reads
    with this object, or a single one could bring everything to a standstill. Those are in `slow`.
    """

    def __init__(self, regexes: Sequence[Regex]) -> None:
        self._regexes = regexes
        numbers = {id(one): number for number, one in enumerate(regexes)}
        self._groups = [
            ([numbers[id(one)] for one in group], joined, min(one.max_span for one in group))
            for group, joined in join(regexes)
        ]
        self.slow: list[int] = []
        self._looks_behind = any(one.looks_behind for one in regexes)

    def read(self, state: SearchState, piece: str, *, final: bool = False) -> tuple[SearchState, Reading]:
        """Read one more piece; `final` also decides what depends on the text ending here."""
        text = state.text + piece
        begun, end = len(state.text), len(text)
        going_on = {number: begun - back for number, back in state.starts}
        for number in self._awake(text, begun, going_on, final=final):
            going_on.setdefault(number, begun)
        hits: list[Hit] = []
        starts: list[tuple[int, int]] = []
        for number, start in going_on.items():
            if number in self.slow:
                continue
            try:
                found, start = self._search(self._regexes[number], text, start, final=final)
            except TimeoutError:
                self._drop(number)
                continue
            hits += [Hit(number, end - match.start, end - match.end + 1) for match in found]
            if start < end:
                starts.append((number, end - start))
        keep = max((back for _, back in starts), default=0) + 1  # the character before tells whether a word begins
        if not self._looks_behind and keep < end:
            text = text[-keep:]
        open_ = tuple(back for _, back in starts)
        return SearchState(text, tuple(starts)), Reading(tuple(hits), open_)

    def forget(self, state: SearchState) -> SearchState:
        """Return a state with the same text behind it, of which nothing counts as part of a match."""
        return state._replace(starts=())

    def _search(self, one: Regex, text: str, start: int, *, final: bool) -> tuple[list[Match], int]:
        """Return the matches from start on that are decided, and where to search next."""
        if final:
            return one.finish(text, start), len(text)
        found: list[Match] = []
        while True:
            match, start = one.advance(text, start, len(text))
            if match is None:
                return found, start
            found.append(match)

    def _drop(self, number: int) -> None:
        self.slow.append(number)
        warnings.warn(
            f"the regex {self._regexes[number].pattern!r} took longer than {TIME_LIMIT} seconds for a piece of text "
            "and is not looked for any more: simplify it, most likely by nesting fewer repetitions",
            RuntimeWarning,
            stacklevel=2,
        )

    def _awake(self, text: str, begun: int, going_on: dict[int, int], *, final: bool) -> list[int]:
        """Return the regexes that may find something from `begun` on, beside those that go on."""
        awake: list[int] = []
        for numbers, joined, max_span in self._groups:
            # What is beyond the span may decide otherwise.
            if final or joined is None or len(text) - begun > max_span or self._stirs(joined, text, begun):
                awake += [number for number in numbers if number not in going_on]
        return awake

    def _stirs(self, joined: regex.Pattern[str], text: str, begun: int) -> bool:
        """Tell whether any of a group matches, or may begin to match, from `begun` on."""
        timeout = TIME_LIMIT if len(text) - begun > BRIEF or self._looks_behind else None
        try:
            found = joined.search(text, begun, partial=True, timeout=timeout)
        except TimeoutError:
            return True  # each alone shows which it is
        return found is not None and found.start() < len(text)

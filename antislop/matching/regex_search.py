"""Search a text for many regexes while the text is being written.

Regexes of which nothing is in the making are tried together, in groups; the others go on one by one from where their
match may begin. Knows nothing of bans or tokens.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import regex

from antislop.matching.phrases import Hit, PieceResult
from antislop.matching.regexes import TIME_LIMIT, Allowance, Match, Regex, join


class SearchState(NamedTuple):
    """Where reading stands.

    text: as much of what was read as later matches can depend on. starts: (regex, place) of those in which a match may
    have begun, counted back from the end of the text.
    """

    text: str = ""
    starts: tuple[tuple[int, int], ...] = ()


class Searches:
    """Regexes, compiled. Of each, matches that overlap an earlier one don't count.

    A regex that uses up its `Allowance` is not searched for any more, by anybody who reads with this object, or a
    single one could bring everything to a standstill. Those are in `slow`.
    """

    def __init__(self, regexes: Sequence[Regex]) -> None:
        self._regexes = regexes
        self.slow: list[int] = []
        self._looks_behind = any(one.looks_behind for one in regexes)
        self._groups = self._join()
        self.begin()

    def begin(self) -> None:
        """Begin with a text that has nothing to do with those before: each regex has all of its time for it."""
        self._allowances = [Allowance() for _ in self._regexes]
        for group in self._groups:
            group.allowance = Allowance()

    def _join(self) -> list[_Group]:
        """Return the regexes that are not too slow, in groups."""
        numbers = {id(one): number for number, one in enumerate(self._regexes) if number not in self.slow}
        groups = join([self._regexes[number] for number in numbers.values()])
        return [_Group([numbers[id(one)] for one in members], members, joined) for members, joined in groups]

    def read(self, state: SearchState, piece: str, *, final: bool = False) -> tuple[SearchState, PieceResult]:
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
                found, start = self._search(number, text, start, final=final)
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
        return SearchState(text, tuple(starts)), PieceResult(tuple(hits), open_)

    def forget(self, state: SearchState) -> SearchState:
        """Return a state with the same text behind it, of which nothing counts as part of a match."""
        return state._replace(starts=())

    def _search(self, number: int, text: str, start: int, *, final: bool) -> tuple[list[Match], int]:
        """Return the matches from start on that are decided, and where to search next."""
        one, allowance = self._regexes[number], self._allowances[number]
        if final:
            return one.finish(text, start, allowance), len(text)
        found: list[Match] = []
        while True:
            match, start = one.advance(text, start, len(text), allowance)
            if match is None:
                return found, start
            found.append(match)

    def _drop(self, number: int) -> None:
        self.slow.append(number)
        self._groups = self._join()
        warnings.warn(
            f"the regex {self._regexes[number].pattern!r} took longer than {TIME_LIMIT} seconds in all and is not "
            "looked for any more: simplify it, most likely by nesting fewer repetitions",
            RuntimeWarning,
            stacklevel=2,
        )

    def _awake(self, text: str, begun: int, going_on: dict[int, int], *, final: bool) -> list[int]:
        """Return the regexes that may find something from `begun` on, beside those that go on."""
        awake: list[int] = []
        for group in self._groups:
            if final or group.stirs(text, begun):
                awake += [number for number in group.numbers if number not in going_on]
        return awake


class _Group:
    """Regexes that are tried together. joined: a pattern that matches where any of them does; None for one alone."""

    def __init__(self, numbers: list[int], regexes: Sequence[Regex], joined: regex.Pattern[str] | None) -> None:
        self.numbers = numbers
        self._joined = joined
        self._max_span = min(one.max_span for one in regexes)
        self._brief = min(one.brief for one in regexes)
        self.allowance = Allowance()

    def stirs(self, text: str, begun: int) -> bool:
        """Return whether any of them matches, or may begin to match, from `begun` on."""
        end = len(text)
        if self._joined is None or end - begun > self._max_span:  # what is beyond the span may decide otherwise
            return True
        if end - begun <= self._brief:
            found = self._joined.search(text, begun, partial=True)
        else:
            try:
                found = self.allowance.search(self._joined, text, begun, end)
            except TimeoutError:
                return True  # each alone shows which it is
        return found is not None and found.start() < end

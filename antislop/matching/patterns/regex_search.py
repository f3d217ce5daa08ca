"""Search a text for many regexes while the text is being written.

Regexes without an open match are tried together, in groups; each of the others continues from where its match may
begin.
"""

from __future__ import annotations

import warnings
from collections.abc import Container, Sequence
from typing import NamedTuple, Protocol

import regex

from antislop.matching.patterns.incremental_regex import (
    TIME_LIMIT,
    Allowance,
    IncrementalRegex,
    RegexMatch,
    SharedTime,
    join,
)
from antislop.matching.patterns.text_search import Hit, PieceResult, TextSearch


class Prepared(Protocol):
    """A pattern that is compiled to a regex, such as a `Regex`."""

    def prepare(self) -> IncrementalRegex: ...


class RegexState(NamedTuple):
    """The state of a search.

    text: the end of the text, as much as later matches can depend on. starts: (regex, place) of the open matches.
    """

    text: str = ""
    starts: tuple[tuple[int, int], ...] = ()


class RegexSearch(TextSearch[RegexState]):
    """Regexes, compiled. Matches of a regex that overlap an earlier one of the same regex don't count.

    A regex that uses up its `Allowance` is dropped for all texts that are read with this object; see `slow`.
    """

    def __init__(self, patterns: Sequence[Prepared]) -> None:
        self.start = RegexState()
        self._regexes = [pattern.prepare() for pattern in patterns]
        self._slow: list[int] = []
        self._looks_behind = any(member.looks_behind for member in self._regexes)
        self._groups = self._join()
        self.begin()

    def begin(self) -> None:
        """Begin a text that is unrelated to earlier ones: each regex has all of its time for it."""
        shared = SharedTime()
        self._allowances = [Allowance(shared) for _ in self._regexes]
        self._group_allowance = Allowance(shared)

    def _join(self) -> list[_RegexGroup]:
        """Return the regexes that are not too slow, in groups."""
        numbers = {id(member): number for number, member in enumerate(self._regexes) if number not in self._slow}
        groups = join([self._regexes[number] for number in numbers.values()])
        return [_RegexGroup([numbers[id(member)] for member in members], members, joined) for members, joined in groups]

    def read(self, state: RegexState, piece: str, *, final: bool = False) -> tuple[RegexState, PieceResult]:
        """Read one more piece; `final` also decides what depends on the text ending here."""
        text = state.text + piece
        begun, end = len(state.text), len(text)
        searched = {number: begun - back for number, back in state.starts}
        for number in self._find_candidates(text, begun, searched, final=final):
            searched.setdefault(number, begun)
        hits: list[Hit] = []
        starts: list[tuple[int, int]] = []
        for number, start in searched.items():
            if number in self._slow:
                continue
            try:
                matches, start = self._search(number, text, start, final=final)
            except TimeoutError:
                self._drop(number)
                continue
            hits += [Hit(number, end - match.start, end - match.end + 1) for match in matches]
            if start < end:
                starts.append((number, end - start))
        keep = max((back for _, back in starts), default=0) + 1  # the character before decides whether a word begins
        if not self._looks_behind and keep < end:
            text = text[-keep:]
        open_ = tuple(back for _, back in starts)
        return RegexState(text, tuple(starts)), PieceResult(tuple(hits), open_)

    @property
    def slow(self) -> Sequence[int]:
        return self._slow

    def restore(self) -> None:
        self._slow.clear()
        self._groups = self._join()
        self.begin()

    def forget(self, state: RegexState) -> RegexState:
        return state._replace(starts=())

    def _search(self, number: int, text: str, start: int, *, final: bool) -> tuple[list[RegexMatch], int]:
        """Return the matches from start on that are decided, and where to search next."""
        compiled, allowance = self._regexes[number], self._allowances[number]
        if final:
            return compiled.finish(text, start, allowance), len(text)
        matches: list[RegexMatch] = []
        while True:
            match, start = compiled.advance(text, start, len(text), allowance)
            if match is None:
                return matches, start
            matches.append(match)

    def _drop(self, number: int) -> None:
        self._slow.append(number)
        self._groups = self._join()
        warnings.warn(
            f"the regex {self._regexes[number].pattern!r} took longer than {TIME_LIMIT} seconds in all and is no "
            "longer searched for: simplify it, most likely by nesting fewer repetitions",
            RuntimeWarning,
            stacklevel=2,
        )

    def _find_candidates(self, text: str, begun: int, searched: Container[int], *, final: bool) -> list[int]:
        """Return the regexes, except those already searched for, that may match from `begun` on."""
        candidates: list[int] = []
        for group in self._groups:
            if final or group.may_match(text, begun, self._group_allowance):
                candidates += [number for number in group.numbers if number not in searched]
        return candidates


class _RegexGroup:
    """Regexes that are tried together.

    joined: a pattern that matches wherever any of them does; None for a single regex.
    """

    def __init__(
        self, numbers: list[int], regexes: Sequence[IncrementalRegex], joined: regex.Pattern[str] | None
    ) -> None:
        self.numbers = numbers
        self._joined = joined
        self._max_span = min(member.max_span for member in regexes)
        self._brief = min(member.brief for member in regexes)

    def may_match(self, text: str, begun: int, allowance: Allowance) -> bool:
        """Return whether any of them matches, or may begin to match, from `begun` on."""
        end = len(text)
        if self._joined is None or end - begun > self._max_span:  # characters beyond the span can change the result
            return True
        if end - begun <= self._brief:
            match = self._joined.search(text, begun, partial=True)
        else:
            try:
                match = allowance.search(self._joined, text, begun, end)
            except TimeoutError:
                return True  # searching for each by itself shows which one is slow
        return match is not None and match.start() < end

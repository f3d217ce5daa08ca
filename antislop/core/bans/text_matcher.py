"""Find bans of every kind in a text while it is being written.

Plain phrases are read apart from the rest: their results depend on little and can be remembered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from antislop.core.bans.bans import Ban
from antislop.core.bans.patterns.kinds import KINDS
from antislop.core.bans.patterns.pattern import PatternMatch, PieceResult, TextSearch
from antislop.core.bans.patterns.phrase import Phrase, PhraseSearch, PhraseStates
from antislop.core.bans.rules import Rules, RuleState

if TYPE_CHECKING:
    from antislop.core.bans.prefilter import Prefilter


class OtherState(NamedTuple):
    """The states of everything but the phrases."""

    searches: tuple[Any, ...]
    rules: RuleState


class TextMatcher:
    """Bans, compiled, without those of token ids. The `pattern` of a match is the index of its ban.

    prefilter: for texts that come in long pieces; searches for the patterns that it `takes`.
    """

    def __init__(self, bans: Sequence[Ban], *, prefilter: type[Prefilter] | None = None) -> None:
        takes = prefilter.takes if prefilter else lambda _: False
        groups = _group(bans, lambda ban: not takes(ban.pattern))
        filtered = _group(bans, lambda ban: takes(ban.pattern))
        self._phrases = groups.pop(PhraseSearch, [])
        self.phrases = PhraseSearch([bans[number].pattern for number in self._phrases])  # type: ignore[misc]
        self._searches = [
            (part, search([bans[number].pattern for number in part]))
            for search, numbers in groups.items()
            for part in ([[number] for number in numbers] if search.is_single else [numbers])
        ]
        search_exempt: Callable[[Sequence[Phrase]], TextSearch[Any]] = PhraseSearch
        if prefilter:
            search_exempt = partial(prefilter, search=PhraseSearch)
            self._searches += [
                (numbers, prefilter([bans[number].pattern for number in numbers], search))
                for search, numbers in filtered.items()
            ]
        has_rules = any(ban.exempt or ban.scopes or ban.at_most for ban in bans)
        self._rules = Rules(bans, search_exempt) if has_rules else None
        self.is_plain = not (self._searches or self._rules)
        self.has_comparable_states = not self._searches  # an `OtherState` depends on little: only the rules have one
        rules = (self._rules or Rules(())).start
        self.start = OtherState(tuple(search.start for _, search in self._searches), rules)
        self.prompt_start = OtherState(tuple(search.prompt_start for _, search in self._searches), rules)

    def read(
        self, phrases: PhraseStates, others: OtherState, piece: str, *, final: bool = False
    ) -> tuple[PhraseStates, OtherState, PieceResult]:
        phrases, matches = self.phrases.read_matches(phrases, piece, final)
        result = PieceResult(self.number_phrases(matches), self.phrases.find_open(phrases))
        others, result = self.complete(others, piece, result, final=final)
        return phrases, others, result

    def number_phrases(self, matches: Sequence[PatternMatch]) -> tuple[PatternMatch, ...]:
        """Return matches of the search for phrases with the numbers of their bans."""
        return tuple(_rename(matches, self._phrases))

    def complete(
        self, others: OtherState, piece: str, result: PieceResult, *, final: bool = False
    ) -> tuple[OtherState, PieceResult]:
        """Add the matches of the other patterns to those of the phrases, and apply the rules."""
        states, rules = list(others.searches), others.rules
        for index, (numbers, search) in enumerate(self._searches):
            states[index], (matches, open_) = search.read(states[index], piece, final=final)
            if matches or open_:
                result = PieceResult((*result.matches, *_rename(matches, numbers)), result.open + open_)
        if self._rules:
            rules, result = self._rules.read(rules, piece, result, final=final)
        return OtherState(tuple(states), rules), result

    def begin(self) -> None:
        for _, search in self._searches:
            search.begin()

    def restore(self) -> None:
        for _, search in self._searches:
            search.restore()

    def forget(self, phrases: PhraseStates, others: OtherState) -> tuple[PhraseStates, OtherState]:
        pairs = zip(self._searches, others.searches, strict=True)
        searches = tuple(search.forget(state) for (_, search), state in pairs)
        rules = self._rules.forget(others.rules) if self._rules else others.rules
        return self.phrases.forget(phrases), OtherState(searches, rules)

    def leave_prompt(self, others: OtherState) -> OtherState:
        """Return the state at the end of a prompt, in which no free occurrence is used up."""
        pairs = zip(self._searches, others.searches, strict=True)
        searches = tuple(search.leave_prompt(state) for (_, search), state in pairs)
        return OtherState(searches, others.rules._replace(counted=()))

    def find_part(self, others: OtherState) -> str | None:
        """See `Rules.find_part`."""
        return self._rules.find_part(others.rules) if self._rules else None

    def restart(self, others: OtherState, content: str = "") -> OtherState:
        """Return the state after a special token, which no ban extends across. content: only scopes read it."""
        pairs = zip(self._searches, others.searches, strict=True)
        searches = tuple(search.restart(state) for (_, search), state in pairs)
        rules = self._rules.restart(others.rules, content) if self._rules else others.rules
        return OtherState(searches, rules)

    @property
    def timed_out(self) -> list[int]:
        return [numbers[number] for numbers, search in self._searches for number in search.timed_out]


def _group(bans: Sequence[Ban], condition: Callable[[Ban], bool]) -> dict[type[TextSearch[Any]], list[int]]:
    groups: dict[type[TextSearch[Any]], list[int]] = {kind.search: [] for kind in KINDS.values() if kind.search}
    for number, ban in enumerate(bans):
        if ban.pattern.search and condition(ban):
            groups[ban.pattern.search].append(number)
    return {search: numbers for search, numbers in groups.items() if numbers}


def _rename(matches: Sequence[PatternMatch], numbers: Sequence[int]) -> list[PatternMatch]:
    return [PatternMatch(numbers[match.pattern], match.start_back, match.end_back) for match in matches]

"""Find bans of every kind in a text while it is being written.

Puts phrases, regexes, sequences of words and the rules about them together. All places are characters counted back from
the end of what was read. What plain phrases bring in a situation is always the same and may be remembered, so reading
them is apart from reading the rest. Knows no tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from antislop.matching.bans import Ban
from antislop.matching.phrases import Hit, Patterns, PhraseStates, PieceResult
from antislop.matching.regex_search import Searches, SearchState
from antislop.matching.regexes import Regex
from antislop.matching.rules import Rules, RuleState
from antislop.matching.word_sequences import Sequences, SequenceState


class OtherState(NamedTuple):
    """Where reading stands beside the phrases; a value."""

    regexes: SearchState
    sequences: tuple[SequenceState, ...]
    rules: RuleState


class Detector:
    """Bans, compiled; what it finds are their indices. Bans of token ids are not found in a text."""

    def __init__(self, bans: Sequence[Ban]) -> None:
        self._phrases = [number for number, ban in enumerate(bans) if ban.kind == "phrase"]
        self.phrases = Patterns([bans[number] for number in self._phrases])
        self._regexes = [number for number, ban in enumerate(bans) if ban.kind == "regex"]
        self._searches = Searches([Regex(bans[n].phrase, max_span=bans[n].max_span) for n in self._regexes])
        self._sequences: list[tuple[list[int], Sequences]] = []
        for case_sensitive in (False, True):
            numbers = [
                number
                for number, ban in enumerate(bans)
                if ban.kind in ("words", "wildcard") and ban.case_sensitive is case_sensitive
            ]
            if numbers:
                skipping = frozenset(i for i, number in enumerate(numbers) if bans[number].skip_stop_words)
                items = [bans[number].items for number in numbers]
                sequences = Sequences(items, skipping=skipping, case_sensitive=case_sensitive)
                self._sequences.append((numbers, sequences))
        self._rules = Rules(bans) if any(ban.exempt or ban.scopes or ban.at_most for ban in bans) else None
        self.is_plain = not (self._regexes or self._sequences or self._rules)
        self.start = OtherState(
            SearchState(),
            (SequenceState(),) * len(self._sequences),
            self._rules.start if self._rules else Rules(()).start,
        )

    def read(
        self, place: PhraseStates, rest: OtherState, piece: str, *, final: bool = False
    ) -> tuple[PhraseStates, OtherState, PieceResult]:
        """Read one more piece; `final` also decides what depends on the text ending here."""
        place, reading = self.read_phrases(place, piece, final=final)
        rest, reading = self.complete(rest, piece, reading, final=final)
        return place, rest, reading

    def read_phrases(self, place: PhraseStates, piece: str, *, final: bool = False) -> tuple[PhraseStates, PieceResult]:
        """Read one more piece as far as phrases go, without the rules."""
        place, reading = self.phrases.read(place, piece, final=final)
        return place, PieceResult(tuple(_rename(reading.hits, self._phrases)), reading.open)

    def complete(
        self, rest: OtherState, piece: str, reading: PieceResult, *, final: bool = False
    ) -> tuple[OtherState, PieceResult]:
        """Add to what the phrases brought what else a piece brings, and apply the rules."""
        hits, open_ = list(reading.hits), list(reading.open)
        regexes, sequences, rules = rest
        if self._regexes:
            regexes, found = self._searches.read(regexes, piece, final=final)
            hits += _rename(found.hits, self._regexes)
            open_ += found.open
        after = []
        for (numbers, compiled), state in zip(self._sequences, sequences, strict=True):
            state, found = compiled.read(state, piece, final=final)
            after.append(state)
            hits += _rename(found.hits, numbers)
            open_ += found.open
        reading = PieceResult(tuple(hits), tuple(open_))
        if self._rules:
            rules, reading = self._rules.read(rules, piece, reading, final=final)
        return OtherState(regexes, tuple(after), rules), reading

    def begin(self) -> None:
        """Begin with a text that has nothing to do with those before: each regex has all of its time for it."""
        self._searches.begin()

    def forget(self, place: PhraseStates, rest: OtherState) -> tuple[PhraseStates, OtherState]:
        """Return where reading stands with the same text behind it, of which nothing counts as part of a ban."""
        return self.phrases.forget(place), OtherState(
            self._searches.forget(rest.regexes),
            tuple(compiled.forget(state) for (_, compiled), state in zip(self._sequences, rest.sequences, strict=True)),
            self._rules.forget(rest.rules) if self._rules else rest.rules,
        )

    def count_anew(self, rest: OtherState) -> OtherState:
        """Return where reading stands if no occurrence so far was one of those that are free."""
        return rest._replace(rules=rest.rules._replace(counted=()))

    def restart(self, rest: OtherState, content: str = "") -> OtherState:
        """Return the state after a cut, such as a special token: no ban extends across it, but the rules still apply.

        content: of the special token. Only scopes read it.
        """
        rules = self._rules.restart(rest.rules, content) if self._rules else rest.rules
        return OtherState(SearchState(), self.start.sequences, rules)

    @property
    def slow(self) -> list[int]:
        """The bans that are not looked for any more, since they took too long."""
        return [self._regexes[number] for number in self._searches.slow]


def _rename(hits: Sequence[Hit], numbers: Sequence[int]) -> list[Hit]:
    return [Hit(numbers[hit.pattern], hit.start_back, hit.end_back) for hit in hits]

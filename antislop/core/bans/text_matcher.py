"""Find bans of every kind in a text while it is being written, and decide which matches count.

From a list of bans down to what reads a character:

    Ban, Ban, …
     |
    Matcher            over the tokens of a vocabulary; see `token_matcher`
     |
    TextMatcher        over characters: pieces of a text in, the matches that they complete out
     |
     +-- PhraseSearch        all phrases, apart from the rest: their results depend on little and can be remembered
     |    +-- _PhraseTrack       those with one folding and one kind of edges
     |         +-- Automaton         walks from `TrieNode` to `TrieNode` along the folded symbols
     +-- RegexSearch         all regexes
     +-- WordSearch          all wildcards and words in order
     +-- LoopSearch          all loops
     +-- RepeatSearch        one repeat each
     |                       for the bans of an opening, each of these exists a second time, until the opening ends
     |
    Rules              keeps the matches that count: not exempt, in the ban's scopes, beyond its allowed occurrences

Token ids have no text: `Matcher` itself finds bans of token ids, with a second `Automaton`. For long texts, a
`Prefilter` runs before `PhraseSearch` and `WordSearch`. In `Rules`, a match waits while an exempt phrase may still turn
out to surround it. Places are counted back from the end of the text: 1 is the last character.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from antislop.core.bans.bans import KINDS, Ban
from antislop.core.bans.folding import find_words
from antislop.core.bans.patterns.pattern import PatternMatch, PieceResult, TextSearch
from antislop.core.bans.patterns.phrase import Phrase, PhraseSearch, PhraseStates
from antislop.core.bans.scopes import OpeningScope, OpeningState, Regions

if TYPE_CHECKING:
    from antislop.core.bans.prefilter import Prefilter

T = TypeVar("T")


@dataclass(frozen=True)
class Timeline(Generic[T]):
    """A value that changes along the text, with (place, value) of each change."""

    before: T
    changes: tuple[tuple[int, T], ...] = ()

    def at(self, place: int) -> T:
        value = self.before
        for change, new_value in self.changes:
            if change < place:
                break
            value = new_value
        return value

    def extend(self, size: int, changes: Iterable[tuple[int, T]], *, oldest: int) -> Timeline[T]:
        """Add `size` characters, with (index, value) of changes in them; forget changes before the place `oldest`."""
        changes_back = [(place + size, value) for place, value in self.changes]
        changes_back += [(size - index, value) for index, value in changes]
        kept = tuple(change for change in changes_back if change[0] < oldest)
        return Timeline(changes_back[-len(kept) - 1][1] if len(changes_back) > len(kept) else self.before, kept)


class RuleState(NamedTuple):
    """The state of the `Rules` after some text.

    exempt: state of the search for exempt phrases.
    spans: complete exempt phrases that may surround later matches.
    waiting: matches that an incomplete exempt phrase may turn out to surround.
    scopes: the state of each scope, and where in the text it lets bans apply.
    words: number of words that have begun, along the text.
    counted: (ban, the numbers of the words with which its latest `at_most` occurrences begin).
    """

    exempt: Any
    spans: tuple[PatternMatch, ...]
    waiting: tuple[PatternMatch, ...]
    scopes: tuple[tuple[Any, Timeline[bool]], ...]
    is_in_word: bool
    words: Timeline[int]
    counted: tuple[tuple[int, tuple[int, ...]], ...]


class Rules:
    """Decides which matches count: not exempt, in scope, beyond allowed occurrences. search: finds exempt phrases."""

    def __init__(
        self, bans: Sequence[Ban], search: Callable[[Sequence[Phrase]], TextSearch[Any]] = PhraseSearch
    ) -> None:
        self._bans = bans
        phrases = [[Phrase(text, language=ban.pattern.language) for text in ban.exempt] for ban in bans]
        exempt = list(dict.fromkeys(chain.from_iterable(phrases)))
        index = {phrase: number for number, phrase in enumerate(exempt)}
        self._exempt = search(exempt)
        self._exempting = [frozenset(map(index.__getitem__, each)) for each in phrases]
        scopes_of: list[tuple[Any, ...]] = [(*ban.scopes, *filter(None, [find_opening(ban)])) for ban in bans]
        self._scopes: list[Any] = list(dict.fromkeys(chain.from_iterable(scopes_of)))
        self._scopes_of = [tuple(map(self._scopes.index, scopes)) for scopes in scopes_of]
        self._counts_words = any(ban.per_words for ban in bans)
        self._reads_text = bool(exempt or self._scopes or self._counts_words)
        scopes = tuple((scope.start, Timeline(scope.applies(scope.start))) for scope in self._scopes)
        self.start = RuleState(self._exempt.start, (), (), scopes, False, Timeline(0), ())

    def read(
        self, state: RuleState, piece: str, result: PieceResult, *, final: bool = False
    ) -> tuple[RuleState, PieceResult]:
        """Read one more piece and the matches in it; return the matches that are now known to count."""
        size = len(piece)
        queue = [*(match.shift(size) for match in state.waiting), *result.matches]
        if not (queue or self._reads_text):
            return state, result
        oldest = max((*result.open, *(match.start_back for match in queue), 1))
        exempt, surrounding = self._exempt.read(state.exempt, piece, final=final)
        after = state._replace(
            exempt=exempt,
            spans=(*(span.shift(size) for span in state.spans), *surrounding.matches),
            scopes=self._follow_scopes(state, piece, size=size, oldest=oldest),
        )
        if self._counts_words:
            begins, is_in_word = find_words(piece, is_in_word=after.is_in_word)
            changes = [(index, after.words.at(0) + number) for number, index in enumerate(begins, start=1)]
            words = after.words.extend(len(piece), changes, oldest=oldest)
            after = after._replace(is_in_word=is_in_word, words=words)
        after, matches = self._decide(after, queue, undecided=0 if final else max(surrounding.open, default=0))
        open_ = (*result.open, *(match.start_back for match in after.waiting))
        spans = tuple(span for span in after.spans if span.end_back < max(open_, default=0))
        return after._replace(spans=spans), PieceResult(matches, open_)

    def _decide(
        self, state: RuleState, queue: Sequence[PatternMatch], *, undecided: int
    ) -> tuple[RuleState, tuple[PatternMatch, ...]]:
        """Return the matches that count. undecided: where the longest incomplete exempt phrase begins, or 0."""
        counted = dict(state.counted)
        matches: list[PatternMatch] = []
        waiting: list[PatternMatch] = []
        for match in sorted(queue, key=lambda match: (-match.end_back, -match.start_back)):
            number = match.pattern
            exempting = self._exempting[number]
            if any(match.is_within(span) for span in state.spans if span.pattern in exempting):
                continue
            # Occurrences are counted in the order of the text: a match waits while an earlier match waits.
            is_next = self._bans[number].at_most and any(other.pattern == number for other in waiting)
            if is_next or (exempting and undecided >= match.start_back):
                waiting.append(match)
                continue
            # The first character decides whether an occurrence is in the scopes; only if it is, `at_most` counts it.
            is_in_scope = all(state.scopes[scope][1].at(match.start_back) for scope in self._scopes_of[number])
            if is_in_scope and not self._is_free(number, state.words.at(match.start_back), counted):
                matches.append(match)
        return state._replace(waiting=tuple(waiting), counted=tuple(sorted(counted.items()))), tuple(matches)

    def find_part(self, state: RuleState) -> str | None:
        """Return which part of a chat message is being written, as "answer"; None if no scope has `Regions`."""
        spans = zip((getattr(scope, "span", None) for scope in self._scopes), state.scopes, strict=True)
        return next((span.name_part(scope.opened) for span, (scope, _) in spans if isinstance(span, Regions)), None)

    def is_over(self, state: RuleState, opening: OpeningScope) -> bool:
        """Return whether an opening is over, and no unfinished occurrence began in it."""
        scope, timeline = state.scopes[self._scopes.index(opening)]
        return opening.is_over(scope) and timeline == Timeline(False)

    def leave_prompt(self, state: RuleState) -> RuleState:
        """Return the state for the text after a prompt: no allowed occurrence is used up, and openings begin."""
        scopes = tuple(
            (OpeningState(each[0].scopes), Timeline(False, ((0, True),))) if isinstance(scope, OpeningScope) else each
            for scope, each in zip(self._scopes, state.scopes, strict=True)
        )
        return state._replace(counted=(), scopes=scopes)

    def forget(self, state: RuleState) -> RuleState:
        return state._replace(exempt=self._exempt.forget(state.exempt), spans=(), waiting=(), counted=())

    def restart(self, state: RuleState, content: str = "") -> RuleState:
        """Return the state after a special token: it ends phrases and words, and `content` may delimit a scope."""
        scopes = self._follow_scopes(state, content, size=0, oldest=1)
        return state._replace(exempt=self._exempt.start, spans=(), waiting=(), scopes=scopes, is_in_word=False)

    def _follow_scopes(
        self, state: RuleState, piece: str, *, size: int, oldest: int
    ) -> tuple[tuple[Any, Timeline[bool]], ...]:
        """Return the states of the scopes after a piece of text, or after a special token's content (`size` 0)."""
        scopes = []
        for scope, (before, timeline) in zip(self._scopes, state.scopes, strict=True):
            after, changes = scope.read(before, piece, is_text=size > 0)
            within = [(min(index, size), value) for index, value in changes]
            scopes.append((after, timeline.extend(size, within, oldest=oldest)))
        return tuple(scopes)

    def _is_free(self, number: int, word: int, counted: dict[int, tuple[int, ...]]) -> bool:
        """Count an occurrence of a ban, and return whether the ban's `at_most` allows it."""
        ban = self._bans[number]
        if not ban.at_most:
            return False
        before = counted.get(number, ())
        counted[number] = (*before, word)[-ban.at_most :]
        recent_count = sum(not ban.per_words or word - other < ban.per_words for other in before)
        return recent_count < ban.at_most


# -- all kinds --------------------------------------------------------------------------------------------------------


class RestState(NamedTuple):
    """The state of the rules, and of all searches but that for phrases."""

    searches: tuple[Any, ...]
    rules: RuleState


class TextMatcher:
    """Compiled bans of all kinds but token ids. The `pattern` of a match is the index of its ban.

    prefilter: a faster search for texts in long pieces; it searches for the patterns that it `takes`.
    """

    def __init__(self, bans: Sequence[Ban], *, prefilter: type[Prefilter] | None = None) -> None:
        takes = prefilter.takes if prefilter else lambda _: False
        groups = _group(bans, lambda ban: not takes(ban.pattern))
        filtered = _group(bans, lambda ban: takes(ban.pattern))
        self._phrases = groups.pop((PhraseSearch, None, None), [])
        self.phrases = PhraseSearch([bans[number].pattern for number in self._phrases])  # type: ignore[misc]
        self._searches: list[tuple[list[int], TextSearch[Any]]] = [
            (numbers, search([bans[number].pattern for number in numbers])) for (search, *_), numbers in groups.items()
        ]
        search_exempt: Callable[[Sequence[Phrase]], TextSearch[Any]] = PhraseSearch
        if prefilter:
            search_exempt = partial(prefilter, search=PhraseSearch)
            self._searches += [
                (numbers, prefilter([bans[number].pattern for number in numbers], search))
                for (search, *_), numbers in filtered.items()
            ]
        openings = [find_opening(bans[numbers[0]]) for numbers, _ in self._searches]
        self._openings = [(index, opening) for index, opening in enumerate(openings) if opening]
        self._has_rules = any(ban.exempt or ban.scopes or ban.opening or ban.at_most for ban in bans)
        self._rules = rules = Rules(bans if self._has_rules else (), search_exempt)
        self.has_comparable_states = not self._searches  # a `RestState` then has only the state of the rules
        self.start = RestState(tuple(search.start for _, search in self._searches), rules.leave_prompt(rules.start))
        self.prompt_start = RestState(tuple(search.prompt_start for _, search in self._searches), rules.start)

    def read(
        self, phrases: PhraseStates, rest: RestState, piece: str, *, final: bool = False
    ) -> tuple[PhraseStates, RestState, PieceResult]:
        phrases, matches = self.phrases.read_matches(phrases, piece, final)
        result = PieceResult(self.number_phrases(matches), self.phrases.find_open(phrases))
        rest, result = self.complete(rest, piece, result, final=final)
        return phrases, rest, result

    def number_phrases(self, matches: Sequence[PatternMatch]) -> tuple[PatternMatch, ...]:
        """Return matches of the search for phrases, with each phrase's number replaced by that of its ban."""
        return tuple(_rename(matches, self._phrases))

    def complete(
        self, rest: RestState, piece: str, result: PieceResult, *, final: bool = False
    ) -> tuple[RestState, PieceResult]:
        """Add the matches of the other patterns to those of the phrases, and apply the rules."""
        states, rules = list(rest.searches), rest.rules
        for index, (numbers, search) in enumerate(self._searches):
            if states[index] is None:  # its opening is over
                continue
            states[index], (matches, open_) = search.read(states[index], piece, final=final)
            if matches or open_:
                result = PieceResult((*result.matches, *_rename(matches, numbers)), result.open + open_)
        if self._has_rules:
            rules, result = self._rules.read(rules, piece, result, final=final)
            for index, opening in self._openings:
                if states[index] is not None and self._rules.is_over(rules, opening):
                    states[index] = None
        return RestState(tuple(states), rules), result

    def begin(self, *, is_brief: bool = False) -> None:
        """Begin a text that is unrelated to earlier texts; see `TextSearch.begin`."""
        for _, search in self._searches:
            search.begin(is_brief=is_brief)

    def restore(self) -> None:
        for _, search in self._searches:
            search.restore()

    def forget(self, phrases: PhraseStates, rest: RestState) -> tuple[PhraseStates, RestState]:
        searches = self._change(rest, lambda search, state: search.forget(state))
        return self.phrases.forget(phrases), RestState(searches, self._rules.forget(rest.rules))

    def leave_prompt(self, rest: RestState, *, drops_space: bool) -> RestState:
        """Return the state at the end of a prompt. drops_space: as in `TextSearch.leave_prompt`."""
        searches = self._change(rest, lambda search, state: search.leave_prompt(state, drops_space=drops_space))
        return RestState(searches, self._rules.leave_prompt(rest.rules))

    def find_part(self, rest: RestState) -> str | None:
        """Return which part of a chat message is being written, as `Rules.find_part` does."""
        return self._rules.find_part(rest.rules)

    def restart(self, rest: RestState, content: str = "") -> RestState:
        """Return the state after a special token, which no match extends across. content: its text, for scopes."""
        searches = self._change(rest, lambda search, state: search.restart(state))
        return RestState(searches, self._rules.restart(rest.rules, content))

    def _change(self, rest: RestState, change: Callable[[TextSearch[Any], Any], Any]) -> tuple[Any, ...]:
        pairs = zip(self._searches, rest.searches, strict=True)
        return tuple(None if state is None else change(search, state) for (_, search), state in pairs)

    @property
    def timed_out(self) -> list[int]:
        return [numbers[number] for numbers, search in self._searches for number in search.timed_out]


def find_opening(ban: Ban) -> OpeningScope | None:
    return OpeningScope(ban.opening, ban.scopes) if ban.opening else None


def _group(bans: Sequence[Ban], condition: Callable[[Ban], bool]) -> dict[tuple[Any, ...], list[int]]:
    """Group the bans by the search that finds them; return the bans' numbers by group, in the order of the kinds."""
    order = [kind.search for kind in KINDS.values()]
    groups: dict[tuple[Any, ...], list[int]] = {}
    for number, ban in enumerate(bans):
        if ban.pattern.search and condition(ban):
            groups.setdefault((ban.pattern.search, ban.pattern.group, find_opening(ban)), []).append(number)
    return dict(sorted(groups.items(), key=lambda item: order.index(item[0][0])))


def _rename(matches: Sequence[PatternMatch], numbers: Sequence[int]) -> list[PatternMatch]:
    return [PatternMatch(numbers[match.pattern], match.start_back, match.end_back) for match in matches]

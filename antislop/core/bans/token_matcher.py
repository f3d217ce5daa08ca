"""Match a list of bans against generated tokens, and report each ban that a token completes.

A state never changes: feeding a token returns a new state, and a rewind returns to an earlier state. What a token
changes is computed once and remembered, so that feeding is a dictionary look-up, whatever the size of the list:

    of one text     shared by all texts

    State 4 ------> _Transition --- situation ---> _Situation
       ^                                               |
       | parent          +---- transitions[token] -----+
       |                 v
    State 5 ------> _Transition --- situation ---> _Situation

_Situation: the bytes of an incomplete character, nodes of the automata of phrases and of token ids, and the rules.
_Transition: the characters and the matches that one token completes in one situation.
State: one text after one of its tokens. Patterns other than phrases, and counts of allowed occurrences, have states
    that hardly ever recur. With such bans, each `State` has its own `RestState`, computed anew for each token. If bans
    lead back to the beginning of a word, sentence, paragraph or text, each `State` has a `UnitState` per unit, too.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, get_args

from antislop.core.bans import characters
from antislop.core.bans.bans import Ban, distinct
from antislop.core.bans.characters import NOTHING, Completed, Pending, Surfaces
from antislop.core.bans.patterns.pattern import PatternMatch, PieceResult
from antislop.core.bans.patterns.phrase import Automaton, PhraseStates, TrieNode
from antislop.core.bans.text_matcher import RestState, TextMatcher
from antislop.core.bans.units import Unit, UnitState

TRANSITIONS_KEPT = 30_000
"""Maximum number of remembered transitions, which take 4 to 30 MB of memory. Computing a transition takes 3 to 7 µs."""

_END = -1  # a token id that stands for the end of the text; a lower id stands for a character whose token is unknown
_NO_UNITS: Mapping[Unit, UnitState] = {}


class Violation(NamedTuple):
    """An occurrence of a ban, in the tokens from `start` to `end`; 0 is the first generated token.

    start: the token with the first character of the occurrence; 0 if that character is in the prompt.
    unit: the token where the word, sentence, … around the occurrence begins; None if the rewind goes to `start`.
    """

    ban: Ban
    start: int
    end: int
    unit: int | None = None

    @property
    def target(self) -> int:
        """The token to which the text is rewound."""
        return self.start if self.unit is None else self.unit


class _BanMatch(NamedTuple):
    ban: Ban
    start_back: int
    end_back: int


@dataclass(eq=False, repr=False, slots=True)
class _Situation:
    """All that later matches depend on. Two equal situations are the same object.

    spelled: the node that the automaton of token ids has reached.
    rest: the state of the rules; always that of an empty text if each `State` has a `RestState` of its own.
    completed: the bans of token ids that the latest token completes, each with its number of tokens.
    reach_back: how many of the last characters may still become part of a match, or move (combining marks).
    reach_tokens: how many of the last tokens may still become part of a ban of token ids, or of a character.
    transitions: the transition of each token that was fed in this situation.
    """

    pending: Pending
    phrases: PhraseStates
    spelled: TrieNode
    rest: RestState
    completed: tuple[tuple[Ban, int], ...]
    reach_back: int
    reach_tokens: int = field(init=False)
    transitions: dict[int, _Transition] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.reach_tokens = max((self.spelled.longest, *self.pending.ages[:1]))


class _Transition(NamedTuple):
    """What one token changes in one situation. Two equal transitions are the same object: most tokens share a few.

    situation: the situation after the token.
    text: the characters that the token completes.
    begun: for characters of `text` that earlier tokens began, how many tokens ago; as in `characters.Completed`.
    matches: the matches of `found`, each with its ban.
    found: matches, and where incomplete ones begin; of phrases only if each `State` has its own `RestState`.
    completed: which bans it completes, by their ids, and where they begin and end, counted from the token's first
        character; how many tokens those of token ids have. What follows an occurrence within the token doesn't matter.
    """

    situation: _Situation
    text: str = ""
    begun: tuple[int, ...] = ()
    matches: tuple[_BanMatch, ...] = ()
    found: PieceResult = PieceResult()
    completed: tuple[tuple[int, ...], ...] = ()


class State:
    """The matcher's state after `length` generated tokens; within the prompt, `length` is negative. Don't modify it.

    If "a testament" is banned, after the tokens `She| paid| a| test|am`:

        token       0  1    2 3    4
        character   She paid a testam
                             |       |
                             |       _read: 17 characters
                             where the incomplete phrase begins, 8 characters back (`reach_back`)

    Token 2 contains the first character of the phrase: that is the `earliest_start`.

    earliest_start: no later violation starts before this token, even after rewinds.
    settled_length: number of final tokens; less than `earliest_start` where a rewind may withdraw the token before.
    """

    __slots__ = (
        "_jump",
        "_matches",
        "_read",
        "_rest",
        "_transition",
        "_units",
        "_violations",
        "earliest_start",
        "length",
        "muted",
        "parent",
        "settled_length",
    )

    def __init__(
        self,
        parent: State,
        transition: _Transition,
        reach_back: int,
        matches: tuple[_BanMatch, ...],
        rest: RestState | None = None,
        *,
        units: Mapping[Unit, UnitState] = _NO_UNITS,
    ) -> None:
        self.parent: State | None = parent
        self._transition = transition
        self._matches = matches
        self._rest = rest
        self._violations: tuple[Violation, ...] | None = None  # not listed yet
        self.muted: frozenset[Ban] = parent.muted
        self.length: int = parent.length + 1
        self.earliest_start = self.length
        self.settled_length = parent.earliest_start
        self._read: int = parent._read + len(transition.text)
        self._jump: State | None = None
        self._units = units
        if reach_back or transition.situation.reach_tokens or units:
            self._hold(parent, reach_back, transition.situation.reach_tokens)

    @classmethod
    def begin(
        cls, situation: _Situation, rest: RestState | None, *, length: int, units: Mapping[Unit, UnitState]
    ) -> State:
        state = cls.__new__(cls)
        state.parent = state._jump = state._violations = None
        state._transition = _Transition(situation)
        state._matches = ()
        state._rest = rest
        state.muted = frozenset()
        state.length = state.earliest_start = length
        state.settled_length = length - 1
        state._read = 0
        state._units = units
        return state

    @property
    def violations(self) -> tuple[Violation, ...]:
        """The bans that the latest token completed, the earliest start first."""
        if self._violations is None:
            is_none = not self._matches and not self._transition.situation.completed
            self._violations = () if is_none else self._list_violations(self.length - 1)
        return self._violations

    def back_to(self, length: int) -> State:
        """Return the earlier state of the same text, after its first `length` generated tokens."""
        state = self
        while state.length > length and state.parent is not None:
            jump = state._jump
            state = jump if jump is not None and jump.length >= length else state.parent
        return state

    def _hold(self, parent: State, reach_back: int, reach_tokens: int) -> None:
        """Lower `earliest_start` and `settled_length`, as the text ends with what may be the beginning of a match."""
        # Each earlier state is a few jumps away: E. Myers, "An applicative random-access stack", 1983,
        # doi 10.1016/0020-0190(83)90106-0.
        jump = parent._jump
        far = None if jump is None else jump._jump
        is_even = jump and far and parent.length - jump.length == jump.length - far.length
        self._jump = far if is_even else parent
        if self.length <= 0:
            return
        # After a rewind to the start of an incomplete match, another rewind may go further back from there. So the
        # bounds are those of the state at that start (`before`).
        before = parent  # if the incomplete matches begin in the latest token
        if self._units:
            # A later occurrence may lead back to the beginning of its unit, even if no match is incomplete now.
            widest, start = [*self._units][-1], self.length - reach_tokens
            start = min(start, self._find_unit(widest, min(self._read - reach_back, self.back_to(start)._read)))
            if start == self.length:
                return
            before = self.back_to(start)
        elif reach_tokens > 1 or reach_back > len(self._transition.text) or self._transition.begun:
            place = self._read - reach_back
            owner = self._find_owner(place)
            start = max(0, min(owner._find_start(place), self.length - reach_tokens))
            before = (owner if owner.length > start else self).back_to(start)
        self.earliest_start = before.earliest_start
        self.settled_length = min(parent.earliest_start, before.settled_length)

    def _find_unit(self, unit: Unit, place: int) -> int:
        """Return the token where the unit around `place` begins: `length` for a new unit, 0 for one in the prompt."""
        if unit == "text":
            return 0
        if place >= self._read:
            latest = self._units[unit]
            if latest.is_over:
                return self.length
            place = latest.latest
        else:
            owner = self._find_owner(place)
            before = owner if owner.parent is None else owner.parent
            place = owner._units[unit].find(place, before=before._units[unit])
        return max(0, self._find_owner(place)._find_start(place))

    def _token_of(self, back: int) -> int:
        """Return the token in which the character `back` characters from the end began; negative in the prompt."""
        place = self._read - back
        return self._find_owner(place)._find_start(place)

    def _find_owner(self, place: int) -> State:
        """Return the state whose token completed the character at `place`; the earliest kept state if it is gone."""
        state = self
        while (parent := state.parent) is not None and place < parent._read:
            jump = state._jump
            state = jump if jump is not None and place < jump._read else parent
        return state

    def _find_start(self, place: int) -> int:
        """Return the token in which the character at `place` began; the state's own token completed this character."""
        begun = self._transition.begun
        index = place - self._read + len(self._transition.text)
        return self.length - 1 - (begun[index] if 0 <= index < len(begun) else 0)

    def _list_violations(self, end: int) -> tuple[Violation, ...]:
        matched = {
            Violation(
                ban, max(0, self._token_of(start_back)), end, self._find_target(ban, self._read - start_back)
            ): None
            for ban, start_back, end_back in self._matches
            if self._token_of(end_back) >= 0  # not within the prompt
            and ban not in self.muted
        }
        spelled = [
            Violation(ban, max(0, end + 1 - length), end, self._find_target(ban, self.back_to(end + 1 - length)._read))
            for ban, length in self._transition.situation.completed
        ]
        violations = [violation for violation in (*matched, *spelled) if violation.start >= violation.ban.from_token]
        return tuple(sorted(violations, key=lambda violation: violation.start))

    def _find_target(self, ban: Ban, place: int) -> int | None:
        """Return the token where the ban's unit around `place` begins; None if the ban leads back to its own start."""
        unit = ban.unit if self._units else "span"
        return None if unit == "span" else self._find_unit(unit, place)


class Matcher:
    """A list of bans, compiled to match tokens of one vocabulary. Bans of weight 1 are left out: they change nothing.

    ranks: the place of each ban in the list, from 0.
    transition_count: number of remembered transitions; each takes memory.
    """

    def __init__(self, bans: Iterable[Ban], surfaces: Surfaces) -> None:
        self._bans = [ban for ban in distinct(bans) if ban.weight < 1]
        self.ranks = {ban: rank for rank, ban in enumerate(self._bans)}
        self._texts = TextMatcher(self._bans)
        units = {ban.unit for ban in self._bans}
        self._units = [unit for unit in get_args(Unit)[1:] if unit in units]
        # Whether situations recur although they contain the rules' state: counts of allowed occurrences only grow.
        self._recurs = self._texts.has_comparable_states and not any(ban.at_most for ban in self._bans)
        self._spelled = [ban for ban in self._bans if ban.pattern.token_ids]
        self._spelling = Automaton(["".join(map(chr, ban.pattern.token_ids)) for ban in self._spelled])
        self._surfaces = surfaces
        self._ends = frozenset((_END, *surfaces.breaks))
        self._situations: dict[tuple[Hashable, ...], _Situation] = {}
        self._transitions: dict[_Transition, _Transition] = {}
        self.transition_count = 0

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy compiles the bans anew: pickle can't follow transitions that are nested so deep, and they would change
        # the matcher's hash, by which `datasets` finds cached results.
        return type(self), (self._bans, self._surfaces)

    @property
    def timed_out(self) -> list[Ban]:
        """The regexes that took too long and are no longer searched for."""
        return [self._bans[number] for number in self._texts.timed_out]

    def restore(self) -> None:
        """Search again for the regexes that timed out, each with its full time limit."""
        self._texts.restore()

    def start(
        self,
        prompt: Sequence[int] = (),
        *,
        lookback: bool = True,
        exempt_prompt: bool = False,
        drops_space: bool = False,
    ) -> State:
        """Return the state after a prompt.

        lookback: report occurrences that begin in the prompt, too. If False, the prompt only decides on word edges.
        exempt_prompt: don't report bans that occur in the prompt.
        drops_space: whether the generated text is shown without the space at its start.
        """
        texts, units = self._texts, dict.fromkeys(self._units, UnitState())
        situation = self._find_situation(NOTHING, texts.phrases.start, self._spelling.root, texts.prompt_start)
        state = State.begin(situation, None if self._recurs else texts.prompt_start, length=-len(prompt), units=units)
        in_prompt: set[Ban] = set()
        for token in prompt:
            state = self.feed(state, token)
            state.parent = state._jump = None  # no rewind reaches the prompt, whose states would take memory
            in_prompt.update(match.ban for match in state._matches)
        if exempt_prompt:
            in_prompt.update(match.ban for match in self.feed(state, _END)._matches)
        situation = state._transition.situation
        phrases, spelled = situation.phrases, situation.spelled
        rest = texts.leave_prompt(state._rest or situation.rest, drops_space=drops_space)
        if not lookback:
            phrases, rest = texts.forget(phrases, rest)
            spelled = self._spelling.root
            units = {unit: UnitState(each.state) for unit, each in state._units.items()}
            state = State.begin(situation, None, length=0, units=units)
        state._transition = state._transition._replace(
            situation=self._find_situation(situation.pending, phrases, spelled, rest)
        )
        state._rest = None if self._recurs else rest
        state.muted = frozenset(in_prompt) if exempt_prompt else state.muted
        return state

    def feed(self, state: State, token: int) -> State:
        """Return the state after one more token."""
        situation = state._transition.situation
        transition = situation.transitions.get(token) or self._find_transition(situation, token)
        units: Mapping[Unit, UnitState] = _NO_UNITS
        if self._units:
            text, end = transition.text, token in self._ends
            fed = {unit: each.read(unit, text, end=state._read + len(text)) for unit, each in state._units.items()}
            units = {unit: each.end() if end else each for unit, each in fed.items()}
        if state._rest is None:
            return State(state, transition, transition.situation.reach_back, transition.matches, units=units)
        rest, (matches, open_) = self._read_rest(state._rest, transition.text, transition.found, token)
        reach_back = max((transition.situation.reach_back, *open_))
        return State(state, transition, reach_back, self._name_bans(matches), rest, units=units)

    def group(self, state: State, tokens: Iterable[int], *, apart: bool) -> Iterable[tuple[State, list[int]]]:
        """Group the tokens that complete the same bans: return (state after one of them, the tokens) of each group.

        Tokens that complete no ban are left out, unless each token is a group: with `apart`, units or `RestState`s.

        apart: make each token a group.
        """
        if apart or self._units or state._rest is not None:
            return [(self.feed(state, token), [token]) for token in tokens]
        situation, groups = state._transition.situation, dict[Hashable, tuple[State, list[int]]]()
        for token in tokens:
            read = situation.transitions.get(token) or self._find_transition(situation, token)
            if key := read.completed:
                if key not in groups:
                    groups[key] = self.feed(state, token), []
                groups[key][1].append(token)
        return groups.values()

    def finish(self, state: State) -> tuple[Violation, ...]:
        """Return the bans that the end of the text completes."""
        return self.feed(state, _END)._list_violations(state.length - 1)

    def read_characters(self, state: State, text: str) -> Iterator[State]:
        """Yield the state after each character of a text whose tokens are unknown; a character counts as a token."""
        for character in text:
            state = self.feed(state, _END - 1 - ord(character))
            yield state

    def spell(self, tokens: Iterable[int]) -> bytes:
        """Return the bytes of tokens."""
        return b"".join(map(self._surfaces.surface, tokens))

    def identify(self, state: State) -> Hashable:
        """Return a value that is equal for states with the same later matches; for patterns but phrases, the state."""
        if not self._texts.has_comparable_states:
            return state
        return state._transition.situation, state._rest, *state._units.items()

    def find_part(self, state: State) -> str | None:
        """Return which part of a chat message is being written, as `Rules.find_part` does."""
        return self._texts.find_part(state._rest or state._transition.situation.rest)

    def _read_rest(self, rest: RestState, text: str, found: PieceResult, token: int) -> tuple[RestState, PieceResult]:
        """Find the matches of patterns other than phrases; apply the rules to these and to the phrases in `found`."""
        ends = token in self._ends
        rest, result = self._texts.complete(rest, text, found, final=ends)
        if ends:
            rest, result = self._texts.restart(rest, self._surfaces.breaks.get(token, "")), result._replace(open=())
        return rest, result

    def _name_bans(self, matches: Iterable[PatternMatch]) -> tuple[_BanMatch, ...]:
        return tuple(_BanMatch(self._bans[match.pattern], match.start_back, match.end_back) for match in matches)

    def _find_transition(self, situation: _Situation, token: int) -> _Transition:
        """Compute what a token changes in a situation, and remember that transition."""
        if self.transition_count >= TRANSITIONS_KEPT:  # forget all; states that refer to a situation can still be fed
            for remembered in self._situations.values():
                remembered.transitions.clear()
            self._situations.clear()
            self._transitions.clear()
            self._texts.phrases.shrink()
            self._spelling.forget()
            self.transition_count = 0
        ends = token in self._ends
        text, begun, pending = self._complete(situation.pending, token)
        phrases, matches = self._texts.phrases.read_matches(situation.phrases, text, ends)
        if ends:
            phrases = self._texts.phrases.start
        spelled = situation.spelled[chr(token)] if self._spelled and token >= 0 else self._spelling.root
        found = PieceResult(self._texts.number_phrases(matches), self._texts.phrases.find_open(phrases))
        rest = situation.rest
        if self._recurs:
            rest, found = self._read_rest(rest, text, found, token)
        after = self._find_situation(pending, phrases, spelled, rest)
        named, size = self._name_bans(found.matches), len(text)
        spelled_out = [(id(ban), length) for ban, length in after.completed]
        completed = *[(id(ban), size - first, size - last) for ban, first, last in named], *spelled_out
        transition = _Transition(after, text, begun, named, found, completed)
        transition = situation.transitions[token] = self._transitions.setdefault(transition, transition)
        self.transition_count += 1
        return transition

    def _complete(self, pending: Pending, token: int) -> Completed:
        if token in self._ends:
            return characters.finish(self._surfaces, pending)
        if token < _END:
            before = characters.finish(self._surfaces, pending)
            return before._replace(text=before.text + chr(_END - 1 - token))
        return characters.complete(self._surfaces, token, pending)

    def _find_situation(
        self, pending: Pending, phrases: PhraseStates, spelled: TrieNode, rest: RestState
    ) -> _Situation:
        key = pending, phrases, spelled, rest if self._recurs else self._texts.start
        if key not in self._situations:
            marks = [back for context, _, _ in phrases for _, _, back in context.marks]
            waiting = [match.start_back for match in key[3].rules.waiting]
            reach_back = max((*self._texts.phrases.find_open(phrases), *marks, *waiting), default=0)
            completed = tuple([(self._spelled[number], length) for number, length in spelled.matches])
            self._situations[key] = _Situation(*key, completed, reach_back)
        return self._situations[key]

"""Read tokens and report the bans that they complete.

States are values: feeding a token to one returns another, and a rewind reuses an earlier one. What a token changes is
computed once and remembered, so that feeding is a dictionary look-up, whatever the size of the list:

    of one text     shared by all texts

    State 4 ------> _Transition --- situation ---> _Situation
       ^                                               |
       | parent          +---- transitions[token] -----+
       |                 v
    State 5 ------> _Transition --- situation ---> _Situation

_Situation: the bytes of an incomplete character, and nodes of the automatons of phrases and of token ids.
_Transition: the characters that the token completes, and the matches of phrases.
State: where these are in the text. If there are regexes, loops, repeats or rules of bans, a state also has their
    `OtherState`: patterns are read anew at each token, rules only if something has changed. If bans lead back to the
    beginning of a word, a sentence, a paragraph or the text, it has the `UnitState` of each such unit, too.
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
from antislop.core.bans.text_matcher import OtherState, TextMatcher
from antislop.core.bans.units import Unit, UnitState

TRANSITIONS_KEPT = 30_000
"""Transitions that are remembered, in 4 to 10 MB for English texts and up to 30; finding one anew takes 3 to 7 µs."""
OTHER_STATES_KEPT = 1_000
"""Different states of the rules that are remembered; most tokens leave the one that they find."""

_END = -1  # the end of the text, as a token; lower numbers are characters without a token
_NOTHING_FOUND = PieceResult()
_NO_UNITS: Mapping[Unit, UnitState] = {}


class Violation(NamedTuple):
    """A ban completed by the tokens `start..end`, inclusive; 0 is the first generated one.

    start: contains the first character of the occurrence, or is 0 if that lies in the prompt.
    unit: as `start`, of the unit in which the occurrence begins; None if the ban leads back to the occurrence alone.
    """

    ban: Ban
    start: int
    end: int
    unit: int | None = None

    @property
    def target(self) -> int:
        """The token to which the ban leads back."""
        return self.start if self.unit is None else self.unit


class _BanMatch(NamedTuple):
    ban: Ban
    start_back: int
    end_back: int


@dataclass(eq=False, repr=False, slots=True)
class _Situation:
    """What later matches of phrases and token ids depend on. Equal ones are the same object.

    spelled: node of the automaton of token ids.
    completed: bans of token ids that end here, and their lengths.
    open: places at which incomplete phrases begin.
    reach_back: place of the first character that is not decided: in an incomplete phrase, or a waiting mark; or 0.
    reach_tokens: number of tokens that are not decided: of an incomplete ban of token ids, or character.
    transitions: the transition of each token that was read here.
    others: for each token, the latest state of the rules in which it was read here, and what came of it.
    """

    pending: Pending
    phrases: PhraseStates
    spelled: TrieNode
    completed: tuple[tuple[Ban, int], ...]
    open: tuple[int, ...]
    reach_back: int = field(init=False)
    reach_tokens: int = field(init=False)
    transitions: dict[int, _Transition] = field(default_factory=dict, init=False)
    others: dict[int, _OthersRead] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        waiting = (back for context, _, _ in self.phrases for _, _, back in context.marks)
        self.reach_back = max((*self.open, *waiting), default=0)
        self.reach_tokens = max((self.spelled.longest, *self.pending.ages[:1]))


class _OthersRead(NamedTuple):
    """What a token changes in the state of the rules."""

    before: OtherState
    reach_back: int
    matches: tuple[_BanMatch, ...]
    after: OtherState


@dataclass(eq=False, repr=False, slots=True)
class _Transition:
    """What one token changes in one situation.

    situation: the one that it leads to.
    size: number of characters that it completes.
    begun: as in `characters.Completed`.
    found: the matches of phrases, which have yet to be judged by the rules, and where phrases are open.
    matches: the matches in `found`, with their bans.
    """

    situation: _Situation
    size: int = 0
    begun: tuple[int, ...] = ()
    found: PieceResult = _NOTHING_FOUND
    matches: tuple[_BanMatch, ...] = ()


class State:
    """The matcher after `length` generated tokens (negative within the prompt). Don't modify it.

    If "a testament" is banned, after the tokens `She| paid| a| test|am`:

        token       0  1    2 3    4
        character   She paid a testam
                             |       |
                             |       _read: 17 characters
                             where a phrase is open, 8 characters back (`reach_back`)

    Its first character is in token 2: that is the `earliest_start`.

    earliest_start: lower bound on the start of any later violation, after any rewinds.
    settled_length: `earliest_start`, less the token that an exhausted node may withdraw; earlier tokens are final.
    """

    __slots__ = (
        "_jump",
        "_matches",
        "_others",
        "_read",
        "_transition",
        "_units",
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
        others: OtherState | None = None,
        *,
        units: Mapping[Unit, UnitState] = _NO_UNITS,
    ) -> None:
        self.parent: State | None = parent
        self._transition = transition
        self._matches = matches
        self._others = others
        self.muted: frozenset[Ban] = parent.muted
        self.length: int = parent.length + 1
        self.earliest_start = self.length
        self.settled_length = parent.earliest_start
        self._read: int = parent._read + transition.size
        self._jump: State | None = None
        self._units = units
        if reach_back or transition.situation.reach_tokens or units:
            self._hold(parent, reach_back, transition.situation.reach_tokens)

    @classmethod
    def begin(
        cls, situation: _Situation, others: OtherState | None, *, length: int, units: Mapping[Unit, UnitState]
    ) -> State:
        state = cls.__new__(cls)
        state.parent = state._jump = None
        state._transition = _Transition(situation)
        state._matches = ()
        state._others = others
        state.muted = frozenset()
        state.length = state.earliest_start = length
        state.settled_length = length - 1
        state._read = 0
        state._units = units
        return state

    @property
    def violations(self) -> tuple[Violation, ...]:
        """The bans that the latest token completed, the earliest start first."""
        is_none = not self._matches and not self._transition.situation.completed
        return () if is_none else self._list_violations(self.length - 1)

    def back_to(self, length: int) -> State:
        """Return the state after the first `length` generated tokens of this one."""
        state = self
        while state.length > length and state.parent is not None:
            jump = state._jump
            state = jump if jump is not None and jump.length >= length else state.parent
        return state

    def _hold(self, parent: State, reach_back: int, reach_tokens: int) -> None:
        """Lower the lengths, since the text from a place on, and the latest tokens, are not decided."""
        # Any earlier state is reached in a few jumps: E. Myers, "An applicative random-access stack", 1983,
        # doi 10.1016/0020-0190(83)90106-0.
        jump = parent._jump
        far = None if jump is None else jump._jump
        is_even = jump and far and parent.length - jump.length == jump.length - far.length
        self._jump = far if is_even else parent
        if self.length <= 0:
            return
        # An incomplete occurrence was already incomplete at its start: a rewind from here reaches at least as far back
        # as one from there.
        before = parent  # all that is not decided may lie in the latest token
        if self._units:
            # Any later occurrence may lead back to the beginning of its unit, also if nothing is incomplete now.
            widest, start = [*self._units][-1], self.length - reach_tokens
            start = min(start, self._find_unit(widest, min(self._read - reach_back, self.back_to(start)._read)))
            if start == self.length:
                return
            before = self.back_to(start)
        elif reach_tokens > 1 or reach_back > self._transition.size or self._transition.begun:
            place = self._read - reach_back
            owner = self._find_owner(place)
            start = max(0, min(owner._find_start(place), self.length - reach_tokens))
            before = (owner if owner.length > start else self).back_to(start)
        self.earliest_start = before.earliest_start
        self.settled_length = min(parent.earliest_start, before.settled_length)

    def _find_unit(self, unit: Unit, place: int) -> int:
        """Return the token in which the unit of a place begins: the next one for a new unit, 0 within the prompt."""
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
        """Return the token in which a character began, negative within the prompt."""
        place = self._read - back
        return self._find_owner(place)._find_start(place)

    def _find_owner(self, place: int) -> State:
        """Return the state after the token that completed a character; the first one if no state is kept of that."""
        state = self
        while (parent := state.parent) is not None and place < parent._read:
            jump = state._jump
            state = jump if jump is not None and place < jump._read else parent
        return state

    def _find_start(self, place: int) -> int:
        """Return the token in which a character began that this state's token completed."""
        begun = self._transition.begun
        index = place - self._read + self._transition.size
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
        """Return the token in which the unit begins to which a ban leads back from a place; None if it has no unit."""
        unit = ban.unit if self._units else "span"
        return None if unit == "span" else self._find_unit(unit, place)


class Matcher:
    """The compiled bans, over the tokens of one vocabulary; those of weight 1 are left out.

    ranks: the bans, with their places in the list.
    transition_count: number of transitions that are remembered, which take memory.
    """

    def __init__(self, bans: Iterable[Ban], surfaces: Surfaces) -> None:
        self._bans = [ban for ban in distinct(bans) if ban.weight < 1]
        self.ranks = {ban: rank for rank, ban in enumerate(self._bans)}
        self._texts = TextMatcher(self._bans)
        units = {ban.unit for ban in self._bans}
        self._units = [unit for unit in get_args(Unit)[1:] if unit in units]
        self._is_plain = self._texts.is_plain and not self._units
        self._spelled = [ban for ban in self._bans if ban.pattern.token_ids]
        self._spelling = Automaton(["".join(map(chr, ban.pattern.token_ids)) for ban in self._spelled])
        self._surfaces = surfaces
        self._ends = frozenset((_END, *surfaces.breaks))
        self._situations: dict[tuple[Pending, PhraseStates, TrieNode], _Situation] = {}
        # Transitions without a match, by where they lead and their size: most tokens of a situation share one.
        self._arrivals: dict[tuple[Pending, PhraseStates, TrieNode, int], _Transition] = {}
        self._completed: dict[int, Completed] = {}  # by the token, where no character was incomplete before it
        self._other_states: dict[OtherState, OtherState] = {}  # one object for equal states
        self.transition_count = 0

    def __reduce__(self) -> tuple[Any, ...]:
        # Copies compile the bans anew. The remembered transitions are nested deeper than pickle can follow, and would
        # change the matcher's hash, by which `datasets` finds cached results.
        return type(self), (self._bans, self._surfaces)

    @property
    def timed_out(self) -> list[Ban]:
        """The regexes that took too long and are no longer searched for."""
        return [] if self._is_plain else [self._bans[number] for number in self._texts.timed_out]

    def restore(self) -> None:
        """Search again for the regexes that timed out, with all of their time."""
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

        lookback: let bans begin in the prompt; its last character decides word edges either way.
        exempt_prompt: allow the bans that occur in the prompt.
        drops_space: whether the text is shown without a space at its start.
        """
        units = dict.fromkeys(self._units, UnitState())
        situation = self._find_situation(NOTHING, self._texts.phrases.start, self._spelling.root)
        before = None if self._is_plain else self._texts.prompt_start
        state = State.begin(situation, before, length=-len(prompt), units=units)
        in_prompt: set[Ban] = set()
        for token in prompt:
            state = self.feed(state, token)
            state.parent = state._jump = None  # nobody goes back to it, and the states of a long prompt take memory
            in_prompt.update(match.ban for match in state._matches)
        if exempt_prompt:
            in_prompt.update(match.ban for match in self.feed(state, _END)._matches)
        situation, others = state._transition.situation, state._others or self._texts.start
        if not self._is_plain:
            state._others = others = self._texts.leave_prompt(others, drops_space=drops_space)
        if not lookback:
            phrases, others = self._texts.forget(situation.phrases, others)
            situation = self._find_situation(situation.pending, phrases, self._spelling.root)
            units = {unit: UnitState(each.state) for unit, each in state._units.items()}
            state = State.begin(situation, None if self._is_plain else others, length=0, units=units)
        state.muted = frozenset(in_prompt) if exempt_prompt else state.muted
        return state

    def feed(self, state: State, token: int) -> State:
        """Return the state after one more token."""
        situation = state._transition.situation
        transition = situation.transitions.get(token) or self._find_transition(situation, token)
        if self._is_plain:
            return State(state, transition, transition.situation.reach_back, transition.matches)
        return self._feed_others(state, transition, token)

    def group(self, state: State, tokens: Iterable[int], *, apart: bool) -> Iterable[tuple[State, list[int]]]:
        """Return states after tokens that may complete a ban, each with all tokens that complete the same ones.

        Without regexes, loops, repeats and rules, no state is made for a token that completes nothing.

        apart: a state for each token, whatever it completes.
        """
        if apart or not self._is_plain:
            return [(self.feed(state, token), [token]) for token in tokens]
        situation, groups = state._transition.situation, dict[Hashable, tuple[State, list[int]]]()
        for token in tokens:
            read = situation.transitions.get(token) or self._find_transition(situation, token)
            if read.matches or read.situation.completed:
                # Equal bans at equal places; what follows an occurrence in its token makes no difference.
                found = [(id(ban), read.size - start, read.size - end) for ban, start, end in read.matches]
                key = *found, *[(id(ban), length) for ban, length in read.situation.completed]
                groups.setdefault(key, (self.feed(state, token), []))[1].append(token)
        return groups.values()

    def finish(self, state: State) -> tuple[Violation, ...]:
        """Return the bans that the end of the text completes."""
        return self.feed(state, _END)._list_violations(state.length - 1)

    def read_characters(self, state: State, text: str) -> Iterator[State]:
        """Yield the states after the characters of a text whose tokens are not known: each counts as a token."""
        for character in text:
            state = self.feed(state, _END - 1 - ord(character))
            yield state

    def spell(self, tokens: Iterable[int]) -> bytes:
        """Return the bytes of tokens."""
        return b"".join(map(self._surfaces.surface, tokens))

    def identify(self, state: State) -> Hashable:
        """Return what the later matches of a state depend on; with regexes, the state itself."""
        if not self._texts.has_comparable_states:
            return state
        return state._transition.situation, state._others, *state._units.items()

    def find_part(self, state: State) -> str | None:
        """See `Rules.find_part`."""
        return None if state._others is None else self._texts.find_part(state._others)

    def _feed_others(self, state: State, transition: _Transition, token: int) -> State:
        """Feed a token also to the searches for what is no phrase, apply the rules, and follow the units."""
        units: Mapping[Unit, UnitState] = _NO_UNITS
        if self._units:
            text, end = self._complete(state._transition.situation.pending, token).text, token in self._ends
            fed = {unit: each.read(unit, text, end=state._read + len(text)) for unit, each in state._units.items()}
            units = {unit: each.end() if end else each for unit, each in fed.items()}
        before, situation = state._others, state._transition.situation
        assert before is not None
        if not self._texts.has_comparable_states:
            return State(state, transition, *self._read_others(before, situation, transition, token), units=units)
        read = situation.others.get(token)
        if read is None or read.before is not before:
            reach_back, matches, after = self._read_others(before, situation, transition, token)
            if len(self._other_states) >= OTHER_STATES_KEPT:
                self._other_states.clear()
            # One object for equal states, so that what a token changes is found again.
            after = before if after == before else self._other_states.setdefault(after, after)
            read = situation.others[token] = _OthersRead(before, reach_back, matches, after)
        return State(state, transition, *read[1:], units=units)

    def _read_others(
        self, before: OtherState, situation: _Situation, transition: _Transition, token: int
    ) -> tuple[int, tuple[_BanMatch, ...], OtherState]:
        ends = token in self._ends
        text = self._complete(situation.pending, token).text
        others, (matches, open_) = self._texts.complete(before, text, transition.found, final=ends)
        if ends:
            others, open_ = self._texts.restart(others, self._surfaces.breaks.get(token, "")), ()
        reach_back = max((transition.situation.reach_back, *open_))
        return reach_back, self._name_bans(matches) if matches else (), others

    def _name_bans(self, matches: Iterable[PatternMatch]) -> tuple[_BanMatch, ...]:
        return tuple(_BanMatch(self._bans[match.pattern], match.start_back, match.end_back) for match in matches)

    def _forget(self) -> None:
        """Drop all that was remembered; states may still refer to it, and can be read on from."""
        for situation in self._situations.values():
            situation.transitions.clear()
            situation.others.clear()
        self._situations.clear()
        self._arrivals.clear()
        self._completed.clear()
        self._other_states.clear()
        self._texts.phrases.shrink()
        self._spelling.forget()
        self.transition_count = 0

    def _find_transition(self, situation: _Situation, token: int) -> _Transition:
        """Compute what a token changes, and remember it."""
        if self.transition_count >= TRANSITIONS_KEPT:
            self._forget()
        ends = token in self._ends
        text, begun, pending = self._complete(situation.pending, token)
        phrases, found = self._texts.phrases.read_matches(situation.phrases, text, ends)
        if ends:
            phrases = self._texts.phrases.start
        spelled = self._spelling.root
        if self._spelled and token >= 0:
            spelled = situation.spelled[chr(token)]
        key = pending, phrases, spelled, len(text)
        transition = None if begun or found else self._arrivals.get(key)
        if transition is None:
            after = self._find_situation(pending, phrases, spelled)
            found = self._texts.number_phrases(found)
            result = PieceResult(found, after.open) if found or after.open else _NOTHING_FOUND
            transition = _Transition(after, len(text), begun, result, self._name_bans(found))
            if not (begun or found):
                self._arrivals[key] = transition
        situation.transitions[token] = transition
        self.transition_count += 1
        return transition

    def _complete(self, pending: Pending, token: int) -> Completed:
        completed = None if pending.data else self._completed.get(token)
        if completed is not None:
            return completed
        if token in self._ends:
            return characters.finish(self._surfaces, pending)
        if token < _END:
            before = characters.finish(self._surfaces, pending)
            return before._replace(text=before.text + chr(_END - 1 - token))
        completed = characters.complete(self._surfaces, token, pending)
        if not pending.data:
            self._completed[token] = completed
        return completed

    def _find_situation(self, pending: Pending, phrases: PhraseStates, spelled: TrieNode) -> _Situation:
        situation = self._situations.get((pending, phrases, spelled))
        if situation is None:
            completed = tuple([(self._spelled[number], length) for number, length in spelled.matches])
            situation = _Situation(pending, phrases, spelled, completed, self._texts.phrases.find_open(phrases))
            self._situations[pending, phrases, spelled] = situation
        return situation

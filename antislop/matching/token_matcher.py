"""Read tokens and report the bans that they complete.

States are values: feeding a token to one returns another, and a rewind reuses an earlier one. A token's transition is
computed once and remembered, so that feeding is a dictionary look-up, whatever the size of the list.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from antislop.matching import characters
from antislop.matching.automaton import ROOT, Automaton
from antislop.matching.bans import Ban, distinct
from antislop.matching.characters import NOTHING, Pending
from antislop.matching.patterns.pattern import PieceResult
from antislop.matching.patterns.phrase import PhraseStates
from antislop.matching.text_matcher import OtherState, TextMatcher

TRANSITIONS_KEPT = 10_000
"""Transitions that are remembered, in up to 10 MB; finding one anew takes 10 µs."""

_END = -1  # the end of the text, as a token


class Violation(NamedTuple):
    """A ban completed by the tokens `start..end`, inclusive; 0 is the first generated one.

    start: contains the first character of the occurrence, or is 0 if that lies in the prompt.
    """

    ban: Ban
    start: int
    end: int


class Surfaces(characters.TokenBytes, Protocol):
    """The text of tokens, as in `Vocabulary`. breaks: the contents of the special tokens."""

    @property
    def breaks(self) -> Mapping[int, str]: ...


class _BanMatch(NamedTuple):
    ban: Ban
    start_back: int
    end_back: int


class _Situation:
    """What later matches of phrases and token ids depend on. Equal ones are the same object."""

    __slots__ = ("pending", "phrases", "spelled", "transitions", "waits")

    def __init__(self, pending: Pending, phrases: PhraseStates, spelled: int) -> None:
        self.pending = pending
        self.phrases = phrases
        self.spelled = spelled  # state of the automaton of token ids
        self.waits = pending.data != b"" or any(track.context.marks for track in phrases)
        self.transitions: dict[int, _Transition] = {}


class _Transition(NamedTuple):
    """The effect of one token in one situation.

    text, begun: as in `characters.Completed`.
    spelled: bans of token ids that it completes.
    spelling: number of tokens of the longest incomplete ban of token ids.
    """

    situation: _Situation
    text: str
    begun: tuple[int, ...]
    result: PieceResult
    matches: tuple[_BanMatch, ...]
    spelled: tuple[Ban, ...] = ()
    spelling: int = 0


class State:
    """The matcher after `length` generated tokens (negative within the prompt). Don't modify it.

    earliest_start: lower bound on the start of any later violation, after any rewinds.
    settled_length: the same, less the one token more that an exhausted node may withdraw; tokens below it are final.
    """

    __slots__ = (
        "_jump",
        "_matches",
        "_open",
        "_others",
        "_read",
        "_transition",
        "earliest_start",
        "length",
        "muted",
        "parent",
        "settled_length",
    )

    def __init__(
        self,
        parent: State | None,
        transition: _Transition,
        length: int,
        *,
        others: OtherState | None = None,
        matches: tuple[_BanMatch, ...] = (),
        open_: tuple[int, ...] = (),
        muted: frozenset[Ban] = frozenset(),
    ) -> None:
        self.parent = parent
        self._transition = transition
        self._others = others
        self._matches = matches
        self._open = open_
        self.muted = muted
        self.length = length
        self.earliest_start = length
        self.settled_length = length - 1 if parent is None else parent.earliest_start
        self._read: int = len(transition.text) if parent is None else parent._read + len(transition.text)
        self._jump: State | None = None
        if open_ or transition.spelling or transition.situation.waits:
            self._jump = parent._find_jump() if parent is not None else None
            # An incomplete occurrence was already incomplete at its start: a rewind from here reaches at least as far
            # back as one from there.
            before = self.back_to(max(0, self._find_open_start()))
            self.earliest_start = min(self.earliest_start, before.earliest_start)
            self.settled_length = min(self.settled_length, before.settled_length)

    @property
    def violations(self) -> tuple[Violation, ...]:
        """The bans that the latest token completed, the earliest start first."""
        return self._list_violations(self.length - 1) if self._matches or self._transition.spelled else ()

    def back_to(self, length: int) -> State:
        """Return the state after the first `length` generated tokens of this one."""
        state = self
        while state.length > length and state.parent is not None:
            jump = state._jump
            state = jump if jump is not None and jump.length >= length else state.parent
        return state

    def _find_jump(self) -> State:
        """Return where the next state jumps to, so that any earlier state is reached in a few jumps."""
        # E. Myers, "An applicative random-access stack", 1983, doi 10.1016/0020-0190(83)90106-0
        jump = self._jump
        far = jump._jump if jump is not None else None
        if jump is None or far is None or self.length - jump.length != jump.length - far.length:
            return self
        return far

    def _find_open_start(self) -> int:
        situation = self._transition.situation
        backs = [*self._open, *(back for track in situation.phrases for _, _, back in track.context.marks)]
        start = self._token_of(max(backs)) if backs else self.length
        tokens = max((self._transition.spelling, *situation.pending.ages[:1]))
        return min(start, self.length - tokens)

    def _token_of(self, back: int) -> int:
        """Return the token in which a character began, negative within the prompt."""
        state, place = self, self._read - back
        while place < state._read - len(state._transition.text):
            if state.parent is None:  # in a prompt whose states were dropped
                return state.length - 1
            jump = state._jump
            state = jump if jump is not None and place < jump._read else state.parent
        index, begun = place - state._read + len(state._transition.text), state._transition.begun
        return state.length - 1 - (begun[index] if index < len(begun) else 0)

    def _list_violations(self, end: int) -> tuple[Violation, ...]:
        matched = {
            Violation(ban, max(0, self._token_of(start_back)), end): None
            for ban, start_back, end_back in self._matches
            if self._token_of(end_back) >= 0  # not within the prompt
            and ban not in self.muted
        }
        spelled = [
            Violation(ban, max(0, end + 1 - len(ban.pattern.token_ids)), end) for ban in self._transition.spelled
        ]
        violations = [violation for violation in (*matched, *spelled) if violation.start >= violation.ban.from_token]
        return tuple(sorted(violations, key=lambda violation: violation.start))


class Matcher:
    """The compiled bans, over the tokens of one vocabulary; those of weight 1 are left out."""

    def __init__(self, bans: Iterable[Ban], surfaces: Surfaces) -> None:
        self._bans = [ban for ban in distinct(bans) if ban.weight < 1]
        self._texts = TextMatcher(self._bans)
        self._spelled = [ban for ban in self._bans if ban.pattern.token_ids]
        self._spelling = Automaton(["".join(map(chr, ban.pattern.token_ids)) for ban in self._spelled])
        self._surfaces = surfaces
        self._situations: dict[tuple[Pending, PhraseStates, int], _Situation] = {}
        self._kept = 0

    def __reduce__(self) -> tuple[Any, ...]:
        # Copies compile the bans anew. The remembered transitions are nested deeper than pickle can follow, and would
        # change the matcher's hash, by which `datasets` finds cached results.
        return type(self), (self._bans, self._surfaces)

    @property
    def timed_out(self) -> list[Ban]:
        """The regexes that took too long and are no longer searched for."""
        return [] if self._texts.is_plain else [self._bans[number] for number in self._texts.timed_out]

    def restore(self) -> None:
        """Search again for the regexes that timed out, with all of their time."""
        self._texts.restore()

    @property
    def transition_count(self) -> int:
        """The number of remembered transitions, which take memory."""
        return self._kept

    def start(self, prompt: Sequence[int] = (), *, lookback: bool = True, exempt_prompt: bool = False) -> State:
        """Return the state after a prompt.

        lookback: let bans begin in the prompt; its last character decides word edges either way.
        exempt_prompt: allow the bans that occur in the prompt.
        """
        state = self._begin(self._texts.phrases.start, self._texts.start, length=-len(prompt))
        in_prompt: set[Ban] = set()
        for token in prompt:
            state = self.feed(state, token)
            in_prompt.update(match.ban for match in state._matches)
        if exempt_prompt:
            in_prompt.update(match.ban for match in self.feed(state, _END)._matches)
        situation, others = state._transition.situation, state._others or self._texts.start
        if not lookback:
            phrases, others = self._texts.forget(situation.phrases, others)
            state = self._begin(phrases, others, pending=situation.pending)
        elif not self._texts.is_plain:
            state._others = self._texts.count_anew(others)
        state.muted = frozenset(in_prompt) if exempt_prompt else state.muted
        return state

    def feed(self, state: State, token: int) -> State:
        """Return the state after one more token."""
        situation = state._transition.situation
        transition = situation.transitions.get(token)
        if transition is None:
            transition = self._add_transition(situation, token)
        length = state.length + 1
        if self._texts.is_plain:
            return State(
                state, transition, length, matches=transition.matches, open_=transition.result.open, muted=state.muted
            )
        assert state._others is not None
        ends = token == _END or token in self._surfaces.breaks
        others, result = self._texts.complete(state._others, transition.text, transition.result, final=ends)
        if ends:
            content = self._surfaces.breaks.get(token, "")
            others, result = self._texts.restart(others, content), result._replace(open=())
        matches = self._name_bans(result)
        return State(state, transition, length, others=others, matches=matches, open_=result.open, muted=state.muted)

    def finish(self, state: State) -> tuple[Violation, ...]:
        """Return the bans that the end of the text completes."""
        return self.feed(state, _END)._list_violations(state.length - 1)

    def expect(self, state: State, count: int) -> tuple[int, list[str]]:
        """Return the token in which the longest incomplete phrase begins, and up to `count` folded rests of it.

        Without one, that is the next token, and there are no rests.
        """
        marks = state._transition.result.open
        if not marks:
            return state.length, []
        endings = self._texts.phrases.find_endings(state._transition.situation.phrases, count)
        return max(0, state._token_of(max(marks))), [ending for ending in endings if ending]

    def _begin(
        self, phrases: PhraseStates, others: OtherState, *, length: int = 0, pending: Pending = NOTHING
    ) -> State:
        transition = _Transition(self._find_situation(pending, phrases, ROOT), "", (), PieceResult(), ())
        return State(None, transition, length, others=None if self._texts.is_plain else others)

    def _name_bans(self, result: PieceResult) -> tuple[_BanMatch, ...]:
        return tuple(_BanMatch(self._bans[match.pattern], match.start_back, match.end_back) for match in result.matches)

    def _add_transition(self, situation: _Situation, token: int) -> _Transition:
        if self._kept >= TRANSITIONS_KEPT:
            for stored in self._situations.values():
                stored.transitions.clear()  # states may still refer to them
            self._situations.clear()
            self._kept = 0
        transition = situation.transitions[token] = self._find_transition(situation, token)
        self._kept += 1
        return transition

    def _find_transition(self, situation: _Situation, token: int) -> _Transition:
        ends = token == _END or token in self._surfaces.breaks
        if ends:
            text, begun, pending = characters.finish(self._surfaces, situation.pending)
        else:
            text, begun, pending = characters.complete(self._surfaces, token, situation.pending)
        phrases, result = self._texts.read_phrases(situation.phrases, text, final=ends)
        spelled = ROOT if token == _END else self._spelling.step(situation.spelled, chr(token))
        if ends:
            result, phrases = result._replace(open=()), self._texts.phrases.start
        return _Transition(
            self._find_situation(pending, phrases, spelled),
            text,
            begun,
            result,
            self._name_bans(result),
            tuple(self._spelled[number] for number in self._spelling.matches[spelled]),
            self._spelling.longest[spelled],
        )

    def _find_situation(self, pending: Pending, phrases: PhraseStates, spelled: int) -> _Situation:
        key = (pending, phrases, spelled)
        if key not in self._situations:
            self._situations[key] = _Situation(*key)
        return self._situations[key]

"""Read tokens and report the bans that they complete.

States are immutable values: feeding one gives another, and going back is using an earlier one again. What a token
does in a given state is worked out once and remembered, so that reading on is a dictionary look-up, whatever the
size of the list. Knows the text of tokens, but no model and no probabilities.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from antislop.matching import characters
from antislop.matching.automaton import ROOT, Automaton
from antislop.matching.bans import Ban, distinct
from antislop.matching.characters import NOTHING, Pending
from antislop.matching.phrases import PhraseStates, PieceResult
from antislop.matching.text_matcher import Detector, OtherState

STEPS_KEPT = 200_000  # remembered (state, token) pairs, some 100 MB at the most
_END = -1  # stands for the end of the text among the tokens


class Violation(NamedTuple):
    """A ban completed by the tokens `start..end` (inclusive; 0 is the first one generated).

    `start` holds the phrase's first character, or is 0 where the phrase began in the prompt.
    """

    ban: Ban
    start: int
    end: int


class Surfaces(characters.Surfaces, Protocol):
    """The text of tokens, as in `Vocabulary`: `breaks` holds the special tokens with their contents."""

    @property
    def breaks(self) -> Mapping[int, str]: ...


class _Hit(NamedTuple):
    """A ban that was completed: its first and last character, counted back from the end of the text so far."""

    ban: Ban
    start_back: int
    end_back: int


class _Situation:
    """All that the future of a text depends on as far as phrases go; one object for each such situation."""

    __slots__ = ("pending", "place", "spelled", "steps", "waits")

    def __init__(self, pending: Pending, place: PhraseStates, spelled: int) -> None:
        self.pending = pending
        self.place = place
        self.spelled = spelled  # state of the automaton of token ids
        self.waits = pending.data != b"" or any(standing.context.marks for standing in place)
        self.steps: dict[int, _Transition] = {}


class _Transition(NamedTuple):
    """What one token does in one situation: to phrases and token ids, which can be remembered.

    text: the characters that it completes. begun: of those that earlier tokens began, how many tokens before. spelled:
    bans of token ids that it completes. spelling: the number of tokens of the longest incomplete one.
    """

    core: _Situation
    text: str
    begun: tuple[int, ...]
    reading: PieceResult
    hits: tuple[_Hit, ...]
    spelled: tuple[Ban, ...] = ()
    spelling: int = 0


class State:
    """The matcher after `length` generated tokens (negative within the prompt). Treat it as a value.

    earliest_start: the smallest length to which any later chain of violations can rewind.
    settled_length: the same if each chain may step back one token more than its bans ask for; no rewind reaches the
        tokens before it.
    """

    __slots__ = (
        "_hits",
        "_jump",
        "_open",
        "_read",
        "_rest",
        "_step",
        "earliest_start",
        "length",
        "muted",
        "parent",
        "settled_length",
    )

    def __init__(
        self,
        parent: State | None,
        step: _Transition,
        length: int,
        *,
        rest: OtherState | None = None,
        hits: tuple[_Hit, ...] = (),
        open_: tuple[int, ...] = (),
        muted: frozenset[Ban] = frozenset(),
    ) -> None:
        self.parent = parent
        self._step = step
        self._rest = rest
        self._hits = hits
        self._open = open_
        self.muted = muted
        self.length = length
        self.earliest_start = length
        self.settled_length = length - 1 if parent is None else parent.earliest_start
        self._read: int = len(step.text) if parent is None else parent._read + len(step.text)  # characters in all
        self._jump: State | None = None
        if open_ or step.spelling or step.core.waits:
            self._jump = parent._far_back() if parent is not None else None
            # What is open now has been open since it began, so an earlier start leads at least as far back.
            before = self.back_to(max(0, self._find_open_start()))
            self.earliest_start = min(self.earliest_start, before.earliest_start)
            self.settled_length = min(self.settled_length, before.settled_length)

    @property
    def violations(self) -> tuple[Violation, ...]:
        """The bans that the latest token completed, the one that starts first in front."""
        return self._violations(self.length - 1) if self._hits or self._step.spelled else ()

    def back_to(self, length: int) -> State:
        """Return the state that this one was when the text had `length` generated tokens."""
        state = self
        while state.length > length and state.parent is not None:
            jump = state._jump
            state = jump if jump is not None and jump.length >= length else state.parent
        return state

    def _far_back(self) -> State:
        """Return where the next state's jump leads, so that any earlier one is reached in a few jumps.

        E. Myers, "An applicative random-access stack", 1983, doi 10.1016/0020-0190(83)90106-0.
        """
        jump = self._jump
        far = jump._jump if jump is not None else None
        if jump is None or far is None or self.length - jump.length != jump.length - far.length:
            return self
        return far

    def _find_open_start(self) -> int:
        """Return the token in which the first of the bans in the making, and of incomplete characters, begins."""
        core = self._step.core
        backs = [*self._open, *(back for standing in core.place for _, _, back in standing.context.marks)]
        start = self._token_of(max(backs)) if backs else self.length
        tokens = max((self._step.spelling, *core.pending.ages[:1]))
        return min(start, self.length - tokens)

    def _token_of(self, back: int) -> int:
        """Return the index of the token in which a character began, negative within the prompt."""
        state, place = self, self._read - back
        while place < state._read - len(state._step.text):
            if state.parent is None:  # before a prompt that was forgotten
                return state.length - 1
            jump = state._jump
            state = jump if jump is not None and place < jump._read else state.parent
        index, begun = place - state._read + len(state._step.text), state._step.begun
        return state.length - 1 - (begun[index] if index < len(begun) else 0)

    def _violations(self, end: int) -> tuple[Violation, ...]:
        found = {
            Violation(ban, max(0, self._token_of(start_back)), end): None
            for ban, start_back, end_back in self._hits
            if self._token_of(end_back) >= 0  # a phrase that stands in the prompt is no hit
            and ban not in self.muted
        }
        spelled = [Violation(ban, max(0, end + 1 - len(ban.token_ids)), end) for ban in self._step.spelled]
        violations = [violation for violation in (*found, *spelled) if violation.start >= violation.ban.from_token]
        return tuple(sorted(violations, key=lambda violation: violation.start))


class Matcher:
    """The compiled bans, over the tokens of one vocabulary. Bans of weight 1 do nothing and are left out."""

    def __init__(self, bans: Iterable[Ban], surfaces: Surfaces) -> None:
        self._bans = [ban for ban in distinct(bans) if ban.weight < 1]
        self._detector = Detector(self._bans)
        self._spelled = [ban for ban in self._bans if ban.kind == "tokens"]
        self._spelling = Automaton(["".join(map(chr, ban.token_ids)) for ban in self._spelled])
        self._surfaces = surfaces
        self._cores: dict[tuple[Pending, PhraseStates, int], _Situation] = {}
        self._steps_kept = 0

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what was learned from texts: it is learned again, and deeper than pickle can follow."""
        return {**self.__dict__, "_cores": {}, "_steps_kept": 0}

    @property
    def slow(self) -> list[Ban]:
        """The regexes that are not looked for any more, since they took too long."""
        return [] if self._detector.is_plain else [self._bans[number] for number in self._detector.slow]

    def start(self, prompt: Sequence[int] = (), *, lookback: bool = True, exempt_prompt: bool = False) -> State:
        """Return the state after a prompt.

        Without `lookback` no ban can begin in it, but its edge still counts. `exempt_prompt`: what it holds of the bans
        may be written again.
        """
        state = self._begin(self._detector.phrases.start, self._detector.start, length=-len(prompt))
        held: set[Ban] = set()
        for token in prompt:
            state = self.feed(state, token)
            held.update(hit.ban for hit in state._hits)
        if exempt_prompt:
            held.update(hit.ban for hit in self._end(state)._hits)
        core, rest = state._step.core, state._rest or self._detector.start
        if not lookback:
            place, rest = self._detector.forget(core.place, rest)
            state = self._begin(place, rest, pending=core.pending)
        elif not self._detector.is_plain:
            state._rest = self._detector.count_anew(rest)
        state.muted = frozenset(held) if exempt_prompt else state.muted
        return state

    def feed(self, state: State, token: int) -> State:
        """Return the state after one more token."""
        return self._read(state, token)

    def _read(self, state: State, token: int) -> State:
        core = state._step.core
        step = core.steps.get(token)
        if step is None:
            step = self._learn(core, token)
        length = state.length + 1
        if self._detector.is_plain:
            return State(state, step, length, hits=step.hits, open_=step.reading.open, muted=state.muted)
        assert state._rest is not None
        ends = token == _END or token in self._surfaces.breaks
        rest, reading = self._detector.complete(state._rest, step.text, step.reading, final=ends)
        if ends:
            content = self._surfaces.breaks.get(token, "")
            rest, reading = self._detector.restart(rest, content), reading._replace(open=())
        hits = self._name(reading)
        return State(state, step, length, rest=rest, hits=hits, open_=reading.open, muted=state.muted)

    def finish(self, state: State) -> tuple[Violation, ...]:
        """Return the bans that are completed by the text ending here."""
        return self._end(state)._violations(state.length - 1)

    def expect(self, state: State, count: int) -> tuple[int, list[str]]:
        """Return the token in which the longest phrase in the making begins, and up to `count` ways to go on with it.

        The token is the next one, and there are no ways, where nothing is in the making.
        """
        marks = state._step.reading.open
        if not marks:
            return state.length, []
        endings = self._detector.phrases.endings(state._step.core.place, count)
        return max(0, state._token_of(max(marks))), [ending for ending in endings if ending]

    def _begin(self, place: PhraseStates, rest: OtherState, *, length: int = 0, pending: Pending = NOTHING) -> State:
        step = _Transition(self._core(pending, place, ROOT), "", (), PieceResult(), ())
        return State(None, step, length, rest=None if self._detector.is_plain else rest)

    def _end(self, state: State) -> State:
        """Return the state after the end of the text; it has one token too many."""
        return self._read(state, _END)

    def _name(self, reading: PieceResult) -> tuple[_Hit, ...]:
        return tuple(_Hit(self._bans[hit.pattern], hit.start_back, hit.end_back) for hit in reading.hits)

    def _learn(self, core: _Situation, token: int) -> _Transition:
        if self._steps_kept >= STEPS_KEPT:
            for known in self._cores.values():
                known.steps.clear()
            self._cores.clear()
            self._steps_kept = 0
        step = core.steps[token] = self._work_out(core, token)
        self._steps_kept += 1
        return step

    def _work_out(self, core: _Situation, token: int) -> _Transition:
        ends = token == _END or token in self._surfaces.breaks
        if ends:
            text, begun, pending = characters.finish(self._surfaces, core.pending)
        else:
            text, begun, pending = characters.complete(self._surfaces, token, core.pending)
        place, reading = self._detector.read_phrases(core.place, text, final=ends)
        spelled = ROOT if token == _END else self._spelling.step(core.spelled, chr(token))
        if ends:
            reading, place = reading._replace(open=()), self._detector.phrases.start
        return _Transition(
            self._core(pending, place, spelled),
            text,
            begun,
            reading,
            self._name(reading),
            tuple(self._spelled[number] for number in self._spelling.matches[spelled]),
            self._spelling.longest[spelled],
        )

    def _core(self, pending: Pending, place: PhraseStates, spelled: int) -> _Situation:
        key = (pending, place, spelled)
        if key not in self._cores:
            self._cores[key] = _Situation(pending, place, spelled)
        return self._cores[key]

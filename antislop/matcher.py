"""Read tokens and report the bans that they complete.

States are immutable values: feeding one gives another, and going back is using an earlier one again. What a token
does in a given state is worked out once and remembered, so that reading on is a dictionary look-up, whatever the
size of the list. Knows the text of tokens, but no model and no probabilities.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from antislop.bans import Ban, distinct
from antislop.patterns import Mark, Patterns, Place

STEPS_KEPT = 200_000  # remembered (state, token) pairs, some 100 MB at the most
_END = -1  # stands for the end of the text among the tokens


class Violation(NamedTuple):
    """A ban completed by the tokens `start..end` (inclusive; 0 is the first one generated).

    `start` holds the phrase's first character, or is 0 where the phrase began in the prompt.
    """

    ban: Ban
    start: int
    end: int


class Surfaces(Protocol):
    """The text of tokens, as in `Vocabulary`."""

    @property
    def breaks(self) -> frozenset[int]: ...
    def surface(self, token_id: int, /) -> bytes: ...


class _Core:
    """All that the future of a text depends on; one object for each such situation."""

    __slots__ = ("age", "pending", "place", "steps", "waits")

    def __init__(self, pending: bytes, age: int, place: Place) -> None:
        self.pending = pending  # bytes of a character that is not complete
        self.age = age  # tokens since the first of them
        self.place = place
        self.waits = age > 0 or any(context.marks for context in place.contexts)
        self.steps: dict[int, _Step] = {}


class _Step(NamedTuple):
    """What one token does in one situation.

    `lags` say, per track and symbol, how many tokens ago the symbol's character began.
    """

    core: _Core
    lags: tuple[tuple[int, ...], ...]
    hits: tuple[tuple[Ban, Mark, Mark], ...]
    open: tuple[Mark, ...]


class State:
    """The matcher after `length` generated tokens (negative within the prompt). Treat it as a value.

    `horizon` is the smallest length that any later chain of violations can lead back to; `hold` the same when one of
    them may step back one token more than its ban asks for.
    """

    __slots__ = ("_step", "hold", "horizon", "length", "parent")

    def __init__(self, parent: State | None, step: _Step, length: int) -> None:
        self.parent = parent
        self._step = step
        self.length = length
        self.horizon = length
        self.hold = length - 1 if parent is None else parent.horizon
        if step.open or step.core.waits:
            for start in self._open_starts():
                before = self.back_to(start)
                self.horizon = min(self.horizon, before.horizon)
                self.hold = min(self.hold, before.hold)

    @property
    def violations(self) -> tuple[Violation, ...]:
        """The bans that the latest token completed, the one that starts first in front."""
        return self._violations(self._step, self.length - 1) if self._step.hits else ()

    def back_to(self, length: int) -> State:
        """Return the state that this one was when the text had `length` generated tokens."""
        state = self
        while state.length > length and state.parent is not None:
            state = state.parent
        return state

    def _open_starts(self) -> Iterator[int]:
        """Yield the tokens in which the bans in the making, and incomplete characters, begin."""
        core = self._step.core
        if core.age:
            yield max(0, self.length - core.age)
        for context in core.place.contexts:
            for _, _, age in context.marks:
                yield max(0, self.length - age)
        for mark in self._step.open:
            yield max(0, self._token_of(mark))

    def _token_of(self, mark: Mark) -> int:
        """Return the index of the token in which a symbol's character began, negative within the prompt."""
        state, back = self, mark.back
        while True:
            lags = state._step.lags[mark.track]
            if back <= len(lags):
                return state.length - 1 - lags[-back]
            back -= len(lags)
            assert state.parent is not None, "a symbol before the beginning of the text"
            state = state.parent

    def _violations(self, step: _Step, end: int) -> tuple[Violation, ...]:
        found = {
            Violation(ban, max(0, self._token_of(first)), end): None
            for ban, first, last in step.hits
            if self._token_of(last) >= 0  # a phrase that stands in the prompt is no hit
        }
        return tuple(sorted(found, key=lambda violation: violation.start))


class Matcher:
    """The compiled bans, over the tokens of one vocabulary. Bans of weight 1 do nothing and are left out."""

    def __init__(self, bans: Iterable[Ban], surfaces: Surfaces) -> None:
        self._bans = [ban for ban in distinct(bans) if ban.weight < 1]
        self._patterns = Patterns(self._bans)
        self._surfaces = surfaces
        self._cores: dict[tuple[bytes, int, Place], _Core] = {}
        self._steps_kept = 0

    def start(self, prompt: Sequence[int] = (), *, lookback: bool = True) -> State:
        """Return the state after a prompt; without `lookback` no ban can begin in it, but its edge still counts."""
        state = State(None, _Step(self._core(b"", 0, self._patterns.start), self._no_lags(), (), ()), -len(prompt))
        for token in prompt:
            state = self.feed(state, token)
        if not lookback:
            core = state._step.core
            place = self._patterns.forget(core.place)
            state = State(None, _Step(self._core(core.pending, core.age, place), self._no_lags(), (), ()), 0)
        return state

    def feed(self, state: State, token: int) -> State:
        """Return the state after one more token."""
        core = state._step.core
        step = core.steps.get(token)
        if step is None:
            step = self._learn(core, token)
        return State(state, step, state.length + 1)

    def finish(self, state: State) -> tuple[Violation, ...]:
        """Return the bans that are completed by the text ending here."""
        core = state._step.core
        step = core.steps.get(_END) or self._learn(core, _END)
        return State(state, step, state.length + 1)._violations(step, state.length - 1) if step.hits else ()

    def expect(self, state: State, count: int) -> tuple[int, list[str]]:
        """Return the token in which the longest ban in the making begins, and up to `count` ways in which it goes on.

        The token is the next one, and there are no ways, where nothing is in the making.
        """
        marks = state._step.open
        if not marks:
            return state.length, []
        endings = self._patterns.endings(state._step.core.place, count)
        return min(max(0, state._token_of(mark)) for mark in marks), [ending for ending in endings if ending]

    def _learn(self, core: _Core, token: int) -> _Step:
        if self._steps_kept >= STEPS_KEPT:
            for known in self._cores.values():
                known.steps.clear()
            self._cores.clear()
            self._steps_kept = 0
        step = core.steps[token] = self._work_out(core, token)
        self._steps_kept += 1
        return step

    def _work_out(self, core: _Core, token: int) -> _Step:
        ends = token == _END or token in self._surfaces.breaks
        text, pending = _decode(b"" if ends else self._surfaces.surface(token), core.pending, final=ends)
        # Bytes that were waiting belong to the first character of this piece.
        reading = self._patterns.read(core.place, text, final=ends, begun=core.age)
        lags = tuple(tuple(max(0, -origin) for origin in origins) for origins in reading.origins)
        hits = tuple((self._bans[hit.pattern], hit.first, hit.last) for hit in reading.hits)
        if ends:
            return _Step(self._core(b"", 0, self._patterns.start), lags, hits, ())
        age = 0 if not pending else core.age + 1 if not text and core.pending else 1
        return _Step(self._core(pending, age, reading.place), lags, hits, reading.open)

    def _core(self, pending: bytes, age: int, place: Place) -> _Core:
        key = (pending, age, place)
        if key not in self._cores:
            self._cores[key] = _Core(pending, age, place)
        return self._cores[key]

    def _no_lags(self) -> tuple[tuple[int, ...], ...]:
        return ((),) * len(self._patterns.start.states)


def _decode(surface: bytes, pending: bytes, *, final: bool) -> tuple[str, bytes]:
    """Return the characters that are now complete, and the bytes of one that is not."""
    if not pending:
        try:
            return surface.decode(), b""
        except UnicodeDecodeError:
            pass  # a character goes on in the next token, or never
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.setstate((pending, 0))
    return decoder.decode(surface, final=final), decoder.getstate()[0]

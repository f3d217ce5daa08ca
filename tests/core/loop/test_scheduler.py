"""A scheduler waits for texts from other threads, gives them places, and lets go of those that are canceled."""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from functools import cache, partial
from queue import Queue
from threading import Thread
from typing import Any
from weakref import WeakSet

import pytest
from transformers import RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper

from antislop.core.bans.bans import Ban
from antislop.core.bans.token_matcher import Matcher
from antislop.core.loop.engine import BatchEngine, ForwardPass
from antislop.core.loop.row import Row, RowSpec
from antislop.core.loop.sampling import Policy
from antislop.core.loop.scheduler import Scheduler
from antislop.core.loop.step import StepEvents, decode_in_steps
from antislop.core.trace.events import Drawn, Finished
from tests.support.ban_cases import LETTERS, anywhere
from tests.support.toys import Markov, MarkovModel, decode, spec_of

MODEL = Markov(4, seed=1, length=20)
GREEDY = Policy(False, "exact", "concede", max_rewinds=100)
TOKEN = Policy(True, "token", "concede", max_rewinds=100)


def scored(*processors: Any, length: int = 20) -> Markov:
    """Return the same model with the given processors and length of texts."""
    return Markov(4, seed=1, length=length, processors=processors)


def specs() -> list[RowSpec]:
    """Return texts that differ in list, weights, kind of ban, policy, processors, length, prompt and random numbers."""
    lists: list[list[Ban]] = [
        [],
        [anywhere("ab"), anywhere("c", 0.3)],
        [Ban.regex("b[cd]+"), anywhere("aa", 0.5)],
        [anywhere("d")],
    ]
    matchers = [Matcher(bans, LETTERS) for bans in lists]
    ways: list[dict[str, Any]] = [
        {},
        {"policy": GREEDY},
        {"policy": TOKEN},
        {"callbacks": scored(TemperatureLogitsWarper(0.5), length=12), "max_new_tokens": 12},
        {"policy": GREEDY, "callbacks": scored(RepetitionPenaltyLogitsProcessor(1.5))},
    ]
    return [
        spec_of(MODEL, matcher, (0,) * (2 + number % 3), seed=10 * number + w, **way)
        for number, matcher in enumerate(matchers)
        for w, way in enumerate(ways)
    ]


def engine_of(*, rows: int) -> BatchEngine:
    model = MarkovModel(MODEL.table)
    return BatchEngine(model, model.new_cache(rows))


def list_finished(step: StepEvents) -> list[int]:
    return [row.number for row, events in step for event in events if isinstance(event, Finished)]


def write(texts: Sequence[RowSpec], *, places: int) -> list[list[int]]:
    rows = {row.number: row for row, _ in decode(Scheduler(texts, max_rows=places), engine_of(rows=places))}
    return [rows[number].tokens for number in range(len(texts))]


@cache
def write_alone() -> list[list[int]]:
    """Return the text of each of `specs`, written alone."""
    return [write([spec], places=1)[0] for spec in specs()]


class Reader(Thread):
    """A thread that decodes and keeps the texts."""

    def __init__(self, scheduler: Scheduler, *, places: int) -> None:
        super().__init__(daemon=True)
        self.engine = engine_of(rows=places)
        self.scheduler = scheduler
        self.written: Queue[Row] = Queue()
        self.start()

    def run(self) -> None:
        for row, event in decode(self.scheduler, self.engine):
            if isinstance(event, Finished):
                self.written.put(row)

    def cpu_seconds(self) -> float:
        assert self.ident is not None
        return time.clock_gettime(time.pthread_getcpuclockid(self.ident))


@pytest.mark.skipif(not hasattr(time, "pthread_getcpuclockid"), reason="the CPU time of a thread can't be read here")
def test_an_idle_scheduler_waits_for_texts_from_another_thread_without_spinning() -> None:
    """A thread that waits takes no time of the processor; one that spins takes its share, even on a busy machine."""
    scheduler = Scheduler(max_rows=2, is_open=True)
    assert scheduler.idle
    reader = Reader(scheduler, places=2)
    for number, spec in enumerate(specs()[:3]):
        assert scheduler.submit(spec) == number
        row = reader.written.get(timeout=60)
        assert row.spec is spec
        assert row.tokens == write_alone()[number]
        time.sleep(0.05)  # until it waits
        before = reader.cpu_seconds()
        time.sleep(0.1)
        assert reader.cpu_seconds() - before < 0.01
    assert reader.is_alive()
    scheduler.close()
    reader.join(timeout=60)
    assert not reader.is_alive()


def test_texts_submitted_while_others_are_written_join_them() -> None:
    """From several threads at once; each text is as if alone."""
    texts = specs()
    expected = {id(spec): tokens for spec, tokens in zip(texts, write_alone(), strict=True)}
    scheduler = Scheduler(max_rows=3, is_open=True)
    reader = Reader(scheduler, places=3)
    threads = [Thread(target=lambda part=part: [*map(scheduler.submit, part)]) for part in (texts[:10], texts[10:])]
    for thread in threads:
        thread.start()
    for _ in texts:
        row = reader.written.get(timeout=60)
        assert row.tokens == expected[id(row.spec)]
    scheduler.close()
    reader.join(timeout=60)
    assert not reader.is_alive()


def test_texts_submitted_before_closing_are_written() -> None:
    scheduler = Scheduler(specs()[:2], max_rows=1, is_open=True)
    number = scheduler.submit(specs()[2])
    scheduler.close()
    finished = [row.number for row, event in decode(scheduler, engine_of(rows=1)) if isinstance(event, Finished)]
    assert sorted(finished) == [0, 1, 2]
    assert number in finished
    assert scheduler.idle
    with pytest.raises(ValueError, match="takes no more texts"):
        scheduler.submit(specs()[0])


def test_a_text_that_ends_immediately_frees_its_row() -> None:
    texts = [
        spec_of(MODEL, Matcher([], LETTERS), seed=seed, max_new_tokens=1, callbacks=Markov(4, length=1))
        for seed in (1, 2)
    ]
    events = [event for _, event in decode(Scheduler(texts, max_rows=1), engine_of(rows=1))]
    assert sum(isinstance(event, Drawn) for event in events) == 2


def test_a_scheduler_without_texts_ends_immediately() -> None:
    assert list(decode(Scheduler(max_rows=3), engine_of(rows=3))) == []


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_text_may_be_canceled_while_the_next_one_is_made_and_the_scheduler_goes_on(is_refused: bool) -> None:
    """After each step of the first text: with it goes the last text that is written, and texts still come."""
    alone = write_alone()
    for after in range(1, len(alone[0])):
        scheduler, rows = Scheduler(max_rows=2, is_open=True), {}
        first, steps = scheduler.submit(specs()[0]), decode_in_steps(scheduler, engine_of(rows=2))
        for _ in range(after):
            next(steps)

        def make(scheduler: Scheduler = scheduler, first: int = first) -> RowSpec | None:
            scheduler.cancel(first)
            return None if is_refused else specs()[1]

        scheduler.submit(make)
        last = scheduler.submit(specs()[2])
        scheduler.close()
        rows = {row.number: row.tokens for step in steps for row, _ in step}
        assert rows == {last: alone[2]} if is_refused else {first + 1: alone[1], last: alone[2]}


def test_texts_of_one_request_leave_the_last_row_to_others_and_take_turns_with_them() -> None:
    """All texts are equally long; b and c come when a is written."""
    scheduler, begun = Scheduler(max_rows=4, is_open=True), list[str]()
    steps = decode_in_steps(scheduler, engine_of(rows=4))

    def make(request: str) -> RowSpec:
        begun.append(request)
        return spec_of(MODEL, Matcher([], LETTERS), seed=1, callbacks=Markov(4, length=6), max_new_tokens=6)

    def submit(requests: str) -> None:
        for request in requests:
            scheduler.submit(partial(make, request), request=request)

    submit("aaaaaaa")
    next(steps)
    assert begun == ["a"] * 3
    submit("bbbc")
    next(steps)
    assert begun == ["a"] * 3 + ["b"]
    scheduler.close()
    for _ in steps:
        pass
    assert begun[4:] == ["a", "c", "b", "a", "b", "a", "a"]


def test_canceling_a_text_that_is_finished_or_unknown_does_nothing() -> None:
    scheduler = Scheduler(max_rows=1, is_open=True)
    first = scheduler.submit(specs()[0])
    scheduler.cancel(first + 7)
    steps = decode_in_steps(scheduler, engine_of(rows=1))
    while not list_finished(next(steps)):
        pass
    scheduler.cancel(first)
    second = scheduler.submit(specs()[1])
    scheduler.close()
    assert [number for step in steps for number in list_finished(step)] == [second]


def test_a_text_may_be_made_when_a_row_is_free_for_it() -> None:
    made: list[int] = []

    def make(number: int) -> RowSpec | None:
        made.append(number)
        return None if number == 1 else specs()[number]

    scheduler = Scheduler(max_rows=1, is_open=True)
    for number in range(3):
        scheduler.submit(partial(make, number))
    scheduler.close()
    begun = []
    for step in decode_in_steps(scheduler, engine_of(rows=1)):
        begun.append(len(made))
        last = step[-1][0]
    assert made == [0, 1, 2]
    assert begun[0] == 1, "the others wait for the row"
    assert last.number == 2


class FailingEngine:
    """An engine that fails in one forward pass."""

    def __init__(self, engine: BatchEngine, *, at: int) -> None:
        self._engine = engine
        self._left = at
        self.read, self.replace = engine.read, engine.replace

    def forward(self, rows: Sequence[Row]) -> ForwardPass:
        self._left -= 1
        if self._left < 0:
            raise RuntimeError("out of memory")
        return self._engine.forward(rows)


def test_texts_that_wait_are_written_after_an_error_of_the_engine() -> None:
    alone = write_alone()
    scheduler = Scheduler(max_rows=3, is_open=True)
    for spec in specs():
        scheduler.submit(spec)
    scheduler.close()
    rows: dict[int, Row] = {}
    steps = decode_in_steps(scheduler, FailingEngine(engine_of(rows=3), at=30))
    with pytest.raises(RuntimeError, match="out of memory"):
        rows.update((row.number, row) for step in steps for row, _ in step)
    lost = {row.number for row in scheduler.abandon() if not row.is_finished}
    assert lost == {number for number, row in rows.items() if not row.is_finished}
    assert len(lost) == 3
    rows |= {row.number: row for row, _ in decode(scheduler, engine_of(rows=3))}
    assert all(rows[number].tokens == alone[number] for number in range(20) if number not in lost)


def test_finished_texts_are_freed_while_the_scheduler_waits() -> None:
    scheduler, finished = Scheduler(max_rows=2, is_open=True), Queue[int]()
    texts = WeakSet[Row]()

    def read() -> None:
        for step in decode_in_steps(scheduler, engine_of(rows=2)):
            texts.update(row for row, _ in step)
            for number in list_finished(step):
                finished.put(number)
            step.clear()

    thread = Thread(target=read, daemon=True)
    thread.start()
    numbers = {scheduler.submit(spec) for spec in specs()[:5]}
    assert {finished.get(timeout=60) for _ in numbers} == numbers
    deadline = time.monotonic() + 10
    while texts and time.monotonic() < deadline:
        gc.collect()
    assert not texts
    assert thread.is_alive()
    scheduler.close()
    thread.join(timeout=60)

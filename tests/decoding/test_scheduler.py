"""Texts of one batch with different options, and a scheduler that waits for texts from other threads."""

from __future__ import annotations

import time
from collections.abc import Sequence
from queue import Queue
from threading import Thread
from typing import Any

import pytest
from transformers import RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper

from antislop.decoding.batch_engine import BatchEngine
from antislop.decoding.loop import decode
from antislop.decoding.policy import Policy
from antislop.decoding.row import Row, TextSpec
from antislop.decoding.scheduler import Scheduler
from antislop.matching.bans import Ban
from antislop.matching.token_matcher import Matcher
from antislop.trace.events import Drawn, Finished, Rewound
from tests.support.markov import MarkovModel
from tests.support.toys import Markov, Words, spec_of

LETTERS = Words(*"abcd")
MODEL = Markov(4, seed=1, length=20)
GREEDY = Policy(False, "exact", "concede", max_rewinds=100)
TOKEN = Policy(True, "token", "concede", max_rewinds=100)


def anywhere(phrase: str, weight: float = 0.0) -> Ban:
    return Ban(phrase, weight=weight, edges="anywhere")


def scored(*processors: Any, length: int = 20) -> Markov:
    """Return the same model with the given processors and length of texts."""
    return Markov(4, seed=1, length=length, processors=processors)


def specs() -> list[TextSpec]:
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
        {"settings": scored(TemperatureLogitsWarper(0.5), length=12), "capacity": 12},
        {"policy": GREEDY, "settings": scored(RepetitionPenaltyLogitsProcessor(1.5))},
    ]
    return [
        spec_of(MODEL, matcher, (0,) * (2 + number % 3), seed=10 * number + w, **way)
        for number, matcher in enumerate(matchers)
        for w, way in enumerate(ways)
    ]


def engine_of(*, rows: int) -> BatchEngine:
    model = MarkovModel(MODEL.table)
    return BatchEngine(model, model.new_cache(rows))


def write(texts: Sequence[TextSpec], *, places: int) -> list[list[int]]:
    rows = {row.number: row for row, _ in decode(Scheduler(texts, places=places), engine_of(rows=places))}
    return [rows[number].tokens for number in range(len(texts))]


@pytest.mark.parametrize("places", [2, 7, 20])
def test_texts_with_different_options_are_each_as_if_alone(places: int) -> None:
    alone = [write([spec], places=1)[0] for spec in specs()]
    assert write(specs(), places=places) == alone
    assert len({tuple(tokens) for tokens in alone}) > 12


def test_greedy_and_sampled_rows_begin_in_one_pass() -> None:
    """Rows that begin together, as in `generate`, may have options as different as those in flight."""
    alone = [write([spec], places=1)[0] for spec in specs()]
    rows = [Row(spec, number=place, place=place) for place, spec in enumerate(specs())]
    rewinds = sum(isinstance(event, Rewound) for _, event in decode(Scheduler(rows=rows), engine_of(rows=20)))
    assert [row.tokens for row in rows] == alone
    assert rewinds > 5


class Reader(Thread):
    """A thread that decodes and keeps the texts."""

    def __init__(self, scheduler: Scheduler, *, places: int) -> None:
        super().__init__(daemon=True)
        self.engine = engine_of(rows=places)
        self.scheduler = scheduler
        self.written: Queue[Row] = Queue()
        self.cpu = 0.0
        self.start()

    def run(self) -> None:
        began = time.thread_time()
        for row, event in decode(self.scheduler, self.engine):
            if isinstance(event, Finished):
                self.written.put(row)
        self.cpu = time.thread_time() - began


def test_an_idle_scheduler_waits_for_texts_from_another_thread_without_spinning() -> None:
    expected = [write([spec], places=1)[0] for spec in specs()[:3]]
    scheduler = Scheduler(places=2, is_open=True)
    assert scheduler.idle
    reader = Reader(scheduler, places=2)
    for number, spec in enumerate(specs()[:3]):
        time.sleep(0.3)
        assert scheduler.submit(spec) == number
        row = reader.written.get(timeout=60)
        assert row.spec is spec
        assert row.tokens == expected[number]
    time.sleep(1.0)
    assert reader.is_alive()
    scheduler.close()
    reader.join(timeout=60)
    assert not reader.is_alive()
    assert reader.cpu < 1.0, "waiting takes no time of the processor"


def test_texts_submitted_while_others_are_written_join_them() -> None:
    """From several threads at once; each text is as if alone."""
    texts = specs()
    expected = {id(spec): write([other], places=1)[0] for spec, other in zip(texts, specs(), strict=True)}
    scheduler = Scheduler(places=3, is_open=True)
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
    scheduler = Scheduler(specs()[:2], places=1, is_open=True)
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
        spec_of(MODEL, Matcher([], LETTERS), seed=seed, capacity=1, settings=Markov(4, length=1)) for seed in (1, 2)
    ]
    events = [event for _, event in decode(Scheduler(texts, places=1), engine_of(rows=1))]
    assert sum(isinstance(event, Drawn) for event in events) == 2


def test_a_scheduler_without_texts_ends_immediately() -> None:
    assert list(decode(Scheduler(places=3), engine_of(rows=3))) == []

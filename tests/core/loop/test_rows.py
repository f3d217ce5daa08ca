"""Rows of one batch rewind and finish independently, and each is drawn as it is alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch

from antislop.core.bans.token_matcher import Matcher, State
from antislop.core.hf.batching import describe_failure
from antislop.core.loop.engine import BatchEngine
from antislop.core.loop.ledger import Node
from antislop.core.loop.row import Row
from antislop.core.loop.scheduler import Scheduler
from antislop.core.trace.events import Event, Rewound
from tests.support.ban_cases import CASES, LETTERS, anywhere
from tests.support.depth import first_quick, sample_size
from tests.support.memory import count_left
from tests.support.oracles import rejection_distribution
from tests.support.statistics import p_value
from tests.support.toys import Markov, MarkovModel, decode, spec_of


def write(markov: Markov, matcher: Matcher, language_model: MarkovModel, *, rows: int, places: int) -> list[Any]:
    """Return the texts of `rows` rows in one batch whose cache has `places` places."""
    spec = spec_of(markov, matcher, lookback=False)
    batch = [Row(spec, number=index, index=index) for index in range(rows)]
    engine = BatchEngine(language_model, language_model.new_cache(places))
    for _ in decode(Scheduler(rows=batch), engine):
        pass
    return [tuple(row.tokens) for row in batch]


def test_free_places_of_a_batch_do_not_matter() -> None:
    markov = Markov(4, length=12)
    matcher, texts = Matcher([anywhere("ab"), anywhere("c")], LETTERS), []
    for places in (3, 5):
        torch.manual_seed(0)
        language_model = MarkovModel(markov.table)
        texts.append(write(markov, matcher, language_model, rows=3, places=places))
        assert {len(counts) for counts in language_model.fed[1:]} == {places}
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    "case", first_quick(["a weight of 0.3", "one phrase", "nested starts", "word edges with weights"])
)
def test_rows_that_end_independently_are_drawn_as_rejection_sampling_would(case: str) -> None:
    words, bans = CASES[case]
    markov = Markov(len(words), seed=1, eos=frozenset({len(words) - 1}))
    matcher, drawn = Matcher(bans, words), Counter[tuple[int, ...]]()
    torch.manual_seed(0)
    for _ in range(sample_size(120)):
        drawn.update(write(markov, matcher, MarkovModel(markov.table), rows=16, places=16))
    assert p_value(drawn, rejection_distribution(markov, words, bans)) > 1e-4


def test_nodes_of_finished_texts_are_freed_without_the_collector() -> None:
    """Each refers to the logits of a whole batch, and is in a cycle with its parent."""
    bans = [anywhere("abc"), anywhere("bcd"), anywhere("da")]
    matcher = Matcher(bans, LETTERS)
    model = Markov(4, seed=1, length=60)
    events: list[Event] = []

    def decode_all() -> None:
        scheduler = Scheduler((spec_of(model, matcher, seed=seed) for seed in range(8)), max_rows=2)
        events.extend(event for _, event in decode(scheduler, model))

    assert count_left(Node, decode_all) <= 2
    assert sum(isinstance(event, Rewound) for event in events) > 20


def test_a_fault_of_the_matcher_ends_its_own_text_only() -> None:
    class Failing(Matcher):
        def feed(self, state: State, token: int) -> State:
            if state.length == 3:
                raise RuntimeError("a fault")
            return super().feed(state, token)

    markov = Markov(4, seed=1, length=8)
    specs = [
        spec_of(markov, kind([anywhere("ab")], LETTERS), seed=seed) for seed, kind in enumerate((Matcher, Failing))
    ]
    rows = [Row(spec, number=number, index=number) for number, spec in enumerate(specs)]
    for _ in decode(Scheduler(rows=rows), markov):
        pass
    assert [len(row.tokens) for row in rows] == [8, 3]
    assert rows[0].fault is None and "a fault" in str(describe_failure(rows[1]))
    with pytest.raises(RuntimeError, match="a fault"):
        list(decode(Scheduler(rows=[Row(replace(specs[1], generator=None))]), markov))


def test_the_coin_of_a_place_stays_the_same_while_the_text_settles_and_in_a_fork() -> None:
    row = Row(spec_of(Markov(4), Matcher([], LETTERS), seed=1))
    row.tokens = [number % 3 for number in range(60)]
    bans = [anywhere("a", 0.5), anywhere("b", 0.5), anywhere("a", 0.1)]
    before = [[row.toss(start, ban) for ban in bans] for start in range(40, 60)]
    assert len({number for numbers in before for number in numbers}) == 60
    for settled in (10, 37, 40):
        row.settled = settled
        for text in (row, row.fork(None)):  # type: ignore[arg-type]
            assert [[text.toss(start, ban) for ban in bans] for start in range(40, 60)] == before
    row.tokens[39] = 3
    assert row.toss(41, bans[0]) == before[1][0], "what is settled never changes"
    row.tokens[40] = 3
    assert row.toss(41, bans[0]) != before[1][0]

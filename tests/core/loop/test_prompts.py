"""Prompts in flight: read together, in parts, and a shared beginning once; each text is as if it were alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from antislop.core.bans.token_matcher import Matcher
from antislop.core.loop.engine import BatchEngine
from antislop.core.loop.row import Row, RowSpec
from antislop.core.loop.scheduler import Scheduler
from antislop.core.loop.step import decode_in_steps
from antislop.core.trace.events import Finished, Forwarded, Report
from tests.support.ban_cases import LETTERS, anywhere
from tests.support.toys import Markov, MarkovCache, MarkovModel, decode, spec_of

MODEL = Markov(4, seed=1, length=12)
MATCHER = Matcher([anywhere("ab"), anywhere("c", 0.3)], LETTERS)


def spec(prompt: Sequence[int], *, seed: int = 0, length: int = 12) -> RowSpec:
    return spec_of(MODEL, MATCHER, prompt, seed=seed, callbacks=Markov(4, seed=1, length=length), max_new_tokens=length)


def draw_tokens(count: int, *, seed: int = 0) -> list[int]:
    return torch.randint(4, (count,), generator=torch.Generator().manual_seed(seed)).tolist()  # type: ignore[no-any-return]


class Flight:
    """Texts in flight on a toy model, whose passes are recorded. `passes`: per pass the tokens of each row, and all."""

    def __init__(self, *, places: int, part: int = 512, is_open: bool = True, specs: Sequence[RowSpec] = ()) -> None:
        self.model = MarkovModel(MODEL.table)
        self.cache = self.model.new_cache(places)
        self.engine = BatchEngine(self.model, self.cache, part=part)
        self.scheduler = Scheduler(specs, max_rows=places, is_open=is_open)
        self.rows: dict[int, Row] = {}
        self.reports: dict[int, Report] = {}

    def steps(self) -> Iterator[None]:
        for step in decode_in_steps(self.scheduler, self.engine):
            for row, events in step:
                self.rows[row.number] = row
                self.reports.setdefault(row.number, Report()).extend(events)
            yield

    def finish(self) -> list[list[int]]:
        self.scheduler.close()
        for _ in self.steps():
            pass
        return [self.rows[number].tokens for number in sorted(self.rows)]

    @property
    def read(self) -> int:
        """How many tokens were read, those of finished rows included."""
        return sum(map(sum, self.model.fed))


def write_alone(specs: Sequence[RowSpec]) -> list[list[int]]:
    """Write each text by itself, on the model without engine and cache, from the same seeds."""
    rows = []
    for each in specs:
        assert each.generator is not None
        seed = each.generator.initial_seed()
        rows.append(row := Row(replace(each, generator=torch.Generator().manual_seed(seed))))
        for _ in decode(Scheduler(rows=[row]), MODEL):
            pass
    return [row.tokens for row in rows]


def test_a_long_prompt_is_read_in_parts_between_the_steps_of_others() -> None:
    flight = Flight(places=2, part=10)
    for prompt, length in ([0, 0], 30), (draw_tokens(95), 5):
        flight.scheduler.submit(spec(prompt, length=length))
    steps = flight.steps()
    while not flight.rows or not flight.rows[0].tokens:
        next(steps)
    before = len(flight.rows[0].tokens)
    for _ in range(9):
        next(steps)
        assert 1 not in flight.rows, "its prompt is being read"
    assert len(flight.rows[0].tokens) >= before + 4, "no step waits for the whole prompt"
    flight.finish()
    assert [counts for counts in flight.model.fed if max(counts) > 1] == [[2], *[[10]] * 9, [5]]
    assert flight.reports[1].tokens_fed >= 95
    assert flight.reports[1].forward_passes >= 10 + 4


def test_a_closed_scheduler_reads_prompts_whole() -> None:
    """Nobody waits for a single token of its texts, and a pass over few rows is wasted."""
    flight = Flight(places=2, part=10, is_open=False, specs=[spec([0, 0]), spec(draw_tokens(95)), spec([1, 1])])
    flight.finish()
    assert [95] in flight.model.fed


def test_prompts_of_similar_lengths_are_read_in_one_pass_and_others_apart() -> None:
    prompts = [draw_tokens(count, seed=count) for count in (40, 44, 200, 36, 190, 41)]
    flight = Flight(places=6, is_open=False, specs=list(map(spec, prompts)))
    flight.finish()
    assert [sorted(counts) for counts in flight.model.fed[:2]] == [[190, 200], [36, 40, 41, 44]]


def test_no_pass_over_several_prompts_exceeds_its_limit() -> None:
    flight = Flight(places=8, part=100, is_open=False, specs=[spec(draw_tokens(30, seed=n)) for n in range(8)])
    flight.finish()
    assert flight.model.fed[:3] == [[30] * 3, [30] * 3, [30] * 2]


def test_a_shared_beginning_is_read_once() -> None:
    system = draw_tokens(60)
    specs = [spec([*system, n, *draw_tokens(4 + n)], seed=n) for n in range(4)]
    flight = Flight(places=4, is_open=False, specs=specs)
    assert flight.finish() == write_alone(specs)
    assert flight.model.fed[0] == [68], "the longest"
    assert sorted(flight.model.fed[1]) == [5, 6, 7]
    assert flight.reports[0].tokens_fed < 60


@pytest.mark.parametrize("places", [1, 4])
def test_texts_from_one_prompt_read_it_once(places: int) -> None:
    prompt = draw_tokens(50)
    flight = Flight(places=places, is_open=False, specs=[spec(prompt, seed=n) for n in range(4)])
    assert flight.finish() == write_alone([spec(prompt, seed=n) for n in range(4)])
    prompts = [counts for counts in flight.model.fed if max(counts) > 1 or len(counts) == 3]
    assert prompts[0] == [50]
    assert not [counts for counts in flight.model.fed[1:] if max(counts) > 2]


def test_a_prompt_that_continues_a_text_reads_what_is_new() -> None:
    """The next turn of a chat: the prompt before, its answer and a message."""
    flight = Flight(places=2)
    flight.scheduler.submit(spec(draw_tokens(50)))
    steps = flight.steps()
    while not any(row.is_finished for row in flight.rows.values()):
        next(steps)
    turn = [*draw_tokens(50), *flight.rows[0].tokens, *draw_tokens(7, seed=7)]
    flight.scheduler.submit(spec(turn, seed=5))
    flight.model.fed.clear()
    flight.scheduler.close()
    for _ in steps:
        pass
    assert flight.rows[1].tokens == write_alone([spec(turn, seed=5)])[0]
    assert flight.model.fed[0][0] <= 7 + 1


def test_a_text_canceled_while_its_prompt_is_read_is_read_no_further() -> None:
    flight = Flight(places=2, part=5)
    for prompt, length in ([0, 0], 30), (draw_tokens(400), 5), ([1, 2, 3], 5):
        flight.scheduler.submit(spec(prompt, length=length))
    steps = flight.steps()
    while flight.read < 40:
        next(steps)
    flight.scheduler.cancel(1)
    flight.scheduler.close()
    for _ in steps:
        pass
    assert 1 not in flight.rows
    assert flight.read < 100
    assert flight.rows[2].tokens == write_alone([spec([1, 2, 3], length=5)])[0]


def test_an_error_while_a_prompt_is_read_ends_all_texts_with_a_row_or_a_half_read_prompt() -> None:
    flight = Flight(places=2, part=5)
    for prompt, length in ([0, 0], 30), (draw_tokens(400), 5), ([1, 2, 3], 5):
        flight.scheduler.submit(spec(prompt, length=length))
    flight.scheduler.close()
    forward = flight.model.forward

    def fail(*arguments: Any) -> Any:
        if flight.read > 40:
            raise RuntimeError("out of memory")
        return forward(*arguments)

    flight.model.forward = fail  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="out of memory"):
        list(flight.steps())
    assert {row.number for row in flight.scheduler.abandon()} == {0, 1}
    model = MarkovModel(MODEL.table)
    rows = {row.number: row for row, _ in decode(flight.scheduler, BatchEngine(model, model.new_cache(2)))}
    assert {number: row.tokens for number, row in rows.items()} == {2: write_alone([spec([1, 2, 3], length=5)])[0]}


@pytest.mark.parametrize("is_open", [False, True])
def test_finished_rows_leave_the_batch(is_open: bool) -> None:
    """At once if no text can come, otherwise once half of the rows are finished."""
    specs = [spec([n % 4, 0], seed=n, length=12 if n in (2, 7) else 1 + n) for n in range(8)]
    flight = Flight(places=8, is_open=is_open, specs=() if is_open else specs)
    for each in specs if is_open else ():
        flight.scheduler.submit(each)
    writing, shares = 0, set[float]()
    for _ in flight.steps():
        if writing and len(flight.rows) == 8:
            shares.add(writing / len(flight.model.fed[-1]))
        writing = sum(not row.is_finished for row in flight.rows.values())
        if is_open and not writing and len(flight.rows) == 8:
            flight.scheduler.close()
    assert [flight.rows[number].tokens for number in range(8)] == write_alone(specs)
    assert shares == {1.0} if not is_open else 0.5 < min(shares) < 1.0


def test_a_cache_that_can_not_share_reads_each_prompt_alone_and_whole() -> None:
    class Alone(MarkovCache):
        can_share = False

    class AloneModel(MarkovModel):
        def new_cache(self, rows: int) -> MarkovCache:
            return Alone(rows)

    prompts = [draw_tokens(30), draw_tokens(30), draw_tokens(31, seed=1)]
    flight = Flight(places=3, part=10)
    flight.model = AloneModel(MODEL.table)
    flight.engine = BatchEngine(flight.model, flight.model.new_cache(3), part=10)
    for number, prompt in enumerate(prompts):
        flight.scheduler.submit(spec(prompt, seed=number))
    assert flight.finish() == write_alone([spec(prompt, seed=number) for number, prompt in enumerate(prompts)])
    assert sorted(sum(counts) for counts in flight.model.fed if len(counts) == 1 and max(counts) > 2) == [30, 30, 31]


def test_the_costs_of_a_prompt_are_events_of_its_text() -> None:
    flight = Flight(places=1, is_open=False, specs=[spec(draw_tokens(20), length=1)])
    events = [event for _, event in decode(flight.scheduler, flight.engine)]
    assert [event for event in events if isinstance(event, Forwarded)] == [Forwarded(20, 0)]
    assert isinstance(events[-1], Finished)

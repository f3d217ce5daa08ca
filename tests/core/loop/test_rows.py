"""Rows of one batch rewind, finish and fail independently, and each is drawn as rejection sampling would."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from antislop.core.bans.token_matcher import Matcher, State
from antislop.core.hf.many import describe_failure
from antislop.core.loop.branches import Branch, Capabilities, Step, TokenSet
from antislop.core.loop.engine import BatchEngine
from antislop.core.loop.ledger import Node
from antislop.core.loop.row import Row, RowSpec
from antislop.core.loop.scheduler import Scheduler
from antislop.core.trace.events import Event, Report, Rewound, Settled
from tests.support.ban_cases import CASES, LETTERS, anywhere
from tests.support.depth import first_quick, sample_size
from tests.support.memory import count_left
from tests.support.oracles import rejection_distribution
from tests.support.statistics import p_value
from tests.support.toys import EXACT, Markov, MarkovModel, decode, spec_of


def write(markov: Markov, matcher: Matcher, language_model: MarkovModel, *, rows: int, places: int) -> list[Any]:
    """Return the texts of `rows` rows in one batch whose cache has `places` places."""
    spec = spec_of(markov, matcher, lookback=False)
    batch = [Row(spec, number=index, index=index) for index in range(rows)]
    engine = BatchEngine(language_model, language_model.new_cache(places))
    for _ in decode(Scheduler(rows=batch), engine):
        pass
    return [tuple(row.tokens) for row in batch]


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


@dataclass
class Stopping(Markov):
    """A criterion of the caller's ends a row at its first token "b"; it is called once for each step, in order."""

    is_lockstep: bool = True
    rows: Sequence[Row] = ()
    asked: int = 0

    @property
    def step_count(self) -> int:
        return self.asked

    def follow(self, rows: Sequence[Row]) -> Stopping:
        self.rows, self.asked = rows, 0
        return self

    def ask(self) -> list[bool]:
        self.asked += 1
        return [self.asked <= len(row.tokens) and row.tokens[self.asked - 1] == 1 for row in self.rows]

    def rewind(self, row: Row, length: int) -> None:
        self.asked = min(self.asked, length)

    def is_done(self, row: Row) -> bool:
        return len(row.tokens) >= self.length

    def ends(self, tokens: Sequence[int]) -> bool:
        return len(tokens) >= self.length or tokens[-1] == 1


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("case", first_quick(["nested starts", "an exempt phrase", "word edges"], 1))
def test_a_ban_that_is_complete_only_after_the_end_by_a_criterion_withdraws_nothing(case: str, rows: int) -> None:
    """If criteria were asked about settled tokens only, the model would write on first, and too few texts end there."""
    words, bans = CASES[case]
    markov = Stopping(len(words), seed=2)
    matcher, drawn = Matcher(bans, words), Counter[tuple[int, ...]]()
    torch.manual_seed(0)
    for _ in range(sample_size(1200) // rows):
        drawn.update(write(markov, matcher, MarkovModel(markov.table), rows=rows, places=rows))
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


class Failing(Markov):
    """A text's own matcher, processors, criteria and controller, and what they remember: one of their calls fails."""

    needs = Capabilities()

    def __init__(self, call: str) -> None:
        super().__init__(4, seed=1, length=8)
        self.call, self.seen = call, 0
        self.is_lockstep = call == "ask"

    def fail(self, call: str, length: int) -> None:
        if call == self.call and length >= 3:
            raise RuntimeError("a fault")

    def follow(self, rows: Sequence[Row]) -> Any:
        self.rows = rows
        return self

    def process(self, rows: Sequence[Row], lengths: Sequence[int], logits: Tensor) -> Tensor:
        self.fail("process", lengths[0])
        return logits

    def is_done(self, row: Row) -> bool:
        self.fail("is_done", len(row.tokens))
        return super().is_done(row)

    def rewind(self, row: Row, length: int) -> None:
        self.fail("rewind", len(row.tokens))
        self.seen = min(self.seen, length)

    def ask(self) -> list[bool]:
        self.fail("ask", self.seen)
        self.seen += 1
        return [False] * len(self.rows)

    @property
    def step_count(self) -> int:
        return self.seen

    def find_constraint(self, row: Row, length: int, logits: Tensor) -> None:
        self.fail("find_constraint", len(row.tokens))

    def look_ahead(self, row: Row, length: int) -> None:
        self.fail("look_ahead", len(row.tokens))

    def mid_process(self, step: Step) -> list[Branch]:
        self.fail("mid_process", len(step.tokens))
        return [Branch(sample_mask=TokenSet.all())]

    def spec(self, *, seed: int | None) -> RowSpec:
        fail = self.fail

        class Own(Matcher):
            def feed(self, state: State, token: int) -> State:
                fail("feed", state.length)
                return super().feed(state, token)

            def finish(self, state: State) -> Any:
                fail("finish", state.length)
                return super().finish(state)

        is_controlled, has_rewinds = self.call == "mid_process", self.call != "find_constraint"
        policy, controller = replace(EXACT, max_rewinds=100 * has_rewinds), self if is_controlled else None
        return spec_of(self, Own(OFTEN, LETTERS), seed=seed, policy=policy, controller=controller)


OFTEN = list(map(anywhere, ("ab", "ba", "c", "bb")))
CALLS = ("process", "is_done", "rewind", "ask", "find_constraint", "look_ahead", "feed", "finish", "mid_process")


@pytest.mark.parametrize("call", CALLS)
def test_a_fault_of_what_is_called_for_one_text_ends_that_text_only(call: str) -> None:
    def write(calls: Sequence[str], *, has_own: bool = True) -> list[tuple[Row, Report]]:
        specs = [Failing(each).spec(seed=seed if has_own else None) for seed, each in enumerate(calls)]
        happened: dict[int, list[Event]] = defaultdict(list)
        rows: dict[int, Row] = {}
        for row, event in decode(Scheduler(specs, max_rows=len(specs)), Markov(4, seed=1, length=8)):
            rows[row.number] = row
            happened[row.number].append(event)
        return [(rows[number], Report.of(happened[number], surfaces=LETTERS)) for number in sorted(rows)]

    calls = ["none", call, "none"]
    expected, written = write(["none"] * 3), write(calls)
    for number in (0, 2):
        assert written[number][0].tokens == expected[number][0].tokens
        assert written[number][0].fault is None
    row, report = written[1]
    error = describe_failure(row)
    assert report.reason == "failed" and "a fault" in str(error) and isinstance(error.__cause__, RuntimeError)
    assert [token for event in report.events if isinstance(event, Settled) for token in event.tokens] == row.tokens
    assert call == "find_constraint" or not any(ban.text in LETTERS.text(row.tokens) for ban in OFTEN)
    with pytest.raises(RuntimeError, match="a fault"):
        write(calls + [call] * 9, has_own=False)  # of which some come to it, whatever is drawn


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

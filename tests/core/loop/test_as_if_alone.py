"""Each text of a batch is as if it were alone, whatever it is asked for, and whatever happens beside it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings, strategies as st
from transformers import RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper

from antislop.core.bans.bans import Ban
from antislop.core.bans.token_matcher import Matcher
from antislop.core.loop import engine as engine_module
from antislop.core.loop.engine import BatchEngine
from antislop.core.loop.row import Draft, Row, RowSpec
from antislop.core.loop.scheduler import Scheduler
from antislop.core.loop.step import StepEvents, decode_in_steps
from antislop.core.trace.events import Drawn, Event, Finished, Forced, Forwarded, Report, Rewound, Settled
from tests.support.ban_cases import LETTERS, anywhere
from tests.support.depth import DEPTH
from tests.support.endings import FORCED, ending, ways
from tests.support.toys import EXACT, Markov, MarkovModel, decode, spec_of


class GuessingDrafter:
    """Drafts the tokens that a text began with."""

    def propose(self, rows: Sequence[Row]) -> Sequence[Draft]:
        return [Draft(row.tokens[:3]) for row in rows]

    def learn(self, row: Row, *, proposed: int, accepted: int) -> None:
        pass


MODEL = Markov(4, seed=4)
GREEDY = replace(EXACT, do_sample=False)
MATCHERS = [
    Matcher(bans, words)
    for words, bans in (
        (LETTERS, []),
        (LETTERS, [anywhere("ab"), anywhere("c", 0.3)]),
        (LETTERS, [Ban.regex("b[cd]+"), anywhere("aa", 0.5)]),
        (LETTERS, [ways("force", tries=0, force="bd"), ending("cc", "stop", tries=1)]),
        (
            LETTERS,
            [ways("force", tries=2, force="bd"), ending("bb", "force", force="d"), ending("cc", "stop", tries=0)],
        ),
    )
]
WAYS: list[dict[str, Any]] = [
    {},
    {"policy": GREEDY},
    {"policy": replace(EXACT, method="token")},
    {"drafter": GuessingDrafter()},
    {"processors": [TemperatureLogitsWarper(0.5)]},
    {"processors": [RepetitionPenaltyLogitsProcessor(1.5)], "policy": GREEDY},
]


class Text(NamedTuple):
    """Numbers of a list and of a way to write, the beginning of a prompt, its shared and its own tokens, and a length.

    Prompts share the first tokens of one of three beginnings. may_end: "a" is the end of a text, too.
    """

    list: int
    way: int
    beginning: int
    shared: int
    own: int
    length: int
    may_end: bool = False

    def specify(self, seed: int) -> RowSpec:
        more = {**WAYS[self.way]}
        eos = frozenset([0] if self.may_end else [])
        asked = Markov(4, seed=4, length=self.length, eos=eos, processors=more.pop("processors", ()))
        prompt = [*draw_tokens(40, seed=self.beginning)[: self.shared], *draw_tokens(self.own, seed=seed)]
        return spec_of(asked, MATCHERS[self.list], prompt, seed=seed, forced=FORCED, **more)


def draw_tokens(count: int, *, seed: int) -> list[int]:
    return torch.randint(4, (count,), generator=torch.Generator().manual_seed(seed)).tolist()  # type: ignore[no-any-return]


def show(events: Sequence[Event]) -> list[Event]:
    """Leave out what a text cost."""
    return [event for event in events if not isinstance(event, Forwarded | Finished)]


TEXTS = st.builds(
    Text,
    st.integers(0, len(MATCHERS) - 1),
    st.integers(0, len(WAYS) - 1),
    st.integers(0, 2),
    st.integers(0, 40),
    st.integers(2, 20),
    st.sampled_from([1, 2, 12]),
    st.booleans(),
)
BEGINS = ("together", "before a queue", "queued", "while others are written")


@settings(print_blob=True, deadline=None)
@given(
    texts=st.lists(TEXTS, min_size=1, max_size=12),
    begin=st.sampled_from(BEGINS),
    places=st.integers(1, 5),
    part=st.integers(1, 40),
    shortest=st.integers(1, 20),
    seed=st.integers(0, 99),
)
def test_each_text_is_as_if_alone(
    texts: list[Text], begin: str, places: int, part: int, shortest: int, seed: int
) -> None:
    """Lists, policies, processors, drafts, prompts and lengths differ; texts are submitted and canceled at any time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_module, "SHORTEST_SHARED", shortest)
        check([text.specify(seed + number) for number, text in enumerate(texts)], begin, places, part, Random(seed))


@pytest.mark.parametrize(
    ("begin", "seed"), [*((begin, 0) for begin in BEGINS), *((BEGINS[-1], seed) for seed in range(1, 4 * DEPTH))]
)
def test_each_of_many_texts_that_rewind_is_as_if_alone(begin: str, seed: int) -> None:
    specs = [
        Text(n, way, 0, 0, 2 + n, 14 - n, way == 5).specify(10 * way + n)
        for n in range(len(MATCHERS))
        for way in range(6)
    ]
    alone = check(specs, begin, 40 if begin == "together" else 7, 512, Random(seed))
    assert sum(isinstance(event, Rewound) for events in alone for event in events) > 20
    assert any(isinstance(event, Forced) for events in alone for event in events)


def check(specs: list[RowSpec], begin: str, places: int, part: int, rng: Random) -> list[list[Event]]:
    """Write texts in a batch, and compare what happens in each with what happens in it alone, which is returned.

    begin: how texts come to the scheduler. Those that come while others are written may be canceled.
    """
    alone = [write_alone(spec) for spec in specs]
    model = MarkovModel(MODEL.table)
    begun = len(specs) if begin == "together" else rng.randint(1, places) if begin == "before a queue" else 0
    rows = [Row(spec, number=number, index=number) for number, spec in enumerate(specs[:begun])]
    is_open = begin == "while others are written"
    engine = BatchEngine(model, model.new_cache(max(places, len(rows))), part=part)
    if rows:
        scheduler = Scheduler(specs[begun:], rows=rows)
    else:
        scheduler = Scheduler(() if is_open else specs, max_rows=places, is_open=is_open)
    steps, happened = decode_in_steps(scheduler, engine), defaultdict[int, list[Event]](list)
    texts, canceled = dict[int, Row](), set[int]()

    def read(step: StepEvents) -> None:
        for row, events in step:
            assert row.number not in canceled, "a canceled text has no events"
            assert row.spec is specs[row.number]
            happened[row.number] += events
            texts[row.number] = row

    def cancel(number: int) -> None:
        scheduler.cancel(number)
        if number not in texts or not texts[number].is_finished:
            canceled.add(number)

    for submitted, spec in enumerate(specs if is_open else (), start=1):
        scheduler.submit(spec)
        for _ in range(rng.choice([0, 0, 1, 5])):
            if not scheduler.idle:
                read(next(steps))
        if rng.random() < 0.2:
            cancel(rng.randrange(submitted))
    scheduler.close()
    for each in steps:
        read(each)
        if is_open and rng.random() < 0.1:
            cancel(rng.randrange(len(specs)))
    if rows and part > max(len(spec.prompt[0]) for spec in specs):
        assert {len(counts) for counts in model.fed[1:] if max(counts) == 1} <= {max(places, len(rows))}
    assert scheduler.idle and (rows or not scheduler.rows), "finished texts take no memory"
    for number, events in enumerate(alone):
        if number not in canceled:
            assert show(happened[number]) == show(events)
            check_forced(texts[number].tokens, events, specs[number].max_new_tokens)
            report = Report()
            report.extend(events)
            assert (report.reason == "done") == (not report.ended)
            assert {violation.ban.then for violation in report.forced} <= {"force"}
    return alone


def write_alone(spec: RowSpec) -> list[Event]:
    """Write a text by itself, on the model without engine and cache, from the same seed."""
    assert spec.generator is not None
    row = Row(replace(spec, generator=torch.Generator().manual_seed(spec.generator.initial_seed())))
    return [event for _, event in decode(Scheduler(rows=[row]), MODEL)]


def check_forced(tokens: Sequence[int], events: Sequence[Event], length: int) -> None:
    """Replay the events: what was forced stands in the text, whole unless the length ends it, and stays there."""
    text: list[int] = []
    for event in events:
        if isinstance(event, Drawn):
            text.append(event.token)
        elif isinstance(event, Rewound):
            del text[event.length :]
        elif isinstance(event, Forced):
            written = tuple(text[-event.length :])
            assert written in [FORCED[name][: event.length] for name in ("bd", "d")]
            assert written in (FORCED["bd"], FORCED["d"]) or len(text) == length
            assert tuple(text) == tuple(tokens[: len(text)])
    assert text == list(tokens) == [token for event in events if isinstance(event, Settled) for token in event.tokens]

"""A text that an engine draws is that of rejection sampling, and no token leaves before it is settled."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest
import torch
from scipy.stats import chi2_contingency
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from antislop.core.bans.bans import Ban
from antislop.core.bans.token_matcher import Matcher, Violation
from antislop.core.loop.sampling import PROBABILITY_FLOOR, Policy
from antislop.core.trace.events import Drawn, Event, Report, Rewound
from antislop.engines.vllm.engine_text import EngineCallbacks, EngineText, StopStrings
from antislop.engines.vllm.outcomes import COUNTS, describe, read_report, rebuild_events
from tests.support.ban_cases import CASES, LETTERS, anywhere, expected_of
from tests.support.depth import first_quick, in_turn, sample_size
from tests.support.drawing_engine import draw_text
from tests.support.oracles import rejection_distribution
from tests.support.statistics import p_value
from tests.support.toys import PROMPT, Markov, Processor, Words, run, spec_of


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("limit", [0, 2, 1000])
def test_all_that_happened_is_rebuilt_from_what_bans_did(case: str, limit: int) -> None:
    words, bans = CASES[case]
    matcher, chance = Matcher(bans, words), Random(case)
    for seed in range(sample_size(20)):
        model, happened = Markov(len(words), seed=seed, length=8), list[Event]()
        policy = Policy(True, "exact", "concede", max_rewinds=limit)
        text = EngineText(spec_of(model, matcher, lookback=False, callbacks=EngineCallbacks(), policy=policy))
        while not text.row.is_finished:
            weights = model.probs(PROMPT, text.row.tokens).tolist()
            token, before = chance.choices(range(len(weights)), weights)[0], len(text.outcomes)
            if text.read(token) and model.ends(text.row.tokens):
                text.end()
            happened += [Drawn.plain(token), *text.outcomes[before:]]
        assert list(rebuild_events(text.row.tokens, text.outcomes)) == happened
        described = json.loads(json.dumps(describe(text.report, text.outcomes, bans)))
        report = read_report(described, text.row.tokens, bans)
        assert report.events[:-1] == happened
        assert all(getattr(report, name) == getattr(text.report, name) for name in COUNTS)


def test_likely_alternatives_stay_in_the_engine() -> None:
    """As the guide to vLLM says of pairs."""
    rewound = Rewound(0, (1,), Violation(Ban("a"), 0, 0), ((2, 0.5),))
    described = describe(Report.of([rewound]), [rewound], [Ban("a")])
    assert read_report(described, [2], [Ban("a")]).events[1] == rewound
    assert "alternatives" not in described["events"][0]


TIMES = sample_size(1000)
"""Enough to find probabilities that are off by 32 %, as in test_exactness.py."""


WAYS = [(0, False), (0, True), (1, False), (2, False), (2, True), (99, False)]
"""How many of the likeliest tokens an engine is asked for first, and whether it tells the likeliest one unasked."""


@pytest.mark.parametrize(("case", "way"), first_quick(in_turn(CASES, WAYS, each=2), 18))
def test_texts_of_an_engine_are_those_of_rejection_sampling(
    case: str, way: tuple[int, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    count, always = way
    monkeypatch.setattr("antislop.engines.vllm.engine_text.REWINDS_BEFORE_ASKING", 1)  # the toys' bans are not likely
    monkeypatch.setattr("antislop.engines.vllm.engine_text.LIKELIEST", count)
    monkeypatch.setattr("antislop.engines.vllm.engine_text.MORE", 2)
    words, bans = CASES[case]
    model, matcher, chance = Markov(len(words), seed=1), Matcher(bans, words), Random(0)
    texts = [draw_text(model, matcher, chance, tells=count > 0, always=always) for _ in range(TIMES)]
    assert p_value(Counter(tuple(text.row.tokens) for text in texts), expected_of(case, 1)) > 1e-4


@pytest.mark.parametrize("share", [0.5, 0.95, 0.99, 0.998])
@pytest.mark.parametrize("count", first_quick([1, 2, 4]))
def test_a_likely_ban_is_withdrawn_three_times_at_most(
    share: float, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("antislop.engines.vllm.engine_text.LIKELIEST", count)
    model, matcher = Markov(4, length=1), Matcher([anywhere("a")], LETTERS)
    others = [0.5, 0.3, 0.2]
    model.table = torch.tensor([share, *((1 - share) * other for other in others)]).log().expand(4, 4, 4)
    texts = [draw_text(model, matcher, Random(seed)) for seed in range(TIMES)]
    assert max(text.report.rewinds for text in texts) <= 3
    assert not any(text.report.conceded for text in texts)
    drawn = Counter(tuple(text.row.tokens) for text in texts)
    assert p_value(drawn, {(1 + number,): other for number, other in enumerate(others)}) > 1e-4


@pytest.mark.parametrize("processors", [[], [TopPLogitsWarper(0.95)]], ids=["all tokens", "top-p"])
def test_likely_words_are_soon_given_up_though_any_next_token_ends_them(
    processors: list[Processor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any of 100 tokens may follow "a" or "b" and complete a ban; the engine tells 4 of them when it is first asked.

    Without asking for more, or below the place of a rewind, some text is withdrawn over 80 times.
    """
    monkeypatch.setattr("antislop.engines.vllm.engine_text.LIKELIEST", 4)
    words = Words(".", "c", "a", "b", *(f" {i}" for i in range(100)))
    model, matcher = Markov(len(words), length=2, processors=processors), Matcher([Ban("a"), Ban("b")], words)
    logits = torch.full((len(words),), -9.0)
    logits[1:4] = torch.tensor([0.001, 0.8, 0.199]).log()
    model.table = logits.expand(len(words), len(words), -1).clone()
    model.table[:, 2:4] = torch.arange(len(words)) / -500
    model.table[:, 2:4, :4] = -torch.inf
    texts = [draw_text(model, matcher, Random(seed)) for seed in range(sample_size(40))]
    assert not any(text.report.conceded for text in texts)
    assert max(text.report.rewinds + text.thinned for text in texts) <= 25


TRUNCATIONS: dict[str, list[Processor]] = {
    "temperature and top-k": [TemperatureLogitsWarper(0.7), TopKLogitsWarper(3)],
    "top-p": [TopPLogitsWarper(0.9)],
    "min-p": [MinPLogitsWarper(0.1)],
}


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("name", TRUNCATIONS)
def test_an_engine_that_masks_before_it_truncates_writes_the_right_texts(
    name: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("antislop.engines.vllm.engine_text.REWINDS_BEFORE_ASKING", 1)
    monkeypatch.setattr("antislop.engines.vllm.engine_text.LIKELIEST", count)
    monkeypatch.setattr("antislop.engines.vllm.engine_text.MORE", 2)
    model, chance = Markov(4, seed=3, processors=TRUNCATIONS[name]), Random(0)
    bans = [anywhere("ab"), anywhere("bcd", 0.3), anywhere("da")]
    matcher = Matcher(bans, LETTERS)
    drawn = Counter(tuple(draw_text(model, matcher, chance).row.tokens) for _ in range(TIMES))
    assert p_value(drawn, rejection_distribution(model, LETTERS, bans)) > 1e-4


NOISE = PROBABILITY_FLOOR / 3
USED_UP: dict[str, tuple[tuple[float, ...], list[Processor], list[Ban]]] = {
    "one token": ((0.6, 0.3, 0.09, 0.01), [TopKLogitsWarper(1)], [anywhere("a")]),
    "two tokens": ((0.6, 0.3, 0.09, 0.01), [TopKLogitsWarper(1)], [anywhere("a"), anywhere("b")]),
    "several are left": ((0.6, 0.2, 0.15, 0.05), [TopPLogitsWarper(0.55)], [anywhere("a")]),
    "noise is left": ((1 - 3 * NOISE, NOISE, NOISE, NOISE), [], [anywhere("a")]),
    "noise is left of top-p": ((1 - 3 * NOISE, NOISE, NOISE, NOISE), [TopPLogitsWarper(0.5)], [anywhere("a")]),
    "little is left": ((0.9995, 0.0002, 0.00018, 0.00012), [TemperatureLogitsWarper(0.9)], [anywhere("a")]),
    "little is left below": ((0.9995, 0.0002, 0.00018, 0.00012), [], [anywhere("aa")]),
}


@pytest.mark.parametrize("case", first_quick(USED_UP, 2))
def test_where_bans_leave_almost_nothing_an_engine_goes_on_as_a_model_in_this_process(case: str) -> None:
    """Texts and concessions are distributed alike."""
    shares, processors, bans = USED_UP[case]
    model, matcher = Markov(4, length=3, processors=processors), Matcher(bans, LETTERS)
    model.table = torch.tensor(shares).log().expand(4, 4, 4)
    counts: list[Counter[tuple[tuple[int, ...], int]]] = [Counter(), Counter()]
    for seed in range(TIMES):
        torch.manual_seed(seed)
        text = draw_text(model, matcher, Random(seed))
        counts[0][tuple(text.row.tokens), text.report.conceded] += 1
        tokens, report = run(model, LETTERS, bans, matcher=matcher, lookback=False)
        counts[1][tokens, report.conceded] += 1
    seen = [key for key in counts[0] + counts[1] if counts[0][key] + counts[1][key] >= 10]
    assert sum(counts[0][key] for key in seen) > 0.9 * TIMES
    assert len(seen) == 1 or chi2_contingency([[own[key] for key in seen] for own in counts]).pvalue > 1e-4


@pytest.mark.parametrize("case", CASES)
def test_a_greedy_text_takes_the_tokens_that_a_model_in_this_process_takes(case: str) -> None:
    """Up to a concession: how an engine looks further, where nothing but bans is left, may end elsewhere."""
    words, bans = CASES[case]
    matcher = Matcher(bans, words)
    for seed in range(8):
        model = Markov(len(words), seed=seed, length=8)
        text = draw_text(model, matcher, Random(0), do_sample=False)
        tokens, report = run(model, words, bans, matcher=matcher, lookback=False, do_sample=False)
        assert report.conceded or tuple(text.row.tokens) == tokens


def test_an_engine_is_asked_only_while_a_rewind_may_need_the_answer() -> None:
    spec = spec_of(Markov(4), Matcher([anywhere("ab")], LETTERS), lookback=False, callbacks=EngineCallbacks())
    text = EngineText(spec, askable=4)
    for _ in range(2):
        assert [text.read(token) for token in (0, 1)] == [True, False]
        question = text.ask()
    assert question is not None and not text.asks_in_vain
    assert text.read(0) and not text.asks_in_vain, "b may follow"
    assert text.read(2) and not text.asks_in_vain, "the place could be used up"
    assert text.read(2) and text.asks_in_vain
    assert text.ask() is None and not text.asks_in_vain


def write_letters(letters: str, bans: Sequence[Ban], *, stop: str) -> EngineText:
    """Write letters as they come until one does not stay."""
    matcher = Matcher(bans, LETTERS)
    spec = spec_of(Markov(4), matcher, lookback=False, callbacks=EngineCallbacks(), max_new_tokens=20)
    text = EngineText(spec, stop_strings=StopStrings([stop], LETTERS.surface))
    for letter in letters:
        if not text.read("abcd".index(letter)):
            break
    return text


def test_a_stop_string_ends_a_text_before_bans_that_end_behind_it() -> None:
    text = write_letters("acbd", [anywhere("bd")], stop="cb")
    assert (text.row.tokens, text.row.settled, text.row.is_finished) == ([0, 2, 1, 3], 4, True)
    assert text.report.rewinds == 0
    text = write_letters("acb", [anywhere("acb")], stop="cb")
    assert (text.row.tokens, text.row.is_finished, text.report.rewinds) == ([], False, 1), (
        "a ban that ends in it comes first"
    )
    text = write_letters("ac", [Ban.regex("c$")], stop="c")
    assert (text.row.tokens, text.row.is_finished) == ([0], False), "the text would end there"

"""Where a ban has used up its tries, the text ends as the ban says; until then it is that of rejection sampling."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from scipy.stats import binomtest

from antislop.core.bans.bans import Ban
from antislop.core.bans.token_matcher import Matcher
from antislop.core.loop.row import Row
from antislop.core.loop.scheduler import Scheduler
from antislop.core.trace.events import Conceded, Report
from tests.support.ban_cases import LETTERS, SPACED, anywhere
from tests.support.depth import first_quick, in_turn, sample_size
from tests.support.endings import (
    CASES,
    FORCED,
    Ended,
    compare,
    count_naively,
    ending,
    finder,
    loop,
    ways,
    write_naively,
)
from tests.support.toys import EXACT, PROMPT, Markov, Words, decode, spec_of


def write(
    model: Markov, words: Words, bans: Sequence[Ban], *, do_sample: bool = True, **kwargs: Any
) -> list[tuple[Ended, Report]]:
    """Write texts with the loop under test, in one batch."""
    limits = {name: kwargs.pop(name) for name in [*kwargs] if name in ("max_rewinds", "max_withdrawn_ratio")}
    policy = replace(EXACT, do_sample=do_sample, mass_floor=0.0, **limits)
    seeds = kwargs.pop("seeds", [None])
    matcher = Matcher(bans, words)
    specs = [spec_of(model, matcher, policy=policy, lookback=False, forced=FORCED, seed=s, **kwargs) for s in seeds]
    texts = [Row(spec, number=index, index=index) for index, spec in enumerate(specs)]
    reports = [Report() for _ in texts]
    for row, event in decode(Scheduler(rows=texts), model):
        reports[row.number].add(event)
    return [((tuple(row.tokens), str(report.reason)), report) for row, report in zip(texts, reports, strict=True)]


TIMES = sample_size(1000)
"""Texts drawn by each of both: enough to find probabilities that are off by 37 %; in `make test` by 73 %.

A root mean square, by `smallest_deviation` for 30 texts and half as many draws, at p = .001.
"""


@pytest.mark.parametrize(("case", "seed"), first_quick(in_turn(CASES, [1, 2]), 2))
def test_texts_end_as_those_of_plain_rejection_with_a_count_of_tries(case: str, seed: int) -> None:
    words, bans = CASES[case]
    model = Markov(len(words), seed=seed, length=5)
    torch.manual_seed(0)
    drawn = Counter(write(model, words, bans)[0][0] for _ in range(TIMES))
    assert compare(drawn, count_naively(model, words, bans, times=TIMES)) > 1e-3


@pytest.mark.slow
def test_the_check_rejects_one_try_more() -> None:
    """The test above can fail."""
    words, bans = CASES["stop"]
    model = Markov(len(words), seed=1, length=5)
    torch.manual_seed(0)
    two = [
        Counter(write(model, words, [ways("stop", tries=tries), bans[1]])[0][0] for _ in range(3000))
        for tries in (1, 2)
    ]
    assert compare(*two) < 1e-6


@given(
    seed=st.integers(0, 10_000),
    then=st.sampled_from(["stop", "force", "concede"]),
    tries=st.integers(0, 2),
    letter=st.sampled_from("abcd"),
)
def test_greedy_texts_end_as_those_of_a_loop_that_leaves_out_what_led_into_a_ban(
    seed: int, then: str, tries: int, letter: str
) -> None:
    force = "d d " if then == "force" else ""
    bans = [loop(then, tries=tries, force=force), Ban(letter, then=then, tries=0, at_most=2, force=force)]
    model = Markov(4, seed=seed, length=8, sharpness=2.0)

    def draw(tokens: tuple[int, ...], rejected: set[int]) -> int:
        probs = model.probs(PROMPT, tokens)
        probs[list(rejected)] = 0.0
        return int(probs.argmax())

    expected = write_naively(model, bans, finder(model, SPACED, bans), draw, lambda: 1.0)
    [(text, report)] = write(model, SPACED, bans, do_sample=False)
    assert text == expected
    if then == "stop":
        assert not report.let_through
        assert not Matcher(bans, SPACED).finish(_read(text[0], bans)), "the ban does not end at the end of the text"


def _read(tokens: Sequence[int], bans: Sequence[Ban]) -> Any:
    matcher = Matcher(bans, SPACED)
    state = matcher.start(PROMPT, lookback=False)
    for token in tokens:
        state = matcher.feed(state, token)
        assert not state.violations, "no ban stands in the text"
    return state


@pytest.mark.parametrize("limits", [{"max_rewinds": 0}, {"max_withdrawn_ratio": 0}])
def test_a_ban_with_an_ending_ends_by_the_other_limits_too(limits: dict[str, float]) -> None:
    torch.manual_seed(0)
    for then, reason in (("stop", "exhausted"), ("concede", "done")):
        bans = [ending("a", then, tries=9), anywhere("b")]
        reports = [write(Markov(4, seed=1), LETTERS, bans, **limits)[0][1] for _ in range(20)]
        ended = [report for report in reports if report.ended or _conceded(report, "a")]
        assert len(ended) > 5
        assert {report.reason for report in ended} == {reason}


def _conceded(report: Report, text: str) -> int:
    return sum(isinstance(event, Conceded) and event.violation.ban.text == text for event in report.events)


def test_a_token_of_another_ban_that_ends_the_text_keeps_its_probability() -> None:
    model = Markov(4, sharpness=0.0, length=1)
    model.table[0, 0] = torch.log(torch.tensor([0.5, 0.3, 0.2, 0.0]))
    bans = [anywhere("a"), ending("b", "stop", tries=0)]
    torch.manual_seed(0)
    ended = sum(write(model, LETTERS, bans)[0][0][1] == "exhausted" for _ in range(400))
    assert binomtest(ended, 400, 0.6).pvalue > 1e-3


@pytest.mark.parametrize("is_regex_first", [False, True])
def test_of_bans_that_begin_together_the_first_of_the_list_decides_the_ending(is_regex_first: bool) -> None:
    model = Markov(4, seed=1, length=3)
    bans = [Ban.regex("[abc]", then="stop", tries=0), *(ending(each, "force", tries=0, force="d") for each in "abc")]
    texts = [write(model, LETTERS, bans if is_regex_first else [*bans[1:], bans[0]], seeds=[n]) for n in range(20)]
    assert any(report.forced for [(_, report)] in texts) != is_regex_first
    assert any(text == ((), "exhausted") for [(text, _)] in texts) == is_regex_first

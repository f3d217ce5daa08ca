"""Texts have the distribution of rejection sampling, which is computed by solving a chain and by enumeration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from scipy.stats import binomtest, chi2_contingency
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from antislop.core.bans.bans import Ban
from antislop.core.bans.token_matcher import Matcher
from antislop.core.trace.events import Finished, Rewound, Settled
from antislop.steer import CountPenaltyLogitsProcessor, DryLogitsProcessor, TopNSigmaLogitsProcessor, XtcLogitsProcessor
from tests.support.ban_cases import CASES, LETTERS, UNIT_CASES, anywhere, expected_of
from tests.support.depth import DEPTH, first_quick, in_turn, sample_size
from tests.support.oracles import conditioned_distribution, first_token_text, rejection_distribution
from tests.support.statistics import p_value, smallest_deviation
from tests.support.toys import PROMPT, Markov, Words, run


def draw(
    model: Markov, words: Words, bans: Sequence[Ban], *, times: int, method: str = "exact", **kwargs: Any
) -> Counter[tuple[int, ...]]:
    torch.manual_seed(0)
    matcher = Matcher(bans, words)
    asked = {"matcher": matcher, "lookback": False, "method": method, **kwargs}
    return Counter(run(model, words, bans, **asked)[0] for _ in range(times))


TIMES = sample_size(1000)
"""Texts drawn per case: enough to find probabilities that are off by 32 %; in `make test` 52 %, at depth 10 14 %.

A root mean square, by `smallest_deviation`.
"""


@pytest.mark.parametrize(("case", "seed"), first_quick(in_turn(CASES, [1, 2]), 5))
def test_method_exact_draws_as_rejection_sampling_with_replacement_would(case: str, seed: int) -> None:
    words, bans = CASES[case]
    model = Markov(len(words), seed=seed)
    assert p_value(draw(model, words, bans, times=TIMES), expected_of(case, seed)) > 1e-4


PROCESSORS: dict[str, list[Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]] = {
    "temperature and top-k": [TemperatureLogitsWarper(0.7), TopKLogitsWarper(3)],
    "top-p": [TopPLogitsWarper(0.9)],
    "min-p": [MinPLogitsWarper(0.1)],
    "repetition penalty": [RepetitionPenaltyLogitsProcessor(1.5)],
    "counts": [CountPenaltyLogitsProcessor(presence=0.5, frequency=0.5, prompt_length=len(PROMPT))],
    "DRY": [DryLogitsProcessor(0.8, allowed_length=1, breakers={3: [()]})],
    "top-n-sigma": [TopNSigmaLogitsProcessor(1.5)],
    "XTC": [XtcLogitsProcessor(0.5, 0.2, after=[TemperatureLogitsWarper(0.7)])],
    "a grammar": [lambda ids, scores: scores.masked_fill((torch.arange(4) + ids.shape[1]) % 3 == 0, -torch.inf)],
}


@pytest.mark.parametrize("name", first_quick(PROCESSORS, 2))
def test_method_exact_is_exact_after_the_logits_processors(name: str) -> None:
    model = Markov(4, seed=3, processors=PROCESSORS[name])
    bans = [anywhere("ab"), anywhere("bcd", 0.3), anywhere("da")]
    expected = rejection_distribution(model, LETTERS, bans)
    assert p_value(draw(model, LETTERS, bans, times=TIMES), expected) > 1e-4


@pytest.mark.slow
@given(
    seed=st.integers(0, 10_000),
    bans=st.lists(
        st.builds(anywhere, st.text("abcd", min_size=1, max_size=4), st.sampled_from([0.0, 0.0, 0.3, 0.8])),
        min_size=1,
        max_size=4,
    ),
)
def test_method_exact_is_exact_for_random_lists(seed: int, bans: list[Ban]) -> None:
    singles = {ban.text for ban in bans if len(set(ban.text)) == 1 and ban.weight == 0}
    if len({phrase[0] for phrase in singles}) > 2:  # leave some text to write
        return
    bans = list({ban.text: ban for ban in bans}.values())
    model = Markov(4, seed=seed, length=3)
    expected = rejection_distribution(model, LETTERS, bans)
    assert p_value(draw(model, LETTERS, bans, times=200 * DEPTH), expected) > 1e-6


@pytest.mark.parametrize("case", first_quick(CASES, 3))
def test_method_text_draws_as_rejection_of_whole_texts_would(case: str) -> None:
    """This is the model conditioned on the whole text; each occurrence multiplies the odds of a text by its weight."""
    words, bans = CASES[case]
    model = Markov(len(words), seed=1)
    expected = conditioned_distribution(model, words, bans)
    chain = rejection_distribution(model, words, bans, whole=True)
    assert {text: mass for text, mass in chain.items() if mass} == pytest.approx(expected)
    drawn = draw(model, words, bans, times=TIMES, method="text", max_rewinds=10_000, mass_floor=0.0)
    assert p_value(drawn, expected) > 1e-4


@pytest.mark.parametrize("case", first_quick(UNIT_CASES, 1))
def test_the_check_tells_units_from_spans(case: str) -> None:
    words, bans = UNIT_CASES[case]
    model = Markov(len(words), seed=1)
    spans = rejection_distribution(model, words, [replace(ban, rewind="span") for ban in bans])
    drawn = draw(model, words, bans, times=max(TIMES, 1000))
    assert p_value(drawn, expected_of(case, seed=1)) > 1e-4
    assert p_value({text: times for text, times in drawn.items() if spans.get(text)}, spans) < 1e-4


@pytest.mark.slow
def test_method_text_and_method_exact_are_different_distributions() -> None:
    """The check of the test above distinguishes them."""
    words, bans = CASES["one phrase"]
    model = Markov(len(words), seed=1)
    drawn = draw(model, words, bans, times=6000, max_rewinds=10_000)
    assert p_value(drawn, conditioned_distribution(model, words, bans)) < 1e-6


def test_method_text_streams_nothing_before_the_end() -> None:
    words, bans = CASES["nested starts"]
    model = Markov(len(words), seed=1, length=12)
    rewinds = 0
    for seed in range(10):
        torch.manual_seed(seed)
        tokens, report = run(model, words, bans, method="text", max_rewinds=10_000)
        settled = [event for event in report.events if isinstance(event, Settled)]
        assert [event.tokens for event in settled] == [tokens]
        assert isinstance(report.events[-1], Finished)
        rewound = [event for event in report.events if isinstance(event, Rewound)]
        assert all(event.length == 0 for event in rewound)
        rewinds += len(rewound)
    assert rewinds > 10


@pytest.mark.parametrize(
    "case", first_quick(["a weight of 0.3", "one phrase", "nested starts", "word edges with weights"])
)
def test_method_token_draws_as_the_first_token_rule_does(case: str) -> None:
    words, bans = CASES[case]
    model = Markov(len(words), seed=4)
    drawn = draw(model, words, bans, times=TIMES, method="token")
    generator = np.random.default_rng(0)
    classic = Counter(first_token_text(model, words, bans, generator) for _ in range(TIMES))
    often = [text for text in drawn | classic if drawn[text] + classic[text] >= 10]
    table = [[drawn[text] for text in often], [classic[text] for text in often]]
    assert chi2_contingency(table).pvalue > 1e-4


@pytest.mark.slow
def test_the_check_rejects_a_wrong_rule() -> None:
    """The tests above can fail: the first-token rule is not exact, and the same check rejects it."""
    words, bans = CASES["one phrase"]
    model = Markov(len(words), seed=1)
    expected = rejection_distribution(model, words, bans)
    assert p_value(draw(model, words, bans, times=6000, method="token"), expected) < 1e-6


@pytest.mark.parametrize("case", first_quick(["a repeat of the prompt", "a repeat of the prompt or the text"]))
def test_the_check_tells_a_repeat_of_the_prompt_from_one_of_the_text(case: str) -> None:
    """Total variations of 0.18 and 0.25, and texts that one of the two never writes."""
    words, _ = CASES[case]
    drawn = draw(Markov(len(words), seed=1), words, CASES["a repeat"][1], times=sample_size(1000))
    with pytest.raises(AssertionError, match="a text was drawn that should never be"):
        p_value(drawn, expected_of(case, seed=1))


@pytest.mark.parametrize(("times", "classes"), [(250, 10), (1000, 60), (10_000, 200)])
def test_the_check_finds_the_deviation_that_it_is_said_to_find(times: int, classes: int) -> None:
    """Probabilities that are too high and too low by that share, in turn, are rejected in 99 of 100 draws."""
    generator, expected = np.random.default_rng(0), np.full(classes, 1 / classes)
    wrong = expected * (1 + smallest_deviation(times, classes) * np.resize([1, -1], classes))
    draws = generator.multinomial(times, wrong, size=200)
    texts = {(number,): float(share) for number, share in enumerate(expected)}
    found = sum(p_value({(i,): int(count) for i, count in enumerate(drawn)}, texts) < 1e-4 for drawn in draws)
    assert found >= 190


def test_a_rewind_reaches_an_earlier_start_as_often_as_by_single_rewinds() -> None:
    """After "b", "c" leads back to the start of the text and "d" back to itself.

    A rewind by "d" must not bypass the exclusion of "c": without `Node.follow_exits`, too many texts begin with "b".
    """
    model = Markov(4, sharpness=0.0, length=2)
    model.table[0, 0] = torch.log(torch.tensor([0.5, 0.5, 0.0, 0.0]))
    model.table[0, 1] = torch.log(torch.tensor([0.3, 0.0, 0.2, 0.5]))
    bans = [anywhere("bc"), anywhere("d")]
    expected = rejection_distribution(model, LETTERS, bans)
    assert sum(share for text, share in expected.items() if text[0] == 1) == pytest.approx(3 / 8)
    assert p_value(draw(model, LETTERS, bans, times=sample_size(4000)), expected) > 1e-4


def test_an_exit_below_a_kept_weighted_ban_counts_the_probability_of_keeping_it() -> None:
    """After "b", "c" is kept in half of the cases; most of these then rewind, by "bcd", to the start of the text."""
    model = Markov(4, sharpness=0.0, length=3)
    model.table[0, 0] = torch.log(torch.tensor([0.5, 0.5, 0.0, 0.0]))
    model.table[0, 1] = torch.log(torch.tensor([0.1, 0.0, 0.9, 0.0]))
    model.table[1, 2] = torch.log(torch.tensor([0.1, 0.0, 0.0, 0.9]))
    bans = [anywhere("c", 0.5), anywhere("bcd")]
    expected = rejection_distribution(model, LETTERS, bans)
    times = sample_size(8000)
    drawn = draw(model, LETTERS, bans, times=times)
    with_b = sum(share for text, share in expected.items() if text[0] == 1)
    share = sum(count for text, count in drawn.items() if text[0] == 1) / times
    assert share == pytest.approx(with_b, abs=1.2 / times**0.5)  # 2.6 standard errors: it sees 0.013
    assert p_value(drawn, expected) > 1e-4


TRUNCATIONS: dict[str, list[Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]] = {
    "none": [],
    "top-p": [TopPLogitsWarper(0.9)],
    "min-p": [MinPLogitsWarper(0.05)],
    "top-k": [TopKLogitsWarper(1)],
}


@pytest.mark.parametrize("truncation", first_quick(TRUNCATIONS, 2))
@pytest.mark.parametrize("weight", first_quick([0.5, 0.1, 0.01]))
@pytest.mark.parametrize("probability", first_quick([0.99, 0.5, 0.9, 0.999], 1))
def test_a_weight_is_the_share_of_its_probability_that_a_phrase_keeps(
    probability: float, weight: float, truncation: str
) -> None:
    """However sure the model is of it, and whatever truncation leaves beside it.

    With 4,000 texts the test sees 0.5 ± 0.03, 0.1 ± 0.02 and 0.01 ± 0.006 in 99 of 100 runs; `make test` has a quarter.
    """
    model = Markov(4, sharpness=0.0, length=1, processors=TRUNCATIONS[truncation])
    model.table[0, 0] = torch.log(torch.tensor([1 - probability, probability, 0.0, 0.0]))
    share = model.probs(PROMPT, ())[1].item()
    drawn = draw(model, LETTERS, [anywhere("b", weight)], times=sample_size(4000))
    assert binomtest(drawn[(1,)], drawn.total(), weight * share).pvalue > 1e-3


@pytest.mark.parametrize("method", ["exact", "text"])
@pytest.mark.parametrize(("weight", "kept"), [(0.3, False), (0.5, True)])
def test_a_greedy_text_keeps_an_occurrence_that_its_weight_leaves_likelier_than_other_first_tokens(
    method: str, weight: float, kept: bool
) -> None:
    """The probability of "bc" is 0.54, and that of the likeliest other first token 0.25."""
    model = Markov(4, sharpness=0.0, length=2)
    model.table[0, 0] = torch.log(torch.tensor([0.25, 0.6, 0.15, 0.0]))
    model.table[0, 1] = torch.log(torch.tensor([0.1, 0.0, 0.9, 0.0]))
    drawn = draw(model, LETTERS, [anywhere("bc", weight)], times=1, method=method, do_sample=False)
    assert (drawn == {(1, 2): 1}) == kept

"""A text that an engine draws is that of rejection sampling, and no token leaves before it is settled."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest

from antislop.decoding.policy import Policy
from antislop.matching.bans import Ban
from antislop.matching.token_matcher import Matcher
from antislop.trace.events import Drawn, Event
from antislop.vllm.engine_text import EngineText, NoSettings, StopStrings
from antislop.vllm.outcomes import COUNTS, describe, read_report, rebuild_events
from tests.support.ban_cases import CASES, LETTERS, anywhere, expected_of
from tests.support.depth import in_turn, sample_size
from tests.support.statistics import p_value
from tests.support.toys import PROMPT, Markov, spec_of


def write(model: Markov, matcher: Matcher, chance: Random, *, thins: bool = False) -> EngineText:
    """Write a text as an engine does, which sees nothing but what was withdrawn.

    thins: whether it tells the probabilities of its tokens.
    """
    text, sent = EngineText(spec_of(model, matcher, lookback=False, settings=NoSettings())), 0
    while not text.is_finished:
        weights = model.probs(PROMPT, text.tokens).tolist()
        token = chance.choices(range(len(weights)), weights)[0]
        if text.read(token, weights[token] if thins else None) and model.ends(text.tokens):
            text.end()
        assert sent <= text.settled <= len(text.tokens)
        sent = text.settled
    return text


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("limit", [0, 2, 1000])
def test_all_that_happened_is_rebuilt_from_what_bans_did(case: str, limit: int) -> None:
    words, bans = CASES[case]
    matcher, chance = Matcher(bans, words), Random(case)
    for seed in range(sample_size(20)):
        model, happened = Markov(len(words), seed=seed, length=8), list[Event]()
        policy = Policy(True, "exact", "concede", max_rewinds=limit)
        text = EngineText(spec_of(model, matcher, lookback=False, settings=NoSettings(), policy=policy))
        while not text.is_finished:
            weights = model.probs(PROMPT, text.tokens).tolist()
            token, before = chance.choices(range(len(weights)), weights)[0], len(text.outcomes)
            if text.read(token) and model.ends(text.tokens):
                text.end()
            happened += [Drawn.plain(token), *text.outcomes[before:]]
        assert list(rebuild_events(text.tokens, text.outcomes)) == happened
        described = json.loads(json.dumps(describe(text.report, text.outcomes, bans)))
        report = read_report(described, text.tokens, bans)
        assert report.events[:-1] == happened
        assert all(getattr(report, name) == getattr(text.report, name) for name in COUNTS)


TIMES = sample_size(1000)
"""Enough to find probabilities that are off by 32 %, as in test_exactness.py."""


@pytest.mark.parametrize(("case", "thins"), in_turn(CASES, [False, True], each=2))
def test_texts_of_an_engine_are_those_of_rejection_sampling(case: str, thins: bool) -> None:
    words, bans = CASES[case]
    model, matcher, chance = Markov(len(words), seed=1), Matcher(bans, words), Random(0)
    texts = [write(model, matcher, chance, thins=thins) for _ in range(TIMES)]
    assert p_value(Counter(tuple(text.tokens) for text in texts), expected_of(case, 1)) > 1e-4
    assert any(text.thinned for text in texts) == (thins and any(text.report.rewinds for text in texts))


def write_letters(letters: str, bans: Sequence[Ban], *, stop: str) -> EngineText:
    """Write letters as they come until one does not stay."""
    matcher = Matcher(bans, LETTERS)
    spec = spec_of(Markov(4), matcher, lookback=False, settings=NoSettings(), max_new_tokens=20)
    text = EngineText(spec, stop_strings=StopStrings([stop], LETTERS.surface))
    for letter in letters:
        if not text.read("abcd".index(letter)):
            break
    return text


def test_a_stop_string_ends_a_text_before_bans_that_end_behind_it() -> None:
    text = write_letters("acbd", [anywhere("bd")], stop="cb")
    assert (text.tokens, text.settled, text.is_finished) == ([0, 2, 1, 3], 4, True)
    assert text.report.rewinds == 0
    text = write_letters("acb", [anywhere("acb")], stop="cb")
    assert (text.tokens, text.is_finished, text.report.rewinds) == ([], False, 1), "a ban that ends in it comes first"
    text = write_letters("ac", [Ban.regex("c$")], stop="c")
    assert (text.tokens, text.is_finished) == ([0], False), "the text would end there"

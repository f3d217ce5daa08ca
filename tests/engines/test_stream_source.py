"""Texts drawn from the likeliest tokens that a server tells, and elsewhere from all others, are exact."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given, strategies as st

from antislop.core.bans.bans import Ban
from antislop.core.bans.token_matcher import Matcher
from antislop.core.loop.row import Row
from antislop.engines.stream_source import SparseTable, StreamDrawing, StreamSource
from tests.support.ban_cases import CASES, expected_of
from tests.support.depth import first_quick, in_turn, sample_size
from tests.support.statistics import p_value
from tests.support.toys import PROMPT, Markov, Words, spec_of

TIMES = sample_size(1000)
"""Enough to find probabilities that are off by 32 %, as in test_exactness.py."""


@given(
    weights=st.lists(st.integers(1, 20), min_size=1, max_size=6),
    told=st.integers(0, 6),
    shares=st.lists(st.sampled_from([0.0, 0.25, 1.0]), min_size=6, max_size=6),
)
def test_a_number_chooses_each_known_token_by_what_is_left_and_else_an_unknown_one(
    weights: list[int], told: int, shares: list[float]
) -> None:
    """The naive twin draws from a bag in which each token lies as often as is left of it."""
    probs = [weight / sum(weights) for weight in weights]
    table = SparseTable()
    table.tell([*enumerate(probs)][:told])
    bag: list[int | None] = []
    for token, weight in enumerate(weights):
        is_known = token < told
        if is_known:
            table.set_left(token, probs[token] * shares[token])
        bag += [token if is_known else None] * int(4 * weight * (shares[token] if is_known else 1))
    assert table.mass_left() == pytest.approx(len(bag) / 4 / sum(weights))
    drawn = [table.draw((place + 0.5) / len(bag)) for place in range(len(bag))]
    assert Counter(drawn) == Counter(bag)


def test_a_rest_that_rounding_may_explain_is_no_unknown_token() -> None:
    for probs in ([0.6, 0.399999], [0.6, 0.400001], [0.5, 0.0]):
        table = SparseTable()
        table.tell([*enumerate(probs)])
        assert table.unknown == 0
        table.set_left(0, 0.0)
        assert {table.draw(number) for number in (0.0, 0.5, 0.999999999)} <= {1, None}
        table.set_left(1, 0.0)
        assert table.mass_left() == 0


def write(model: Markov, words: Words, bans: list[Ban], *, told: int, seed: int) -> tuple[int, ...]:
    """Write a text, at each place of which the likeliest tokens are told, and the others drawn from their own."""
    row, chance = Row(spec_of(model, Matcher(bans, words), lookback=False, seed=seed)), Random(seed)
    source = StreamSource(row, StreamDrawing())
    while not row.is_finished:
        probs = model.probs(PROMPT, row.tokens).tolist()
        order = sorted(range(len(probs)), key=probs.__getitem__, reverse=True)
        source.table.tell([(token, probs[token]) for token in order[:told]])
        token = source.draw()
        if token is None:
            others = [other for other in order if not source.table.knows(other)]
            token = chance.choices(others, [probs[other] for other in others])[0]
        source.take(token, None)
    return tuple(row.tokens)


@pytest.mark.parametrize(("case", "told"), first_quick(in_turn(CASES, [1, 2, 3]), 3))
def test_texts_drawn_from_what_is_told_are_those_of_rejection_sampling(case: str, told: int) -> None:
    words, bans = CASES[case]
    model = Markov(len(words), seed=1)
    drawn = Counter(write(model, words, bans, told=told, seed=seed) for seed in range(TIMES))
    assert p_value(drawn, expected_of(case, 1)) > 1e-4

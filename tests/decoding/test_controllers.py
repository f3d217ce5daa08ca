"""A controller's branches do what they say, and bans hold on top."""

from __future__ import annotations

import random

import pytest

from antislop import Ban
from antislop.decoding.loop import decode
from antislop.decoding.policy import Policy
from antislop.decoding.row import Row
from antislop.decoding.scheduler import Scheduler
from antislop.matching.token_matcher import Matcher
from tests.support.controllers import Interpreter, RandomController
from tests.support.depth import DEPTH
from tests.support.toys import Markov, Words, spec_of

WORDS = Words("a", "b", "c", "ab", "d")
POLICY = Policy(
    False, "exact", "concede", max_rewinds=10**6, max_withdrawn_ratio=10**9, mass_floor=0.0, probability_floor=0.0
)


def make_bans(seed: int) -> list[Ban]:
    choice = random.Random(seed)
    texts = {"".join(choice.choices("abcd", k=choice.randrange(1, 4))) for _ in range(choice.randrange(4))}
    return [Ban(text, edges="anywhere") for text in sorted(texts)]


@pytest.mark.parametrize("start", range(0, 200 * DEPTH, 100))
def test_random_controllers_and_bans_write_what_a_naive_interpreter_writes(start: int) -> None:
    for seed in range(start, start + 100):
        model, bans = Markov(len(WORDS), seed=seed, length=8), make_bans(seed)
        ours, theirs = RandomController(seed, len(WORDS)), RandomController(seed, len(WORDS))
        expected = Interpreter(model, WORDS, bans, theirs).run()
        row = Row(spec_of(model, Matcher(bans, WORDS), policy=POLICY, lookback=False, controller=ours))
        events = list(decode(Scheduler(rows=[row]), model))
        assert events
        assert ours.steps == theirs.steps, seed
        assert row.tokens == expected, seed

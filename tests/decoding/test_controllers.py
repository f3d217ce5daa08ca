"""A controller's branches do what they say, and bans hold on top."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from antislop import Ban
from antislop.decoding.loop import decode
from antislop.decoding.policy import Policy
from antislop.decoding.row import Row
from antislop.decoding.scheduler import Scheduler
from antislop.matching.token_matcher import Matcher
from antislop.trace.events import Conceded
from tests.support.controllers import Interpreter, RandomController, TextController, controlled_distribution
from tests.support.depth import DEPTH
from tests.support.statistics import p_value
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


@pytest.mark.parametrize("seed", range(3 * DEPTH))
def test_a_sampled_text_is_that_of_rejection_sampling_under_the_controller(seed: int) -> None:
    """For a controller that answers the same for the same tokens."""
    choice = random.Random(seed)
    bans = [Ban("".join(choice.choices("abcd", k=n)), edges="anywhere", weight=w) for n, w in ((2, 0.0), (3, 0.4))]
    model, controller = Markov(len(WORDS), seed=seed, length=4), TextController(seed, len(WORDS))
    try:
        expected = controlled_distribution(model, WORDS, bans, controller)
    except (LookupError, np.linalg.LinAlgError):
        pytest.skip("the controller forces what is banned, or never ends")
    torch.manual_seed(seed)
    policy = replace(POLICY, do_sample=True)
    matcher = Matcher(bans, WORDS)
    drawn = Counter[tuple[int, ...]]()
    for _ in range(1000):
        row = Row(spec_of(model, matcher, policy=policy, lookback=False, controller=controller))
        events = [event for _, event in decode(Scheduler(rows=[row]), model)]
        assert not any(isinstance(event, Conceded) for event in events)
        drawn[tuple(row.tokens)] += 1
    assert p_value(drawn, expected) > 1e-4

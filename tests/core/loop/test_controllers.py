"""A controller's branches do what they say, and bans hold on top."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from antislop import Ban
from antislop.core.bans.token_matcher import Matcher
from antislop.core.loop import Branch, Capabilities, Controller, Splice, Step, TokenSet
from antislop.core.loop.row import Row
from antislop.core.loop.sampling import Policy
from antislop.core.loop.scheduler import Scheduler
from antislop.core.trace.events import Conceded
from tests.support.ban_cases import anywhere
from tests.support.controllers import (
    CuttingController,
    Interpreter,
    RandomController,
    TextController,
    controlled_distribution,
)
from tests.support.depth import DEPTH, first_quick, sample_size
from tests.support.statistics import p_value
from tests.support.toys import Markov, Words, decode, spec_of

WORDS = Words("a", "b", "c", "ab", "d")
POLICY = Policy(
    False, "exact", "concede", max_rewinds=10**6, max_withdrawn_ratio=10**9, mass_floor=0.0, probability_floor=0.0
)


def make_bans(seed: int) -> list[Ban]:
    choice = random.Random(seed)
    texts = {"".join(choice.choices("abcd", k=choice.randrange(1, 4))) for _ in range(choice.randrange(4))}
    return [anywhere(text) for text in sorted(texts)]


@pytest.mark.parametrize("seeds", first_quick([range(20), range(20, 200 * DEPTH)]))
def test_random_controllers_and_bans_write_what_a_naive_interpreter_writes(seeds: range) -> None:
    for seed in seeds:
        model, bans = Markov(len(WORDS), seed=seed, length=8), make_bans(seed)
        ours, theirs = RandomController(seed, len(WORDS)), RandomController(seed, len(WORDS))
        expected = Interpreter(model, WORDS, bans, theirs).run()
        row = Row(spec_of(model, Matcher(bans, WORDS), policy=POLICY, lookback=False, controller=ours))
        events = list(decode(Scheduler(rows=[row]), model))
        assert events
        assert ours.steps == theirs.steps, seed
        assert row.tokens == expected, seed


@pytest.mark.parametrize("seed", first_quick(range(3 * DEPTH)))
def test_a_sampled_text_is_that_of_rejection_sampling_under_the_controller(seed: int) -> None:
    """For a controller that answers the same for the same tokens."""
    choice = random.Random(seed)
    bans = [anywhere("".join(choice.choices("abcd", k=n)), w) for n, w in ((2, 0.0), (3, 0.4))]
    bans[seed % 2] = replace(bans[seed % 2], rewind="word")
    model, controller = Markov(len(WORDS), seed=seed, length=4), TextController(seed, len(WORDS))
    try:
        expected = controlled_distribution(model, WORDS, bans, controller)
    except np.linalg.LinAlgError:
        pytest.skip("the controller forces what is banned, or never ends")
    torch.manual_seed(seed)
    drawn = draw_texts(sample_size(1000), model, Matcher(bans, WORDS), controller)
    assert p_value(drawn, expected) > 1e-4


@pytest.mark.parametrize(("seed", "count"), first_quick([(11, 250), (37, 250), (11, 2500)]))
def test_a_ban_that_begins_where_a_cut_led_is_drawn_again_by_the_mask_of_the_cut(seed: int, count: int) -> None:
    """As rejection sampling does, which rejects a draw by that mask and repeats it; the controller is not asked.

    At depth 10, there are ten times as many texts.
    """
    choice = random.Random(seed)
    bans = [anywhere("".join(choice.choices("abcd", k=n)), w) for n, w in ((2, 0), (2, 0), (3, 0.4))]
    model, controller = Markov(len(LETTERS) - 1, seed=seed, length=4), CuttingController(seed, len(LETTERS) - 1)
    torch.manual_seed(seed)
    drawn = draw_texts(sample_size(count), model, Matcher(bans, LETTERS), controller)
    assert p_value(drawn, controlled_distribution(model, LETTERS, bans, controller)) > 1e-4


def draw_texts(count: int, model: Markov, matcher: Matcher, controller: Controller) -> Counter[tuple[int, ...]]:
    policy, drawn = replace(POLICY, do_sample=True), Counter[tuple[int, ...]]()
    for _ in range(count):
        row = Row(spec_of(model, matcher, policy=policy, lookback=False, controller=controller))
        events = [event for _, event in decode(Scheduler(rows=[row]), model)]
        assert not any(isinstance(event, Conceded) for event in events)
        drawn[tuple(row.tokens)] += 1
    return drawn


A, B, C, D, E = range(5)
"""Tokens of `LETTERS`."""
LETTERS = Words("a", "b", "c", "d", "e")
A_OR_C = Branch(sample_mask=TokenSet([A, C]))
RUNS = {A: (E, B, B), C: (E, B, D)}


class Runs:
    """Samples a or c, writes three tokens after it that depend on it, and samples again; never asked in between."""

    def __init__(self, kind: str) -> None:
        self.kind, self.needs = kind, Capabilities(2 if kind == "cut" else 0)

    def start(self, prompt: Sequence[int]) -> None:
        pass

    def fork(self) -> Runs:
        return self

    def mid_process(self, step: Step) -> list[Branch]:
        tokens = tuple(step.tokens)
        if not tokens and self.kind == "splice":
            return [replace(A_OR_C, splices=tuple(Splice(frozenset([t]), 0, run) for t, run in RUNS.items()))]
        if len(tokens) == 1 and self.kind == "force":
            return [Branch(ff_tokens=RUNS[tokens[0]])]
        if len(tokens) == 1 and self.kind == "cut":
            return [Branch(sample_mask=TokenSet([D]))]
        if tokens[1:] == (D,):
            return [Branch(1, ff_tokens=RUNS[tokens[0]])]
        assert len(tokens) in (0, 4, 5), "the controller was asked between forced tokens"
        return [A_OR_C]


@pytest.mark.parametrize("weight", [0.0, 0.2])
@pytest.mark.parametrize("phrase", ["ba", "bba", "bb", "aebb"])
@pytest.mark.parametrize("kind", ["force", "splice", "cut"])
def test_a_ban_in_forced_tokens_rewinds_to_its_start_or_to_the_choice_before_if_it_has_none(
    kind: str, phrase: str, weight: float
) -> None:
    """The forced tokens are written again without asking; what is streamed by then waits for that choice."""
    bans, controller = [anywhere(phrase, weight)], Runs(kind)
    model = Markov(len(LETTERS), length=5)
    matcher = Matcher(bans, LETTERS)
    expected = controlled_distribution(model, LETTERS, bans, controller)
    torch.manual_seed(0)
    assert p_value(draw_texts(sample_size(300), model, matcher, controller), expected) > 1e-4

"""Texts that repeat themselves: greedy ones begin anew, drawn ones are streamed only once nothing can change."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import antislop
from antislop.data import FOLDER
from antislop.matching.bans import Ban
from antislop.matching.token_matcher import Matcher
from antislop.trace.events import Rewound, Settled
from tests.conftest import DEPTH
from tests.support.oracles import completed
from tests.support.toys import PROMPT, Markov, Words, run

SPACED = Words("a ", "b ", "a. ", "c")
LOOP = Ban.loop(2, 4, 8)


def greedy_text(model: Markov, words: Words, ban: Ban) -> tuple[int, ...] | None:
    """Take the likeliest token; where a loop is complete, cut back to its start and never take that token there.

    None if nothing is left to take.
    """
    closed: set[tuple[int, ...]] = set()
    tokens: tuple[int, ...] = ()
    while not tokens or not model.ends(tokens):
        probs = model.probs(PROMPT, tokens).tolist()
        left = [0.0 if (*tokens, token) in closed else mass for token, mass in enumerate(probs)]
        if not any(left):
            return None
        tokens = (*tokens, left.index(max(left)))
        for start, _ in completed(tokens, words, [ban], is_final=model.ends(tokens)):
            closed.add(tokens[: start + 1])
            tokens = tokens[:start]
            break
    return tokens


@given(seed=st.integers(0, 10_000))
def test_greedy_decoding_takes_the_next_best_token_where_a_loop_begins(seed: int) -> None:
    model = Markov(len(SPACED), seed=seed, length=9)
    expected = greedy_text(model, SPACED, LOOP)
    if expected is not None:
        tokens, _ = run(model, SPACED, [LOOP], do_sample=False, lookback=False, mass_floor=0.0)
        assert tokens == expected


@settings(max_examples=20 * DEPTH)
@given(seed=st.integers(0, 10_000))
def test_what_was_streamed_is_never_withdrawn(seed: int) -> None:
    torch.manual_seed(seed)
    model = Markov(len(SPACED), seed=seed, sharpness=3.0, length=40)
    tokens, report = run(model, SPACED, [LOOP, Ban("b a")], lookback=False)
    streamed: tuple[int, ...] = ()
    for event in report.events:
        if isinstance(event, Settled):
            streamed += event.tokens
        assert not isinstance(event, Rewound) or event.length >= len(streamed)
    assert streamed == tokens


def test_a_loop_that_is_let_through_is_reported_each_time_it_is_complete_again() -> None:
    model = Markov(2, length=40)
    model.table[:] = torch.tensor([9.0, 0.0])
    words = Words("no ", "yes ")
    tokens, report = run(model, words, [Ban.loop(2, 6, 9)], do_sample=False, max_rewinds=0, lookback=False)
    assert set(tokens) == {0}
    assert report.conceded == 40 - 2  # each further "no " is a loop of its own


def test_a_prompt_that_repeats_itself_is_not_touched_and_what_continues_it_counts() -> None:
    matcher = Matcher([Ban.loop(3, 21)], Words("no way ", "but "))
    for lookback, starts in ((True, [[0]]), (False, [[], [], [2]])):
        state = matcher.start([0] * 4, lookback=lookback)
        assert matcher.feed(state, 1).violations == ()
        for expected in starts:
            state = matcher.feed(state, 0)
            assert [violation.start for violation in state.violations] == expected


def test_the_bundled_model_stops_looping_at_little_cost() -> None:
    model, tokenizer = antislop.tiny_model()
    openings = (FOLDER / "openings.txt").read_text(encoding="utf-8").splitlines()
    sampler, loops = antislop.AntiSlop(tokenizer, antislop.loops()), antislop.loops()
    for opening in (openings[5], openings[23]):
        inputs = tokenizer(opening, return_tensors="pt")
        plain = model.generate(**inputs, do_sample=False, max_new_tokens=110)
        clean = sampler.generate(
            model, inputs["input_ids"], do_sample=False, max_new_tokens=110, return_dict_in_generate=True
        )
        assert loops.find(tokenizer.decode(plain[0]))
        assert not loops.find(tokenizer.decode(clean.sequences[0]))
        assert 0 < clean.report.withdrawn_tokens <= 0.5 * 110
        assert clean.report.conceded == 0

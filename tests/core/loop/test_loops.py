"""Texts that repeat themselves: greedy ones begin anew, drawn ones are streamed only once nothing can change."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings, strategies as st
from torch import Tensor

import antislop
from antislop.core.bans.bans import Ban
from antislop.core.bans.token_matcher import Matcher
from antislop.core.trace.events import Conceded, Drawn, Event, Rewound, Settled
from antislop.data import FOLDER
from tests.support.depth import first_quick, sample_size
from tests.support.oracles import completed, loop_occurrences, repeat_occurrences
from tests.support.toys import PROMPT, Markov, Words, run

SPACED = Words("a ", "b ", "a. ", "c")
LOOP, REPEAT = Ban.loop(2, 4, 8), Ban.repeat(3)


VARIED = Words("a ", "b. ", "c ")
SENTENCES = Words("Tom was ", "glad. ", "sad. ", "He was ", "here for ", "three days. ", "three weeks. ")


class Parrot(Markov):
    """A model that continues the end of its text as it was continued before: every text loops, and so do redraws.

    The logits drawn from a seed vary the copies.
    """

    def logits(self, ids: Tensor) -> Tensor:
        tokens, scores = ids[0].tolist(), super().logits(ids)
        for size in range(len(tokens) - 1, 0, -1):
            places = [i for i in range(size, len(tokens)) if tokens[i - size : i] == tokens[-size:]]
            if places:
                scores[0, tokens[places[-1]]] += 6.0
                break
        return scores


def conceded_lengths(events: Sequence[Event]) -> list[int]:
    """Return the length of the text at each concession that was not withdrawn later."""
    length, conceded = 0, list[int]()
    for event in events:
        length += isinstance(event, Drawn)
        if isinstance(event, Rewound):
            length = event.length
            conceded = [end for end in conceded if end <= length]
        elif isinstance(event, Conceded):
            conceded.append(length)
    return conceded


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


@given(seed=st.integers(0, 10_000), ban=st.sampled_from([LOOP, REPEAT]))
def test_greedy_decoding_takes_the_next_best_token_where_a_loop_or_repeat_begins(seed: int, ban: Ban) -> None:
    model = Markov(len(SPACED), seed=seed, length=9)
    expected = greedy_text(model, SPACED, ban)
    if expected is not None:
        tokens, _ = run(model, SPACED, [ban], do_sample=False, lookback=False, mass_floor=0.0)
        assert tokens == expected


@settings(max_examples=sample_size(20))
@given(seed=st.integers(0, 10_000), ban=st.sampled_from([LOOP, REPEAT]))
def test_what_was_streamed_is_never_withdrawn(seed: int, ban: Ban) -> None:
    torch.manual_seed(seed)
    model = Markov(len(SPACED), seed=seed, sharpness=3.0, length=40)
    tokens, report = run(model, SPACED, [ban, Ban("b a")], lookback=False)
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


@settings(max_examples=sample_size(40))
@given(
    seed=st.integers(0, 10_000),
    words=st.sampled_from([SPACED, VARIED, SENTENCES]),
    copies=st.integers(2, 3),
    do_sample=st.booleans(),
    max_rewinds=st.sampled_from([0, 2, 100]),
    ratio=st.sampled_from([1, 2, 16]),
)
@example(seed=3, words=VARIED, copies=2, do_sample=False, max_rewinds=100, ratio=16)  # a token without mass is conceded
def test_texts_whose_every_redraw_loops_with_variations_end_and_their_loops_are_reported(
    seed: int, words: Words, copies: int, do_sample: bool, max_rewinds: int, ratio: int
) -> None:
    length, ban = 30, Ban.loop(copies, 2 * copies, 40)
    torch.manual_seed(seed)
    model = Parrot(len(words), seed=seed, length=length)
    limits: dict[str, Any] = {"max_rewinds": max_rewinds, "max_withdrawn_ratio": ratio}
    tokens, report = run(model, words, [ban], do_sample=do_sample, lookback=False, **limits)
    assert len(tokens) == length
    assert report.withdrawn_tokens < (ratio + 1) * length  # the last rewind begins below the limit
    assert report.forward_passes <= length + report.withdrawn_tokens
    assert max_rewinds or not report.rewinds
    sizes = [len(words.text(tokens[:end])) for end in range(length + 1)]
    loops = [bisect_left(sizes, end) for _, end in loop_occurrences(words.text(tokens), ban)]
    assert conceded_lengths(report.events) == loops


def test_a_greedy_text_that_loops_with_variations_is_the_same_each_time() -> None:
    model, ban = Parrot(len(VARIED), seed=3, length=60), Ban.loop(2, 4, 40)
    runs = []
    for seed in range(2):
        torch.manual_seed(seed)
        runs.append(run(model, VARIED, [ban], do_sample=False, lookback=False, max_rewinds=5))
    assert runs[0][1].conceded
    assert len({(tokens, report.withdrawn_tokens, report.conceded) for tokens, report in runs}) == 1


def test_a_prompt_that_repeats_itself_is_not_touched_and_what_continues_it_counts() -> None:
    matcher = Matcher([Ban.loop(3, 21)], Words("no way ", "but "))
    for lookback, starts in ((True, [[0]]), (False, [[], [], [2]])):
        state = matcher.start([0] * 4, lookback=lookback)
        assert matcher.feed(state, 1).violations == ()
        for expected in starts:
            state = matcher.feed(state, 0)
            assert [violation.start for violation in state.violations] == expected


@pytest.mark.parametrize("number", first_quick([5, 23]))
def test_the_bundled_model_stops_looping_at_little_cost(number: int) -> None:
    model, tokenizer = antislop.tiny_model()
    opening = (FOLDER / "openings.txt").read_text(encoding="utf-8").splitlines()[number]
    sampler, loops = antislop.AntiSlop(tokenizer, antislop.loops()), antislop.loops()
    inputs = tokenizer(opening, return_tensors="pt")
    plain = model.generate(**inputs, do_sample=False, max_new_tokens=110)
    clean = sampler.generate(
        model, inputs["input_ids"], do_sample=False, max_new_tokens=110, return_dict_in_generate=True
    )
    assert loops.find(tokenizer.decode(plain[0]))
    assert not loops.find(tokenizer.decode(clean.sequences[0]))
    assert 0 < clean.report.withdrawn_tokens <= 0.5 * 110
    assert clean.report.conceded == 0


def test_a_prompt_is_not_written_again() -> None:
    model, tokenizer = antislop.tiny_model()
    prompt = "The air was thick with the scent of damp earth and old wood. The air was"
    inputs, ban = tokenizer(prompt, return_tensors="pt"), Ban.repeat(6, "prompt")

    def repeat(bans: list[Ban]) -> list[tuple[int, int]]:
        ids = antislop.AntiSlop(tokenizer, bans).generate(model, **inputs, do_sample=False, max_new_tokens=30)
        text = tokenizer.decode(ids[0], skip_special_tokens=True)
        assert text.startswith(prompt)
        return [*repeat_occurrences(text, ban, prompt_size=len(prompt))]

    assert repeat([]) and not repeat([ban])

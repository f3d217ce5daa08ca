"""A trace as text: what is not struck through is the decoded output."""

from __future__ import annotations

import random

import pytest

from antislop import Ban
from antislop.core.bans.characters import decode
from antislop.core.bans.token_matcher import Violation
from antislop.core.trace import Drawn, Finished, Rewound, Settled, Truncated
from tests.support.depth import DEPTH
from tests.support.toys import Words
from tests.support.traces import SPLIT, make_random_events, make_trace

WORDS = Words("so", " a", " cat", " dog", "\x1b[2J", " \u202eX", "<b>")
CAT = Violation(Ban("a cat"), 1, 2)
EVENTS = [Drawn(0), Drawn(1), Drawn(2), Rewound(1, (1, 2), CAT), Drawn(3), Drawn(4), Drawn(5)]


@pytest.mark.parametrize("seed", range(100 * DEPTH))
def test_the_pieces_that_are_not_withdrawn_are_the_text_of_the_kept_tokens(seed: int) -> None:
    trace = make_trace(SPLIT, make_random_events(random.Random(seed)), prompt=[0, 1])
    prompt, *pieces = trace.pieces()
    assert prompt.text == "a b"
    assert "".join(p.text for p in pieces if p.kind != "withdrawn") == decode(SPLIT, trace.rows[0].tokens)


def test_the_text_has_withdrawn_parts_in_brackets_and_no_control_characters() -> None:
    trace = make_trace(WORDS, EVENTS, prompt=[0])
    assert trace.to_text() == "so [-a cat-] dog␛[2J �X"


def test_text_that_another_row_cut_off_is_withdrawn_without_a_ban() -> None:
    events = [Drawn(0), Drawn(1), Truncated(1, (1,)), Settled((0,)), Finished("done", 0.0)]
    assert make_trace(WORDS, events).to_text() == "so [-a-]"


def test_a_space_that_the_decoder_drops_is_no_part_of_the_text() -> None:
    about = {"tokenizer": {"drops_space": True}}
    assert (
        make_trace(
            WORDS, [Drawn(1), Drawn(2), Rewound(0, (1, 2), CAT._replace(start=0, end=1)), Drawn(3)], about=about
        ).to_text()
        == " [-a cat-]dog"
    )
    assert make_trace(WORDS, [Drawn(3)], about=about, prompt=[1]).to_text() == " dog"


def test_a_row_that_is_not_there_is_refused() -> None:
    with pytest.raises(IndexError, match="row 1: the trace has 1 text, numbered from 0"):
        make_trace(WORDS, EVENTS).to_text(row=1)
    assert make_trace(WORDS, [], EVENTS).to_text(row=-1) == make_trace(WORDS, EVENTS).to_text()

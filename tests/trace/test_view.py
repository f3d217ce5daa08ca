"""The page of a trace: its texts are the decoded output, whatever was withdrawn, and nothing in them is markup."""

from __future__ import annotations

import random

import pytest

from antislop.display import make_visible
from antislop.matching.characters import decode
from tests.conftest import DEPTH
from tests.support.pages import PageReader
from tests.support.traces import SPLIT, make_random_events, make_trace


@pytest.mark.parametrize("seed", range(40 * DEPTH))
def test_the_text_without_struck_parts_is_the_decoded_output(seed: int) -> None:
    chance = random.Random(seed)
    trace = make_trace(SPLIT, *(make_random_events(chance) for _ in range(chance.randint(1, 3))), prompt=[0, 1])
    page = PageReader(trace.to_html())
    assert not page.unclosed
    assert page.prompts == ["a b"] * len(trace.rows)
    assert page.texts == [make_visible(decode(SPLIT, row.tokens), keep_layout=True) for row in trace.rows]

"""Bans that lead back to the beginning of a word, a sentence or a paragraph."""

from __future__ import annotations

import random
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import example, given, strategies as st

from antislop import Ban, BanList
from antislop.core.bans.ban_list import read_bans
from antislop.core.bans.token_matcher import Matcher, State
from antislop.core.bans.units import Unit
from antislop.errors import BanError
from tests.support.oracles import completed
from tests.support.toys import PROMPT, Words

WORDS = Words("a", "b", " b", " a.", ".", "\n", "\n\n", " b. a", "-", "é", "東")
UNITS = ("", *get_args(Unit))
PHRASES = ("a", "b", "ab", "ba", "b.", ".a", "東", "-b", "aab")

ban_lists = st.lists(
    st.builds(
        lambda phrase, unit: Ban(phrase, edges="anywhere", rewind=unit),
        st.sampled_from(PHRASES),
        st.sampled_from(UNITS),
    ),
    min_size=1,
    max_size=4,
    unique_by=lambda ban: ban.key,
)


@example(bans=[Ban("b", edges="anywhere", rewind="text")], tokens=[0, 4, 1])
@given(bans=ban_lists, tokens=st.lists(st.integers(0, 8), min_size=1, max_size=9))
def test_a_ban_leads_back_to_the_unit_that_a_naive_search_finds(bans: list[Ban], tokens: list[int]) -> None:
    matcher = Matcher(bans, WORDS)
    state = matcher.start(PROMPT, lookback=False)
    for end, token in enumerate(tokens, start=1):
        state = matcher.feed(state, token)
        found = {(violation.target, bans.index(violation.ban)) for violation in state.violations}
        assert found == set(completed(tokens[:end], WORDS, bans, is_final=False))
        assert all(violation.target <= violation.start for violation in state.violations)


@given(bans=ban_lists, seed=st.integers(0, 10_000), lookback=st.booleans())
def test_no_chain_of_rewinds_reaches_what_was_settled(bans: list[Ban], seed: int, lookback: bool) -> None:
    drawn, matcher, horizon = random.Random(seed), Matcher(bans, WORDS), 0
    state: State = matcher.start(PROMPT, lookback=lookback)
    for _ in range(60):
        state = matcher.feed(state, drawn.randrange(len(WORDS)))
        for violation in (*state.violations, *matcher.finish(state)):
            assert violation.target >= horizon
        if state.violations:
            state = state.back_to(min(violation.target for violation in state.violations))
        horizon = max(horizon, state.earliest_start)


SPACED = Words("The", " old", " house", " sl", "ept", ".", " It", "\n\n", "3", "5", '"', " He")


@pytest.mark.parametrize(
    ("unit", "tokens", "horizons"),
    [
        # A word is over after a sign, or once the next token could not go on with it.
        ("word", (0, 1, 3, 4, 5, 6), [0, 0, 0, 0, 5, 5]),
        ("sentence", (0, 1, 2, 5, 6, 1, 5, 11), [0, 0, 0, 4, 4, 4, 7, 7]),
        ("sentence", (0, 5, 10, 11, 1, 7, 6), [0, 2, 3, 3, 3, 6, 6]),
        ("sentence", (8, 5, 9, 5), [0, 2, 2, 4]),
        ("paragraph", (0, 5, 6, 5, 7, 0, 5, 7, 7), [0, 0, 0, 0, 5, 5, 5, 8, 9]),
        ("text", (0, 5, 7, 7, 0), [0, 0, 0, 0, 0]),
    ],
)
def test_a_text_is_held_back_to_where_its_unit_begins(unit: str, tokens: tuple[int, ...], horizons: list[int]) -> None:
    matcher = Matcher([Ban("zebra", rewind=unit)], SPACED)
    state, found = matcher.start(), []
    for token in tokens:
        state = matcher.feed(state, token)
        found.append(state.earliest_start)
    assert found == horizons


def test_bans_of_token_ids_have_units_too() -> None:
    matcher = Matcher([Ban.tokens([1, 3], rewind="word"), Ban.tokens([4, 5], rewind="sentence")], SPACED)
    state = matcher.start()
    for token in (0, 1, 3, 4, 5):
        state = matcher.feed(state, token)
    assert [(violation.start, violation.target) for violation in state.violations] == [(3, 0)]
    assert [each.target for each in state.back_to(3).violations] == [1]


def test_a_unit_that_began_in_the_prompt_begins_with_the_first_token() -> None:
    matcher = Matcher([Ban("house", rewind="sentence"), Ban("slept", rewind="word")], SPACED)
    for lookback in (True, False):
        state = matcher.start((0, 1), lookback=lookback)
        for token in (1, 2, 3, 4):
            state = matcher.feed(state, token)
            if token == 3:
                assert [violation.target for violation in state.violations] == [0]
        assert [violation.target for violation in matcher.finish(state)] == [2]


def test_a_unit_changes_neither_what_is_found_nor_which_bans_are_equal() -> None:
    assert BanList([Ban("a b", rewind="paragraph")]).find("x\n\na b") == [(Ban("a b", rewind="paragraph"), 3, 6)]
    assert Ban("a b", rewind="word").key == Ban("a b").key
    with pytest.raises(
        BanError, match="rewind of 'a b' is 'line'; it is one of 'span', 'word', 'sentence', 'paragraph', 'text'"
    ):
        Ban("a b", rewind="line")


@pytest.mark.parametrize(
    ("ban", "unit"),
    [
        (Ban("e", edges="anywhere"), "word"),
        (Ban("Ét", edges="anywhere", weight=0.5), "word"),
        (Ban("don't", edges="anywhere"), "word"),
        (Ban("7", edges="anywhere"), "word"),
        (Ban("한숨", edges="anywhere"), "word"),
        (Ban("e"), "span"),
        # Most phrases of several words begin with a word.
        (Ban("e t", edges="anywhere"), "span"),
        # Each of these begins with a word of its own, so nothing of a word would be left before it.
        (Ban("—", edges="anywhere"), "span"),
        (Ban(" e", edges="anywhere"), "span"),
        (Ban("'e", edges="anywhere"), "span"),
        (Ban("東京", edges="anywhere"), "span"),
        (Ban("👍", edges="anywhere"), "span"),
        (Ban.wildcard("*ed"), "span"),
        (Ban.regex("e"), "span"),
        (Ban.tokens([1]), "span"),
        (Ban("e", edges="anywhere", rewind="span"), "span"),
        (Ban("e", edges="anywhere", rewind="sentence"), "sentence"),
    ],
    ids=repr,
)
def test_a_part_of_a_word_leads_back_to_the_word_by_default(ban: Ban, unit: str) -> None:
    assert ban.unit == unit


LISTED = [Ban("e", edges="anywhere"), Ban("a b"), Ban("c", edges="anywhere", rewind="paragraph")]


@pytest.mark.parametrize(
    ("rewind", "units"),
    [
        (None, ["word", "span", "paragraph", "span"]),
        ("span", ["span", "span", "paragraph", "span"]),
        ("word", ["word", "word", "paragraph", "word"]),
        ("sentence", ["sentence", "sentence", "paragraph", "sentence"]),
    ],
)
def test_a_bans_own_unit_goes_before_that_of_all_bans_and_this_before_the_default(
    rewind: Unit | None, units: list[Unit]
) -> None:
    assert [ban.unit for ban in read_bans(LISTED, strings=["d"], rewind=rewind)] == units


def test_a_default_unit_is_not_written(tmp_path: Path) -> None:
    bans = BanList(LISTED)
    bans.save(tmp_path / "bans.txt")
    assert (tmp_path / "bans.txt").read_text().count("rewind") == 1
    assert list(BanList.load(tmp_path / "bans.txt")) == list(bans)
    assert repr(LISTED[0]) == "Ban('e', edges='anywhere')"
    assert list(read_bans(bans, rewind="span"))[1:] == LISTED[1:], "what they do anyway"

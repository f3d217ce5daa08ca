"""Exempt phrases, scopes and allowed occurrences work alike however a text is cut, and as in a naive search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import regex
from hypothesis import given, strategies as st

from antislop.core.bans.ban_list import BanList
from antislop.core.bans.bans import Ban
from antislop.core.bans.scopes import Scope
from tests.support.ban_cases import RULES
from tests.support.oracles import counting, cut_at, find_in_pieces

chunks = st.lists(
    st.sampled_from(["a", "b", "ab", " ", "c", ".", '"', "```", "<t>", "</t>", "`", "<", "\n"]), max_size=24
)
places = st.lists(st.integers(0, 60), max_size=8)


def join(pieces: Sequence[str]) -> str:
    """Join pieces, without two kinds of white space in a row, which the naive search does not fold to one."""
    return regex.sub(r"\s+", lambda spaces: spaces[0][0], "".join(pieces))


FORMS: tuple[Ban, ...] = (
    Ban("a"),
    Ban("ab", edges="anywhere"),
    Ban("a b"),
    Ban.regex("a.?b"),
    Ban.regex(r"b\b"),
    Ban.words(["a", "b"], gap=1),
)


def with_rules(ban: Ban, rules: dict[str, object]) -> Ban:
    return replace(ban, **rules)  # type: ignore[arg-type]


@pytest.mark.parametrize("rules", RULES, ids=str)
@given(pieces=chunks, cuts=places, ban=st.sampled_from(FORMS))
def test_rules_do_not_depend_on_how_a_text_is_cut(
    rules: dict[str, object], pieces: list[str], cuts: list[int], ban: Ban
) -> None:
    text, ruled = join(pieces), with_rules(ban, rules)
    assert find_in_pieces([ruled], cut_at(text, cuts)) == [(0, *span) for span in sorted(counting(text, ruled))]


@given(
    pieces=chunks, cuts=places, chosen=st.lists(st.tuples(st.sampled_from(FORMS), st.sampled_from(RULES)), max_size=5)
)
def test_the_rules_of_one_ban_do_not_affect_another(
    pieces: list[str], cuts: list[int], chosen: list[tuple[Ban, dict[str, object]]]
) -> None:
    text, bans = join(pieces), [with_rules(*pair) for pair in chosen]
    expected = sorted((i, *span) for i, ban in enumerate(bans) for span in counting(text, ban))
    assert find_in_pieces(bans, cut_at(text, cuts)) == expected


@pytest.mark.parametrize(
    "text", ['He "said a" a.', "He “said a” a.", "Er „sagte a“ a.", "Il « dit a » a.", "彼「言 a」a", 'An "open a\na.']
)
def test_quotation_marks_of_any_kind_open_and_close_a_quotation(text: str) -> None:
    inner, outer = [match.start for match in BanList(["a"]).find(text)]
    for where, place in (("inside", inner), ("outside", outer)):
        ban = Ban("a", scopes=[Scope(where, "quotes")])  # type: ignore[arg-type]
        assert [match.start for match in BanList([ban]).find(text)] == [place]

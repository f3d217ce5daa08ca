"""What a reader sees as one character is found whole, never within another one or across two."""

from __future__ import annotations

from itertools import accumulate

import pytest
import regex
from hypothesis import example, given, strategies as st

from antislop.core.bans.ban_list import BanList
from antislop.core.bans.bans import Ban
from antislop.core.bans.folding import Edges
from antislop.core.bans.prefilter import Prefilter
from tests.support.oracles import cut_at, find_in_pieces

SIGNS = [*"🇦🇩🇪🇸👍👩🚀❤🏴🏽\u200d\ufe0f\u20e3\u0301#*©—a1 ", "👍🏽", "👩‍🚀", "❤️‍🔥", "🇩🇪", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "1️⃣"]  # fmt: skip
texts = st.lists(st.sampled_from(SIGNS), min_size=1, max_size=20).map("".join)


def split_graphemes(text: str) -> list[tuple[int, str]]:
    """Return (start, grapheme) without what is invisible; a joiner shows only before an emoji."""
    clusters = regex.findall(r"\X", text)
    starts = accumulate(map(len, clusters), initial=0)
    shown = (regex.sub(r"\ufe0f|\u200d(?!\p{ExtPict})", "", cluster) for cluster in clusters)
    return [(start, cluster) for start, cluster in zip(starts, shown, strict=False) if cluster]


@given(data=st.data(), text=texts, edges=st.sampled_from(["word", "anywhere"]), places=st.lists(st.integers(0, 60)))
@example(data=None, text="🇦🇩🇪🇸🇩🇪", edges="word", places=[1, 3])
def test_emoji_and_flags_are_found_where_their_graphemes_are_those_of_the_text(
    data: st.DataObject | None, text: str, edges: Edges, places: list[int]
) -> None:
    clusters = split_graphemes(text)
    first, size = (data.draw(st.tuples(st.integers(0, len(clusters)), st.integers(1, 3)))) if data else (2, 1)
    wanted = [cluster for _, cluster in clusters[first : first + size]]
    if not all(regex.match(r"[\p{RI}\p{ExtPict}]", cluster) for cluster in wanted) or not wanted:
        return
    ban = Ban("".join(wanted), edges=edges)
    expected = [
        start
        for number, (start, _) in enumerate(clusters)
        if [cluster for _, cluster in clusters[number : number + len(wanted)]] == wanted
    ]
    for options in ({}, {"prefilter": Prefilter}):
        assert [start for _, start, _ in find_in_pieces([ban], cut_at(text, places), **options)] == expected


@pytest.mark.parametrize(
    ("phrase", "text", "found"),
    [
        ("🇩🇪", "🇦🇩🇪🇸 🇫🇷🇩🇪", 1),
        ("team 🇩🇪", "Team 🇩🇪! Team 🇩🇪🇸🇪", 2),
        ("go 👍", "go 👍🏽, go 👍", 1),
        ("🇩🇪 team", "🇦🇩🇪 team, 🇩🇪 team", 1),
        ("1️⃣", "1️⃣2️⃣1️⃣ 1 11️⃣", 2),
        ("1", "1️⃣ 1", 1),
        ("❤", "❤️ ❤ ❤️‍🔥", 2),
        ("👍", "👍👍👍", 3),
        ("👍👍", "👍👍👍", 2),
        ("🏽", "👍🏽", 1),  # no character of its own
        ("한", "하 한 하\u11ab", 2),
    ],
)
def test_a_phrase_ends_and_begins_with_whole_characters(phrase: str, text: str, found: int) -> None:
    assert len(BanList([phrase]).find(text)) == found


def test_no_phrase_is_found_within_a_syllable_whatever_its_edges() -> None:
    bans = BanList([Ban("하", edges="anywhere")])
    assert [match[1:] for match in bans.find("한하늘 \u1112\u1161\u11ab")] == [(1, 2)]

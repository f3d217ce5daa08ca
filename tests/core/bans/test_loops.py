"""Loops are found by their definition, however a text is cut, and text that may belong to one is held back."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given, strategies as st

import antislop
from antislop.core.bans.bans import Ban
from antislop.core.bans.bundled import read_constructions
from antislop.core.bans.formats.text_format import read_ban, write_ban
from antislop.core.bans.patterns.loop import Loop, LoopSearch
from antislop.core.bans.text_matcher import TextMatcher
from antislop.errors import BanError
from tests.support.oracles import cut_at, loop_occurrences


@st.composite
def looping_texts(draw: st.DrawFn) -> str:
    """Texts of passages that repeat, also within passages that repeat, and break off."""
    letters = st.text(
        st.sampled_from(
            draw(st.sampled_from(["ab", "ab ", "aB .", 'a ."', "ab. -", "a\n", "aé́ .ß", "!- ", "1 =.", " \n"]))
        ),
        max_size=8,
    )
    text = ""
    for _ in range(draw(st.integers(1, 4))):
        passage = draw(letters) * draw(st.integers(1, 3)) + draw(letters)
        text += (passage * draw(st.integers(1, 6)))[: draw(st.integers(1, 60))]
        text *= draw(st.integers(1, 2))
    return re.sub(r"(\s{40})\s+", r"\1", text)[:120]  # what follows more white space, the oracle does not know


@st.composite
def varied_copies(draw: st.DrawFn) -> str:
    """Texts of sentences that are written several times with words changed, among them such that are not loops."""
    words = st.sampled_from(["ab", "go", "So", "it", "3", "4", "no.", "e", "a|b"])
    passage = draw(st.lists(words, min_size=7, max_size=9))
    begins_differ = draw(st.booleans())
    ends = st.sampled_from([". "] if begins_differ else [". ", ". ", ". ", '." "', "! ", ".\n", " "])
    text = draw(st.sampled_from(["", "He ran. ", "Go it.\n"]))
    for _ in range(draw(st.integers(2, 7))):
        copy = list(passage)
        for place, word in draw(st.lists(st.tuples(st.integers(0, len(copy) - 1), words), max_size=2 - begins_differ)):
            copy[1 if begins_differ else place] = word
        text += " ".join(copy) + draw(ends)
    return text


loops = st.builds(
    lambda copies, period, share: Ban.loop(copies, max(1, copies * period * share // 4), period),
    st.integers(2, 4),
    st.sampled_from([2, 4, 9, 30]),
    st.integers(0, 4),
)


near_loops = st.builds(
    Ban.loop, st.integers(2, 3), st.integers(1, 14), st.sampled_from([30, 60]), st.sampled_from([70, 85, 100])
)


@given(
    case=st.tuples(looping_texts(), loops) | st.tuples(varied_copies(), near_loops),
    cuts=st.lists(st.integers(0, 200), max_size=30),
)
@example(case=("ab ab. ab ab. ab ab. ", Ban.loop(3, 9, 9)), cuts=[])
@example(
    case=("".join(f"So {word} go it it go. " for word in ("ab", "cd", "ef", "gh")), Ban.loop(3, 15, 60)), cuts=[30, 48]
)
def test_loops_are_found_by_their_definition_and_held_back_from_their_start(
    case: tuple[str, Ban], cuts: list[int]
) -> None:
    text, ban = case
    matcher, read = TextMatcher([ban]), 0
    phrases, others = matcher.phrases.start, matcher.start
    found, promises = [], []
    pieces = cut_at(text, cuts)
    for number, piece in enumerate(pieces):
        phrases, others, result = matcher.read(phrases, others, piece, final=number == len(pieces) - 1)
        for hit in result.matches:
            start = read + len(piece) - hit.start_back
            found.append((start, read + len(piece) - hit.end_back + 1))
            assert all(settled <= start for at, settled in promises if at > start)
        read += len(piece)
        promises.append((read, read - max(result.open, default=0)))
    assert sorted(found) == sorted(loop_occurrences(text, ban))


@pytest.mark.parametrize(
    "text", ["ha ha ha ha ha ha ha", "-" * 500, "| --- " * 40, "0, " * 99, "No. No. No. No. No.", "so, " * 9, "\n" * 99]
)
def test_intended_repetitions_are_not_loops(text: str) -> None:
    assert antislop.loops().find(text) == []


@pytest.mark.parametrize(
    ("text", "stays"),
    [
        ("Tom ran. I was so happy. I was so happy. I was SO happy. I left.", "Tom ran. I was so happy."),
        ("glad. He was sad and so on. He was sad and so on. He was sad and so on.", "glad. He was sad and so on."),
        ('"I don\'t know you." “I don’t know you.” "I don\'t know you." ', '"I don\'t know you."'),
        ("- one more apple\n- one more apple\n- one more apple\n", "- one more apple"),
        ("彼は東京に行きました。" * 7, "彼は東京に行きました。" * 2),
        # Without spaces each character begins a word; a passage in another script has no word to begin at.
        ("他在城里走了很久才找到那家小店。" * 3, "他在城里走了很久才找到那家小店。"),
        ("彼は町を長い間歩いて小さな店を見つけ" * 3, "彼は町を長い間歩いて小さな店を見つけ彼は町を長い間歩"),
        ("เขาเดินในเมืองเป็นเวลานาน" * 3, "เขาเดินในเมืองเป็นเวลานานเขาเดินใ"),
        ("hewalkedinthetown" * 3, "hewalkedinthetownhewalkedinthetownhewalked"),
    ],
)
def test_the_first_copy_stays(text: str, stays: str) -> None:
    first = antislop.loops().find(text)[0]
    assert text[: first.start].rstrip() == stays


def test_a_loop_is_saved_and_loaded_without_a_phrase() -> None:
    ban = Ban.loop(4, max_passage=200, weight=0.5)
    assert write_ban(ban) == "a passage 4 times in a row\tloop weight=0.5 copies=4 max_passage=200"
    assert read_ban(write_ban(ban)) == ban
    assert read_ban("a passage 3 times in a row\tloop") == Ban.loop() == Ban(Ban.loop().pattern)
    assert eval(repr(ban), {"Ban": Ban}) == ban


@pytest.mark.parametrize(
    ("make", "fix"),
    [
        (lambda: Ban.loop(1), "2 or more"),
        (lambda: Ban.loop(3, 0), "1 or more"),
        (lambda: Ban.loop(3, 40, 10), "raise max_passage"),
        (lambda: Ban.loop(500, 40, 1000), "together"),
        (lambda: Ban.loop(similarity=101), "100 or less"),
        (lambda: Ban.loop(3.5), "whole number"),  # type: ignore[arg-type]
        (lambda: read_ban("he ran\tloop"), "a loop has no text of its own"),
    ],
)
def test_impossible_options_of_loops_are_refused(make: object, fix: str) -> None:
    with pytest.raises(BanError, match=fix):
        make()  # type: ignore[operator]


def test_a_state_keeps_a_bounded_part_of_a_text() -> None:
    search = LoopSearch([Loop(max_passage=50)])
    state = search.start
    for number in range(3000):
        state, _ = search.read(state, f"word {number} ")
    assert len(state.old.text) + len(state.new.text) < 1000


def test_prose_is_hardly_held_back() -> None:
    text = " ".join(sentence for construction in read_constructions() for sentence in construction.examples)
    search = LoopSearch([Loop()])
    state, held = search.start, []
    for word in text.split(" "):
        state, result = search.read(state, f"{word} ")
        held.append(max(result.open, default=0))
    assert sum(held) / len(held) < 3  # characters
    assert max(held) > 3

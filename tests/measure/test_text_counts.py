"""Counting in blocks gives what counting word by word gives, wherever texts and pieces end."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from antislop import Ban, BanList
from antislop.measure import blocks, slop, text_counts
from antislop.measure.blocks import cut_blocks
from antislop.measure.metrics import Tally, measure
from antislop.measure.slop import PatternSearch, Range, Scale
from antislop.measure.text_counts import TextCounts
from tests.support.naive_metrics import count_text, count_windows

SCALE = Scale(
    frozenset({"tapestry", "whisper"}),
    frozenset({("voice", "barely", "whisper"), ("old", "old", "door")}),
    "content",
    {"slop_words": Range(0, 100), "slop_trigrams": Range(0, 10), "contrasts": Range(0, 1)},
    {2: {("old", "door"): 0.5, ("door", "stood"): 0.01}, 3: {("old", "door", "stood"): 0.1}},
)
OVER_WORDS = Scale(SCALE.words, frozenset({("voice", "was", "barely"), ("the", "old", "door")}), "words")
WORDS = [
    "the",
    "old",
    "tapestry",
    "voice",
    "barely",
    "whisper",
    "was",
    "a",
    "door",
    "It’s",
    "ΟΣ",
    "Mr",
    "J",
    "İ",
    "p.m.",
    "2nd",
    "e\u0301",
]
JOINTS = [
    *[" "] * 8,
    ". ",
    ".",
    "! ",
    "?” ",
    " “",
    '"',
    ' "',
    "\n",
    "\n\n",
    "\n \n",
    " \n",
    "  ",
    ", ",
    "'",
    "7",
    "\0",
    "। ",
    "。",
    "؟ ",
]
PROSE = st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from(JOINTS)), max_size=150).map(
    lambda pairs: "".join(word + joint for word, joint in pairs)
)
LONG = "".join(f"{WORDS[i * i % 11]}{JOINTS[i * 7 % len(JOINTS)]}" for i in range(900))


def cut(text: str, places: list[int]) -> list[str]:
    ends = sorted({place % (len(text) + 1) for place in places})
    return [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]


def shorten_blocks(patch: pytest.MonkeyPatch, size: int) -> None:
    patch.setattr(blocks, "BLOCK_CHARACTERS", size)
    patch.setattr(text_counts, "BLOCK_CHARACTERS", size)
    patch.setattr(blocks, "LONGEST_BLOCK", 10**9)  # which is cut even within a word


@settings(max_examples=150)
@given(
    st.lists(PROSE, min_size=1, max_size=5),
    st.lists(st.integers(0, 10**6), max_size=6),
    st.sampled_from([40, 300, 5000]),
    st.sampled_from([SCALE, OVER_WORDS]),
)
@example([LONG, LONG[::-1], "", LONG], [7, 1000], 500, SCALE)
@example(["A door, voice barely", "whisper"], [], 40, SCALE)  # no trigram goes on in another text
@example(["a\n", "\nb"], [1], 40, SCALE)
@example(["a “" + " 7" * 40 + " door.” A door.", 'a "' + " 7" * 40 + '” door" a'], [], 20, SCALE)
@example(['a "' + "7” " * 40 + 'door" 7'], [], 20, SCALE)
@example(["a “" + " 7" * 40 + "” a door", "a “" + " 7" * 40 + "\n\na door", 'a "' + " 7" * 40, "a"], [], 20, SCALE)
def test_sums_are_those_of_counting_word_by_word(texts: list[str], places: list[int], block: int, scale: Scale) -> None:
    with pytest.MonkeyPatch.context() as patch:
        shorten_blocks(patch, block)
        counts = TextCounts(scale)
        for text in texts:
            counts.add(cut(text, places))
        counts.flush()
    naive = [count_text(text, scale) for text in texts]
    expected = {name: [each[name] for each in naive] for name in naive[0]} | count_windows(texts)
    assert {name: list(column) for name, column in counts.sums.items()} == expected


@settings(max_examples=30)
@given(st.lists(PROSE, min_size=2, max_size=4), st.lists(st.integers(0, 10**6), max_size=6), st.integers(30, 400))
def test_a_text_in_pieces_has_the_metrics_of_the_whole_text(texts: list[str], places: list[int], block: int) -> None:
    bans = {"bans": BanList(["a", "the old door", Ban.loop(), Ban.regex("was .{,9}door")])}
    whole, pieces = Tally(SCALE, bans=bans), Tally(SCALE, bans=bans)
    for text in texts:
        whole.add(text)
    with pytest.MonkeyPatch.context() as patch:
        shorten_blocks(patch, block)
        for text in texts:
            pieces.add(iter(cut(text, places)))
        pieces.words  # noqa: B018 - counts the last block
    assert measure(pieces, resamples=20) == measure(whole, resamples=20)
    assert [pieces.find_overused(n) for n in (2, 3)] == [whole.find_overused(n) for n in (2, 3)]


@pytest.mark.parametrize(
    ("text", "cuts"),
    [
        ("An end. A word, more", ["An end.", " A word,", " more"]),
        ("a few words, more   ", ["a few", " words,", " more   "]),
        ("a,b,c,d,e,f,g", ["a,b,c,d,e,", "f,g"]),
        ("x" * 50, ["x" * 40, "x" * 10]),
        (" " * 50, [" " * 40, " " * 10]),
    ],
)
def test_a_long_text_is_cut_after_a_sentence_or_a_word_or_a_comma_and_at_last_anywhere(
    text: str, cuts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "BLOCK_CHARACTERS", 10)
    monkeypatch.setattr(blocks, "LONGEST_BLOCK", 40)
    assert list(cut_blocks(text)) == cuts
    assert "".join(cut_blocks([text])) == text


def test_words_beyond_the_vocabulary_are_told_apart_by_a_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"{a}{b}{c}x" for a in "abcdefghij" for b in "abcdefghij" for c in "abcdefgh"]
    text = " ".join(names) + " tapestry. The voice was barely a whisper. " + " ".join(names)
    expected = count_text(text, SCALE) | {name: column[0] for name, column in count_windows([text]).items()}
    monkeypatch.setattr(text_counts, "VOCABULARY", 300)
    counts = TextCounts(SCALE)
    counts.add([text])
    counts.flush()
    assert len(counts.numbers) < 320
    assert {name: column[0] for name, column in counts.sums.items()} == pytest.approx(expected, rel=1e-3)
    assert counts.sums["slop_words"][0] == 2 and counts.sums["slop_trigrams"][0] == 1


@given(st.lists(st.sampled_from(["it was not", " a door", ", but", " a mouth", ". ", "no", "\n"])), st.data())
def test_contrasts_in_pieces_are_those_of_the_whole_text(parts: list[str], data: st.DataObject) -> None:
    text = "".join(parts)
    patterns = slop._compile_contrasts()
    places = data.draw(st.lists(st.integers(0, 10**6), max_size=5))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slop, "LONGEST_MATCH", 120)
        patch.setattr(slop, "SEARCHED_AT_ONCE", data.draw(st.sampled_from([0, 200])))
        search = PatternSearch(patterns)
        found = [match for piece in cut(text, places) for match in search.read(piece, is_last=False)]
        found += search.read("", is_last=True)
    naive = [(*match.span(), number) for number, pattern in enumerate(patterns) for match in pattern.finditer(text)]
    assert found == sorted(naive)


def test_overused_ngrams_are_the_same_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    texts = [" ".join(rng.choice(WORDS[:9], 60)) for _ in range(20)]
    expected = Tally(SCALE)
    for text in texts:
        expected.add(text)
    found = [expected.find_overused(n) for n in (2, 3)], expected.sum_up()["overused"].tolist()
    monkeypatch.setattr("antislop.measure.diversity.NGRAMS_AT_ONCE", 64)
    in_parts = Tally(SCALE)
    for text in texts:
        in_parts.add(text)
    assert ([in_parts.find_overused(n) for n in (2, 3)], in_parts.sum_up()["overused"].tolist()) == found

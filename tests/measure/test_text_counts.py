"""Texts are split into words, sentences and paragraphs without loss, and counted as word by word, in any blocks."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import regex
from hypothesis import example, given, settings, strategies as st

from antislop import Ban, BanList
from antislop.core.bans.folding import BOUNDARY, fold_phrase, fold_text
from antislop.measure import blocks, slop
from antislop.measure.blocks import cut_blocks
from antislop.measure.languages import ENGLISH, find_language
from antislop.measure.metrics import Tally, measure
from antislop.measure.slop import PatternSearch, Range, Scale
from antislop.measure.text_counts import TextCounts
from antislop.measure.words import BREAK, END, extract_words
from tests.support.naive_metrics import (
    count_dialogues,
    count_text,
    count_windows,
    extract_paragraphs,
    extract_sentences,
)

SCALE = Scale(
    frozenset({"tapestry", "whisper"}),
    frozenset({("voice", "barely", "whisper"), ("old", "old", "door")}),
    "content",
    {"slop_words": Range(0, 100), "slop_trigrams": Range(0, 10), "contrasts": Range(0, 1)},
    {2: {("old", "door"): 0.5, ("door", "stood"): 0.01}, 3: {("old", "door", "stood"): 0.1}},
)
FRENCH = replace(SCALE, language=find_language("fr"))
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
    " »",
    "« ",
    " ”",
    "\n— ",
    " 「",
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
    patch.setattr(blocks, "LONGEST_BLOCK", 10**9)  # which is cut even within a word


@settings(max_examples=150)
@given(
    st.lists(PROSE, min_size=1, max_size=5),
    st.lists(st.integers(0, 10**6), max_size=6),
    st.sampled_from([40, 300, 5000]),
    st.sampled_from([SCALE, OVER_WORDS, FRENCH]),
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
    monkeypatch.setattr(blocks, "VOCABULARY", 300)
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


PIECES = [
    *"abAÉ",
    *"..!?…。",
    *"“”\"'’",
    " ",
    " ",
    "\n",
    "\n\n",
    "7",
    "—",
    "Mr.",
    " J. ",
    "p.m.",
    *"।؟։。」",
    "e\u0301",
]
JUMBLE = st.lists(st.sampled_from(PIECES), max_size=80).map("".join)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        ("42 % of 7,000 …", ["of"]),
        ("Don’t, don't, donʼt", ["don't"] * 3),
        ("'tis the dogs' bone", ["tis", "the", "dogs", "bone"]),
        ("rock'n'roll", ["rock'n", "roll"]),
        ("snake_case and 3rd-rate", ["snake", "case", "and", "3rd", "rate"]),
        ("the 1990s, B2B, 0x1F and m²", ["the", "1990s", "b2b", "0x1f", "and", "m²"]),
        ("हिन्दी में, বাংলা ও മലയാളം", ["हिन्दी", "में", "বাংলা", "ও", "മലയാളം"]),
        ("cafe\u0301 tie\u0302\u0301ng", ["café", "tiếng"]),
        ("می\u200cخواهم كـــتاب כִּתָּה", ["میخواهم", "كتاب", "כִּתָּה"]),
        ("over\u00adwhelm\u00ading ta\u200bpes\ufefftry", ["overwhelming", "tapestry"]),
        ("İstanbul ΟΔΟΣ straße", ["i̇stanbul", "οδος", "straße"]),
        ("CAFÉ naïve Übermut", ["café", "naïve", "übermut"]),
        ("它笑了。", ["它笑了"]),
    ],
)
def test_words_are_runs_of_letters_and_digits_with_one_apostrophe_at_most(text: str, words: list[str]) -> None:
    assert extract_words(text) == words


SIGNS = [*"aÉ7२ßİσक", "\u093e", "\u094d", "\u0301", "\u0323", "\u00ad", "\u200b", "\u200d", "\u0640", "ʼ", *"'’_.-² \n"]


@given(st.lists(st.sampled_from(SIGNS), max_size=30).map("".join))
def test_words_are_those_of_the_matcher_in_every_spelling(text: str) -> None:
    """But contractions are one word here, and numbers are none."""
    symbols = fold_phrase(text)
    runs = regex.findall(f"{BOUNDARY}([^{BOUNDARY}]+){BOUNDARY}((?='{BOUNDARY})?)", symbols)
    found, is_open = list[str](), False
    for run, _ in runs:
        is_joined = (
            is_open and regex.match(r"\p{L}", run) and "'" not in found[-1] and regex.search(r"\p{L}", found[-1])
        )
        found[-1:] = [f"{found[-1]}'{run}"] if is_joined else [*found[-1:], run]
        symbols = symbols[symbols.index(run) + len(run) + 1 :]
        is_open = symbols.startswith(f"'{BOUNDARY}")
    expected = [word for word in found if regex.search(r"\p{L}", word)]
    assert [fold_text(word) for word in extract_words(text)] == expected


def test_content_words_are_those_that_are_no_function_words_contracted_or_not() -> None:
    words = ["she'd", "didn't", "see", "o'clock", "the", "sea's", "it's"]
    assert ENGLISH.drop_stop_words(words) == ["see", "o'clock", "sea's"]


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("He came. She left.", ["He came.", "She left."]),
        ("Mr. and Mrs. J. R. Hyde met Dr. Who. End.", ["Mr. and Mrs. J. R. Hyde met Dr. Who.", "End."]),
        ("“Stop!” he cried. “Why?”", ["“Stop!”", "he cried.", "“Why?”"]),
        ("It cost 3.50 at example.com today.", ["It cost 3.50 at example.com today."]),
        ("Well... perhaps?! Yes", ["Well...", "perhaps?!", "Yes"]),
        ("One line\nof two. … ***", ["One line\nof two."]),
        ("A title\n\nA text.", ["A title", "A text."]),
        (
            "At 5 p.m. in St. Ives, e.g. I. She can't. He's. So?",
            ["At 5 p.m. in St. Ives, e.g. I. She can't.", "He's.", "So?"],
        ),
        ("متى؟ الآن. یہ ہے۔ وہ ہے۔", ["متى؟", "الآن.", "یہ ہے۔", "وہ ہے۔"]),
        ("यह है। वह है॥ अब। Այո։ Ոչ։", ["यह है।", "वह है॥", "अब।", "Այո։", "Ոչ։"]),
        ("「证明。」他笑了！是吗？是", ["「证明。」", "他笑了！", "是吗？", "是"]),
        ("»Komm!« Er geht. „Nein!“ Doch.", ["»Komm!«", "Er geht.", "„Nein!“", "Doch."]),
        ("Er geht. »Komm!« ‚Nein!‘ Doch.", ["Er geht.", "»Komm!«", "‚Nein!‘", "Doch."]),
        ("« Viens\u202f! » Il part. « Non. »", ["« Viens\u202f! »", "Il part.", "« Non. »"]),
        ("”Kom!” Hon gick. »Nej.» Jo.", ["”Kom!”", "Hon gick.", "»Nej.»", "Jo."]),
        ("「誰ですか。」『私だ！』はい。", ["「誰ですか。」", "『私だ！』", "はい。"]),
        ("သူသွား။ လာ။ រត់។ ទៅ។", ["သူသွား။", "လာ။", "រត់។", "ទៅ។"]),
    ],
)
def test_sentences_end_where_people_see_an_end(text: str, sentences: list[str]) -> None:
    assert extract_sentences(text) == sentences
    cut = [0, *(match.end() for match in END.finditer(text)), len(text)]
    parts = (part.strip() for a, b in pairwise(cut) for part in BREAK.split(text[a:b]))
    assert [part for part in parts if extract_words(part)] == sentences


@given(JUMBLE)
def test_sentences_hold_all_words_in_their_order(text: str) -> None:
    assert [word for one in extract_sentences(text) for word in extract_words(one)] == extract_words(text)


@given(JUMBLE)
def test_paragraphs_hold_all_words_in_their_order(text: str) -> None:
    paragraphs = extract_paragraphs(text)
    assert [word for one in paragraphs for word in extract_words(one)] == extract_words(text)
    assert all(one == one.strip() and "\n\n" not in one for one in paragraphs)


def test_lines_of_white_space_separate_paragraphs_and_rules_are_none() -> None:
    assert extract_paragraphs("a\n \t\nb\n\n* * *\n\n7\n\nc\nd") == ["a", "b", "c\nd"]


@pytest.mark.parametrize(
    ("paragraph", "is_speech"),
    [
        ("“Come,” she said.", True),
        ('He said, "Come."', True),
        ("“Speech that goes on in the next paragraph", True),
        ("„Komm“, sagte sie.", True),
        ("Nothing is said.", False),
        ("‘Come,’ she said.", False),
        ('A "7" on the door.', False),
        ("»Komm«, sagte sie.", True),
        ("« Viens », dit-elle.", True),
        ("”Kom”, sade hon.", True),
        ("Hon sade: »Kom!»", True),
        ("「来て。」と彼女は言った。", True),
        ("『来て』", True),
        ("speech of an earlier paragraph.” He left.", False),
        ("Home » Settings", False),
        ("A board of 6” by 4”.", False),
        ("— Viens, dit-elle.", False),
    ],
)
def test_dialogue_is_words_between_double_quotes(paragraph: str, is_speech: bool) -> None:
    assert count_dialogues([paragraph]) == count_in("en", paragraph) == is_speech


@pytest.mark.parametrize(
    ("paragraph", "is_speech"),
    [("— Viens, dit-elle.", True), ("Il dit :\n – Viens.", True), ("Il — Paul — part.", False), ("—\nOui", False)],
)
def test_where_dialogue_begins_with_a_dash_a_line_after_one_is_dialogue(paragraph: str, is_speech: bool) -> None:
    assert count_dialogues([paragraph], has_dashes=True) == count_in("fr", paragraph) == is_speech


def count_in(language: str, text: str) -> float:
    counts = TextCounts(replace(SCALE, language=find_language(language)))
    counts.add([text])
    counts.flush()
    return counts.sums["dialogues"][0]

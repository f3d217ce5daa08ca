"""Texts are split into words, sentences and paragraphs without loss."""

from __future__ import annotations

from itertools import pairwise

import pytest
import regex
from hypothesis import given, strategies as st

from antislop.core.bans.folding import BOUNDARY, fold_phrase, fold_text
from antislop.measure.words import BREAK, END, drop_stop_words, extract_words
from tests.support.naive_metrics import count_dialogues, extract_paragraphs, extract_sentences

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
PROSE = st.lists(st.sampled_from(PIECES), max_size=80).map("".join)


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
    assert drop_stop_words(words) == ["see", "o'clock", "sea's"]


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
    ],
)
def test_sentences_end_where_people_see_an_end(text: str, sentences: list[str]) -> None:
    assert extract_sentences(text) == sentences
    cut = [0, *(match.end() for match in END.finditer(text)), len(text)]
    parts = (part.strip() for a, b in pairwise(cut) for part in BREAK.split(text[a:b]))
    assert [part for part in parts if extract_words(part)] == sentences


@given(PROSE)
def test_sentences_hold_all_words_in_their_order(text: str) -> None:
    assert [word for one in extract_sentences(text) for word in extract_words(one)] == extract_words(text)


@given(PROSE)
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
    ],
)
def test_dialogue_is_words_between_double_quotes(paragraph: str, is_speech: bool) -> None:
    assert count_dialogues([paragraph]) == is_speech

"""Texts are split into words, sentences and paragraphs without loss."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from antislop.measure.words import drop_stop_words, extract_paragraphs, extract_words
from tests.support.naive_metrics import count_dialogues, extract_sentences

PIECES = [*"abAÉ", *"..!?…。", *"“”\"'’", " ", " ", "\n", "\n\n", "7", "—", "Mr.", " J. "]
PROSE = st.lists(st.sampled_from(PIECES), max_size=80).map("".join)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        ("42 % of 7,000 …", ["of"]),
        ("Don’t, don't, donʼt", ["don't"] * 3),
        ("'tis the dogs' bone", ["tis", "the", "dogs", "bone"]),
        ("rock'n'roll", ["rock'n", "roll"]),
        ("snake_case and 3rd-rate", ["snake", "case", "and", "rd", "rate"]),
        ("CAFÉ naïve Übermut", ["café", "naïve", "übermut"]),
        ("它笑了。", ["它笑了"]),
    ],
)
def test_words_are_runs_of_letters_with_one_apostrophe_at_most(text: str, words: list[str]) -> None:
    assert extract_words(text) == words


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
    ],
)
def test_sentences_end_where_people_see_an_end(text: str, sentences: list[str]) -> None:
    assert extract_sentences(text) == sentences


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

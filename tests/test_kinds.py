r"""Regexes, sequences of words, wildcards and token ids are found where a naive search of the whole text finds them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from oracles import cut_at, matches, sequence_occurrences

from antislop.bans import Ban
from antislop.detector import Detector

PATTERNS = (
    r"ab", r"a+", r"a+?b", r"\bab?\b", r"a$", r"(?m)a$", r"(?m)^b", r"^a", r"b\Z", r"a(?!b)", r"a(?=.*b)",
    r"(?s)a.*b", r"a.{0,3}b", r"(?<=b)a", r"(?<!b)a\b", r"(?<=^.{2})a", r"(a|b)\1", r"(?P<x>a)b(?P=x)", r"\Bb",
    r"(?i)AB+", r"[^.\n]+\.", r"a(?:ba)*b?", r"(?>a+)b", r"a++", r"(a)?(?(1)b|\.)", r"not .{0,9}?but",
    r"(?x) a b # $ \b", r"a|ab|abb", r"[$\b]a", r"\.\s", r"(?s)a.{2,}?b", r"(?:a|aa)+\.", r"\S+\n", r"(?i)(?:s|ß)+",
)  # fmt: skip
texts = st.text(st.sampled_from("aab b.\nsS"), max_size=24)
places = st.lists(st.integers(0, 40), max_size=8)


def find_in_pieces(bans: Sequence[Ban], pieces: Sequence[str]) -> list[tuple[int, int, int]]:
    """(ban, start, end) of everything that is found while a text is read piece by piece, in order of start."""
    detector, found, read = Detector(bans), [], 0
    place, rest = detector.phrases.start, detector.start
    for number, piece in enumerate(pieces):
        place, rest, reading = detector.read(place, rest, piece, final=number == len(pieces) - 1)
        read += len(piece)
        found += [(hit.pattern, read - hit.first, read - hit.last + 1) for hit in reading.hits]
    return sorted(found)


@given(text=texts, where=places, pattern=st.sampled_from(PATTERNS))
def test_every_cutting_of_a_text_has_the_matches_of_the_whole(text: str, where: list[int], pattern: str) -> None:
    expected = [(0, *span) for span in matches(pattern, text)]
    assert find_in_pieces([Ban.regex(pattern)], cut_at(text, where)) == expected


@given(text=texts, where=places, chosen=st.sets(st.sampled_from(PATTERNS), min_size=2))
def test_regexes_that_are_searched_together_find_what_each_finds(text: str, where: list[int], chosen: set[str]) -> None:
    patterns = sorted(chosen)
    expected = sorted((i, *span) for i, pattern in enumerate(patterns) for span in matches(pattern, text))
    assert find_in_pieces([Ban.regex(pattern) for pattern in patterns], cut_at(text, where)) == expected


@given(text=texts, where=places, pattern=st.sampled_from([r"ab", r"a.*", r"a.*b", r"a+", r"(?s)a.*?\."]))
@pytest.mark.parametrize("max_span", [1, 2, 5])
def test_a_match_is_seen_as_far_as_its_span_goes(max_span: int, text: str, where: list[int], pattern: str) -> None:
    expected = [(0, *span) for span in matches(pattern, text, max_span=max_span)]
    assert find_in_pieces([Ban.regex(pattern, max_span=max_span)], cut_at(text, where)) == expected


SEQUENCES = (
    Ban.words(["a", "b"]),
    Ban.words(["a", "b", "c"], gap=1),
    Ban.words(["a", "a", "b"], gap=2),
    Ban.words(["b", "c"], gap=1, skip_stop_words=True),
    Ban.words(["ab"], gap=3),
    Ban.words(["a'b", "c"], gap=1),
    Ban.wildcard("b * c", gap=2),
    Ban.wildcard("b * * c", gap=2),
    Ban.wildcard("a* c"),
    Ban.wildcard("*b c*"),
    Ban.wildcard("a*b"),
    Ban.wildcard("b c", gap=0),
)
sentences = st.text(st.sampled_from("aabc   .'-tTBC\n"), max_size=30)


@given(text=sentences, where=places, ban=st.sampled_from(SEQUENCES))
@example(text="b'c a the c", where=[], ban=SEQUENCES[3])
def test_sequences_are_found_where_a_naive_search_finds_them_however_the_text_is_cut(
    text: str, where: list[int], ban: Ban
) -> None:
    expected = [(0, *span) for span in sorted(sequence_occurrences(text, ban))]
    assert find_in_pieces([ban], cut_at(text, where)) == expected


@given(text=sentences, where=places)
def test_sequences_that_are_read_together_are_found_as_each_alone(text: str, where: list[int]) -> None:
    expected = sorted((i, *span) for i, ban in enumerate(SEQUENCES) for span in sequence_occurrences(text, ban))
    assert find_in_pieces(SEQUENCES, cut_at(text, where)) == expected

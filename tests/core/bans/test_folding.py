"""Texts that read the same fold to the same symbols, and every symbol has the position of its character."""

from __future__ import annotations

import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterator
from itertools import groupby, pairwise
from typing import get_args

import pytest
from hypothesis import assume, example, given, strategies as st

from antislop.core.bans.ban_list import BanList
from antislop.core.bans.bans import Ban
from antislop.core.bans.folding import BOUNDARY, IN_WORD, START, Folding, fold, fold_phrase, fold_word

# Letters whose case changes their length, marks of several classes, jamo, spaces, quotes, invisible and unspaced ones.
INTERESTING = (
    "aAbzZ09 .,'-_ßẞİıIiſKÅéÉñΰςσΣǰŉʼǅﬁŐ가각\u1100\u1161\u11a8\u0301\u0323\u0307\u0308\u0345\u0340\u0334\u034f"
    "中文々の。コーヒーไทยกำ‘’“”„′—–−…\u00a0\u2001\u3000\t\n\r\x1c\u2028\u200b\u200d\u200f\ufeff\u00ad\ufe0fकषि्नाই"
    "كآٌِ\u0670\u05d0\u05b8\u05bc\ufb2a👩🏽🚀\0\ufffd\U0010ffff\U0001d400٣²½"
)
texts = st.text(st.sampled_from(INTERESTING) | st.characters(exclude_categories=["Cs"]), max_size=25)
foldings = st.sampled_from(get_args(Folding))


def symbols_of(text: str, *, folding: Folding = "caseless") -> str:
    return fold(text, folding=folding, final=True).symbols


def readable(text: str, *, folding: Folding = "caseless") -> str:
    return symbols_of(text, folding=folding).replace(BOUNDARY, "|")


def cut(text: str, places: list[int]) -> list[str]:
    """Return the pieces of a text; any of them, also the last one, may be empty."""
    edges = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[start:end] for start, end in pairwise(edges)]


def fold_in_pieces(pieces: list[str], *, folding: Folding) -> tuple[str, list[int]]:
    """Return the symbols and, for each, the index of its character in the whole text."""
    symbols, places, context, begin = "", [], START, 0
    for number, piece in enumerate(pieces):
        final = number == len(pieces) - 1
        folded = fold(piece, context=context, folding=folding, final=final)
        symbols, context = symbols + folded.symbols, folded.context
        places += [begin + origin for origin in folded.origins]
        begin += len(piece)
    return symbols, places


@given(text=texts, places=st.lists(st.integers(0, 30), max_size=6), folding=foldings)
@example(text="a\u0301\u0323b", places=[1, 2, 2, 3], folding="caseless")
@example(text="\u0323a  ß", places=[1, 2, 3, 3], folding="caseless")
def test_symbols_and_origins_do_not_depend_on_how_a_text_is_cut(text: str, places: list[int], folding: Folding) -> None:
    expected = fold(text, folding=folding, final=True)
    symbols, places_found = fold_in_pieces(cut(text, places), folding=folding)
    assert (symbols, places_found) == (expected.symbols, expected.origins)


@given(text=texts, folding=foldings)
def test_a_text_folds_the_same_composed_and_decomposed(text: str, folding: Folding) -> None:
    assume(folding != "turkish" or "I" not in unicodedata.normalize("NFD", text))  # an I apart from its dot is an ı
    expected = symbols_of(text, folding=folding)
    for form in ("NFC", "NFD"):
        assert symbols_of(unicodedata.normalize(form, text), folding=folding) == expected


@given(data=st.data(), text=texts)
def test_the_same_bans_are_found_in_a_text_composed_and_decomposed(data: st.DataObject, text: str) -> None:
    bans = BanList([Ban(phrase, edges="anywhere") for phrase in _some_phrases_of(data, text)])
    expected = _count(bans, text)
    for form in ("NFC", "NFD"):
        assert _count(bans, unicodedata.normalize(form, text)) == expected


def _some_phrases_of(data: st.DataObject, text: str) -> Iterator[str]:
    for start in data.draw(st.lists(st.integers(0, 25), max_size=4)):
        phrase = unicodedata.normalize("NFC", text[start : start + 4])
        if symbols_of(phrase).strip(BOUNDARY + " "):
            yield phrase


def _count(bans: BanList, text: str) -> Counter[str]:
    return Counter(match.ban.text for match in bans.find(text))


@given(text=texts, folding=foldings)
def test_origins_never_decrease(text: str, folding: Folding) -> None:
    origins = fold(text, folding=folding, final=True).origins
    assert origins == sorted(origins)


@given(text=texts.map(lambda t: unicodedata.normalize("NFD", t)), folding=foldings)
def test_a_symbol_comes_from_the_character_at_its_origin(text: str, folding: Folding) -> None:
    """The text is decomposed, so that no mark is reordered."""
    folded = fold(text.replace("\u200d", "x"), folding=folding, final=True)
    text = text.replace("\u200d", "x") + " "
    for symbol, origin in zip(folded.symbols, folded.origins, strict=True):
        if symbol == BOUNDARY:  # its origin is that of the character after it
            assert origin == len(text) - 1 or symbols_of(text[origin]) != ""
        else:
            assert symbol in symbols_of(text[origin], folding=folding)


def test_the_origin_of_a_reordered_mark_is_not_before_that_of_the_mark_it_follows() -> None:
    folded = fold("a\u0301\u0323x", final=True)
    assert folded.symbols == "\0a\u0323\u0301x\0"
    assert folded.origins == [0, 0, 2, 2, 3, 4]
    assert [match[1:] for match in BanList([Ban("a\u0323\u0301", edges="anywhere")]).find("a\u0301\u0323x")] == [(0, 3)]


def test_a_mark_that_waits_for_the_next_piece_keeps_its_origin() -> None:
    waiting = fold("e\u0301\u200b").context
    assert fold("b", context=waiting).origins == [-2, 0]


@given(phrase=texts | st.text(st.characters(max_codepoint=127), max_size=30), folding=foldings)
def test_a_phrase_with_edges_anywhere_folds_as_a_text_without_its_outer_boundaries(
    phrase: str, folding: Folding
) -> None:
    expected = symbols_of(phrase, folding=folding)
    assert fold_phrase(phrase, folding=folding) == expected
    assert fold_phrase(phrase, folding=folding, edges="anywhere") == expected.strip(BOUNDARY)


# Vowel signs of Arabic and Hebrew have no symbols.
SIGNS = dict.fromkeys([*range(0x64B, 0x653), 0x670, *range(0x5B0, 0x5BE), 0x5BF, 0x5C1, 0x5C2, 0x5C4, 0x5C5, 0x5C7])


def _canonical_caseless(text: str) -> str:
    """Return the form by which Unicode compares strings without case (definition D145)."""
    return unicodedata.normalize("NFD", unicodedata.normalize("NFD", text).casefold()).translate(SIGNS)


# Excluded: apostrophes that Unicode counts as letters, and invisible characters; both fold differently here.
_LETTERS = st.characters(categories=["L", "M"], exclude_characters="ʼŉ").filter(lambda char: symbols_of(char))
_UNICODE = [
    char for char in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(char) not in ("Cs", "Cn", "Co")
]


@given(st.text(_LETTERS | st.sampled_from("ßẞİıſΰςσΣǰǅÅ가각\u0301\u0323\u0345\u0340"), max_size=25))
@example("\u0345\u0301α\u0301\u0345\u0323")
def test_without_boundaries_letters_fold_as_unicode_defines(text: str) -> None:
    assert symbols_of(text).replace(BOUNDARY, "") == _canonical_caseless(text)


def test_every_character_with_a_case_or_a_decomposition_folds_as_unicode_defines() -> None:
    changing = [char for char in _UNICODE if char.casefold() != char or unicodedata.normalize("NFD", char) != char]
    assert len(changing) > 10_000
    for char in changing:
        expected = " " if char.isspace() else _canonical_caseless(char).replace("ʼ", "'")
        assert symbols_of(char).replace(BOUNDARY, "") == expected, f"U+{ord(char):04X}"


def test_characters_that_fold_to_nothing_are_invisible() -> None:
    nothing = [char for char in _UNICODE if not symbols_of(char)]
    assert {unicodedata.category(char) for char in nothing} == {"Cf", "Mn", "Lm"}
    assert [char for char in nothing if unicodedata.category(char) == "Lm"] == [
        "\u0640"
    ]  # tatweel, which only stretches a word
    assert {"\u200b", "\u200d", "\u00ad", "\u2060", "\ufeff", "\ufe0f"} <= set(nothing)


def test_letters_keep_their_boundaries_in_every_case() -> None:
    for char in _UNICODE:
        if char.casefold() != char and char != "ŉ":
            assert (BOUNDARY in symbols_of(char)) == (BOUNDARY in symbols_of(char, folding="cased"))


@given(st.text("aB1 .-'\n", max_size=30))
def test_boundaries_surround_every_run_of_letters_and_digits(text: str) -> None:
    spaced = " ".join(text.replace("\n", " ").split(" "))
    runs = ((is_word, "".join(run)) for is_word, run in groupby(_squeeze(spaced).lower(), str.isalnum))
    assert readable(text) == "".join(f"|{run}|" if is_word else run for is_word, run in runs)


def _squeeze(text: str) -> str:
    while "  " in text:
        text = text.replace("  ", " ")
    return text


SAME = {
    "eszett": ("straße", "STRASSE"),
    "capital eszett": ("STRAẞE", "strasse"),
    "final sigma": ("ὈΔΥΣΣΕΎΣ", "ὀδυσσεύς"),
    "Turkish I with its dot apart": ("İstanbul", "I\u0307STANBUL"),
    "Kelvin and Ångström signs": ("5 K, 3 Å", "5 k, 3 å"),
    "ligature": ("ﬁnal", "FINAL"),
    "marks in another order": ("ạ\u0301", "á\u0323"),
    "Hangul": ("각", "\u1100\u1161\u11a8"),
    "single quotes": ("‘it’s’", "'it's'"),
    "the apostrophe that is a letter": ("donʼt", "don't"),
    "the apostrophe inside a letter": ("ŉ boer", "'n boer"),
    "prime": ("5′", "5'"),
    "double quotes": ("“so” „so‟", '"so" "so"'),
    "dashes": ("a—b–c‐d‑e−f―g", "a-b-c-d-e-f-g"),
    "ellipsis": ("well…", "well..."),
    "no-break space": ("a\u00a0b\u202fc", "a b c"),
    "repeated white space": ("a \t\r\n\u3000 b", "a b"),
    "a new paragraph": ("a testament\n\n  to", "a testament to"),
    "zero-width": ("de\u200bl\u200dv\ufeffe\u2060", "delve"),
    "soft hyphen": ("tap\u00adestry", "tapestry"),
    "emoji with a variation selector": ("❤\ufe0f", "❤"),
    "invisible between spaces": ("a \u200b b", "a b"),
    "a mark after an invisible character": ("e\u200d\u0301", "é"),
}
DIFFERENT = {
    "accents": ("cafe", "café"),
    "dotless i": ("ı", "i"),
    "I with a dot": ("İ", "i"),
    "a space or none": ("a b", "ab"),
    "a hyphen or none": ("a-b", "ab"),
    "a quote or an apostrophe": ('"a', "'a"),
    "compatibility": ("x²", "x2"),
    "the boundary itself": ("a\0b", "a b"),
}


@pytest.mark.parametrize("case", SAME)
def test_texts_that_read_the_same_fold_to_the_same_symbols(case: str) -> None:
    left, right = SAME[case]
    assert readable(left) == readable(right)


@pytest.mark.parametrize("case", DIFFERENT)
def test_texts_that_read_differently_fold_to_different_symbols(case: str) -> None:
    left, right = DIFFERENT[case]
    assert readable(left) != readable(right)


def test_turkish_text_has_two_letters_i_in_both_cases() -> None:
    assert readable("İIiı i\u0307 ÎîÍ", folding="turkish") == "|iıiı| |i| |i\u0302i\u0302i\u0301|"


def test_a_case_sensitive_text_keeps_only_its_case() -> None:
    assert readable("Don’t\u00a0 É", folding="cased") == "|Don|'|t| |E\u0301|"
    assert readable("Don’t\u00a0 É") == "|don|'|t| |e\u0301|"


def test_no_character_of_a_text_is_mistaken_for_a_boundary() -> None:
    assert symbols_of("\0a\0") == "\ufffd\0a\0\ufffd"


@pytest.mark.parametrize("before", ["İİİİ ", "ẞßﬁ ", "é\u0301\u200b ", "…  ", "👩‍🚀 ", "각 "])
def test_a_character_that_changes_its_length_does_not_shift_the_following_ones(before: str) -> None:
    (match,) = BanList(["delve"]).find(f"{before}DELVE x")
    assert match[1:] == (len(before), len(before) + 5)


@pytest.mark.parametrize(
    ("phrase", "text", "span"),
    [
        ("猫", "黒猫が", (1, 2)),
        ("コーヒー", "コーヒー2杯", (0, 4)),
        ("ラー", "スーパーラーー", (4, 6)),
        ("ラーメン", "名物ラーメンを", (2, 6)),
        ("ไทย", "ภาษาไทยดี", (4, 7)),
        ("tapestry", "これはtapestryです", (3, 11)),
        ("ພາສາ", "ແມ່ນພາສາລາວ", (4, 8)),
    ],
)
def test_in_a_script_without_spaces_a_word_may_begin_and_end_anywhere(
    phrase: str, text: str, span: tuple[int, int]
) -> None:
    assert [match[1:] for match in BanList([phrase]).find(text)] == [span]


@pytest.mark.parametrize(
    ("phrase", "text"), [("кот", "котик"), ("한국", "남한국"), ("हिन्द", "हिन्दी"), ("ναι", "είναι")]
)
def test_in_a_script_with_spaces_a_word_is_not_found_inside_another(phrase: str, text: str) -> None:
    assert BanList([phrase]).find(text) == []
    assert len(BanList([Ban(phrase, edges="anywhere")]).find(text)) == 1


def test_marks_belong_to_the_letter_before_them() -> None:
    assert readable("cafe\u0301 हिन्दी") == "|cafe\u0301| |हिन्दी|"
    assert BanList(["cafe", "हिन"]).find("cafe\u0301 हिन्दी") == []


@given(
    text=st.builds(str.__add__, st.sampled_from(["", " ", "  ", "-"]), st.text("aB2é\u0301", max_size=3)),
    before=st.text("a. 猫", max_size=2),
    folding=foldings,
)
@example(text=" Word", before="a", folding="caseless")
@example(text="ord", before="a", folding="caseless")
@example(text=" Word", before=" ", folding="cased")
def test_a_word_folds_in_one_piece_as_it_does_symbol_by_symbol(text: str, before: str, folding: Folding) -> None:
    context = fold(before, folding=folding).context
    word = fold_word(text, last=context.last, folding=folding)
    folded = fold(text, context=context, folding=folding)
    follows_space = text.startswith(" ") and context.last == fold(" ").context.last
    is_other = folding == "written" or not re.fullmatch(" ?[0-9A-Za-z]+", text)
    assert (word is None) == (is_other or follows_space)
    if word is not None:
        assert (word, IN_WORD) == (folded.symbols, folded.context)

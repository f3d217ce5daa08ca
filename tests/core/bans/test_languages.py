"""Folding, edges, gaps and counts work in scripts without spaces, with marks, and from right to left."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate, pairwise
from typing import NamedTuple

import pytest
import regex
from hypothesis import example, given, strategies as st

from antislop.core.bans.ban_list import BanList
from antislop.core.bans.bans import Ban
from antislop.core.bans.token_matcher import Matcher
from antislop.errors import BanError
from tests.support.oracles import cut_at, find_in_pieces
from tests.support.toys import Bytes, Words


class Language(NamedTuple):
    """The expected matches of every kind of ban in one language.

    phrase: occurs once in `text`, spelled `spelling`, and not in `other`. words: match `reach` in `text`, with up to
    `gap` words between them. wildcard: matches `glob` in `text`. exempt: a part of `text` that contains the phrase.
    distance: words from the start of the phrase to the start of its second occurrence in `twice`.
    """

    phrase: str
    text: str
    spelling: str
    other: str
    words: list[str]
    gap: int
    reach: str
    wildcard: str
    glob: str
    exempt: str
    twice: str
    distance: int


LANGUAGES = {
    "Chinese": Language(
        phrase="一幅画卷", text="「这是一幅画卷。」他说。", spelling="一幅画卷", other="一幅油画，画卷一幅。",
        words=["这", "画卷"], gap=3, reach="这是一幅画卷", wildcard="一*画", glob="一幅画",
        exempt="这是一幅画卷", twice="一幅画卷，又一幅画卷。", distance=5,
    ),
    "Japanese": Language(
        phrase="ハス", text="池のハ\u200bス、白い。", spelling="ハ\u200bス", other="パス、バス、ハズ、ﾊｽ。",
        words=["池", "ハス"], gap=1, reach="池のハ\u200bス", wildcard="池 * ハス", glob="池のハ\u200bス",
        exempt="池のハス", twice="ハスと青いハス", distance=5,
    ),
    "Thai": Language(
        phrase="น้ำ", text="เขากินน้ำที่บ้าน", spelling="น้ำ", other="นำ น้า น้",
        words=["กิน", "บ้าน"], gap=2, reach="กินน้ำที่บ้าน", wildcard="กิน*ที่", glob="กินน้ำที่",
        exempt="กินน้ำ", twice="น้ำกับน้ำ", distance=3,
    ),
    "Lao": Language(
        phrase="ນ້ຳ", text="ກິນນ້ຳຢູ່ເຮືອນ", spelling="ນ້ຳ", other="ນຳ ນ້",
        words=["ກິນ", "ຢູ່"], gap=1, reach="ກິນນ້ຳຢູ່", wildcard="ກິນ*ຢູ່", glob="ກິນນ້ຳຢູ່",
        exempt="ກິນນ້ຳ", twice="ນ້ຳ ນ້ຳ", distance=1,
    ),
    "Burmese": Language(
        phrase="စာ", text="မြန်မာစာကို ဖတ်", spelling="စာ", other="စား စ",
        words=["မြန်မာ", "ကို"], gap=1, reach="မြန်မာစာကို", wildcard="မာ*ကို", glob="မာစာကို",
        exempt="မြန်မာစာ", twice="စာနဲ့စာ", distance=2,
    ),
    "Arabic": Language(
        phrase="كتاب جديد", text="قال: «كتــاب\u200f جديد»؟ نعم.", spelling="كتــاب\u200f جديد",
        other="مكتاب جديد، كتاب جديدة، كِتَابُه جديد.",
        words=["قال", "جديد"], gap=1, reach="قال: «كتــاب\u200f جديد",
        wildcard="قال * جد*", glob="قال: «كتــاب\u200f جديد",
        exempt="قال: «كتاب جديد»", twice="كتاب جديد و كتاب جديد", distance=3,
    ),
    "Arabic with vowel marks": Language(
        phrase="كِتَابٌ", text="هٰذَا \u2067كِتَابٌ\u2069 جَدِيدٌ.", spelling="كِتَابٌ", other="كتاب كِتَابًا كِتَاب",
        words=["هٰذَا", "جَدِيدٌ"], gap=1, reach="هٰذَا \u2067كِتَابٌ\u2069 جَدِيدٌ", wildcard="هٰذَا * جَ*",
        glob="هٰذَا \u2067كِتَابٌ\u2069 جَدِيدٌ", exempt="هٰذَا كِتَابٌ", twice="كِتَابٌ مَكِتَابٌ جَدِيدٌ وَ كِتَابٌ", distance=4,
    ),
    "Persian": Language(
        phrase="می‌خواهم", text="من می\u200cخواهم بروم؟", spelling="می\u200cخواهم", other="نمی‌خواهم، می خواهم، می‌خواهمش",
        words=["من", "بروم"], gap=1, reach="من می\u200cخواهم بروم", wildcard="من می*", glob="من می\u200cخواهم",
        exempt="من می‌خواهم", twice="می‌خواهم یا نه، می‌خواهم", distance=3,
    ),
    "Hebrew": Language(
        phrase="שָׁלוֹם", text="אמרתי: \u202bש\u05b8\u05c1לו\u05b9ם\u202c לך.", spelling="ש\u05b8\u05c1לו\u05b9ם",
        other="שלום שָׁלוֹםך גשָׁלוֹם",
        words=["אמרתי", "לך"], gap=1, reach="אמרתי: \u202bש\u05b8\u05c1לו\u05b9ם\u202c לך", wildcard="א* שָׁלוֹם",
        glob="אמרתי: \u202bש\u05b8\u05c1לו\u05b9ם", exempt="אמרתי: שָׁלוֹם", twice="שָׁלוֹם, שָׁלוֹם", distance=1,
    ),
    "Hindi": Language(
        phrase="हिन्दी", text="वह हि\u200bन्दी पढ़ता है।", spelling="हि\u200bन्दी", other="हिन्द हिन्दीभाषी अहिन्दी",
        words=["वह", "पढ़ता"], gap=1, reach="वह हि\u200bन्दी पढ़ता", wildcard="वह * प*", glob="वह हि\u200bन्दी पढ़ता",
        exempt="वह हिन्दी", twice="हिन्दी और हिन्दी", distance=2,
    ),
    "Korean": Language(
        phrase="한국", text="저는 한국, 서울에서.", spelling="한국", other="남한국 한구 한구근",
        words=["저는", "서울에서"], gap=1, reach="저는 한국, 서울에서", wildcard="저* 한국", glob="저는 한국",
        exempt="저는 한국", twice="한국과 북한, 한국", distance=2,
    ),
    "German": Language(
        phrase="große Straße", text="Eine GROSSE  STRASSE, breit.", spelling="GROSSE  STRASSE",
        other="Großstraße, große Straßen", words=["eine", "breit"], gap=2, reach="Eine GROSSE  STRASSE, breit",
        wildcard="gro* straße", glob="GROSSE  STRASSE",
        exempt="eine große Straße", twice="Große Straße, noch jene große Straße", distance=4,
    ),
    "Turkish": Language(
        phrase="İstanbul", text="Güzel İSTANBUL’da ırmak.", spelling="İSTANBUL", other="ISTANBUL, istanbul, İstanbullu",
        words=["güzel", "ırmak"], gap=1, reach="Güzel İSTANBUL’da ırmak", wildcard="g* İs*", glob="Güzel İSTANBUL",
        exempt="güzel İstanbul", twice="İstanbul ve İstanbul", distance=2,
    ),
    "French": Language(
        phrase="l'été ?", text="C’est L’ÉTÉ\u202f? Oui.", spelling="L’ÉTÉ\u202f?", other="l'ete ? l'étéw ?",
        words=["c'est", "été"], gap=1, reach="C’est L’ÉTÉ", wildcard="c'est l'é*", glob="C’est L’ÉTÉ",
        exempt="c'est l'été ?", twice="L’été ? Non, l’été ?", distance=3,
    ),
    "Russian": Language(
        phrase="ёлка", text="Наша ЕЛКА\u0301, нет: Е\u0308ЛКА стоит.", spelling="Е\u0308ЛКА",
        other="елка ёлка\u0301 ёлками", words=["нет", "стоит"], gap=1,
        reach="нет: Е\u0308ЛКА стоит", wildcard="нет ё*", glob="нет: Е\u0308ЛКА",
        exempt="нет: ёлка", twice="Ёлка — это ёлка", distance=2,
    ),
    "Greek": Language(
        phrase="ο δρόμος", text="Είναι Ο ΔΡΌΜΟΣ μας;", spelling="Ο ΔΡΌΜΟΣ", other="ο δρομος, το δρόμος, ο δρόμοσα",
        words=["είναι", "μας"], gap=2, reach="Είναι Ο ΔΡΌΜΟΣ μας", wildcard="είναι * δ*σ", glob="Είναι Ο ΔΡΌΜΟΣ",
        exempt="είναι ο δρόμος", twice="Ο δρόμος, ναι, ο δρόμος", distance=3,
    ),
    "Vietnamese": Language(
        phrase="tiếng Việt", text="Nói TIE\u0302\u0301NG Vie\u0323\u0302t đi!",
        spelling="TIE\u0302\u0301NG Vie\u0323\u0302t",
        other="tiêng Việt, tiếng Viêt, tieng Viet", words=["nói", "đi"], gap=2,
        reach="Nói TIE\u0302\u0301NG Vie\u0323\u0302t đi",
        wildcard="nói * v*", glob="Nói TIE\u0302\u0301NG Vie\u0323\u0302t",
        exempt="nói tiếng Việt", twice="Tiếng Việt, tiếng Việt", distance=2,
    ),
}  # fmt: skip
in_each_language = pytest.mark.parametrize("language", LANGUAGES.values(), ids=LANGUAGES)
BYTES = Bytes()


def find(ban: Ban, text: str) -> list[str]:
    return [text[start:end] for _, start, end in BanList([ban]).find(text)]


def starts(bans: Sequence[Ban], pieces: Sequence[bytes]) -> list[int]:
    """Return for each violation, in a text that ends, the first byte of the piece in which it begins."""
    matcher, places = Matcher(bans, Words(*pieces)), [0, *accumulate(map(len, pieces))]
    states = list(accumulate(range(len(pieces)), matcher.feed, initial=matcher.start()))
    found = [violation for state in states[1:] for violation in state.violations]
    return [places[violation.start] for violation in (*found, *matcher.finish(states[-1]))]


@in_each_language
def test_a_phrase_is_found_in_its_text_and_not_in_different_ones(language: Language) -> None:
    assert find(Ban(language.phrase), language.text) == [language.spelling]
    assert find(Ban(language.phrase), language.other) == []


@in_each_language
@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_the_same_is_found_in_composed_and_decomposed_texts(language: Language, form: str) -> None:
    def norm(text: str) -> str:
        return unicodedata.normalize(form, text)

    assert find(Ban(norm(language.phrase)), norm(language.text)) == [norm(language.spelling)]
    assert find(Ban(norm(language.phrase)), norm(language.other)) == []


@in_each_language
def test_a_phrase_starts_in_the_piece_of_its_first_byte_however_its_characters_are_cut(language: Language) -> None:
    whole, bans = language.text.encode(), [Ban(language.phrase)]
    first = len(language.text[: language.text.index(language.spelling)].encode())
    for cut in range(1, len(whole)):
        assert starts(bans, [whole[:cut], whole[cut:]]) == [cut if cut <= first else 0]
    assert starts(bans, [bytes([byte]) for byte in whole]) == [first]
    assert starts(bans, [bytes([byte]) for byte in language.other.encode()]) == []


@in_each_language
def test_words_with_a_gap_match_up_to_the_gap(language: Language) -> None:
    assert find(Ban.words(language.words, gap=language.gap), language.text) == [language.reach]
    assert find(Ban.words(language.words, gap=language.gap - 1), language.text) == []


@in_each_language
def test_a_wildcard_matches_letters_and_words(language: Language) -> None:
    assert find(Ban.wildcard(language.wildcard, gap=1), language.text) == [language.glob]


@in_each_language
def test_a_phrase_does_not_count_inside_an_exempt_one(language: Language) -> None:
    ban = Ban(language.phrase, exempt=(language.exempt,))
    assert find(ban, language.text) == []
    assert len(find(ban, language.twice)) == len(find(Ban(language.phrase), language.twice))


@in_each_language
def test_allowed_occurrences_are_per_words_or_in_scripts_without_spaces_per_characters(language: Language) -> None:
    for text in (language.twice, unicodedata.normalize("NFD", language.twice), language.twice.replace(" ", " \u200b")):
        assert len(find(Ban(language.phrase), text)) == 2
        assert find(Ban(language.phrase, at_most=1, per_words=language.distance), text) == []
        assert len(find(Ban(language.phrase, at_most=1, per_words=language.distance + 1), text)) == 1


@pytest.mark.parametrize(
    ("end", "first", "second"),
    [("。", "東", "京"), ("｡", "東", "京"), ("؟ ", "كتاب", "جديد"), ("۔ ", "کتاب", "نئی"), ("। ", "वह", "यह"),
     ("། ", "བོད", "ཡིག"), ("។ ", "ភាសា", "ខ្មែរ"), ("။ ", "စာ", "မာ"), ("። ", "ሰላም", "ቤት")],
)  # fmt: skip
def test_a_sequence_of_words_ends_with_its_sentence_in_every_script(end: str, first: str, second: str) -> None:
    ban = Ban.words([first, second], gap=4)
    assert find(ban, first + end + second) == []
    assert find(ban, f"{first} {second}") == [f"{first} {second}"]


@pytest.mark.parametrize(
    ("between", "is_one"),
    [("St. ", True), ("p.m. ", True), ("ST. ", True), ("J. R. ", True), ("Mr.. ", False), ("it. ", False),
     ("vs! ", False), ("can't. ", False), ("東. ", False), ("5. ", False)],
)  # fmt: skip
def test_a_sequence_of_words_goes_on_after_an_abbreviation(between: str, is_one: bool) -> None:
    found = [Ban.words(["mount", "helens"], gap=3), Ban.wildcard("mount * helens", gap=3)]
    assert [len(find(ban, f"Mount {between}Helens")) for ban in found] == [is_one, is_one]
    assert find(Ban.wildcard("dr. *son"), "Ask Dr. Watson") == ["Dr. Watson"]


@pytest.mark.parametrize(
    ("phrase", "text"),
    [("か", "が"), ("か", "か\u3099"), ("คน", "คนี"), ("ก", "กำ"), ("ກ", "ກຳ"), ("ខ", "ខ្មែរ"), ("က", "ကို"), ("ﾊ", "ﾊﾟ")],
)
def test_in_a_script_without_spaces_a_character_ends_after_its_marks(phrase: str, text: str) -> None:
    assert find(Ban(phrase), text) == []
    assert find(Ban(phrase), f"{phrase}。{phrase}") == [phrase, phrase]


@pytest.mark.parametrize(
    ("number", "longer"),
    [("12", "120"), ("१२", "१२०"), ("٣٤", "٣٤٥"), ("๑๒", "๑๒๐"), ("១២", "១២០"), ("１２", "１２０")],
)
def test_a_number_is_not_found_in_a_longer_one_in_the_digits_of_any_script(number: str, longer: str) -> None:
    assert find(Ban(number), f"ปี{longer}年") == []
    assert find(Ban(number), f"ปี{number}年") == [number]


@pytest.mark.parametrize("mark", ["\u061c", "\u202a", "\u202e", "\u2066", "\u2069", "\u0640", "\U000e0100", "\u2061"])
def test_direction_and_stretching_characters_hide_no_ban(mark: str) -> None:
    assert find(Ban("كتاب"), f"{mark}كت{mark}اب{mark}") == [f"كت{mark}اب"]
    assert find(Ban("葛城"), f"葛{mark}城") == [f"葛{mark}城"]


SIGNS = "".join(map(chr, [*range(0x64B, 0x653), 0x670, *range(0x5B0, 0x5BE), 0x5BF, 0x5C1, 0x5C2, 0x5C4, 0x5C5, 0x5C7]))


@pytest.mark.parametrize(
    ("phrase", "text", "found"),
    [
        ("كتاب", "هذا كِتَابٌ، وَالكِتَابُ. كِتَابُهُ", ["كِتَابٌ", "كِتَابُ"]),
        ("كتاب", "«كِتَابٌ»‏ كِتَابٌـ", ["كِتَابٌ", "كِتَابٌ"]),
        ("كتاب جديد", "كِتَابٌ\nجَدِيدٌ", ["كِتَابٌ\nجَدِيدٌ"]),
        ("מילים", "מִילִּים, בַּמִּילִּים מִילִּיםְ!", ["מִילִּים", "מִּילִּים", "מִילִּיםְ"]),
        ("שלום", "\ufb2aָלוֹם ש\u05c1לו\ufb4b", ["\ufb2aָלוֹם"]),  # signs within a character, and after the letters
        ("שלו", "ש\u05c1ל\ufb4b!", ["ש\u05c1ל\ufb4b"]),
        ("كِتَاب", "كتاب كِتَاب كِتَابٌ", ["كِتَاب"]),  # a phrase with signs is found only with the same ones
    ],
)
def test_a_word_without_vowel_signs_is_found_with_them_up_to_its_last(phrase: str, text: str, found: list[str]) -> None:
    assert find(Ban(phrase), text) == found
    assert find(Ban(phrase, case_sensitive=True), text) == [each for each in found if each == phrase]


def test_sequences_and_repeats_of_words_with_vowel_signs_end_after_the_last_sign() -> None:
    assert find(Ban.words(["كتاب", "جديد"]), "كِتَابٌ جَدِيدٌ.") == ["كِتَابٌ جَدِيدٌ"]
    assert find(Ban.wildcard("كتا* جديد"), "كِتَابٌ جَدِيدٌ.") == ["كِتَابٌ جَدِيدٌ"]
    assert find(Ban.repeat(words=2), "كتاب جديد كِتَابٌ جَدِيدٌ.") == ["كِتَابٌ جَدِيدٌ"]


@given(
    text=st.text(st.sampled_from(f"كتاא. \u0640\u200b{SIGNS[:2]}{SIGNS[-2:]}"), max_size=20),
    phrase=st.text("كتاא", min_size=1, max_size=3),
    cuts=st.lists(st.integers(0, 60), max_size=8),
)
@example(text="كِـٌـ ", phrase="ك", cuts=[1, 2, 3, 4])
def test_vowel_signs_are_skipped_as_a_regex_skips_them(text: str, phrase: str, cuts: list[int]) -> None:
    skipped = rf"(?:[\u0640\u200b]*[{SIGNS}])*"
    between = rf"[\u0640\u200b{SIGNS}]*"
    word = rf"(?<![كتاא]{between}){between.join(phrase)}{skipped}(?!{between}[كتاא])"
    expected = [match.span() for match in regex.finditer(word, text)]
    found = find_in_pieces([Ban(phrase)], cut_at(text, cuts))
    assert [match[1:] for match in found] == expected


def test_letters_with_different_vowel_marks_or_accents_are_different() -> None:
    for phrase, text in [
        ("كِتَاب", "كُتَاب"),
        ("שָׁלוֹם", "שׂלוֹם"),
        ("cafe", "café"),
        ("елка", "ёлка"),
        ("ο δρομος", "ο δρόμος"),
    ]:
        assert find(Ban(phrase), text) == []
        assert find(Ban(text), phrase) == []


@pytest.mark.parametrize(
    ("phrase", "text", "found"),
    [
        ("한숨", "한숨을 쉬고 한숨이, 큰한숨 한숨", ["한숨", "한숨", "한숨"]),
        ("바다", "바다는 바닥 바다\u11ab", ["바다"]),  # not within a syllable
        ("깊은 한숨", "깊은 한숨을, 깊은곳 한숨", ["깊은 한숨"]),
        ("숨", "숨을 숨", ["숨"]),  # a short word begins many others
        ("tapestry", "tapestry는 tapestrys", ["tapestry"]),
        ("كتاب", "الكتاب وبالكتاب للكتاب مكتاب كتابه", ["كتاب", "كتاب", "كتاب"]),
        ("كِتَاب", "وَالْكِتَاب", ["كِتَاب"]),
        ("الكتاب", "والكتاب", ["الكتاب"]),
        ("بيت", "البيت بيت", ["بيت"]),
        ("تاريخ", "لتاريخ متاريخ مبتاريخ", ["تاريخ"]),
        ("מילים", "במילים והמילים גמילים מיליםש", ["מילים", "מילים"]),
        ("בית", "הבית בית", ["בית"]),
        ("הבית", "שבהבית", ["הבית"]),
    ],
)
@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_a_word_is_found_with_the_particles_that_are_written_on_to_it(
    phrase: str, text: str, found: list[str], form: str
) -> None:
    def norm(text: str) -> str:
        return unicodedata.normalize(form, text)

    assert find(Ban(norm(phrase)), norm(text)) == list(map(norm, found))


@pytest.mark.parametrize(
    ("ban", "text", "found"),
    [
        (Ban("ışık", language="tr"), "IŞIK Işık ışık işik İŞİK ışıklar", ["IŞIK", "Işık", "ışık"]),
        (Ban("IŞIK", language="tr"), "ışık işik", ["ışık"]),
        (
            Ban("istanbul", language="az"),
            "İSTANBUL İstanbul i\u0307stanbul ISTANBUL",
            ["İSTANBUL", "İstanbul", "i\u0307stanbul"],
        ),
        (Ban("kalbi", language="tr-TR"), "KALBİ KALBI", ["KALBİ"]),
        (Ban("kalbi", language="de"), "KALBİ KALBI", ["KALBI"]),
        (Ban("kı", edges="anywhere", language="tr"), "AKIL akil", ["KI"]),
        (Ban("kalbi", case_sensitive=True, language="tr"), "KALBİ kalbi", ["kalbi"]),
        (Ban.wildcard("sı*", language="tr"), "sinema SIRA", ["SIRA"]),
        (Ban.words(["iki", "kız"], gap=1, language="tr"), "İKİ güzel KIZ", ["İKİ güzel KIZ"]),
        (Ban("kedi", exempt=["iri kedi"], language="tr"), "İRİ KEDİ, KEDİ", ["KEDİ"]),
    ],
)
def test_a_ban_of_a_turkish_list_tells_the_two_letters_i_apart(ban: Ban, text: str, found: list[str]) -> None:
    assert find(ban, text) == found
    assert eval(repr(ban)) == ban
    pieces = [bytes([byte]) for byte in text.encode()]
    assert starts([ban], pieces) == [len(text[: match.start].encode()) for match in BanList([ban]).find(text)]


def test_a_language_belongs_to_the_ban_and_only_where_it_has_an_effect() -> None:
    bans = BanList([Ban("kalbi", language="tr")]) | "kalbi" | Ban("masal", language="tr")
    assert [(match.ban.pattern.language, match.start) for match in bans.find("KALBİ KALBI masal")] == [
        ("tr", 0),
        ("", 6),
        ("", 12),
    ]
    assert Ban("masal", language="tr") == Ban("masal")
    assert Ban("ı", language="az").key == Ban("ı", language="tr").key != Ban("ı").key
    assert Ban.words(["ı"], language="tr").key != Ban.words(["ı"]).key


@given(
    text=st.text(st.sampled_from("iİıIkK .é"), max_size=20),
    phrase=st.text("iİıIkK", min_size=1, max_size=3),
    cuts=st.lists(st.integers(0, 60), max_size=4),
)
def test_turkish_phrases_are_found_as_in_a_text_in_lower_case(text: str, phrase: str, cuts: list[int]) -> None:
    def lower(text: str) -> str:
        return text.replace("İ", "i").replace("I", "ı").lower()

    expected = [match.span() for match in regex.finditer(rf"\b{lower(phrase)}\b", lower(text))]
    bans = [Ban(phrase, language="tr")]
    assert [match[1:] for match in find_in_pieces(bans, cut_at(text, cuts))] == expected
    assert [match[1:] for match in BanList(bans).find(text)] == expected


MIXED = (
    "ٌِ\u05bc\ufb2aaBiIı é\u0301\u0323ßİ東京。がか\u3099ﾊﾟน้ำก็ເກຳ်មြខ្ម كِـت\u200cא\u05b8हि्न한ᄒ\u1161\u11ab๑१٣1.،’ \u202b"
    "والהב가🇩🇪👍🏽\u200d🚀\u20e3"
)
mixed = st.text(st.sampled_from(MIXED), min_size=1, max_size=16)
places = st.lists(st.integers(0, 60), max_size=8)


def draw_bans(data: st.DataObject, text: str) -> list[Ban]:
    """Draw bans of several kinds from parts of a text, which need not contain them."""
    bans: list[Ban] = []
    for start in data.draw(st.lists(st.integers(0, len(text) - 1), min_size=1, max_size=3)):
        part = text[start : start + data.draw(st.integers(1, 4))]
        around = text[max(0, start - 1) : start + 5]
        for made in (
            lambda part, around: Ban(part),
            lambda part, around: Ban(part, edges="anywhere"),
            lambda part, around: Ban(part, language="tr"),
            lambda part, around: Ban(part, at_most=1, per_words=3),
            lambda part, around: Ban(part, exempt=(around,)),
            lambda part, around: Ban.words([part[:1], part[-1:]], gap=1),
            lambda part, around: Ban.wildcard(f"{part[:1]}*"),
        ):
            with suppress(BanError):  # nothing visible, or no word
                bans.append(made(part, around))
    return list(BanList(bans))


@given(data=st.data(), text=mixed, cuts=places)
def test_matches_do_not_depend_on_how_a_text_of_many_scripts_is_cut(
    data: st.DataObject, text: str, cuts: list[int]
) -> None:
    bans = draw_bans(data, text)
    assert find_in_pieces(bans, cut_at(text, cuts)) == find_in_pieces(bans, [text])


@given(data=st.data(), text=mixed, cuts=places)
def test_violations_start_at_the_same_bytes_however_a_text_is_cut(
    data: st.DataObject, text: str, cuts: list[int]
) -> None:
    bans, whole = draw_bans(data, text), text.encode()
    each_byte = starts(bans, [bytes([byte]) for byte in whole])
    edges = [0, *sorted(place % (len(whole) + 1) for place in cuts), len(whole)]
    pieces = [whole[start:end] for start, end in pairwise(edges) if start < end]
    begins = [0, *accumulate(map(len, pieces))]
    expected = {max(begin for begin in begins if begin <= place) for place in each_byte}
    assert set(starts(bans, pieces)) == expected

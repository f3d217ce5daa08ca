"""A language is found by its texts; lists made in it catch what was planted; nothing English is measured in it."""

from __future__ import annotations

import random
from math import isnan

import pytest

from antislop import BanList
from antislop.errors import BanError, InputError
from antislop.files.texts import Text
from antislop.measure import Tally, measure, profile_texts
from antislop.measure.human_distance import measure_distance
from antislop.measure.languages import ENGLISH, find_language, read_languages, recognize
from antislop.measure.profiles.ngrams import Kind, find_explained
from antislop.measure.profiles.profiles import Profile, take_census
from antislop.measure.profiles.rates import Baseline, HumanRates
from antislop.measure.profiles.to_bans import Choice, choose_bans
from antislop.measure.slop import Scale
from tests.support.refusals import refused

SENTENCES = {  # what anybody may say about a house and a river
    "en": "The house by the river is old, but it was never empty, and we like to walk there in the evening.",
    "de": "Das Haus am Fluss ist alt, aber es war nie leer, und wir gehen dort am Abend gern spazieren.",
    "fr": "La maison près de la rivière est vieille, mais elle n'a jamais été vide, et nous y marchons le soir.",
    "es": "La casa junto al río es vieja, pero nunca ha estado vacía, y por la tarde paseamos por allí.",
    "tr": "Nehrin yanındaki ev eski ama hiç boş kalmadı ve akşamları orada bir yürüyüş yapmak çok güzel.",
    "ru": "Дом у реки старый, но он никогда не был пустым, и вечером мы любим там гулять.",
    "uk": "Будинок біля річки старий, але він ніколи не був порожнім, і ввечері ми любимо там гуляти.",
    "ar": "البيت على النهر قديم لكن لم يكن فارغا من قبل ونحن نحب أن نمشي هناك في المساء.",
    "he": "הבית על הנהר ישן, אבל הוא לא היה ריק אף פעם, ואנחנו אוהבים לטייל שם בערב.",
    "hi": "नदी के पास का घर पुराना है, लेकिन वह कभी खाली नहीं था, और शाम को हम वहाँ टहलते हैं।",
    "ko": "강가의 집은 오래되었지만 한 번도 비어 있지 않았고, 우리는 저녁에 그곳을 걷는 것을 좋아한다.",
    "zh": "河边的房子很旧，但是从来没有空过，我们喜欢晚上在那里散步。",
    "ja": "川のそばの家は古いですが、空き家になったことはなく、私たちは夕方そこを散歩するのが好きです。",
    "th": "บ้านริมแม่น้ำเก่าแล้ว แต่ไม่เคยว่าง และเราชอบเดินเล่นที่นั่นในตอนเย็น",
}


def test_a_text_shows_its_language_by_script_and_function_words() -> None:
    found = {code: recognize([text]) for code, text in SENTENCES.items()}
    assert {code: language and language.code for code, language in found.items()} == {code: code for code in SENTENCES}


@pytest.mark.parametrize("text", ["", "123 — 456", "Qqzz wrt fgh jkl mnb vcx plk mnj"])
def test_what_is_in_no_language_is_taken_for_none(text: str) -> None:
    assert recognize([text]) is None


def test_an_unknown_code_is_refused() -> None:
    refused("'xx' is not known: pass one of en, de", find_language, "xx")


def test_each_language_has_function_words_that_measuring_takes_for_words() -> None:
    for language in read_languages().values():
        words = language.words.split()
        assert len(words) == len({*words}) >= 11, language.code
        assert language.drop_stop_words(words) == []


def test_words_without_spaces_are_found_and_joined_again() -> None:
    pytest.importorskip("icu4py")
    for code in ("zh", "ja", "th"):
        language, text = find_language(code), SENTENCES[code]
        words = language.segment(text).split("\v")
        assert "".join(words) == text and len(words) > 10
        phrase = words[1:4]
        assert language.join(" ".join(phrase)) == "".join(phrase)
    assert find_language("zh").join("我 的 AI 模型") == "我的 AI 模型"
    assert find_language("de").segment("Haus am Fluss") == find_language("de").join("Haus am Fluss") == "Haus am Fluss"


def test_without_icu_a_language_without_spaces_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "icu4py.breakers", None)
    refused(r"words of Chinese .*icu4py.*\[languages\]", find_language("zh").segment, "你好")


def test_rates_come_from_large_lists_alone() -> None:
    german, french = find_language("de"), find_language("fr")
    assert german.find_share("straße") > 1e-6  # wordfreq has strasse
    assert french.find_share("l'eau") == french.find_share("eau") > 1e-5
    assert find_language("km").frequencies == find_language("ko").frequencies == {}  # English, and parts of words
    assert "die" not in ENGLISH.drop_stop_words(["die"]) or german.drop_stop_words(["die"]) == []


# -- lists ------------------------------------------------------------------------------------------------------------

PLANTED = {
    "de": ("ein Schauer lief über ihren Rücken", "tanzte im Mondlicht"),
    "zh": ("一股暖流涌上心头", "眼中闪过一丝光芒"),
}


def write(code: str, numbers: random.Random, *, count: int, planted: int = 0) -> list[Text]:
    """Return texts of words of a sentence in random order, every `planted`-th with a planted phrase in the middle."""
    space = "" if code == "zh" else " "
    words = find_language(code).segment(SENTENCES[code]).replace("\v", " ").split()
    texts = []
    for number in range(count):
        drawn = numbers.choices(words, k=60)
        if planted and number % planted == 0:
            drawn.insert(30, numbers.choice(PLANTED[code]))
        texts.append(Text(space.join(drawn), f"prompt {number}", str(number), {}))
    return texts


def profile(code: str) -> Profile:
    numbers, language = random.Random(0), find_language(code)
    human = write(code, numbers, count=600)
    baseline = Baseline.of(take_census(lambda: human, language=language, min_count=3), name="human")
    texts = write(code, numbers, count=200, planted=2)
    rates = HumanRates(baseline, language=language)
    return profile_texts(texts, language=code, rates=rates, examples=True)


@pytest.mark.parametrize("code", PLANTED)
def test_a_list_has_what_was_planted_and_nothing_else(code: str) -> None:
    if code == "zh":
        pytest.importorskip("icu4py")
    bans, _ = choose_bans(profile(code), Choice())
    numbers = random.Random(1)
    assert all(list(bans.find(phrase)) for phrase in PLANTED[code])
    assert all(any(BanList([ban]).find(phrase) for phrase in PLANTED[code]) for ban in bans)
    assert not any(list(bans.find(text.text)) for text in write(code, numbers, count=200))


def test_a_phrase_explains_a_word_that_is_sometimes_cut_otherwise() -> None:
    counts: dict[tuple[Kind, str], int] = {("word", "ลึกลับ"): 43, ("phrase", "ยิ้ม ลึกลับ"): 39}
    assert find_explained(counts, find_language("th")) == {("word", "ลึกลับ")}
    assert find_explained(counts, find_language("ko")) == set()  # where spaces tell, 4 of 43 occurrences are others


def test_german_names_are_not_known() -> None:
    made = profile("de")
    assert not any(entry.is_name for entry in made.entries)
    with pytest.raises(BanError, match="German"):
        choose_bans(made, Choice(names="none"))


# -- metrics ----------------------------------------------------------------------------------------------------------


def test_what_is_english_has_no_value_in_another_language() -> None:
    tally = Tally(Scale.load(find_language("de")))
    tally.add("Es war nicht nur ein Haus, sondern ein Zeugnis. " * 200)
    metrics, distance = measure(tally), measure_distance(tally)
    english = ("slop_words", "slop_trigrams", "contrasts", "slop_score", "repetition")
    assert all(metrics[name].value is None and metrics[name].why for name in english)
    assert (distance.overall.value, distance.overall.why) == (None, "the human passages are English")
    assert metrics["sentence_words"].value == 9 and not isnan(metrics["mattr_500"].value or 0.0)


def test_words_and_sentences_of_chinese_are_counted() -> None:
    pytest.importorskip("icu4py")
    tally = Tally(Scale.load(find_language("zh")))
    tally.add(SENTENCES["zh"] * 40)
    metrics = measure(tally)
    words = [word for word in find_language("zh").segment(SENTENCES["zh"]).split("\v") if word not in "，。"]
    assert tally.words == 40 * len(words) and metrics["sentence_words"].value == len(words)


def test_texts_in_english_need_no_word_of_it() -> None:
    texts = ["It was a testament to cats."] * 3
    assert profile_texts(texts, min_count=2).entries == profile_texts(texts, min_count=2, language="en").entries
    with pytest.raises(InputError):
        profile_texts(texts, language="english")

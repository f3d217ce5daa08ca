"""Ratios have honest intervals, profiles read back as they are, and comparisons show what changed and nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy import stats

from antislop.core.bans import BanList
from antislop.core.bans.bans import Ban
from antislop.errors import BanError
from antislop.files.texts import Text
from antislop.lists.bundled import FOLDER
from antislop.measure.languages import ENGLISH
from antislop.measure.lint import lint
from antislop.measure.profiles.ngrams import find_explained
from antislop.measure.profiles.profiles import (
    Change,
    Entry,
    Profile,
    compare,
    control_discoveries,
    profile_texts,
    take_census,
)
from antislop.measure.profiles.rates import (
    Baseline,
    HumanRate,
    HumanRates,
    estimate_error,
    estimate_ratio,
    find_gamma,
    find_student,
    interval,
)
from antislop.measure.profiles.to_bans import Choice, choose_bans, drop_containing, drop_overlapping, make_ban, weigh
from tests.support.refusals import refused

MILLION = 1_000_000


def make(*texts: str) -> list[Text]:
    return [Text(text, None, str(i), {}) for i, text in enumerate(texts)]


def of(words: int = MILLION, least: int = 3, **counts: dict[str, int]) -> Baseline:
    return Baseline("books", words, least, counts, {})  # type: ignore[arg-type]


def entry(text: str, ratio: float = 50.0, human_count: int | None = None, **options: object) -> Entry:
    kind = "phrase" if " " in text else "word"
    known = {"kind": kind, "text": text, "count": 100, "texts": 50, "prompts": 20, "per_million": 100.0, "error": 0.1}
    human = {"human_count": human_count, "human_per_million": 100 / ratio, "ratio": ratio, "low": ratio / 2}
    return Entry(**{**known, **human, **options})  # type: ignore[arg-type]


def profile(*entries: Entry, words: int = MILLION, **made_with: object) -> Profile:
    return Profile(100, 20, words, 6 * words, {"name": "books", "words": MILLION}, made_with, entries)


# Intervals


def test_the_interval_of_a_ratio_covers_it_where_occurrences_come_in_clusters() -> None:
    random = np.random.default_rng(0)
    true, covered, naive = 20.0, 0, 0
    for _ in range(400):
        words = random.integers(20_000, 40_000, 32)
        topics = random.gamma(0.8, 1 / 0.8, 32)  # prompts differ much in how often they bring it up
        counts = random.poisson(2e-4 * words * topics)
        human = int(random.poisson(1e-5 * 1_500_000))
        low, high = (edge / 1_500_000 for edge in interval(human))
        known = HumanRate(human, human / 1_500_000, low, high)
        rate = counts.sum() / words.sum()
        one = estimate_ratio(rate, estimate_error(counts, words), 32, known)
        covered += one.low <= true <= (one.high or np.inf)
        poisson = estimate_ratio(
            rate, 1 / np.sqrt(counts.sum()), 10_000, replace(known, low=known.rate, high=known.rate)
        )
        naive += poisson.low <= true <= (poisson.high or np.inf)
    assert covered / 400 >= 0.92
    assert naive / 400 < 0.7


def test_the_error_of_a_rate_is_that_of_resampled_prompts() -> None:
    random = np.random.default_rng(1)
    counts, words = random.negative_binomial(2, 0.1, 32), random.integers(500, 1500, 32)
    picks = random.integers(0, 32, (20_000, 32))
    rates = counts[picks].sum(axis=1) / words[picks].sum(axis=1)
    assert estimate_error(counts, words) == pytest.approx(rates.std() / (counts.sum() / words.sum()), rel=0.05)


def test_one_prompt_alone_has_the_error_of_a_count() -> None:
    assert estimate_error(np.array([25, 0]), np.array([1000, 0])) == pytest.approx(0.2)


def test_an_unseen_phrase_has_a_ratio_to_its_bound_and_no_upper_end() -> None:
    unseen = estimate_ratio(1e-4, 0.1, 20, HumanRates(of()).rate("phrase", "barely whispering winds"))
    assert unseen.ratio == pytest.approx(1e-4 / 2e-6, rel=0.5)
    assert unseen.low < unseen.ratio
    assert unseen.high is None


# Rates of people


def test_the_rate_of_a_word_is_the_larger_of_baseline_and_english() -> None:
    rates = HumanRates(of(word={"hansom": 900, "phone": 3}))
    assert rates.rate("word", "hansom").rate == pytest.approx(9e-4)
    assert rates.rate("word", "phone").rate == pytest.approx(ENGLISH.frequencies["phone"])
    assert rates.rate("word", "xqzzt").rate == 1e-8


def test_a_phrase_is_extrapolated_by_the_largest_increase_of_its_words() -> None:
    english = ENGLISH.frequencies
    rates = HumanRates(of(word={"on": 9000, "the": 60_000, "door": 500, "phone": 4}, phrase={"on the door": 9}))
    assert rates.rate("phrase", "on the door").rate == pytest.approx(9e-6)
    modern = rates.rate("phrase", "on the phone")
    assert modern.count is None
    assert modern.rate == pytest.approx(2e-6 * english["phone"] / 4e-6)


def test_a_phrase_is_no_more_frequent_than_its_rarest_word() -> None:
    rates = HumanRates(of(word={"phone": 4}))
    assert rates.rate("phrase", "phone xqzzt").rate == 1e-8


def test_a_second_baseline_counts_if_it_is_reliably_higher() -> None:
    base = of(word={"cat": 400, "sat": 400}, phrase={"cat sat": 5})
    small = of(words=10_000, least=1, phrase={"cat sat": 1, "sat cat": 4})
    alone, both = HumanRates(base), HumanRates(base, also=[small])
    assert both.rate("phrase", "cat sat") == alone.rate("phrase", "cat sat")
    assert both.rate("phrase", "sat cat").rate == pytest.approx(interval(4)[0] / 10_000)
    assert (alone.rate("phrase", "sat cat").count, both.rate("phrase", "sat cat").count) == (None, 4)


def test_a_second_baseline_without_a_phrase_gives_the_rate_of_its_content_words_in_a_row() -> None:
    base = of(word={"could": 900, "feel": 900}, phrase={"feel it": 5})
    modern = of(words=10_000, content={"could feel": 40, "feel": 90}, phrase={"she could feel the": 4})
    alone, both = HumanRates(base), HumanRates(base, also=[modern])
    asked = both.rate("phrase", "could feel it")
    assert (asked.count, asked.rate) == (40, pytest.approx(interval(40)[0] / 10_000))
    assert both.rate("phrase", "she could feel the").count == 4  # listed itself, which tells more
    assert both.rate("phrase", "could feel free") == alone.rate("phrase", "could feel free")
    assert both.rate("word", "feel") == alone.rate("word", "feel")


def test_baselines_read_back_as_they_are_and_others_are_refused(tmp_path: Path) -> None:
    made = Baseline.of(take_census(lambda: make("a cat, a cat"), min_count=1, min_prompts=1), name="cats")
    for name in ("human.json", "human.json.gz"):
        made.save(tmp_path / name)
        assert Baseline.load(tmp_path / name) == made
    (tmp_path / "other.json").write_text("{}", encoding="utf-8")
    for name in ("other.json", "nowhere.json"):
        refused(f"{name}: .*--as-baseline", Baseline.load, tmp_path / name)


def test_the_bundled_baseline_names_its_sources() -> None:
    human = Baseline.load(FOLDER / "human.json.gz")
    assert (human.words > 1_400_000, human.min_count) == (True, 3)
    assert len(human.made_with["files"]) == 20
    assert all(len(digest) == 64 for digest in human.made_with["files"].values())
    assert human.count("phrase", "of the") and not human.count("phrase", "barely above a whisper")


# Profiles


def test_phrases_explained_by_a_longer_one_are_left_out() -> None:
    counts = {"barely above a whisper": 100, "barely above a": 100, "above a whisper": 104, "a whisper": 300}
    assert find_explained({("phrase", text): count for text, count in counts.items()}) == {
        ("phrase", "barely above a"),
        ("phrase", "above a whisper"),
    }


def test_a_profile_contains_counts_ratios_names_and_examples() -> None:
    sentences = [f"It was a testament to Elara. Was she Elara? {'Oh' * i}" for i in range(3)]
    texts = make(*sentences, "The cat sat on a mat.")
    base = of(word={"a": 20_000, "testament": 5}, phrase={"it was": 2000})
    made = profile_texts(texts, rates=HumanRates(base), min_count=3, examples=True)
    found = {entry.text: entry for entry in made.entries}
    assert (made.texts, made.words, made.baseline) == (4, 35, {"name": "books", "words": MILLION})
    elara = found["elara"]
    assert (elara.count, elara.texts, elara.is_name, elara.human_count) == (6, 3, True, None)
    assert found["it was a testament to"].is_name is False
    assert found["was she elara"].is_name is True
    assert found["testament"].human_count == 5 if "testament" in found else True
    assert elara.examples[0].startswith("It was a testament to Elara.")
    assert "a testament" not in found


def test_profiles_read_back_as_they_are_and_others_are_refused(tmp_path: Path) -> None:
    made = profile_texts(make(*["a testament to cats"] * 5), rates=HumanRates(of()), examples=True)
    for name in ("profile.json", "profile.json.gz"):
        made.save(tmp_path / name)
        assert Profile.load(tmp_path / name) == made
    whole = json.loads((tmp_path / "profile.json").read_text())
    assert whole["format"] == "antislop profile 1"
    del whole["texts"]
    bad = {"cut.json": "[", "other.json": "[1]", "part.json": json.dumps(whole)}
    for name, text in bad.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        refused(name, Profile.load, tmp_path / name)
    refused("a path was expected, not 3: pass a str or a Path", Profile.load, 3)
    refused("no words in the texts", lambda: profile_texts(make("…")))


# Comparing


def test_falls_and_rises_are_reported_and_the_rest_is_not() -> None:
    random = np.random.default_rng(0)
    filler = ["dog", "emu", "fox", "gnu", "hen", "elk", "owl", "rat"]

    def write(word: str, rate: float) -> str:
        return ". ".join(word if random.random() < rate else str(random.choice(filler)) for _ in range(400))

    before = make(*(write("testament", 0.1) for _ in range(40)))
    after = make(*(write("whisper", 0.08) + ". " + write("whisper", 0.08) for _ in range(40)))
    changes = compare(profile_texts(before), profile_texts(after))
    assert {(each.text, each.ratio > 1) for each in changes} == {("testament", False), ("whisper", True)}
    rise = next(each for each in changes if each.text == "whisper")
    assert rise.before_count is None and rise.before == pytest.approx(1e6 * 4 / 16_000)
    assert rise.low < rise.ratio < rise.high


def test_longer_texts_alone_change_nothing() -> None:
    once = make(*["the cat sat on a mat. a dog ran"] * 20)
    twice = make(*["the cat sat on a mat. a dog ran. the cat sat on a mat. a dog ran"] * 20)
    assert compare(profile_texts(once), profile_texts(twice)) == []


def test_evidence_ranks_before_size() -> None:
    old = profile(entry("etched", count=1000, error=0.02), entry("rare", count=10, error=0.5))
    new = profile(entry("etched", count=500, error=0.02), entry("rare", count=2, error=0.5))
    changes = compare(old, new, discoveries=1.0)
    assert [each.text for each in changes] == ["etched", "rare"]
    assert isinstance(changes[0], Change) and changes[0].evidence > changes[1].evidence


def test_entries_that_a_profile_left_out_count_as_frequent_as_possible() -> None:
    old = profile(entry("etched", count=50, human_per_million=30.0), min_count=5, min_ratio=2.0)
    assert compare(old, profile(min_count=5, min_ratio=2.0)) == []  # people write it 30 times, so 60 may be there
    (fell,) = compare(old, profile(min_count=5))
    assert (fell.after, fell.after_count) == (4.0, None)


# Bans


@pytest.mark.parametrize(
    ("ratio", "count", "weight"), [(50.0, 3, 0.02), (3.0, 9, 0.33), (50.0, None, 0.0), (0.5, 9, 1.0)]
)
def test_weights_are_one_over_the_ratio_and_0_for_phrases_that_people_do_not_write(
    ratio: float, count: int | None, weight: float
) -> None:
    assert weigh(entry("etched", ratio, count)) == weight
    assert weigh(entry("etched", ratio, count), forbid=True) == 0


def test_words_of_modern_english_have_weights_if_the_novels_lack_them() -> None:
    known, unknown = (HumanRates(of()).rate("word", word) for word in ("furthermore", "xqzzt"))
    assert (known.count, known.high) == (None, known.rate)
    assert (unknown.count, unknown.high) == (None, None)
    assert weigh(entry("furthermore", 50.0, None, high=50.0)) == 0.02


def test_each_kind_of_entry_becomes_its_kind_of_ban() -> None:
    assert make_ban(entry("a testament to")) == Ban("a testament to")
    assert make_ban(entry("voice whisper", kind="content")) == Ban.words(["voice", "whisper"], skip_stop_words=True)
    assert make_ban(entry("not-x-but-y", kind="construction", ratio=10.0, human_count=5)).weight == 0.1


def test_an_entry_that_contains_another_is_left_out_unless_only_it_is_forbidden() -> None:
    seen, unseen = entry("deep breath", 10.0, 40), entry("took a deep breath")
    assert list(drop_containing([seen, unseen])) == [seen, unseen]
    assert list(drop_containing([seen, unseen], forbid=True)) == [seen]
    assert list(drop_containing([replace(seen, human_count=None), unseen])) == [replace(seen, human_count=None)]


def cut_sentence(sentence: str, **options: object) -> list[Entry]:
    words = sentence.split()
    return [entry(" ".join(words[start : start + 5]), **options) for start in range(len(words) - 4)]


@pytest.mark.parametrize("seed", range(20))
def test_of_a_sentence_in_overlapping_pieces_the_first_that_may_be_a_ban_is_kept(seed: int) -> None:
    random = np.random.default_rng(seed)
    sentences = [
        cut_sentence(" ".join(f"{name}{number}" for number in range(random.integers(5, 14))), count=100 + 10 * index)
        for index, name in enumerate("abc")
    ]
    everything = [piece for sentence in sentences for piece in sentence]
    chosen = [piece for piece in everything if random.random() < 0.5]
    random.shuffle(chosen)  # type: ignore[arg-type]
    firsts = [next((piece for piece in sentence if piece in chosen), None) for sentence in sentences]
    kept = drop_overlapping(chosen, everything)
    assert kept == [piece for piece in chosen if piece in firsts]


def test_pieces_that_are_not_equally_frequent_and_circles_stay() -> None:
    often, seldom = entry("thick with the scent of"), entry("with the scent of damp", count=90)
    assert drop_overlapping([often, seldom], [often, seldom]) == [often, seldom]
    assert drop_overlapping([often], [often, seldom]) == [often]
    circle = cut_sentence("a b a b a b")
    assert 1 <= len(drop_overlapping(circle, circle)) <= 2


def test_a_sentence_becomes_one_ban() -> None:
    pieces = cut_sentence("glinting air was thick with the scent of damp fathomless earth")
    chosen = choose_bans(profile(*pieces), Choice())
    assert [ban.text for ban in chosen.bans] == ["glinting air was thick with"]
    assert chosen.left_out["of a sentence with another entry"] >= 3


CHOSEN = {
    "a low ratio": (entry("etched", low=9.9), {}, False),
    "few prompts": (entry("etched", prompts=3), {"min_prompts": 4}, False),
    "another kind": (entry("voice whisper", kind="content"), {}, False),
    "that kind": (entry("voice whisper", kind="content"), {"kinds": ("content",)}, True),
    "a name": (entry("elara", is_name=True), {}, True),
    "no names": (entry("elara", is_name=True), {"names": "none"}, False),
    "names as words": (entry("elara", is_name=True), {"names": "words"}, True),
    "names in phrases": (entry("elara etched", is_name=True), {"names": "words"}, False),
    "names only": (entry("etched"), {"names": "only"}, False),
    "a rare word": (entry("etched"), {"max_zipf": 4.5}, True),
    "a common word": (entry("etched"), {"max_zipf": 2.0}, False),
    "a possessive": (entry("elara's"), {}, False),
    "a fragment": (entry("a testament to the"), {}, False),
    "everyday words": (entry("we need to"), {}, False),
    "a conjunction first": (entry("and fathomless tapestry"), {}, False),
    "a conjunction within": (entry("fathomless and tapestry"), {}, True),
    "common words alone": (entry("the old house"), {}, False),
    "common content words alone": (entry("old house", kind="content"), {"kinds": ("content",)}, False),
    "a common word beside a telling one": (entry("the old tapestry"), {}, True),
}


@pytest.mark.parametrize("case", CHOSEN)
def test_the_choice_is_by(case: str) -> None:
    one, options, is_taken = CHOSEN[case]
    other = entry("unfathomable tapestry", kind="content" if options.get("kinds") else "phrase")
    other = replace(other, is_name=options.get("names") == "only")
    chosen = choose_bans(profile(one, other), Choice(**options))  # type: ignore[arg-type]
    assert [ban.text for ban in chosen.bans] == [one.text, other.text][not is_taken :] or is_taken
    assert (one.text in [ban.text for ban in chosen.bans]) is is_taken
    assert chosen.left_out.total() == (not is_taken)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("{} हिन्दी में क्षितिज, {} भाषा", "चाँदनी"),
        ("{} ഒരു മലയാളം, {} കഥ", "നിലാവെളിച്ചം"),
        ("{} là tiếng Việt, {} và", "ho\u0300a quye\u0323\u0302n"),
        ("{} است و {} بود", "می\u200cخواهمت"),
        ("{} is over, {} was", "tape\u00adstry of whis\u200bpers"),
    ],
)
def test_bans_made_from_a_text_are_found_in_it_again(text: str, word: str) -> None:
    texts = make(*(f"{text.format(word, word)}. {i}" for i in range(5)))
    chosen = choose_bans(
        profile_texts(texts, rates=HumanRates(of()), examples=True, megabytes=1), Choice(min_ratio=1.5)
    )
    assert len(chosen.bans) >= 1 and chosen.left_out["not found in their own examples"] == 0
    assert all(BanList([ban]).find(texts[0].text) for ban in chosen.bans)
    assert any(BanList([ban]).find(word) for ban in chosen.bans)


def test_entries_that_are_not_found_in_their_own_examples_are_left_out_and_counted() -> None:
    lost, kept = entry("हिन", examples=("हिन्दी",)), entry("zebras", examples=("two", "Zebras!"))
    chosen = choose_bans(profile(lost, kept, entry("yaks")), Choice())
    assert [ban.text for ban in chosen.bans] == ["yaks", "zebras"]
    assert chosen.left_out["not found in their own examples"] == 1


def test_the_top_entries_have_the_largest_excess() -> None:
    entries = [
        entry("etched", count=10),
        entry("glinting", count=500),
        entry("murmured", count=900, ratio=1.1, low=1.05),
    ]
    chosen = choose_bans(profile(*entries), Choice(top=2, min_ratio=1.0))
    assert [(ban.text, ban.count) for ban in chosen.bans] == [("glinting", 500), ("murmured", 900)]


@pytest.mark.parametrize(
    ("made", "options", "sentence"),
    [
        (
            profile(entry("etched"), entry("glinting")),
            {"min_ratio": 1000.0},
            "no entry of 2 is left (2 below --min-ratio 1000): --min-ratio 15 would keep 2",
        ),
        (
            profile(entry("etched", prompts=3), entry("glinting", prompts=2), entry("old oak", ratio=4)),
            {"min_prompts": 5},
            "no entry of 3 is left (2 from fewer than --min-prompts 5, 1 below --min-ratio 10): --min-ratio 1.2 "
            "would keep 1, --min-prompts 2 would keep 2",
        ),
        (profile(entry("etched", is_name=True)), {"names": "none"}, "(1 names by --names none): profile more"),
        (profile(entry("etched")), {"max_zipf": 1.0}, "(1 common by --max-zipf 1): profile more"),
        (profile(entry("etched")), {"kinds": ("phrase",)}, "(1 not of --kinds phrase): profile more"),
        (profile(entry("etched", ratio=1.5)), {}, "(1 below --min-ratio 10): profile more texts"),
        (
            profile(words=900, min_count=5, min_prompts=2),
            {},
            "the profile of 900 words has no entries (--min-count 5, --min-prompts 2): make it of more texts, or with",
        ),
        (profile(entry("etched")), {"kinds": ("nouns",)}, "'nouns' is not a valid kind of entry: take one of word"),
        (replace(profile(entry("etched")), baseline=None), {}, "no baseline, and so no ratios"),
    ],
)
def test_profiles_that_can_not_become_a_list_are_refused(made: Profile, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BanError) as caught:
        choose_bans(made, Choice(**options))
    assert sentence in str(caught.value)


def test_a_list_made_from_a_profile_has_no_faults() -> None:
    entries = [
        entry("etched"),
        entry("glinting eyes"),
        entry("he glinting eyes"),
        entry("the"),
        entry("voice a whisper"),
    ]
    bans = choose_bans(profile(*entries), Choice()).bans
    assert lint(bans, frequencies=ENGLISH.frequencies) == []
    assert {ban.text for ban in bans} == {"etched", "glinting eyes", "voice a whisper"}


CHANCES = (0.0005, 0.005, 0.025, 0.5, 0.9, 0.975, 0.9995)


@pytest.mark.parametrize("chance", CHANCES)
def test_quantiles_are_exact(chance: float) -> None:
    for freedom in (1, 2, 3, 4, 29, 30, 511):
        assert find_student(chance, freedom) == pytest.approx(stats.t.ppf(chance, freedom), rel=1e-10, abs=1e-12)
    for shape in (1, 2, 3, 10, 512, 60_000, 3_000_000):
        assert find_gamma(chance, shape) == pytest.approx(stats.gamma.ppf(chance, shape), rel=1e-8)


@given(st.floats(0.001, 0.999), st.integers(1, 600))
def test_values_stay_under_a_quantile_with_its_probability(chance: float, number: int) -> None:
    assert stats.t.cdf(find_student(chance, number), number) == pytest.approx(chance, rel=1e-9)
    assert stats.gamma.cdf(find_gamma(chance, number), number) == pytest.approx(chance, rel=1e-9)


@given(st.lists(st.floats(0, 1), max_size=30))
def test_false_discoveries_are_controlled_as_by_benjamini_and_hochberg(chances: list[float]) -> None:
    expected = stats.false_discovery_control(chances) if chances else []
    assert control_discoveries(chances) == pytest.approx(list(expected))

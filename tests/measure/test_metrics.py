"""Metrics follow their definitions, their intervals have the promised coverage, and undefined values are no numbers."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy import stats

from antislop import BanList, InputError
from antislop.files.texts import read_texts
from antislop.lists.bundled import constructions, read_constructions
from antislop.measure.definitions import METRICS
from antislop.measure.diversity import count_distinct, count_distinct_ngrams, find_overused, measure_self_bleu
from antislop.measure.estimates import Estimate, Floats, bootstrap
from antislop.measure.metrics import Tally, measure, measure_difference
from antislop.measure.slop import CONTRASTS, ContrastCount, Range, Scale

WORDS = ("the", "old", "tapestry", "voice", "barely", "whisper", "was", "a", "door", "and", "stood", "there")
SCALE = Scale(
    frozenset({"tapestry", "whisper"}),
    frozenset({("voice", "barely", "whisper")}),
    "content",
    {"slop_words": Range(0, 100), "slop_trigrams": Range(0, 10), "contrasts": Range(0, 1)},
    {2: {("old", "door"): 0.5, ("door", "stood"): 0.01}, 3: {("old", "door", "stood"): 0.1}},
)
ids = st.lists(st.integers(0, 5), max_size=30)


def tally(*texts: str, scale: Scale = SCALE, **options: Any) -> Tally:
    made = Tally(scale, **options)
    for text in texts:
        made.add(text)
    return made


def tally_groups(texts: Iterable[tuple[str | None, str]]) -> Tally:
    made = Tally(SCALE)
    for group, text in texts:
        made.add(text, group=group)
    return made


def value(name: str, *texts: str, **options: Any) -> float:
    found = measure(tally(*texts, **options), resamples=0)[name].value
    assert found is not None
    return found


def write(seed: int, count: int, *, length: int = 60) -> list[str]:
    """Return texts of words drawn at random, with sentences of six words."""
    rng = np.random.default_rng(seed)
    return [
        " ".join(f"{word}." if i % 6 == 5 else word for i, word in enumerate(rng.choice(WORDS, length)))
        for _ in range(count)
    ]


# -- definitions ------------------------------------------------------------------------------------------------------


def test_every_metric_is_measured_and_says_what_it_is() -> None:
    found = measure(tally(*write(1, 3)), resamples=10)
    assert list(found) == [metric.name for metric in METRICS]
    assert all(metric.title and metric.unit and metric.about and metric.source for metric in METRICS)


def test_slop_words_are_whole_words_per_1000() -> None:
    assert value("slop_words", "Tapestry, tapestries and a WHISPER.") == 1000 * 2 / 5


def test_slop_trigrams_skip_stop_words_unless_the_scale_is_over_words() -> None:
    text = "Her voice was barely a whisper. Voice barely whisper."
    over_words = Scale(SCALE.words, SCALE.trigrams, "words")
    assert value("slop_trigrams", text) == 1000 * 2 / 9
    assert value("slop_trigrams", text, scale=over_words) == 1000 * 1 / 9


def test_the_slop_score_is_60_25_15_of_the_widened_ranges_and_cut_off() -> None:
    text = "The tapestry was old and the voice stood there at the door."  # 12 words
    share = (1000 / 12 + 10) / 120
    assert value("slop_score", text) == pytest.approx(100 * (0.60 * share + 0.25 * 0.1 / 1.2 + 0.15 * 1 / 12))
    assert value("slop_score", "Tapestry: voice barely whisper. It was not a door, but a mouth.") == pytest.approx(100)


@given(ids, st.integers(1, 8))
def test_distinct_words_of_windows_are_those_of_sets(words: list[int], window: int) -> None:
    naive = [len(set(words[i : i + window])) for i in range(len(words) - window + 1)]
    assert count_distinct(np.array(words, dtype=np.int64), window=window).tolist() == naive


def test_mattr_runs_over_texts_laid_end_to_end() -> None:
    texts = write(2, 12, length=60)
    words = " ".join(texts).replace(".", "").split()
    naive = np.mean([len(set(words[i : i + 500])) / 500 for i in range(len(words) - 499)])
    assert value("mattr_500", *texts) == pytest.approx(naive)


@given(ids, st.integers(1, 3), st.integers(3, 8))
def test_distinct_ngrams_of_pieces_are_those_of_sets(words: list[int], n: int, piece: int) -> None:
    pieces = [words[i : i + piece] for i in range(0, len(words) - piece + 1, piece)]
    naive = [len(set(zip(*(one[i:] for i in range(n)), strict=False))) for one in pieces]
    assert count_distinct_ngrams(np.array(pieces, dtype=np.int64).reshape(-1, piece), n).tolist() == naive


def naive_bleu(text: Sequence[int], others: Sequence[Sequence[int]]) -> float:
    logs = 0.0
    for n in range(1, 5):
        grams, *rest = (Counter(zip(*(one[i:] for i in range(n)), strict=False)) for one in (text, *others))
        hits = sum(min(count, max(other[gram] for other in rest)) for gram, count in grams.items())
        logs += math.log((hits or 0.1) / sum(grams.values())) / 4
    nearest = min((len(other) for other in others), key=lambda length: (abs(length - len(text)), length))
    return math.exp(logs + min(0.0, 1 - nearest / len(text)))


@given(st.lists(st.lists(st.integers(0, 3), min_size=4, max_size=12), min_size=2, max_size=5))
def test_self_bleu_is_the_bleu_of_each_text_against_the_others(texts: list[list[int]]) -> None:
    naive = [naive_bleu(text, texts[:i] + texts[i + 1 :]) for i, text in enumerate(texts)]
    assert measure_self_bleu(texts) == pytest.approx(naive)


def test_self_bleu_is_1_for_copies_and_low_for_strangers() -> None:
    assert value("self_bleu", *["the old door stood there and creaked"] * 3) == pytest.approx(1)
    assert value("self_bleu", "one two three four five", "six seven eight nine ten") < 0.05


@given(st.lists(st.lists(st.sampled_from("abcd"), max_size=12), min_size=1, max_size=4), st.integers(2, 3))
def test_overused_ngrams_are_those_of_the_highest_ratio(texts: list[list[str]], n: int) -> None:
    shares = {("a", "b"): 0.2, ("b", "c"): 0.1, ("z", "a"): 0.05} if n == 2 else {("a", "b", "a"): 0.2}
    grams = [list(zip(*(text[i:] for i in range(n)), strict=False)) for text in texts]
    counts = Counter(gram for some in grams for gram in some)
    best = sorted(counts, key=lambda gram: (-counts[gram] / shares.get(gram, min(shares.values())), gram))[:3]
    numbers = np.array(["abcd".index(word) for text in texts for word in text], dtype=np.int32)
    lengths = np.array([len(text) for text in texts])
    found = find_overused(numbers, lengths, dict(zip("abcd", range(4), strict=True)), shares=shares, n=n, top=3)
    assert list(found.ngrams) == best
    assert found.counts.tolist() == [sum(gram in best for gram in some) for some in grams]


def test_repetition_counts_overused_ngrams_of_content_words_per_1000_of_them() -> None:
    assert value("repetition", "The old door stood. An old door stood.") == 1000 * (5 + 4) / 6


def test_sentences_paragraphs_and_speech_are_counted() -> None:
    text = "“Come in,” she said.\n\nHe came. He sat down on the old chair."
    assert value("sentence_words", text) == (4 + 2 + 7) / 3
    assert value("sentence_spread", text) == pytest.approx(np.std([4, 2, 7]))
    assert value("paragraph_words", text) == 13 / 2
    assert value("dialogue", text) == 1 / 2


def test_contrasts_are_what_their_bans_find_in_each_example() -> None:
    bans = constructions(*CONTRASTS)
    for each in read_constructions():
        for text in (*each.examples, *each.counterexamples):
            end = naive = 0
            for match in sorted(bans.find(text), key=lambda match: (match.start, match.end)):
                if match.start >= end:
                    naive, end = naive + 1, match.end
            contrasts = ContrastCount()
            contrasts.read(text, is_last=True)
            assert contrasts.count == naive, text
            assert naive or each.name not in CONTRASTS or text not in each.examples


def test_hits_of_lists_are_counted_beside_the_metrics() -> None:
    made = tally("The old door. A door!", bans={"doors": BanList(["door"])})
    assert [metric.name for metric in made.metrics][-1] == "doors"
    assert measure(made)["doors"].value == 1000 * 2 / 5
    with pytest.raises(ValueError, match="named 'mattr_500' like a metric"):
        Tally(SCALE, bans={"mattr_500": BanList(["door"])})


def test_a_published_row_is_reproduced(assets: Path) -> None:
    lists = assets / "lists"
    scale = Scale.read(lists / "slop_score_slop_list.json", lists / "slop_score_trigrams.json")
    texts = read_texts([assets / "llm" / "slop_score" / "gemma-3-4b-it.jsonl.gz"])
    found = measure(tally(*(text.text for text in texts), scale=scale), resamples=0)
    assert found["slop_words"].value == pytest.approx(40.441, rel=0.005)
    assert found["slop_trigrams"].value == pytest.approx(0.586, abs=0.001)
    assert found["mattr_500"].value == pytest.approx(0.571, abs=0.001)


def test_a_text_that_is_added_later_counts_too() -> None:
    made = tally("A tapestry.")
    assert measure(made)["slop_words"].value == 500
    made.add("A door.")
    assert measure(made)["slop_words"].value == 250


# -- undefined --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("texts", "why"), [((), "no texts"), (("", "7 …"), "no words in the texts")])
def test_without_words_every_metric_is_undefined(texts: tuple[str, ...], why: str) -> None:
    assert set(measure(tally(*texts)).values()) == {Estimate(None, None, None, why)}
    assert set(measure_difference(tally(*texts), tally(*texts)).values()) == {Estimate(None, None, None, why)}


def test_undefined_values_give_a_reason_and_are_never_0() -> None:
    found = measure(tally("A door."))
    assert found["mattr_500"] == Estimate(None, None, None, "fewer than 500 words in all")
    assert found["distinct_2"] == Estimate(None, None, None, "no text of 100 words or more")
    assert found["self_bleu"] == Estimate(None, None, None, "fewer than two texts of four words or more")
    assert found["slop_words"] == Estimate(0.0, None, None, "no interval: one text")


def test_empty_lists_give_no_rates() -> None:
    found = measure(tally("A door.", "An old door.", scale=Scale(frozenset(), frozenset())))
    assert found["slop_words"] == Estimate(None, None, None, "the scale has no slop words")
    assert found["slop_trigrams"] == Estimate(None, None, None, "the scale has no slop trigrams")
    assert found["slop_score"] == Estimate(None, None, None, "the scale lacks words, trigrams or ranges")
    assert found["repetition"] == Estimate(None, None, None, "the scale has no human n-grams")


@given(st.lists(st.text(st.sampled_from('ab “".?\n'), max_size=40), max_size=4))
def test_any_texts_give_numbers_or_reasons(texts: list[str]) -> None:
    for estimate in measure(tally(*texts), resamples=20).values():
        low, high = estimate.low, estimate.high
        assert estimate.why is not None or (low is not None and high is not None)
        assert all(each is None or math.isfinite(each) for each in estimate[:3])


def test_a_rate_of_0_is_bounded_and_texts_of_a_group_count_as_one() -> None:
    made = tally_groups([("p", "the old door " * 20), ("p", "the old door " * 40), ("q", "a cat sat " * 30)])
    found = measure(made, resamples=20)["slop_words"]
    assert (found.value, found.low) == (0, 0)
    assert found.high == pytest.approx(1000 * -math.log(0.05) / (90 + 90))
    difference = measure_difference(made, made, resamples=20)["slop_words"]
    assert difference == (0, None, None, "no interval: it occurs on neither side")


def test_metrics_that_read_more_words_than_most_texts_have_say_so() -> None:
    short, long = "a cat sat on the mat " * 20, "a cat sat on the mat " * 90
    for name, reads in (("mattr_500", 500), ("self_bleu", 200)):
        found = measure(tally(short, short, short, long), resamples=20)[name]
        assert found.value is not None and found.low is not None
        assert found.why == f"most texts (3 of 4) are shorter than the {reads} words that it reads of each"
        assert measure(tally(short, long, long), resamples=20)[name].why is None


# -- intervals --------------------------------------------------------------------------------------------------------


def divide(totals: Floats) -> Floats:
    return (totals[..., 0] / totals[..., 1])[None]


def draw_texts(rng: np.random.Generator, texts: int, *, rate: float) -> Floats:
    """Return hits and words of texts, some of which are sloppier than others."""
    words = rng.integers(200, 1000, texts)
    return np.stack([rng.poisson(words * rate * rng.gamma(2, 0.5, texts)), words], axis=1).astype(float)


def test_intervals_contain_the_truth_in_about_95_of_100_trials() -> None:
    rng = np.random.default_rng(3)
    held = 0
    for trial in range(200):
        _, (low,), (high,) = bootstrap(draw_texts(rng, 100, rate=0.02), divide, resamples=400, seed=trial)
        held += low <= 0.02 <= high
    assert 0.90 <= held / 200 <= 0.99


def test_intervals_are_those_of_drawing_texts_again() -> None:
    sums = draw_texts(np.random.default_rng(4), 50, rate=0.02)
    rng = np.random.default_rng(5)
    drawn = [divide(sums[rng.integers(0, 50, 50)].sum(axis=0))[0] for _ in range(4000)]
    _, (low,), (high,) = bootstrap(sums, divide, resamples=4000)
    assert [low, high] == pytest.approx(np.quantile(drawn, [0.025, 0.975]), rel=0.04)


def test_paired_differences_are_known_better_than_unpaired_ones() -> None:
    rng = np.random.default_rng(6)
    before = [" ".join(["tapestry"] * int(rng.integers(0, 30)) + ["door"] * 30) for _ in range(60)]
    after = [text.replace("tapestry", "table", 2) for text in before]
    paired = measure_difference(tally(*after), tally(*before))["slop_words"]
    shuffled = [after[i] for i in rng.permutation(60)]
    unpaired = measure_difference(tally(*shuffled), tally(*before))["slop_words"]
    assert paired.value == pytest.approx(unpaired.value)
    assert width(paired) < width(unpaired) / 2
    assert paired.high is not None and paired.high < 0


def width(estimate: Estimate) -> float:
    assert estimate.high is not None and estimate.low is not None
    return estimate.high - estimate.low


def test_the_difference_of_texts_to_themselves_is_0_for_certain() -> None:
    texts = write(7, 12)
    found = measure_difference(tally(*texts), tally(*texts), resamples=50)
    assert set(found.values()) <= {Estimate(0.0, 0.0, 0.0), *(each for each in found.values() if each.why)}
    assert found["mattr_500"][:3] == (0.0, 0.0, 0.0)


def test_differences_need_pairs_and_one_scale() -> None:
    with pytest.raises(ValueError, match="of the texts, 1 after and 2 before have no group: pass pairs"):
        measure_difference(tally("a"), tally("a", "b"))
    with pytest.raises(ValueError, match="the group 'q' is on one side only: pass texts of the same groups"):
        measure_difference(tally_groups([("p", "a"), ("q", "b")]), tally_groups([("p", "a")]))
    with pytest.raises(ValueError, match="different scales"):
        measure_difference(tally("a"), tally("a", scale=Scale(frozenset(), frozenset())))


def test_a_seed_fixes_the_interval_and_another_one_moves_it() -> None:
    made = tally(*write(8, 30))
    first, again, other = (measure(made, seed=seed)["slop_words"] for seed in (1, 1, 2))
    assert first == again != other
    assert first.value == other.value


# -- groups -----------------------------------------------------------------------------------------------------------

OF_SUMS = [metric.name for metric in METRICS if metric.name not in ("self_bleu", "mattr_500")]
"""Metrics of sums over single texts: copies of a text don't change their values."""


@settings(max_examples=20)
@given(st.lists(st.text(st.sampled_from('ab “".?\n'), max_size=40), min_size=2, max_size=6), st.integers(2, 4))
def test_copies_of_a_text_in_its_group_leave_the_interval_as_it_is(texts: list[str], copies: int) -> None:
    single = tally_groups((str(i), text) for i, text in enumerate(texts))
    copied = tally_groups((str(i), text) for _ in range(copies) for i, text in enumerate(texts))
    if not single.words:
        return
    alone, together = (measure(made, resamples=40) for made in (single, copied))
    for name in OF_SUMS:
        assert together[name][:3] == pytest.approx(alone[name][:3]), name


def test_texts_without_a_group_are_each_their_own() -> None:
    texts = write(10, 12)
    named = tally_groups((f"p{i}", text) for i, text in enumerate(texts))
    half = tally_groups((f"p{i}" if i % 2 else None, text) for i, text in enumerate(texts))
    expected = measure(tally(*texts), resamples=50)
    assert measure(named, resamples=50) == measure(half, resamples=50) == expected


def test_intervals_are_those_of_drawing_groups_again() -> None:
    rng = np.random.default_rng(11)
    texts = [(f"p{i}", [k < i for k in rng.integers(0, 20, 10)]) for i in rng.integers(0, 20, 60)]
    made = tally_groups((group, " ".join("tapestry" if hit else "door" for hit in hits)) for group, hits in texts)
    groups: dict[str, list[bool]] = {}
    for group, hits in texts:
        groups.setdefault(group, []).extend(hits)
    known = list(groups.values())
    drawn = [[known[i] for i in rng.integers(0, len(known), len(known))] for _ in range(4000)]
    rates = [1000 * sum(map(sum, some)) / sum(map(len, some)) for some in drawn]
    found = measure(made, resamples=4000)["slop_words"]
    assert [found.low, found.high] == pytest.approx(np.quantile(rates, [0.025, 0.975]), rel=0.04)


@pytest.mark.slow
def test_intervals_of_texts_to_the_same_prompts_hold_the_truth_only_by_prompt() -> None:
    rng = np.random.default_rng(12)
    held = {True: 0, False: 0}
    for trial in range(80):
        hits = [(f"p{i}", rng.binomial(10, rate, 5)) for i, rate in enumerate(rng.beta(2, 2, 30))]
        texts = [(name, "tapestry " * k + "door " * (10 - k)) for name, each in hits for k in each]
        for is_grouped in held:
            made = tally_groups((name if is_grouped else None, text) for name, text in texts)
            _, low, high, _ = measure(made, resamples=200, seed=trial)["slop_words"]
            assert low is not None and high is not None
            held[is_grouped] += low <= 500 <= high
    assert 0.86 <= held[True] / 80 <= 0.99
    assert held[False] / 80 <= 0.75


def test_differences_pair_groups_whatever_their_order_and_number_of_texts() -> None:
    rng = np.random.default_rng(13)
    before = [(f"p{i}", " ".join(["tapestry"] * int(rng.integers(0, 30)) + ["door"] * 30)) for i in range(40)]
    after = tally_groups((group, text.replace("tapestry", "table", 2)) for group, text in before)
    expected = measure_difference(after, tally_groups(before), resamples=200)
    shuffled = [before[i] for i in rng.permutation(40)]
    thrice = [each for each in shuffled for _ in range(3)]
    for texts in (shuffled, thrice):
        found = measure_difference(after, tally_groups(texts), resamples=200)
        for name in OF_SUMS:
            assert found[name][:3] == pytest.approx(expected[name][:3]), name
    assert width(expected["slop_words"]) < width(measure(after)["slop_words"]) / 2


def test_one_group_has_no_interval_and_says_so() -> None:
    made = tally_groups(("p", text) for text in write(14, 5))
    why = "no interval: all texts are of one group, such as one prompt"
    for found in (measure(made), measure_difference(made, made)):
        defined = [each for each in found.values() if each.value is not None]
        assert len(defined) > 5
        assert all(each[1:] == (None, None, why) for each in defined)


def test_300_texts_are_measured_in_seconds() -> None:
    made = tally(*write(9, 300, length=1000))
    began = time.process_time()
    measure(made)
    assert time.process_time() - began < 6  # 1.1 s where it was measured


WORDED = Tally(SCALE)
WORDED.add("some words")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: WORDED.find_overused(4), r"^n is 4; the scale has n-grams of \[.*\]: pass one"),
        (lambda: measure(WORDED, resamples=-1), "^resamples=-1 and level=0.95: take 0 or more"),
        (lambda: measure(WORDED, level=95), "^resamples=1000 and level=95: take 0 or more, and a level"),
    ],
)
def test_arguments_that_can_not_be_used_are_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()


@pytest.mark.filterwarnings("ignore:The BCa")
@pytest.mark.parametrize("batch", [1 << 23, 40])
def test_the_percentile_interval_is_that_of_scipy(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antislop.measure.estimates._BATCH", batch)
    sums = np.random.default_rng(3).gamma(2.0, size=(17, 2))

    def ratio(total: Any) -> Any:
        return (total[..., 0] / total[..., 1])[None]

    ours = bootstrap(sums, ratio, resamples=500, level=0.9, seed=5)
    theirs = stats.bootstrap(
        (np.arange(17),),
        lambda drawn, axis: ratio(sums[drawn].sum(axis=-2)),
        n_resamples=500,
        batch=max(1, batch // 17),
        confidence_level=0.9,
        method="percentile",
        vectorized=True,
        rng=np.random.default_rng(5),
    ).confidence_interval
    assert ours.lows == pytest.approx(theirs.low)
    assert ours.highs == pytest.approx(theirs.high)

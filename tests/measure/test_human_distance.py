"""Distances to human writing follow their definition, and the reference values are those that were made."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from antislop.errors import InputError
from antislop.files.texts import read_texts
from antislop.measure.definitions import METRICS
from antislop.measure.estimates import Estimate
from antislop.measure.human_distance import Human, Humans, load_human, measure_distance, read_human
from antislop.measure.metrics import Tally, measure
from antislop.measure.slop import FOLDER, PUBLISHED_RANGES, Range, Scale, load_ngrams
from antislop.measure.words import extract_words
from eval.passages import cut_passages
from tests.support.refusals import refused

SCALE = Scale(frozenset({"tapestry"}), frozenset({("voice", "barely", "whisper")}))
TEXTS = ["The tapestry fell. Nobody came.", "A door, a door!", "“Come in,” said the old man to no one."]


def tally(scale: Scale = SCALE) -> Tally:
    made = Tally(scale)
    for text in TEXTS:
        made.add(text)
    return made


def write(path: Path, whole: Any) -> Path:
    path.write_text(json.dumps(whole), encoding="utf-8")
    return path


# -- distance ---------------------------------------------------------------------------------------------------------


def test_distances_count_standard_deviations_between_passages_and_keep_their_sign() -> None:
    human = Humans({"sentence_words": Human(10, 2, 1), "slop_words": Human(20, 40, 1)}, SCALE.fingerprint, ())
    values = measure(tally(), resamples=0)
    found = measure_distance(tally(), human=human, resamples=200)
    words, slop = ((values[name].value or 0) for name in ("sentence_words", "slop_words"))
    assert found.metrics["sentence_words"].value == pytest.approx((words - 10) / 2) and words < 10
    assert found.metrics["slop_words"].value == pytest.approx((slop - 20) / 40)
    assert found.overall.value == pytest.approx(math.sqrt((((words - 10) / 2) ** 2 + ((slop - 20) / 40) ** 2) / 2))
    assert found.overall.low is not None and found.overall.high is not None and found.overall.low < found.overall.high
    assert found.metrics["dialogue"].why == "there is no human value yet"


def test_distances_are_drawn_by_group() -> None:
    made = [Tally(SCALE) for _ in range(3)]
    for group, text in enumerate(TEXTS):
        made[0].add(text)
        for _ in range(3):
            made[1].add(text, group=str(group))
            made[2].add(text, group="one")
    single, copied, one = (measure_distance(each, resamples=50) for each in made)
    assert copied.metrics["sentence_words"][:3] == pytest.approx(single.metrics["sentence_words"][:3])
    assert one.overall.value is not None
    assert one.overall.why == "no interval: all texts are of one group, such as one prompt"


def test_metrics_that_read_more_words_than_the_texts_have_take_no_part() -> None:
    human = Humans({"mattr_500": Human(0.5, 0.01, 1), "sentence_words": Human(10, 2, 1)}, SCALE.fingerprint, ())
    made = tally()
    made.add("a cat sat on the mat " * 90)
    found = measure_distance(made, human=human, resamples=0)
    assert measure(made, resamples=0)["mattr_500"].value is not None
    assert (found.metrics["mattr_500"].value, found.overall.value) == (
        None,
        abs(found.metrics["sentence_words"].value or 0),
    )


def test_values_of_other_lists_are_not_compared() -> None:
    other = Scale(frozenset({"door"}), SCALE.trigrams)
    found = measure_distance(tally(other), human=Humans({"slop_words": Human(1, 1, 1)}, SCALE.fingerprint, ()))
    assert found.metrics["slop_words"] == Estimate(None, None, None, "the human value was measured with other lists")
    assert found.overall.value is None


def test_without_words_there_is_no_distance() -> None:
    found = measure_distance(Tally(SCALE))
    assert set(found.metrics.values()) == {found.overall} == {Estimate(None, None, None, "no texts")}


def test_human_texts_are_nearer_to_the_novels_than_those_of_models(assets: Path) -> None:
    pairs = assets / "llm" / "writingprompts_pairs" / "gpt-4.jsonl.gz"
    far = {}
    for column in ("human", "machine"):
        made = Tally()
        for text in read_texts([pairs], column=column):
            made.add(text.text)
        far[column] = measure_distance(made, resamples=200).overall
    assert far["human"].high is not None and far["machine"].low is not None
    assert far["human"].high < far["machine"].low


@given(st.lists(st.integers(1, 9), max_size=20), st.integers(1, 12))
def test_passages_are_whole_paragraphs_and_long_enough(lengths: list[int], words: int) -> None:
    paragraphs = [" ".join([chr(97 + i)] * length) for i, length in enumerate(lengths)]
    passages = list(cut_passages("\n\n".join(paragraphs), words=words))
    used = [paragraph for passage in passages for paragraph in passage.split("\n\n")]
    assert used == paragraphs[: len(used)]
    assert all(len(extract_words(passage)) >= words for passage in passages)
    assert sum(lengths[len(used) :]) < words


# -- what is bundled --------------------------------------------------------------------------------------------------


def test_the_bundled_human_values_were_measured_with_the_bundled_scale_on_named_texts() -> None:
    human = load_human()
    assert human.scale == Scale.load().fingerprint
    assert set(human.metrics) <= {metric.name for metric in METRICS} - {"repetition"}, "a new one may have no value yet"
    assert all(one.passages > 0 and one.books > 0 for one in human.metrics.values())
    assert len(human.texts) == 20 and all(len(text["sha256"]) == 64 for text in human.texts)


@pytest.mark.parametrize("file", ["scale.json", "human_ngrams.json.gz", "human_metrics.json"])
def test_the_reference_values_are_those_that_their_provenance_describes(file: str) -> None:
    described = (Path(__file__).parents[2] / "data" / "metrics" / "README.md").read_text(encoding="utf-8")
    assert hashlib.sha256((FOLDER / file).read_bytes()).hexdigest() in described


def test_the_named_texts_are_the_novels(assets: Path) -> None:
    known = {text["title"]: text["sha256"] for text in load_human().texts}
    for path in sorted((assets / "human").rglob("*.txt.gz")):
        data = gzip.decompress(path.read_bytes()).removeprefix(b"\xef\xbb\xbf")
        assert hashlib.sha256(data).hexdigest() == known.pop(path.name.split(".")[0])
    assert not known


def test_the_bundled_scale_is_words_and_trigrams_of_content_words_with_ranges() -> None:
    scale = Scale.load()
    assert (len(scale.words), len(scale.trigrams)) == (567, 182)
    assert all(extract_words(word) == [word] for word in scale.words)
    assert all(len(trigram) == 3 for trigram in scale.trigrams) and scale.over == "content"
    assert all(scale.ranges[name].low < scale.ranges[name].high for name in PUBLISHED_RANGES)
    assert all(0 < share < 1 for shares in load_ngrams().values() for share in shares.values())


# -- lists in files ---------------------------------------------------------------------------------------------------


def test_published_forms_of_lists_are_read(tmp_path: Path) -> None:
    words = write(tmp_path / "w.json", [["Tapestry"], "whisper"])
    trigrams = write(tmp_path / "t.json", [["voice barely whisper"]])
    human = {"people": {f"top_{name}": [{"ngram": "a b", "frequency": 3}] for name in ("bigrams", "trigrams")}}
    scale = Scale.read(words, trigrams, write(tmp_path / "h.json", human))
    assert scale.words == {"tapestry", "whisper"} and scale.trigrams == {("voice", "barely", "whisper")}
    assert scale.over == "words" and not scale.ranges and scale.human[2] == {("a", "b"): 1.0}
    assert scale.source == "w.json, t.json"


def test_lists_that_are_something_else_are_named(tmp_path: Path) -> None:
    cases = [
        ([], "contains no list of texts"),
        ({"a": 1}, "contains no list of texts"),
        (["tapestry", "two words"], "entry 2 is 'two words', not one word"),
        ([7], "entry 1 is 7, not one word"),
    ]
    for whole, sentence in cases:
        refused(sentence, Scale.read, write(tmp_path / "w.json", whole), None)
    (tmp_path / "cut.json").write_bytes(b"[")
    for name, sentence in (("none.json", "none.json: can't be read"), ("cut.json", "cut.json:1: not JSON")):
        refused(sentence, Scale.read, tmp_path / name, None)
    with pytest.raises(InputError, match="no top_bigrams and top_trigrams"):
        Scale.read(None, None, write(tmp_path / "h.json", {"a": {}, "b": {}}))
    refused("contains no human values", lambda: read_human(write(tmp_path / "x.json", [])))


def test_fingerprints_differ_if_rates_or_scores_may_differ() -> None:
    others = [
        Scale(SCALE.words, frozenset()),
        Scale(SCALE.words, SCALE.trigrams, "words"),
        Scale(SCALE.words, SCALE.trigrams, ranges={"slop_words": Range(0, 1)}),
    ]
    assert len({scale.fingerprint for scale in (SCALE, *others)}) == 4
    assert Scale(SCALE.words, SCALE.trigrams, human=load_ngrams()).fingerprint == SCALE.fingerprint

"""Counting in bounded memory gives the same counts as counting everything."""

from __future__ import annotations

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import partial

import numpy as np
import pytest
import regex
from hypothesis import example, given, settings, strategies as st

from antislop import Ban, BanList
from antislop.core.bans.folding import SENTENCE_ENDS
from antislop.files.texts import LongText, Text
from antislop.measure import blocks
from antislop.measure.languages import ENGLISH
from antislop.measure.profiles import counting, ngrams
from antislop.measure.profiles.counting import Census, Sketch, count, cut_examples
from antislop.measure.profiles.ngrams import PROMPT_GROUPS, Kind
from antislop.measure.words import extract_words
from tests.support.depth import DEPTH

WORDS = [
    "cat",
    "the",
    "dog",
    "a",
    "Élan",
    "don't",
    "it’s",
    "of",
    "emu",
    "2nd",
    "वह",
    "हिन्दी",
    "e\u0301t\u0301é",
    "co\u00adop",
    "7",
]
JOINTS = [" ", " ", " ", "\n", ", ", ". ", "-", " 3 ", "_", "… ", "?! "]


def make(*texts: str, prompts: Iterable[str | None] = ()) -> list[Text]:
    named = [*prompts, *[None] * len(texts)]
    return [Text(text, named[i], str(i), {}) for i, text in enumerate(texts)]


def take(texts: list[Text], **options: object) -> Census:
    return count(lambda: texts, **{"min_count": 1, "min_prompts": 1, "megabytes": 1, **options})  # type: ignore[arg-type]


def shorten_blocks(patch: pytest.MonkeyPatch, size: int) -> None:
    patch.setattr(blocks, "BLOCK_CHARACTERS", size)
    patch.setattr(ngrams, "BLOCK_CHARACTERS", size)
    patch.setattr(blocks, "CUTS", blocks.CUTS[:1])  # after sentences, for n-grams don't cross a cut


def count_all(texts: list[Text]) -> dict[tuple[Kind, str], list[int]]:
    """Count all but what prompts contain, with the numbers of the texts: what `count` must agree with."""
    found: dict[tuple[Kind, str], list[int]] = defaultdict(list)
    for number, text in enumerate(texts):
        asked = set(list_grams(text.asked))
        for name in list_grams(text.text):
            if name not in asked:
                found[name].append(number)
    return found


def list_grams(text: str) -> Iterator[tuple[Kind, str]]:
    text = unicodedata.normalize("NFC", text.replace("\u00ad", "")).replace("’", "'")
    parts = regex.findall(r"(?!\p{N}+\b)[\p{L}\p{N}\p{M}]+(?:'\p{L}[\p{L}\p{N}\p{M}]*)?|[^\p{L}\p{N}\s]+|\p{N}+", text)
    units = [part.lower() for part in parts]
    for kind, sizes, runs in (
        ("phrase", range(1, 6), cut(units, is_end=lambda unit: not regex.search(r"\p{L}", unit))),
        ("content", range(2, 4), cut(units, is_end=ends_sentence)),
    ):
        for run in runs:
            words = [unit for unit in run if regex.search(r"\p{L}", unit)]
            words = ENGLISH.drop_stop_words(words) if kind == "content" else words
            for size in sizes:
                for start in range(len(words) - size + 1):
                    name: Kind = "word" if size == 1 else kind  # type: ignore[assignment]
                    yield name, " ".join(words[start : start + size])


def ends_sentence(unit: str) -> bool:
    return unit.isdecimal() or bool(set(unit) & {*SENTENCE_ENDS, "…"})


def cut(units: list[str], *, is_end: object) -> list[list[str]]:
    runs: list[list[str]] = [[]]
    for unit in units:
        if is_end(unit):  # type: ignore[operator]
            runs.append([])
        else:
            runs[-1].append(unit)
    return runs


texts_of_words = st.lists(
    st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from(JOINTS)), max_size=25).map(
        lambda pairs: "".join(word + joint for word, joint in pairs)
    ),
    min_size=1,
    max_size=8,
)


@given(texts=texts_of_words, min_count=st.integers(1, 4), min_prompts=st.integers(1, 3))
@example(texts=["2nd_2nd_2nd "], min_count=1, min_prompts=1)
def test_counts_are_those_of_a_counter_over_everything(texts: list[str], min_count: int, min_prompts: int) -> None:
    read = make(*texts, prompts=[str(i % 3) for i in range(len(texts))])
    census = take(read, min_count=min_count, min_prompts=min_prompts)
    expected = {
        name: (len(where), len(set(where)), len({number % 3 for number in where}))
        for name, where in count_all(read).items()
        if len(where) >= min_count and len({number % 3 for number in where}) >= min_prompts
    }
    assert {(each.kind, each.text): (each.count, each.texts, each.prompts) for each in census} == expected
    assert census.words == sum(len(extract_words(text)) for text in texts)


@given(texts=texts_of_words, prompts=texts_of_words, size=st.sampled_from([20, 1000]))
@example(texts=["cat the dog. the cat"], prompts=["A cat, the dog."], size=1000)
def test_what_the_prompt_of_a_text_contains_is_not_counted_in_that_text(
    texts: list[str], prompts: list[str], size: int
) -> None:
    read = make(*texts, prompts=prompts)
    with pytest.MonkeyPatch.context() as patch:
        shorten_blocks(patch, size)
        census = take(read)
    assert dict(zip(census.names, census.counts, strict=True)) == {
        name: len(where) for name, where in count_all(read).items()
    }
    assert census.words == sum(len(extract_words(text)) for text in texts)


@given(texts=texts_of_words)
def test_counters_that_many_share_change_no_count(texts: list[str]) -> None:

    read = make(*texts)
    with pytest.MonkeyPatch.context() as patch:
        shorten_blocks(patch, 20)
        patch.setattr(ngrams, "VOCABULARY", 4)
        shared = take(read, megabytes=0, min_count=2)
    everything = count_all(read)
    assert dict(zip(shared.names, shared.counts, strict=True)) == {
        name: len(where) for name, where in everything.items() if len(where) >= shared.min_count
    }


@given(texts=texts_of_words, limit=st.integers(5, 30), megabytes=st.integers(0, 1))
def test_too_many_candidates_raise_the_smallest_count_and_nothing_above_it_is_lost(
    texts: list[str], limit: int, megabytes: int
) -> None:
    read = make(*texts)
    census = take(
        read, limit=limit, megabytes=megabytes
    )  # of 16 counters each is shared, and candidates are found late
    everything = count_all(read)
    assert len(census) <= limit
    assert dict(zip(census.names, census.counts, strict=True)) == {
        name: len(where) for name, where in everything.items() if len(where) >= census.min_count
    }


@given(texts=texts_of_words)
def test_a_phrase_is_counted_where_its_ban_is_found(texts: list[str]) -> None:
    texts = [text.replace("2nd", "") for text in texts]  # a word for counting, half a word for bans
    words = {name: number for name, number in counts_of(take(make(*texts))).items() if name[0] == "phrase"}
    for (_, phrase), number in list(words.items())[:20]:
        parts = phrase.split(" ")
        if len(set(parts)) == len(parts):  # otherwise occurrences may overlap
            assert number == sum(len(BanList([Ban(phrase)]).find(text)) for text in texts), phrase


def counts_of(census: Census) -> Counter[tuple[Kind, str]]:
    return Counter(dict(zip(census.names, census.counts, strict=True)))


def test_content_words_are_counted_across_stop_words_and_commas_but_not_sentences() -> None:
    counts = counts_of(take(make("Her voice, it was barely a whisper. The voice of the whisper!")))
    assert counts["content", "voice barely whisper"] == 1
    assert counts["content", "whisper voice"] == 0
    assert counts["content", "voice whisper"] == 1
    assert counts["phrase", "voice it"] == 0


def test_regexes_are_counted_as_constructions_over_entire_texts() -> None:
    texts = make("not a cat, but a dog", "not x\n\nbut y", "nothing")
    census = take(texts, patterns={"not-but": regex.compile(r"not [\w ,]+\s+but")})
    assert counts_of(census)["construction", "not-but"] == 2


def test_prompts_are_told_apart_and_texts_without_one_are_their_own() -> None:
    texts = make("a cat", "a cat", "a cat", "a cat", prompts=["p", "p", "q"])
    (cat,) = (each for each in take(texts) if each.text == "cat")
    assert (cat.count, cat.texts, cat.prompts) == (4, 4, 3)
    assert (cat.groups.sum(), len(cat.groups), np.count_nonzero(cat.groups)) == (4, PROMPT_GROUPS, 3)


def test_names_are_words_that_are_capitalised_after_another_word() -> None:
    texts = make("Then Elara ran. The cat saw Elara and the cat ran. Cat! I think I know.")
    assert take(texts).proper == {"elara"}


def test_examples_show_what_stands_around() -> None:
    texts = make("No animals here.", "It is “the cat’s” — so, a cat’s\n\n tail; " + "and so on " * 20)
    census = take(texts)
    (tail,) = (each for each in census if each.text == "a cat's tail")
    assert cut_examples(lambda: texts, [tail]) == {
        ("phrase", "a cat's tail"): (
            "It is “the cat’s” — so, a cat’s tail; and so on and so on and so on and so on and so on and so…",
        )
    }


def test_the_first_three_texts_give_examples_wherever_chunks_end(monkeypatch: pytest.MonkeyPatch) -> None:

    texts = make("no", "a cat", "the cat", "no", "cat cat", "cat")
    for size in (1, 12, 1000):
        shorten_blocks(monkeypatch, size)
        (cat,) = (each for each in take(texts) if each.text == "cat")
        assert cat.places == ((1, 1), (2, 1), (4, 0))


@settings(max_examples=15 * DEPTH)
@given(texts=texts_of_words, chunk=st.integers(10, 80), size=st.integers(1, 9))
def test_long_texts_in_pieces_are_counted_and_shown_as_whole_ones(texts: list[str], chunk: int, size: int) -> None:
    whole = make(*texts)
    long = [LongText(partial(map, "".join, list(batched(text, size))), str(i)) for i, text in enumerate(texts)]
    patterns = {"not-but": regex.compile(r"cat\W+(?:dog|emu)")}
    expected = take(whole, patterns=patterns)
    with pytest.MonkeyPatch.context() as patch:
        shorten_blocks(patch, chunk)
        census = count(lambda: long, patterns=patterns, min_count=1, min_prompts=1, megabytes=1)
        excerpts = cut_examples(lambda: long, census)
    assert (census.texts, census.prompts, census.words) == (expected.texts, expected.prompts, expected.words)
    assert describe(census) == describe(expected)
    assert excerpts == cut_examples(lambda: whole, expected)


def batched(text: str, size: int) -> Iterator[str]:
    return (text[start : start + size] for start in range(0, len(text), size))


def describe(census: Census) -> dict[tuple[Kind, str], tuple[object, ...]]:
    return {
        (each.kind, each.text): (each.count, each.texts, each.prompts, each.groups.tolist(), each.places)
        for each in census
    }


def test_a_sentence_without_an_end_is_cut_at_white_space(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK_CHARACTERS", 80)
    monkeypatch.setattr(blocks, "LONGEST_BLOCK", 160)
    census = take(make("cat dog " * 100, "cat" * 100, " " * 100))
    counts = counts_of(census)
    assert (counts["word", "cat"], counts["word", "dog"]) == (100, 100)
    assert 180 <= counts["phrase", "cat dog"] + counts["phrase", "dog cat"] < 199


@given(st.lists(st.integers(0, 2), max_size=50), st.integers(1, 9))
def test_counters_are_never_too_low_and_stay_full(grams: list[int], batch: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counting, "FULL_COUNTER", 7)
        sketch = Sketch(0)
        for start in range(0, len(grams), batch):
            sketch.add(np.array(grams[start : start + batch], np.uint64))
        bounds = sketch.bound(np.arange(3, dtype=np.uint64)).tolist()
    assert all(bound >= min(grams.count(gram), 7) for gram, bound in enumerate(bounds))
    assert max(bounds) <= 7


def test_progress_names_the_reading_and_what_is_left() -> None:
    told: list[tuple[int, int, int | None]] = []
    take(make("a cat", "a dog"), progress=lambda *step: told.append(step))
    assert told == [(1, 10, None), (2, 10, 10)]


def test_no_texts_and_texts_without_words_count_nothing() -> None:
    assert (len(take([])), take([]).words) == (0, 0)
    assert (len(take(make("…", "12 34"))), take(make("…", "12 34")).texts) == (0, 2)

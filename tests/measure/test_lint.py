"""Lint finds entries that have no effect, ban too much, or look like mistakes, and accepts a corrected list."""

from __future__ import annotations

import io
import json
import math
import time
from collections import Counter
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from antislop import Ban, BanList
from antislop.core.bans.folding import fold_phrase
from antislop.core.bans.patterns.phrase import Phrase
from antislop.core.bans.scopes import Scope
from antislop.measure.languages import ENGLISH
from antislop.measure.lint import COMMON_ZIPF, Speller, find_overlapping, find_superfluous, lint

FREQUENCIES = {
    **dict.fromkeys(["the", "of", "it", "was", "to", "a"], 1e-2),
    **dict.fromkeys(["cat", "education", "eyes", "category", "hand", "can", "write"], 1e-4),
    **dict.fromkeys(["testament", "tapestry", "whisper", "voice", "deep", "breath", "took", "wood"], 1e-6),
}


class Words:
    """A vocabulary of some surfaces."""

    def __init__(self, *surfaces: str | bytes) -> None:
        self.surfaces = [s.encode() if isinstance(s, str) else s for s in surfaces]


CORRECTIONS = {
    "the same again": (["A  Cat nap", "a cat nap"], "duplicate", ["a cat nap"]),
    "the same with curly quotes": (["it’s a cat", "it's a cat"], "duplicate", ["it's a cat"]),
    "the same with another weight": (["a b c d", Ban("a b c d", 0.3)], "duplicate", ["a b c d"]),
    "the same words": (
        [Ban.words(["A b", "c"]), Ban.words(["a", "b", "C"])],
        "duplicate",
        [Ban.words(["a", "b", "c"])],
    ),
    "the same regex": ([Ban.regex(r"x\d"), Ban.regex(r"x\d", weight=0.5)], "duplicate", [Ban.regex(r"x\d")]),
    "a phrase in a phrase": (["a testament to", "testament"], "contained", ["testament"]),
    "a stem in a phrase": (["eyes sparkling", Ban("sparkl", edges="anywhere")], "contained", ["eyes sparkling"]),
    "its own case": ([Ban("Elara", case_sensitive=True), "elara"], "contained", ["elara"]),
    "words of a phrase": (
        ["her voice barely a whisper", Ban.words(["voice", "whisper"], gap=2)],
        "contained",
        ["her voice barely a whisper"],
    ),
    "narrower words": (
        [Ban.words(["deep", "dark", "breath"]), Ban.words(["deep", "breath"], gap=1)],
        "contained",
        [Ban.words(["deep", "breath"], gap=1)],
    ),
    "a word of words": ([Ban.words(["deep", "tapestry"]), "tapestry"], "contained", ["tapestry"]),
    "what a regex matches": (
        ["not just a house", Ban.regex(r"(?i)\bnot\s+just\b")],
        "contained",
        [Ban.regex(r"(?i)\bnot\s+just\b")],
    ),
    "pieces of a sentence": (
        ["Thick  with the scent of", "with the scent of damp tapestry"],
        "overlapping",
        ["thick with the scent of", "the scent of damp tapestry"],
    ),
    "pieces that occur as often": (
        [Ban("thick with the scent of", count=100), Ban("with the scent of tapestry", count=95)],
        "overlapping",
        [Ban("thick with the scent of", count=100), Ban("with the scent of tapestry", count=94)],
    ),
    "two letters": (["ok"], "short", ["ok then"]),
    "a common word": (["eyes"], "common", [Ban("eyes", 0.3)]),
    "common words alone": (["it was"], "common", ["it was raining"]),
    "a stem of common words": ([Ban("cat", edges="anywhere")], "common", ["cats"]),
    "a regex for any word": ([Ban.regex(r"[a-z]{3}")], "common", [Ban.regex(r"\b[a-z]{33}\b")]),
    "a hyphen": (["-"], "common", ["—"]),
    "stars in stars": (["***", "*"], "contained", ["*"]),
    "a missing comma": (["testament totapestry"], "joined", ["testament to", "tapestry"]),
    "a missing comma between words": (["whisper", "tapestry", "whispertapestry"], "joined", ["whisper", "tapestry"]),
    "a kind in front": (["pattern: (abc"], "kind", ["the pattern: a house", "re-read", Ban.regex(r"abc\b")]),
    "a kind in front of a phrase": ([Ban(Phrase("Regex:abc"))], "kind", ["regexes:abc"]),
    "a regex between slashes": ([r"/\bnot just\b/i"], "kind", ["and/or/both", "/his/hers"]),
    "a regex as in Python": (['r"not just"'], "kind", ['or "not just"']),
    "a regex with flags": (["(?i)not just"], "kind", ["(not just)"]),
    "two quoted entries in one": (['"deep breath", "took a"'], "kind", ["deep breath", "took a"]),
    "a back-reference to any passage": ([Ban.regex(r"(.{20,50})\1")], "loop", [Ban.loop(2), Ban.regex(r"\b(\w) \1\b")]),
    "repetition in repetition": ([Ban.regex(r"(x|xx)+y")], "slow", [Ban.regex(r"x{2,}y")]),
}


@pytest.mark.parametrize("case", CORRECTIONS)
def test_faults_are_found_and_fixed_entries_are_not_reported(case: str) -> None:
    wrong, kind, corrected = CORRECTIONS[case]
    findings = lint(BanList(wrong), frequencies=FREQUENCIES)
    assert [finding.kind for finding in findings] == [kind]
    assert findings[0].fault
    assert findings[0].fix
    assert lint(BanList(corrected), frequencies=FREQUENCIES) == []


FINE = {
    "a name": ["elara"],
    "a compound": ["whisper", "whisperwood"],
    "a word with a number": ["whisper", "wood7", "whisperwood7"],
    "two letters are rarer": [Ban("ok", 0.2)],
    "a longer word": ["testament", "testaments"],
    "a stem is not in its phrase": [Ban("eyes sparkl", edges="anywhere"), "sparkl"],
    "the case-sensitive one does not forbid all": ["Elara sings", Ban("elara", case_sensitive=True)],
    "a weight lets it stand": ["a testament to", Ban("testament", 0.5)],
    "a rule lets it stand": ["a testament to", Ban("testament", scopes=(Scope("inside", "quotes"),))],
    "words with a mark between": [Ban.words(["deep", "breath"]), "deep. breath"],
    "wider words": [Ban.words(["deep", "breath"]), Ban.words(["deep", "dark", "breath"], gap=1)],
    "uncounted words": [Ban.words(["deep", "hand"], skip_stop_words=True), Ban.words(["deep", "hand", "s"], gap=3)],
    "a regex minds the case": ["not just a house", Ban.regex(r"\bnot just\b")],
    "two Chinese letters": ["嘴角"],
    "a common word is rarer": [Ban("cat", 0.2)],
    "a contraction": ["couldn't whisper"],
    "another kind of dash": ["—", "―", "a house—my house"],
    "a mark that a phrase also has in other forms": ['say "whisper"', Ban(" “", edges="anywhere")],
}


@pytest.mark.parametrize("case", FINE)
def test_valid_entries_are_not_reported(case: str) -> None:
    assert lint(BanList(FINE[case]), frequencies=FREQUENCIES) == []


def test_one_of_several_equivalent_entries_is_kept() -> None:
    bans = [Ban("tapestry"), Ban.words(["tapestry"]), Ban.wildcard("tapestry"), Ban("Tapestry", case_sensitive=True)]
    assert len({finding.index for finding in lint(bans)}) == 3


def test_without_frequencies_words_are_not_judged() -> None:
    assert lint(BanList(["eyes", "testament totapestry"])) == []


def test_a_finding_names_the_other_entry() -> None:
    (finding,) = lint(BanList(["whisper", "deep breath", "a whisper"]))
    assert (finding.index, finding.other, finding.kind) == (2, 0, "contained")
    assert finding.fault == "'a whisper' contains 'whisper', which forbids it already"


def test_the_finding_on_a_stem_lists_the_most_common_words_that_it_hits() -> None:
    (finding,) = lint([Ban("cat", edges="anywhere")], frequencies={**FREQUENCIES, "cats": 2e-4})
    assert "(cats, cat, education and 1 more): 500 in a million words" in finding.fault


@given(
    st.lists(st.sampled_from("ab"), min_size=8, max_size=12),
    st.lists(st.tuples(st.integers(0, 6), st.integers(1, 8)), max_size=6),
)
def test_phrases_overlap_that_end_and_begin_with_the_same_four_words(
    sentence: list[str], slices: list[tuple[int, int]]
) -> None:
    phrases = [list(words) for words in dict.fromkeys(tuple(sentence[start : start + size]) for start, size in slices)]
    expected = {
        (index, other)
        for (index, words), (other, before) in product(enumerate(phrases), repeat=2)
        if index != other and any(words[:k] == before[-k:] for k in range(4, min(len(words), len(before))))
    }
    bans = [Ban(Phrase(" ".join(words))) for words in phrases]
    assert {(finding.index, finding.other) for finding in find_overlapping(bans)} == expected


# -- against a naive search --------------------------------------------------------------------------------------------

PHRASES = st.text(alphabet="ab -", min_size=1, max_size=4).filter(str.strip)
PLAIN = st.builds(Ban, PHRASES, edges=st.sampled_from(["word", "anywhere"]), case_sensitive=st.booleans())
LETTERS = st.lists(st.sampled_from(["a", "b", "A", "the"]), min_size=1, max_size=3)
SEQUENCES = st.builds(Ban.words, LETTERS, gap=st.integers(0, 2), skip_stop_words=st.booleans())
WILDCARDS = st.builds(Ban.wildcard, st.sampled_from(["a b", "a * b", "a* b", "*a", "a*", "a*b", "b"]))
REGEXES = st.builds(Ban.regex, st.sampled_from(["a", "(?i)a", "(?i)a b", r"(?i)\ba\b", "(?i)a.?b", r"(?i)a\s+b", "^a"]))
TEXTS = st.text(alphabet="aAbB -.", max_size=8) | st.lists(st.sampled_from(["a", "b", "the", "of", "ab"])).map(" ".join)


def is_always_within(outer: Ban, inner: Ban) -> bool:
    """Return whether each occurrence of one ban contains one of the other, with any text around it."""
    for before, after in product(["", "a", "b", " ", "-"], repeat=2):
        text = before + outer.text + after
        spans = BanList([inner]).find(text)
        for match in BanList([outer]).find(text):
            if not any(match.start <= span.start and span.end <= match.end for span in spans):
                return False
    return True


@given(PLAIN, PLAIN)
def test_an_entry_is_contained_if_the_other_occurs_in_it_in_every_context(outer: Ban, inner: Ban) -> None:
    assert isinstance(outer.pattern, Phrase)
    assert isinstance(inner.pattern, Phrase)
    if inner.pattern.folding not in ("caseless", outer.pattern.folding):
        return  # the search below does not try other cases and dashes of the outer phrase
    folded = [fold_phrase(pattern.text, edges=pattern.edges) for pattern in (outer.pattern, inner.pattern)]
    same = folded[0] == folded[1]
    is_found = any(index == 0 for index, *_ in find_superfluous([outer, inner]))
    if not same:
        assert is_found == is_always_within(outer, inner)


@given(st.lists(PLAIN | SEQUENCES | WILDCARDS | REGEXES, min_size=1, max_size=6), st.lists(TEXTS, max_size=20))
def test_a_list_without_its_useless_entries_hits_the_same_texts(bans: list[Ban], texts: list[str]) -> None:
    idle = {finding.index for finding in lint(bans) if finding.kind in ("duplicate", "contained")}
    kept = BanList(ban for index, ban in enumerate(bans) if index not in idle)
    for text in texts:
        assert bool(kept.find(text)) == bool(BanList(bans).find(text))


@given(st.lists(st.text(alphabet="ab-A", min_size=1, max_size=3), min_size=1, max_size=3), PHRASES, st.booleans())
def test_a_phrase_can_be_written_if_some_tokens_spell_it(
    surfaces: list[str], phrase: str, case_sensitive: bool
) -> None:
    pattern = Phrase(phrase.strip(), edges="anywhere", case_sensitive=case_sensitive)
    texts = {"".join(tokens) for length in range(1, 6) for tokens in product(surfaces, repeat=length)}
    expected = any(BanList([Ban(pattern)]).find(text) for text in texts)
    (part,) = pattern.find_parts(pattern.folding)
    assert Speller(Words(*surfaces), pattern.folding).can_write(part) == expected


# -- models ------------------------------------------------------------------------------------------------------------


def test_entries_that_a_model_can_not_write_are_found() -> None:
    vocabulary = Words(" the", " cat", "s", " dog", " naps")
    bans = ["the cats", "cat nap", "the élan", "dog mat", Ban.tokens([3, 5]), Ban.wildcard("dog* zap"), Ban.regex("ß")]
    findings = lint(BanList(bans), vocabulary=vocabulary)
    assert [(finding.index, finding.kind) for finding in findings] == [(i, "untypable") for i in (2, 3, 4, 5)]
    assert findings[0].fault.endswith("no token of the model contains é, l")


def test_entries_that_a_model_writes_only_in_another_case_are_distinguished() -> None:
    bans = [Ban("Elara", case_sensitive=True), Ban("elara", case_sensitive=True), "ELARA x"]
    (finding,) = lint(bans[:2], vocabulary=Words(" el", "ara", "x"))
    assert (finding.index, finding.kind, finding.fix) == (0, "case", "leave out case_sensitive")


def test_a_vocabulary_of_all_bytes_writes_anything() -> None:
    assert lint([Ban("嘴角")], vocabulary=Words(*(bytes([byte]) for byte in range(256)))) == []
    assert lint([Ban("嘴角")], vocabulary=Words("a", "嘴"))


# -- files and real words ----------------------------------------------------------------------------------------------

FILES = {
    "text": "# a cat\na cat\n\n  a dog\nmice\na cat\n",
    "own": "# antislop 1\na cat\tcount=5\na dog\n(mice)\nmice\tweight=0.5\na cat",
    "bullets": "- a cat\n- a dog\n\n- mice\n- a cat",
    "quoted": '"a cat",\n"a dog",\n"mice",\n"a cat"',
    "json": json.dumps([["a cat", 5], ["a dog", 3], ["mice", 2], ["a cat", 1]], indent=1),
    "words": '[\n["a","cat"],\n["a", "dog"],\n["mice"],\n["a cat"]]',
}


@pytest.mark.parametrize("form", FILES)
def test_each_ban_of_a_file_has_its_line(form: str) -> None:
    text = FILES[form]
    bans = BanList.load(io.StringIO(text))
    assert len(bans.lines) == len(bans) == 4 + (form == "own")
    for line, ban in zip(bans.lines, bans, strict=True):
        entry = "\n".join(
            text.split("\n")[line - 1 : line + (form == "json")]
        )  # an entry that is a list begins one line above its phrase
        assert all(word in entry for word in ban.text.split())
        assert not entry.startswith("#")
    assert len(set(bans.lines)) == len(bans)


def test_escapes_in_json_do_not_hide_a_line() -> None:
    bans = BanList.load(io.StringIO('[\n"caf\\u00e9",\n"",\n"\\"so\\""]'), strict=False)
    assert (bans.lines, [ban.text for ban in bans]) == ((2, 4), ["café", '"so"'])
    assert BanList(["a"]).lines == ()


def test_real_frequencies_identify_common_words() -> None:
    pytest.importorskip("wordfreq")
    frequencies = ENGLISH.frequencies
    assert math.log10(frequencies["eyes"]) + 9 > COMMON_ZIPF > math.log10(frequencies["tapestry"]) + 9
    bans = BanList(["eyes", "tapestry", "testament totapestry", Ban("cat", edges="anywhere")])
    kinds = {finding.index: finding.kind for finding in lint(bans, frequencies=frequencies)}
    assert kinds == {0: "common", 2: "joined", 3: "common"}


@pytest.mark.slow
def test_a_long_list_takes_seconds() -> None:
    frequencies = {f"word{i}": 1e-4 / (i + 1) for i in range(5_000)} | FREQUENCIES
    bans = BanList([f"the {i} voices of {i * 7 % 800} rivers" for i in range(8_000)] + ["voices of 7 rivers"])
    began = time.process_time()  # not the time of day, since other processes may run
    kinds = Counter(finding.kind for finding in lint(bans, frequencies=frequencies))
    assert time.process_time() - began < 10
    assert kinds == {"contained": 10}


def test_faults_of_the_published_lists_are_found(assets: Path) -> None:
    pytest.importorskip("wordfreq")
    bans = BanList.load(assets / "lists" / "antislop_sampler_slop_phrases_2025-04-07.json")
    kinds = Counter(finding.kind for finding in lint(bans, frequencies=ENGLISH.frequencies))
    assert kinds["duplicate"] > 100
    assert kinds["joined"] == 0

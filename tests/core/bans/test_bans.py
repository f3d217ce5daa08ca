"""Bans are validated on creation, found by the matcher as by a naive search, and loaded from files of any kind."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, strategies as st

import antislop
from antislop.core.bans.ban_list import BanList, read_bans
from antislop.core.bans.bans import (
    BAN_OPTIONS,
    KINDS,
    Ban,
    CommonOptions,
    Match,
    PatternOptions,
    distinct,
    drop_overlaps,
)
from antislop.core.bans.patterns.pattern import Tokens, find_options, has_wildcard, read_stars, write_stars
from antislop.core.bans.patterns.phrase import Phrase
from antislop.core.bans.scopes import Scope
from antislop.datasets.samples import measure_slop
from antislop.errors import BanError
from antislop.evaluation.evaluation import tally_outputs
from antislop.evaluation.outputs import Output
from antislop.lists.bundled import constructions, default_bans
from antislop.measure.metrics import Tally, measure
from tests.support.oracles import cut_at, find_in_pieces, occurrences

# One ban


@pytest.mark.parametrize("phrase", ["a", "猫", ".", "—", "\0", "é", "👩‍🚀"])
def test_a_phrase_of_one_visible_character_is_a_ban(phrase: str) -> None:
    assert BanList([phrase]).find(f"({phrase})")[0] == Match(Ban(phrase), 1, 1 + len(phrase))


@pytest.mark.parametrize("weight", [0, 0.0, 0.25, 1, 1.0])
def test_a_weight_is_between_0_and_1_and_a_count_may_be_0(weight: float) -> None:
    ban = Ban("delve", weight=weight, count=0)
    assert (ban.weight, ban.count) == (weight, 0)


def test_a_star_in_a_phrase_is_a_wildcard_and_after_a_backslash_the_character() -> None:
    assert Ban("a * of emotion*", weight=0.5, gap=2) == Ban.wildcard("a * of emotion*", weight=0.5, gap=2)
    assert list(BanList(["a * of emotion*", r"\*sighs\*"])) == [Ban.wildcard("a * of emotion*"), Ban(Phrase("*sighs*"))]
    text = "*sighs* A wild mix of emotions, a of emotion; sighs."
    assert [match[1:] for match in BanList(["a * of emotion*", r"\*sighs\*"]).find(text)] == [(0, 7), (8, 30)]
    assert BanList([Ban.wildcard(r"a \*b\* * c")]).find("a b or c") == [(Ban.wildcard(r"a \*b\* * c"), 0, 8)]


def read_star_by_star(text: str) -> tuple[str, bool]:
    """Return a phrase with a dot for each wildcard, and whether there is one, character by character."""
    read, backslashes, has_any = "", 0, False
    for char in text:
        if char == "\\":
            backslashes += 1
            continue
        if char == "*":
            has_any |= backslashes % 2 == 0
            read += "\\" * (backslashes // 2) + ".*"[backslashes % 2]
        else:
            read += "\\" * backslashes + char
        backslashes = 0
    return read + "\\" * backslashes, has_any


@given(text=st.text("a\\* ", max_size=12))
def test_stars_are_read_as_character_by_character_and_written_so_that_none_is_a_wildcard(text: str) -> None:
    assert (read_stars(text, wildcard="."), has_wildcard(text)) == read_star_by_star(text)
    assert (read_stars(write_stars(text)), has_wildcard(write_stars(text))) == (text, False)
    assert "*" in text or read_stars(text) == write_stars(text) == text


def test_an_option_of_phrases_needs_a_phrase_without_a_wildcard() -> None:
    assert Ban(r"7\*7", edges="anywhere") == Ban(Phrase("7*7", edges="anywhere"))


def refuse(option: str, sentence: str, *values: Any) -> list[tuple[Callable[[], object], str]]:
    """Return a case for each value of one argument of a ban. sentence: has `{}` for the value."""
    return [
        (partial(Ban, **{"pattern": "delve", option: value}), sentence.replace("{}", re.escape(repr(value))))
        for value in values
    ]


WEIGHT = r"^the weight of 'delve' is {}; .*a number from 0\.0 \(never\) to 1\.0"
INVISIBLE = ("", " ", "\n\t", "\u200b", "\ufeff \u00ad", "\u3000")
REFUSED: list[tuple[Callable[[], object], str]] = [
    *refuse("pattern", r"^the ban {} contains no visible character .*: leave it out$", *INVISIBLE),
    *refuse("pattern", r"^a ban is a phrase \(str\), not {}: write Ban", None, 7, b"delve", ["delve"], ("delve", 0.5)),
    *refuse("weight", WEIGHT, -0.1, 1.5, 2, math.nan, math.inf, True, "0.5", None, 10**400),
    *refuse("edges", "^the edges of 'delve' are {}; they are 'word' or 'anywhere'$", "words", "", None, ["word"]),
    # Such a ban would be compared with neither form of a text, and never be found.
    *refuse("case_sensitive", "^case_sensitive of 'delve' is {}; it is True or False$", 1, 0, "yes", None),
    *refuse(
        "language", "^the language of 'delve' is {}; it is a code of letters, such as tr$", "t", "Türkçe 1", None, 5
    ),
    *refuse("count", "^count of 'delve' is {}; it is a whole number, 0 or more$", -1, True, 1.5, "3", math.inf),
    *refuse("at_most", "^at_most of 'delve' is {}; it is a whole number, 0 or more$", -1),
    *refuse("exempt", "^exempt of 'delve' is {}; a list of phrases is expected: write exempt=", 3, None, "ab"),
    *refuse("scopes", r"^scopes of 'delve' is {}; write scopes=\[Scope", None, Scope("inside", "code"), ["code"]),
    (lambda: Ban("a", exempt=[" "]), "^exempt of 'a' contains ' ', without a visible character: leave it out$"),
    (lambda: Ban("a", per_words=10), "^per_words of 'a' needs at_most: "),
    (lambda: Ban("a", gap=1), "^the phrase 'a' has no option gap: it has case_sensitive, edges, line_feeds, language$"),
    (lambda: Ban("a", kind="glob"), "^the phrase 'a' has no option kind: "),  # type: ignore[call-arg]
    (lambda: Ban("delve", wieght=0.5), r"^the phrase 'delve' has no option wieght: did you mean weight\?$"),  # type: ignore[call-arg]
    (lambda: Ban(Ban.words(["a", "b"]).pattern, skip_stopwords=True), r"did you mean skip_stop_words\?$"),  # type: ignore[call-arg]
    (lambda: Ban("7*7", edges="anywhere"), r"has no option edges: .*; write \\\* for the character$"),
    (lambda: Ban(Tokens("1 2"), opening="word"), "^the tokens 1 2 have no text, which exempt, scopes, opening and at_"),
    (lambda: Ban("a", opening="text"), "^opening of 'a' is 'text'; it is one of 'word', 'sentence', 'paragraph'$"),  # type: ignore[arg-type]
    *[
        (partial(BanList, entries), r"^a list of bans was expected, but .* is one string.*: write \[phrase\]")
        for entries in ("delve", b"delve", "")
    ],
    # The weights of a mapping would be ignored in silence.
    (lambda: BanList({"delve": 0.5}), r"^a list of bans was expected, not {.*: write \[phrase, Ban\(phrase, weight"),
    (lambda: BanList(["ok", ""]), "^the ban '' contains no visible character"),
    *[
        (partial(BanList, entries), r"^a ban is a phrase \(str\), not ")
        for entries in (["ok", None], [["ok", 0.5]], [1])
    ],
]


@pytest.mark.parametrize(("call", "sentence"), REFUSED)
def test_what_can_not_be_a_ban_or_a_list_is_refused(call: Callable[[], object], sentence: str) -> None:
    with pytest.raises(BanError, match=sentence) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_a_ban_is_a_value() -> None:
    assert Ban("delve") == Ban("delve", weight=0, edges="word") != Ban("Delve")
    assert len({Ban("delve"), Ban("delve"), Ban("delve", weight=0.5)}) == 2
    with pytest.raises(AttributeError):
        Ban("delve").weight = 1.0  # type: ignore[misc]


# Lists


def test_a_list_keeps_order_and_duplicates() -> None:
    bans = BanList(iter(["b", Ban("a", weight=0.5), "b", "c"]), source="here")
    assert list(bans) == [Ban("b"), Ban("a", weight=0.5), Ban("b"), Ban("c")]
    assert (len(bans), bans[1], bans[-1], Ban("c") in bans, "d" in bans) == (
        4,
        Ban("a", weight=0.5),
        bans[3],
        True,
        False,
    )
    assert bans.source == "here"


def test_a_slice_is_a_list_from_the_same_source() -> None:
    bans = BanList(["a", "b", "c"], source="here")
    assert bans[1:] == BanList(["b", "c"])
    assert bans[::-1] == BanList(["c", "b", "a"])
    assert (type(bans[:0]), bans[:0].source) == (BanList, "here")


def test_type_checkers_know_all_options_of_bans_and_patterns() -> None:
    """That each constructor takes its own is a matter of mypy: tests/typed_use.py."""
    assert CommonOptions.__annotations__.keys() == BAN_OPTIONS.keys()
    of_patterns = {option.name for kind in KINDS.values() for option in find_options(kind)}
    assert PatternOptions.__annotations__.keys() == of_patterns


def test_lists_of_equal_bans_are_equal() -> None:
    assert BanList(["a", "b"], source="x") == BanList([Ban("a"), Ban("b")], source="y")
    assert hash(BanList(["a"], source="x")) == hash(BanList(["a"]))
    assert BanList(["a", "b"]) != BanList(["b", "a"])
    assert BanList(["a"]) != [Ban("a")]


def test_the_repr_of_a_list_has_its_length_its_source_and_its_first_three_bans() -> None:
    assert repr(BanList(["a", "b", "c", "d"], source="slop.txt")) == "<BanList of 4 from slop.txt: 'a', 'b', 'c', …>"
    assert repr(BanList(["a", "b", "c"])) == "<BanList of 3: 'a', 'b', 'c'>"
    assert repr(BanList([])) == "<BanList of 0>"


def test_the_repr_of_a_list_fits_on_a_line() -> None:
    for bans in (default_bans(), constructions(), BanList(["x" * 99] * 3, source="a\nb" * 99), BanList([])):
        assert len(repr(bans)) <= 80
        assert repr(bans).startswith(f"<BanList of {len(bans)}") and repr(bans).endswith(">")
        assert "\n" not in repr(bans)
    assert repr(default_bans()).endswith(", made-from…: 'elara', 'flick…>")


def test_duplicates_count_once_with_the_smallest_weight() -> None:
    first, second, third = Ban("a — Testament", weight=0.5), Ban("A  -\nTESTAMENT", weight=0.2), Ban("a - testament")
    other = Ban("cat", weight=0.3)
    assert distinct([first, other, second]) == [second, other]
    assert distinct([first, third, second]) == [third]
    assert distinct([second, Ban("a - testament", weight=0.2)]) == [second]
    assert [match.ban for match in BanList([first, third, second]).find("a - testament")] == [third]


def test_bans_that_are_compared_differently_are_not_duplicates() -> None:
    bans = [Ban("cat"), Ban("cat", edges="anywhere"), Ban("cat", case_sensitive=True), Ban("Cat", case_sensitive=True)]
    assert distinct(bans) == bans


def test_dashes_and_quotes_of_other_kinds_are_other_bans_unless_a_word_is_with_them() -> None:
    bans = [Ban("—"), Ban("–"), Ban("-"), Ban(" -"), Ban("“"), Ban('"'), Ban("…"), Ban("...")]
    assert distinct(bans) == bans
    assert len(distinct([Ban("a — b"), Ban("a - b")])) == 1
    assert read_bans(BanList([]), strings=["—"]).find("a well-known—") == [
        (Ban("—", edges="anywhere", rewind="span"), 12, 13)
    ]
    assert BanList(["—"]).diff(BanList(["-"])) == ((Ban("-"),), (Ban("—"),), ())
    assert list(BanList(["—"]) | BanList([Ban("—", weight=0.5), "-"])) == [Ban("—"), Ban("-")]


def test_a_phrase_of_stars_alone_is_no_wildcard() -> None:
    assert Ban("* * *") == Ban(Phrase("* * *"))
    assert BanList(["***", "*"]).find("so\n\n***")[1:3] == [(Ban("***"), 4, 7), (Ban("*"), 5, 6)]


def test_edges_make_no_difference_to_a_phrase_without_letters_at_its_ends() -> None:
    assert distinct([Ban("[…]"), Ban("[…]", edges="anywhere", weight=0.5)]) == [Ban("[…]")]


# Finding


def test_bans_that_match_the_same_span_are_found_in_the_order_of_the_list() -> None:
    """They came out of a set, whose order is another one in each process."""
    bans = [
        Ban("cat", case_sensitive=True),
        Ban.wildcard("c*t"),
        Ban("Cat"),
        Ban.regex("[c]at"),
        Ban("cat", edges="anywhere"),
    ]
    for order in permutations(bans):
        assert [match.ban for match in BanList(order).find("a cat")] == list(order)


ascii_bans = st.builds(
    Ban,
    st.text("aB-", min_size=1, max_size=3) | st.sampled_from(["a b", "b a", "-a b", "a a a", "b- a"]),
    case_sensitive=st.booleans(),
    edges=st.sampled_from(["word", "anywhere"]),
)


@given(bans=st.lists(ascii_bans, max_size=6), words=st.lists(st.text("abAB-", min_size=1, max_size=5), max_size=8))
@example(bans=[Ban("a"), Ban("-a"), Ban("a", case_sensitive=True)], words=["a", "-A", "aa", "a-a"])
def test_a_list_finds_the_same_as_a_naive_search(bans: list[Ban], words: list[str]) -> None:
    text = " ".join(words)
    expected = {Match(ban, *span) for ban in distinct(bans) for span in occurrences(text, ban)}
    found = BanList(bans).find(text)
    assert set(found) == expected
    assert len(found) == len(expected)
    assert [match[1:] for match in found] == sorted(match[1:] for match in found)


FOUND = {
    "a word": ("delve", "Let us delve into it.", ["delve"]),
    "in capitals": ("Elara", "ELARA met elara.", ["ELARA", "elara"]),
    "over a line break": ("a testament to", "It was a\n   testament to love", ["a\n   testament to"]),
    "over curly quotes": ("couldn't help but", "She couldn’t help but smile", ["couldn’t help but"]),
    "over a dash": ("not just - it's", "is not just — it’s more", ["not just — it’s"]),
    "a zero-width space inside": ("tapestry", "a tap\u200bestry of", ["tap\u200bestry"]),
    "composed or not": ("café", "cafe\u0301s, a cafe\u0301 and a CAFÉ", ["cafe\u0301", "CAFÉ"]),
    "longer once folded": ("straße", "DIE STRASSE", ["STRASSE"]),
    "shorter once folded": ("well...", "well… no", ["well…"]),
    "at the end": ("cat", "the cat", ["cat"]),
    "before punctuation": ("cat", "cat. (cat) cat's cat_x", ["cat"] * 4),
    "not in another word": ("cat", "category bobcat cat2", []),
    "not across a missing space": ("ice bag", "nice bag", []),
    "an edge that is no letter": ("cat[", "cat[x", ["cat["]),
    "overlapping itself": ("ha ha", "ha ha ha", ["ha ha", "ha ha"]),
    "emoji": ("👩\u200d🚀", "a 👩🚀 👩\u200d🚀!", ["👩\u200d🚀"]),
    "a dash as it is written": ("—", "well-known — 1990–1995\n- item ―", ["—"]),
    "a hyphen as it is written": ("-", "a—b – c‑d − e-f", ["-"]),
    "a quote as it is written": ('"', '“so”, "so"', ['"', '"']),
    "an ellipsis as it is written": ("…", "so... well…", ["…"]),
    "white space as it is written": (" - ", "a - b\n- c\u00a0- d  - e", [" - ", " - "]),
    "a ruler as it is written": (r"\*\*\*", "* * *\n\n***", ["***"]),
    "an emoji with a variation selector": ("❤\ufe0f", "❤ ❤\ufe0f", ["❤", "❤"]),
    "a sign composed or not": ("≠", "≠ =\u0338 =", ["≠", "=\u0338"]),
    "a letter makes all fold": ("a –", "A - a\n—", ["A -", "a\n—"]),
}


@pytest.mark.parametrize("case", FOUND)
def test_expected_phrases_are_found(case: str) -> None:
    phrase, text, expected = FOUND[case]
    assert [text[start:end] for _, start, end in BanList([phrase]).find(text)] == expected


def test_nested_and_overlapping_bans_are_all_found_in_order() -> None:
    bans = BanList(["a b c d e x", "d e f", "e", "a b"])
    assert [(match.ban.text, match.start) for match in bans.find("a b c d e f")] == [("a b", 0), ("d e f", 6), ("e", 8)]


def test_a_case_sensitive_ban_finds_only_itself() -> None:
    bans = BanList([Ban("Elara", case_sensitive=True)])
    assert [match.start for match in bans.find("Elara ELARA elara Elara")] == [0, 18]


def test_an_empty_list_and_an_empty_text_find_nothing() -> None:
    assert BanList([]).find("anything") == []
    assert BanList(["a"]).find("") == []


def test_a_list_of_8000_finds_each_of_its_bans() -> None:
    phrases = [f"entry {number} of {number % 7}" for number in range(8000)]
    text = ". ".join(phrases)
    assert [match.ban.text for match in BanList(phrases).find(text)] == phrases


SIGNS = "-–—'’\"“*….  \n\u00a0"


@given(
    bans=st.lists(
        st.builds(Ban, st.text(SIGNS, min_size=1, max_size=3).filter(str.strip).map(write_stars)), max_size=4
    ),
    text=st.lists(st.sampled_from(["a", "B1", "... ", *SIGNS]), max_size=20).map("".join),
)
@example(bans=[Ban(" -")], text="a\u00a0-  - -")
def test_a_phrase_without_letters_and_digits_occurs_where_its_characters_do(bans: list[Ban], text: str) -> None:
    expected = {Match(ban, *span) for ban in distinct(bans) for span in occurrences(text, ban)}
    assert set(BanList(bans).find(text)) == expected


lined = st.text(st.sampled_from("abAB:\n\n "), min_size=1, max_size=5).filter(lambda text: "  " not in text)


@given(
    text=st.text("abA:\n ", max_size=24),
    strings=st.lists(lined, max_size=4),
    cuts=st.lists(st.integers(0, 24), max_size=4),
)
@example(text="told you: and\nYou:", strings=["\nYou:"], cuts=[14])
@example(text="a\n\n\nb \n", strings=["\n\n", "\n"], cuts=[])
def test_a_line_feed_of_banned_strings_is_a_line_feed(text: str, strings: list[str], cuts: list[int]) -> None:
    text = re.sub(" +", " ", text)
    bans = read_bans([], strings=[string for string in strings if "\n" in string])
    expected = [(i, *span) for i, ban in enumerate(bans) for span in occurrences(text, ban)]
    assert find_in_pieces(bans, cut_at(text, cuts)) == sorted(expected)
    assert {tuple(match[1:]) for match in bans.find(text)} == {span[1:] for span in expected}


@given(text=st.text(), phrase=st.text(min_size=1))
@example(text="x\U0010ffff", phrase="\U0010ffff")
def test_any_text_and_any_ban_can_be_searched(text: str, phrase: str) -> None:
    try:
        bans = BanList([Ban(Phrase(phrase, edges="anywhere"))])
    except BanError:
        return
    whole = f"{text}.{phrase}."
    found = bans.find(whole)
    assert all(0 <= start < end <= len(whole) for _, start, end in found)
    assert any(start > len(text) for _, start, _ in found)


# Files


Save = Callable[[str | bytes], Path]


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """Return a function that writes a file and returns its path."""

    def write(content: str | bytes) -> Path:
        path = tmp_path / "slop.list"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


def test_8000_entries_load_and_keep_their_lines(save: Save) -> None:
    entries: list[Any] = [[f"phrase {number}", 0.5] for number in range(8000)]
    assert len(BanList.load(save(json.dumps(entries, indent=1)))) == 8000
    path = save(json.dumps([*entries, "", *entries]).replace("], ", "],\n"))
    with pytest.raises(BanError, match=r":8001: "):
        BanList.load(path)


def test_the_suffix_of_a_file_takes_precedence_over_its_first_character(tmp_path: Path) -> None:
    text = tmp_path / "list.txt"
    text.write_text("[sic]\na b\n", encoding="utf-8")
    assert [ban.text for ban in BanList.load(text)] == ["[sic]", "a b"]
    nameless = tmp_path / "list"
    nameless.write_text('["a b"]', encoding="utf-8")
    assert [ban.text for ban in BanList.load(nameless)] == ["a b"]
    json_file = tmp_path / "list.json"
    json_file.write_text("a b\n", encoding="utf-8")
    with pytest.raises(BanError, match=r"list.json:1: not JSON"):
        BanList.load(json_file)


# Counts


def choose_naively(text: str, matches: list[Match]) -> list[tuple[int, int]]:
    """Walk along a text: take the longest match that begins at a character, go on behind it, else go on by one."""
    place, chosen = 0, []
    while place < len(text):
        ends = [match.end for match in matches if match.start == place]
        if ends:
            chosen.append((place, max(ends)))
        place = max([*ends, place + 1])
    return chosen


@given(
    text=st.text("ab ", max_size=30),
    phrases=st.lists(st.sampled_from(["a", "ab", "b a", "aba", "ba b", "bb"]), min_size=1),
    cut=st.integers(0, 30),
)
def test_of_overlapping_matches_the_first_and_longest_counts(text: str, phrases: list[str], cut: int) -> None:
    matches = BanList([Ban(phrase, edges="anywhere") for phrase in phrases]).find(text)
    expected = choose_naively(text, matches)
    assert [match[1:] for match in drop_overlaps(matches)] == expected
    first = drop_overlaps(match for match in matches if match.start < cut)
    rest = drop_overlaps((match for match in matches if match.start >= cut), begin=first[-1].end if first else 0)
    assert [match[1:] for match in (*first, *rest)] == expected


DAMP = "the air was thick with the scent of damp earth"  # seven entries of the bundled list, one after another


def test_every_headline_counts_the_damp_earth_three_times() -> None:
    bans, words = antislop.default_bans(), len(DAMP.split())
    assert len(bans.find(DAMP)) == 7
    tally = Tally(bans={"slop": bans})
    tally.add(DAMP)
    assert measure(tally)["slop"].value == pytest.approx(3000 / words)
    outputs = tally_outputs([Output(None, 0, DAMP)], {"made_from": bans})
    assert outputs.sum_up()["made_from"].sum() == 3
    record = {"response": DAMP, "arm": "plain"}
    assert measure_slop([record], bans) == {"plain": pytest.approx(3000 / words)}

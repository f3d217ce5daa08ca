"""Lists are saved and loaded without loss, combined, filtered and compared."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import operator
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import regex
from hypothesis import example, given, strategies as st

from antislop.core.bans.ban_list import BanList, Diff
from antislop.core.bans.bans import Ban, distinct, list_options
from antislop.core.bans.bundled import FOLDER, default_bans
from antislop.core.bans.folding import Edges
from antislop.core.bans.patterns.phrase import Phrase
from antislop.core.bans.scopes import Scope
from antislop.errors import BanError

# Writing

WRITTEN: dict[str, tuple[Ban, str]] = {
    "plain": (Ban("a testament to"), "a testament to"),
    "a weight": (Ban("tapestry", weight=0.25), "tapestry\tweight=0.25"),
    "a tiny weight": (Ban("tapestry", weight=1e-9), "tapestry\tweight=1e-09"),
    "a regex": (Ban.regex(r"\bnot just\b", max_span=80), "\\bnot just\\b\tregex max_span=80"),
    "a phrase that begins like a kind": (Ban("regex:a"), '"regex:a"'),
    "a wildcard": (Ban.wildcard("a * of emotion*"), "a * of emotion*\twildcard"),
    "a star that is no wildcard": (Ban(r"\*sighs\*"), r"\*sighs\*"),
    "a star after backslashes": (Ban(Phrase(r"a\\* \*", edges="anywhere")), r"a\\\\\* \\\*" + "\tedges=anywhere"),
    "a star with an invisible character": (Ban(Phrase("a*\n")), r'"a\\*\n"'),
    "a wildcard with a gap": (Ban.wildcard("a * of", gap=2), "a * of\twildcard gap=2"),
    "words": (
        Ban.words(["voice", "barely", "whisper"], gap=2, skip_stop_words=True),
        "voice barely whisper\twords gap=2 skip_stop_words",
    ),
    "token ids": (Ban.tokens([5, 17]), "5 17\ttokens"),
    "options": (
        Ban("Elara", case_sensitive=True, edges="anywhere", from_token=3, at_most=2, per_words=100, count=7),
        "Elara\tcase_sensitive edges=anywhere from_token=3 at_most=2 per_words=100 count=7",
    ),
    "an opening": (
        Ban("cat", opening="word", scopes=[Scope("after", "think")]),
        'cat\tscopes=[["after", "think"]] opening=word',
    ),
    "line feeds": (Ban(Phrase("\nYou:", edges="anywhere", line_feeds=True)), '"\\nYou:"\tedges=anywhere line_feeds'),
    "exempt phrases": (Ban("cat", exempt=("cat's eye", "]")), 'cat\texempt=["cat\'s eye", "]"]'),
    "scopes": (
        Ban("cat", scopes=(Scope("outside", "quotes"), Scope("after", ("<a b>", "</a>")))),
        'cat\tscopes=[["outside", "quotes"], ["after", ["<a b>", "</a>"]]]',
    ),
    "a comment that is none": (Ban("# cat"), '"# cat"'),
    "a quotation": (Ban('"cat"'), '"\\"cat\\""'),
    "spaces at the edges": (Ban(" cat "), '" cat "'),
    "a tab and a line feed": (Ban("a\tb\nc\rd"), '"a\\tb\\nc\\rd"'),
    "half a surrogate pair": (Ban("a\ud800"), '"a\\ud800"'),
    "any script": (Ban("猫 naïve — ‘é’"), "猫 naïve — ‘é’"),
}


@pytest.mark.parametrize("case", WRITTEN)
def test_each_ban_is_one_line_with_the_options_that_are_not_defaults(case: str, tmp_path: Path) -> None:
    ban, line = WRITTEN[case]
    BanList([ban]).save(tmp_path / "list")
    assert (tmp_path / "list").read_text(encoding="utf-8") == f"# antislop 1\n{line}\n"
    loaded = BanList.load(tmp_path / "list")
    assert loaded == BanList([ban])
    assert loaded[0].count == ban.count
    assert (loaded.format, loaded.refused) == ("text", ())


@pytest.fixture(autouse=True, scope="module")
def empty_cache() -> None:
    """Empty the cache of regexes: when it is full, it drops some by `random`, which hypothesis does not allow."""
    regex.purge()


_phrases = (
    st.text(min_size=1, max_size=8)
    | st.text("ab\\* ", min_size=1, max_size=8)
    | st.sampled_from(['"a"', "#a", " a", "a\tb", "# antislop 1", "[1]", "{a", "a\u2028b"])
).filter(lambda phrase: any(char.isalnum() for char in phrase))
_rules = st.fixed_dictionaries(
    {},
    optional={
        "weight": st.floats(0, 1) | st.sampled_from([0, 1]),
        "case_sensitive": st.booleans(),
        "exempt": st.lists(_phrases, max_size=2),
        "scopes": st.lists(
            st.builds(
                Scope,
                st.sampled_from(["inside", "outside", "after"]),
                st.sampled_from(["think", "quotes"]) | st.tuples(st.text(min_size=1), st.text(min_size=1)),
            ),
            max_size=2,
        ),
        "opening": st.sampled_from(["", "word", "sentence", "paragraph"]),
        "from_token": st.integers(0, 10**6),
        "at_most": st.integers(1, 5),
        "count": st.none() | st.integers(0, 10**12),
    },
)


def _literal(text: str, *, edges: Edges = "word", case_sensitive: bool = False, **rules: Any) -> Ban:
    return Ban(Phrase(text, case_sensitive=case_sensitive, edges=edges), **rules)


_kinds = (
    st.tuples(
        st.just(_literal),
        _phrases,
        st.fixed_dictionaries({}, optional={"edges": st.sampled_from(["word", "anywhere"])}),
    )
    | st.tuples(
        st.just(Ban.wildcard),
        _phrases.map(lambda phrase: f"a {phrase}* b"),
        st.fixed_dictionaries({"gap": st.integers(0, 5)}),
    )
    | st.tuples(
        st.just(Ban.words),
        st.lists(_phrases, min_size=1, max_size=3),
        st.fixed_dictionaries({"gap": st.integers(0, 5), "skip_stop_words": st.booleans()}),
    )
    | st.tuples(
        st.just(Ban.regex),
        st.sampled_from([r"\bnot\b", "#a", '"[^"]+"', " a|b ", "a\tb", "a\n"]),
        st.fixed_dictionaries({"max_span": st.integers(1, 500)}),
    )
)
_loops = st.builds(
    lambda copies, period, rules: Ban.loop(copies, 4, period, **rules),
    st.integers(2, 5),
    st.integers(5, 99),
    _rules.map(lambda rules: {name: value for name, value in rules.items() if name != "case_sensitive"}),
)
_repeats = st.builds(
    lambda words, of, rules: Ban.repeat(words, of, **rules),
    st.integers(2, 1000),
    st.sampled_from(["text", "prompt", "both"]),
    _rules.map(lambda rules: {name: value for name, value in rules.items() if name != "case_sensitive"}),
)
_bans = (
    _loops
    | _repeats
    | st.builds(lambda kind, rules: kind[0](kind[1], **kind[2], **rules), _kinds, _rules)
    | st.builds(
        Ban.tokens,
        st.lists(st.integers(0, 10**5), min_size=1, max_size=4),
        weight=st.floats(0, 1),
        count=st.none() | st.integers(0, 99),
    )
)


@given(
    bans=st.lists(_bans, max_size=5), source=st.none() | st.text(min_size=1), license=st.none() | st.text(min_size=1)
)
@example(bans=[], source='"', license=" a\nb ")
@example(bans=[Ban("a", weight=1), Ban("a")], source="# license: x", license="\ufeff")
def test_every_list_is_the_same_after_saving_and_loading(
    bans: list[Ban], source: str | None, license: str | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    written = BanList(bans, source=source, license=license)
    written.save(path)
    read = BanList.load(path)
    assert read == written
    assert [ban.count for ban in read] == [ban.count for ban in written]
    assert (read.source, read.license) == (source or str(path), license)


def to_object(ban: Ban, phrase: str = "phrase") -> dict[str, Any]:
    """Return a ban as an object of a JSON list."""
    options = dict(list_options(ban))
    scopes = {"scopes": [[scope.where, scope.span] for scope in ban.scopes]} if ban.scopes else {}
    return {phrase: ban.text, "kind": ban.pattern.kind, **options, **scopes}


_lists_with_effect = st.lists(_bans, min_size=1, max_size=5).filter(lambda bans: bans[0].weight < 1)


@given(bans=_lists_with_effect, plain=st.lists(st.sampled_from(["a b", "delve"]), max_size=2))
def test_json_objects_that_name_their_kind_are_bans_of_that_kind(bans: list[Ban], plain: list[str]) -> None:
    objects = list(map(to_object, bans))
    expected = [(ban, ban.count) for ban in (*map(Ban, plain), *bans)]
    for text, count in (
        (json.dumps([*plain, *objects]), len(plain)),
        (json.dumps({"lists": {"mine": [to_object(ban, "word") for ban in bans]}}), 0),
        ("\n".join(map(json.dumps, [objects[0], *objects])), 0),
    ):
        read = [(ban, ban.count) for ban in BanList.load(io.StringIO(text))]
        assert read[-len(bans) :] == expected[-len(bans) :]
        assert read[:count] == expected[:count]


_plain_kinds = st.one_of(
    st.just(Ban.loop()), _phrases.map(_literal), st.sampled_from([r"\bno\w", "#a", "a,b"]).map(Ban.regex)
) | st.builds(Ban.words, st.lists(st.sampled_from(["voice", "a", "b"]), min_size=1, max_size=3))


@given(bans=st.lists(_plain_kinds.filter(lambda ban: ban.text.isprintable()), min_size=1, max_size=5))
@example(bans=[Ban.loop(), Ban.regex("a,b")])
def test_a_column_of_csv_names_kinds(bans: list[Ban]) -> None:
    file = io.StringIO()
    writer = csv.writer(file, quoting=csv.QUOTE_ALL)
    writer.writerow(["kind", "phrase", "weight"])
    writer.writerows([ban.pattern.kind, ban.text, 0.5] for ban in bans)
    writer.writerow(["", "a b", ""])
    assert list(BanList.load(io.StringIO(file.getvalue()), format="csv")) == [
        *(Ban(ban.pattern, 0.5) for ban in bans),
        Ban("a b"),
    ]


def test_the_header_takes_precedence_over_the_suffix_of_another_format(tmp_path: Path) -> None:
    for name in ("list.json", "list.yaml", "list.jsonl", "list.txt"):
        BanList(["[a]"]).save(tmp_path / name)
        assert BanList.load(tmp_path / name) == BanList(["[a]"])


def test_a_saved_list_names_source_and_license(tmp_path: Path) -> None:
    bans = BanList(["delve"], source="my stories", license="CC0-1.0")
    bans.save(tmp_path / "a")
    assert (tmp_path / "a").read_text() == "# antislop 1\n# source: my stories\n# license: CC0-1.0\ndelve\n"
    bans.save(tmp_path / "a", license="MIT")
    assert BanList.load(tmp_path / "a").license == "MIT"
    assert BanList.load(tmp_path / "a")[:1].license == "MIT"
    BanList(["a"]).save(tmp_path / "b")
    assert (BanList.load(tmp_path / "b").source, BanList.load(tmp_path / "b").license) == (str(tmp_path / "b"), None)


def test_comments_below_the_first_entry_name_no_source(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("# antislop 1\n\na\n# source: elsewhere\n", encoding="utf-8")
    assert BanList.load(tmp_path / "a").source == str(tmp_path / "a")


def test_a_ban_that_could_not_be_loaded_is_not_saved(tmp_path: Path) -> None:
    for ban in (Ban("a" * 100_001), Ban("\ud83d\ude00x"), Ban("a", count=10**30)):
        with pytest.raises(BanError, match="can't be written so that it reads back the same"):
            BanList(["a", ban]).save(tmp_path / "list")
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_replaced_completely_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "list"
    BanList(["a"]).save(path)
    with pytest.raises(BanError):
        BanList(["b", Ban("a" * 100_001)]).save(path)
    assert path.read_text() == "# antislop 1\na\n"
    BanList(["b"]).save(str(path))
    assert path.read_text() == "# antislop 1\nb\n"
    assert list(tmp_path.iterdir()) == [path]
    plain = tmp_path / "plain"
    plain.write_text("")
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)


def test_a_path_that_can_not_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / "list", tmp_path):
        with pytest.raises(BanError, match=r"can't be written \(.+\): name a file in a folder of yours$") as caught:
            BanList(["a"]).save(path)
        assert str(caught.value).startswith(f"{path}: ")
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


# Combining and reducing lists


def test_a_union_contains_equal_bans_once_with_the_smallest_weight_in_order() -> None:
    left = BanList([Ban("b", weight=0.5), "a"], source="x", license="MIT")
    right = BanList(["c", Ban("B", weight=0.2), Ban("a", edges="anywhere")], source="y", license="MIT")
    both = left | right
    assert both == BanList([Ban("B", weight=0.2), "a", "c", Ban("a", edges="anywhere")])
    assert (both.source, both.license) == ("x, y", "MIT")
    assert ((left | BanList([])).source, (BanList([]) | BanList([])).source) == ("x", None)
    assert (left | left) == BanList(distinct(left))


def test_phrases_and_bans_are_added_to_a_list_and_removed_from_it_on_either_side() -> None:
    bans = BanList([Ban("b", weight=0.5), "a"], source="x")
    for one in ("a cat", Ban("a cat")):
        for other in (one, [one], (one,), {one}, iter([one])):
            assert bans | other == BanList([*bans, "a cat"])
        assert bans + one == BanList([*bans, "a cat"])
        assert one | bans == one + bans == BanList(["a cat", *bans])
        assert (one - bans, (bans | one) - one) == (BanList(["a cat"]), bans)
        assert bans.diff(one).added == (Ban("a cat"),)
    assert (bans | {Ban("B", weight=0.2)}, (bans | ["c"]).source) == (BanList([Ban("B", weight=0.2), "a"]), "x")
    assert (bans - ["B", "z"], (bans - ["B"]).source) == (BanList(["a"]), "x")
    assert ["a", "c"] - bans == BanList(["c"])
    assert bans - (ban for ban in bans) == BanList([])
    for other in ("", b"c", {"c": 0.5}, 5, None, [5]):
        for operate in (operator.or_, operator.add, operator.sub):
            for pair in ((bans, other), (other, bans)):
                with pytest.raises(BanError, match=r"^a list of bans was expected|^a ban is a phrase|^the ban '' "):
                    operate(*pair)


def test_a_phrase_or_a_ban_is_in_a_list_if_it_compares_as_equal_to_one_of_its_bans() -> None:
    bans = BanList([Ban("it’s a testament", weight=0.5), "—", Ban("sparkl", edges="anywhere"), "a * of"])
    for entry in ("It's  a Testament", Ban("it's a testament"), "—", Ban("Sparkl", edges="anywhere"), Ban("A * of")):
        assert entry in bans
    for entry in ("testament", "-", "sparkl", Ban("—", at_most=1), r"a \* of"):
        assert entry not in bans
    assert "a testament to" in default_bans()
    for entry in (5, None, ["—"], b"x"):
        with pytest.raises(TypeError, match=r"^a list of bans contains phrases and bans, not .*: write 'a phrase' in"):
            entry in bans  # noqa: B015 - it raises


def test_top_sorts_by_count_and_puts_bans_without_a_count_last_in_order() -> None:
    bans = BanList(
        ["x", Ban("a", count=2), Ban("b", count=0), "y", Ban("c", count=2), Ban("d", count=5)], source="s", license="l"
    )
    assert [ban.text for ban in bans.top(99)] == ["d", "a", "c", "b", "x", "y"]
    assert [ban.text for ban in bans.top(2)] == ["d", "a"]
    assert (len(bans.top(0)), bans.top(1).source, bans.top(1).license) == (0, "s", "l")


def test_a_filter_keeps_the_matching_bans() -> None:
    bans = BanList(["a b", "c", "d e"], source="s")
    kept = bans.filter(lambda ban: " " in ban.text)
    assert (kept, kept.source) == (BanList(["a b", "d e"]), "s")


DIFFS: dict[str, tuple[list[str | Ban], list[str | Ban], Diff]] = {
    "nothing": (["a", "b"], ["b", "a", "a"], Diff((), (), ())),
    "added and removed, in order": (
        ["b", "a", "c"],
        ["e", "c", "d"],
        Diff((Ban("e"), Ban("d")), (Ban("b"), Ban("a")), ()),
    ),
    "duplicates": (["a", "b", "a"], ["b", "c", "c"], Diff((Ban("c"),), (Ban("a"),), ())),
    "another weight": (["a"], [Ban("a", weight=0.5)], Diff((), (), ((Ban("a"), Ban("a", weight=0.5)),))),
    "other letters": (["A — b"], ["a - B"], Diff((), (), ((Ban("A — b"), Ban("a - B")),))),
    "other edges": (["a"], [Ban("a", edges="anywhere")], Diff((), (), ((Ban("a"), Ban("a", edges="anywhere")),))),
    "another kind": (["a"], [Ban.regex("a")], Diff((Ban.regex("a"),), (Ban("a"),), ())),
    "regexes in another case": ([Ban.regex("A")], [Ban.regex("a")], Diff((Ban.regex("a"),), (Ban.regex("A"),), ())),
    "a longer look-back": (
        [Ban.regex("a")],
        [Ban.regex("a", max_span=9)],
        Diff((), (), ((Ban.regex("a"), Ban.regex("a", max_span=9)),)),
    ),
    "one more of a kind": (
        ["a"],
        [Ban("a", case_sensitive=True), Ban("a", weight=0.5)],
        Diff((Ban("a", weight=0.5),), (), ((Ban("a"), Ban("a", case_sensitive=True)),)),
    ),
    "counts make no difference": (["a"], [Ban("a", count=3)], Diff((), (), ())),
}


@pytest.mark.parametrize("case", DIFFS)
def test_a_diff_contains_added_removed_and_changed_bans(case: str) -> None:
    old, new, expected = DIFFS[case]
    assert BanList(old).diff(BanList(new)) == expected
    back = BanList(new).diff(BanList(old))
    assert (set(back.added), set(back.removed)) == (set(expected.removed), set(expected.added))


# From transformers


def test_bad_words_and_forbidding_biases_become_bans_of_tokens() -> None:
    bans = BanList.from_transformers(bad_words_ids=[[5, 17], [3]], sequence_bias={(8,): -math.inf, (9, 1): -1e4})
    assert bans == BanList([Ban.tokens(ids) for ids in ([5, 17], [3], [8], [9, 1])])
    assert BanList.from_transformers(sequence_bias=[[[5, 17], -math.inf]]) == BanList([Ban.tokens([5, 17])])
    assert BanList.from_transformers(bad_words_ids=[]) == BanList([])


LIST: Any = BanList(["a cat"])
read: Any = BanList.from_transformers
REFUSED: list[tuple[Callable[[], object], str]] = [
    (read, "name bad_words_ids or sequence_bias"),
    (
        partial(BanList.from_transformers, sequence_bias={(5, 17): -10.0}),
        r"the bias -10\.0 of the tokens \[5, 17\] is not a ban",
    ),
    (partial(read, sequence_bias={(5,): 2.0}), "depends on all the others"),
    (partial(read, sequence_bias={(5,): math.nan}), "the bias nan of the tokens"),
    (partial(read, sequence_bias={(5,): "x"}), "token ids and a number were expected"),
    (partial(read, sequence_bias=[-math.inf]), "token ids and a number were expected"),
    (partial(read, bad_words_ids=[5, 17]), "token ids were expected, not 5"),
    (partial(read, bad_words_ids="abc"), "it is a list of lists of token ids"),
    (partial(read, bad_words_ids=[["a"]]), "token ids were expected"),
    (partial(read, bad_words_ids=[[]]), "token ids were expected"),
    (partial(read, bad_words_ids=[[-1]]), "token ids were expected"),
    *(
        (partial(LIST.find, text), r"^find reads one text \(str\), not .*: call it for each text$")
        for text in (["a cat"], 5, None, b"a cat")
    ),
    *(
        (partial(LIST.filter, other), r"^filter takes a function of a ban, not .*: write filter\(lambda ban: ")
        for other in ("a cat", None, {"weight": 0.5})
    ),
    *((partial(LIST.save, path), "^the path of a file was expected, not .*: write save") for path in (None, 5)),
    *((partial(LIST.top, n), "^n of top is .*; it is a whole number, 0 or more$") for n in (-1, 1.5, True, "3", None)),
]


@pytest.mark.parametrize(("call", "sentence"), REFUSED)
def test_arguments_of_a_list_that_can_not_be_used_are_refused(call: Callable[[], object], sentence: str) -> None:
    with pytest.raises(BanError, match=sentence):
        call()


# Published lists


def test_the_bundled_list_is_text() -> None:
    assert default_bans().format == "text"
    assert default_bans() == BanList.load(FOLDER / "slop.txt", format="text")


@pytest.fixture(scope="module")
def lists(assets: Path) -> Path:
    """Return the folder of published lists."""
    if not (assets / "lists").is_dir():
        pytest.skip("no folder shared/assets/lists beside the repository: published lists are not read")
    return assets / "lists"


PUBLISHED = {
    "antislop_sampler_slop_phrase_prob_adjustments.json": ("factors", 517),
    "antislop_sampler_slop_phrase_prob_adjustments_full_list.json.gz": ("factors", 50046),
    "antislop_sampler_slop_phrases_2025-04-07.json": ("counts", 2500),
    "antislop_sampler_slop_regexes.txt": ("regexes", 3),
    "antislop_sampler_slop_words_2025-04-07.json": ("counts", 2000),
    "antislop_vllm_banned_ngrams.json": ("phrases", 400),  # in the shape of phrases
    "antislop_vllm_regex_not_x_but_y.json": ("regexes", 4),
    "antislop_vllm_slop_phrases.json": ("counts", 2333),
    "forensics_bigrams.json": ("ngrams", 200),
    "forensics_human_slop_profile.json": ("statistics", 900),
    "forensics_slop_list.json": ("phrases", 1000),
    "forensics_slop_profile_results.json.gz": ("statistics", 52194),
    "forensics_trigrams.json": ("ngrams", 200),
    "slop_score_bigrams.json": ("ngrams", 200),
    "slop_score_leaderboard.json.gz": ("statistics", 6296),
    "slop_score_slop_list.json": ("phrases", 1648),
    "slop_score_trigrams.json": ("ngrams", 430),
}


def count_entries(value: Any) -> int:
    """Count the phrases in a JSON value, at any depth."""
    if isinstance(value, dict):
        return 1 if {"word", "ngram", "phrase"} & set(value) else sum(map(count_entries, value.values()))
    if isinstance(value, list) and len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], (int, float)):
        return 1
    return sum(map(count_entries, value)) if isinstance(value, list) else 0


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_lists_are_loaded_and_saved_without_loss(name: str, lists: Path, tmp_path: Path) -> None:
    kind, size = PUBLISHED[name]
    raw = (lists / name).read_bytes()
    text = gzip.decompress(raw).decode() if name.endswith(".gz") else raw.decode()
    bans = BanList.load(io.StringIO(text) if name.endswith(".gz") else lists / name)
    assert (bans.format, len(bans), bans.refused) == (kind, size, ())
    if kind == "statistics":
        assert count_entries(json.loads(text)) == size
    elif name.endswith("json"):
        assert len(json.loads(text)) == size
    bans.save(tmp_path / "list")
    again = BanList.load(tmp_path / "list")
    assert again == bans
    assert [ban.count for ban in again] == [ban.count for ban in bans]


def test_published_factors_become_weights_and_counts_sort(lists: Path) -> None:
    factors = BanList.load(lists / "antislop_sampler_slop_phrase_prob_adjustments.json")
    counts = BanList.load(lists / "antislop_sampler_slop_phrases_2025-04-07.json")
    assert (factors[0], factors[0].count) == (Ban("symphony", weight=0.03125), None)
    assert {ban.weight for ban in counts} == {0.0}
    assert [(ban.text, ban.count) for ban in counts.top(1)] == [("took a deep breath", 28671)]


def test_published_ngrams_are_found_over_stop_words(lists: Path) -> None:
    trigrams = BanList.load(lists / "forensics_trigrams.json")
    ngrams = BanList.load(lists / "antislop_vllm_banned_ngrams.json", format="ngrams")
    text = "Her voice was barely a whisper."
    assert {ban.text for ban, *_ in trigrams.find(text)} == {"voice barely whisper"}
    assert {"voice barely", "barely whisper"} <= {ban.text for ban, *_ in ngrams.find(text)}


def test_with_options_changes_all_bans_of_a_list() -> None:
    bans = BanList(["a", Ban.regex("b+"), Ban("c", weight=0.5)], source="here", license="CC0-1.0")
    quiet = bans.with_options(scopes=[Scope("outside", "quotes")], at_most=1)
    assert [ban.text for ban in quiet] == [ban.text for ban in bans]
    assert all(ban.scopes == (Scope("outside", "quotes"),) and ban.at_most == 1 for ban in quiet)
    assert (quiet[2].weight, quiet.source, quiet.license) == (0.5, "here", "CC0-1.0")
    assert [match.start for match in quiet.find('a "a" bb a')] == [9]
    with pytest.raises(BanError, match=r"the regex 'b\+' has no option edges: it has case_sensitive, max_span$"):
        bans.with_options(edges="anywhere")

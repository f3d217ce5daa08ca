"""Lists are saved and loaded without loss."""

from __future__ import annotations

import csv
import gzip
import io
import json
import stat
from pathlib import Path
from typing import Any

import pytest
import regex
from hypothesis import example, given, strategies as st

from antislop.core.bans.ban_list import BanList
from antislop.core.bans.bans import Ban, list_options
from antislop.core.bans.folding import Edges
from antislop.core.bans.patterns.phrase import Phrase
from antislop.core.bans.scopes import Scope
from antislop.errors import BanError
from antislop.lists.bundled import FOLDER, default_bans
from antislop.lists.own import write_lines

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
    | st.text("abiı\\* ", min_size=1, max_size=8)
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


def _literal(
    text: str, *, edges: Edges = "word", case_sensitive: bool = False, language: str = "", **rules: Any
) -> Ban:
    return Ban(Phrase(text, case_sensitive=case_sensitive, edges=edges, language=language), **rules)


_kinds = (
    st.tuples(
        st.just(_literal),
        _phrases,
        st.fixed_dictionaries(
            {}, optional={"edges": st.sampled_from(["word", "anywhere"]), "language": st.sampled_from(["", "tr", "az"])}
        ),
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


def test_the_heading_of_a_list_names_the_language_of_its_phrases(tmp_path: Path) -> None:
    text = "# antislop 1\n# language: tr\nkalbi\nmasal\nsı*\twildcard\n\\bi\tregex\nili\tlanguage=az\n"
    (tmp_path / "tr.txt").write_text(text, encoding="utf-8")
    bans = BanList.load(tmp_path / "tr.txt")
    assert [ban.pattern.language for ban in bans] == ["tr", "", "tr", "", "az"]
    assert list(write_lines(bans)) == text.splitlines()
    mixed = BanList(["iki"]) | bans[:1]
    assert list(write_lines(mixed)) == ["# antislop 1", "iki", "kalbi\tlanguage=tr"]
    assert BanList.load(io.StringIO("\n".join(write_lines(mixed)))) == mixed
    assert list(write_lines(bans[:1], heading=False)) == ["kalbi\tlanguage=tr"]


@pytest.mark.parametrize(
    ("heading", "language"),
    [("# antislop 1\n# language: az-Latn\n", "az"), ("# antislop 1\n# language: de\n", ""), ("# language: tr\n", "tr"),
     ("# language: Turkish, mostly\n", ""), ("# antislop 1\n", ""), ("", "")],
)  # fmt: skip
def test_only_turkish_and_azerbaijani_change_a_list(heading: str, language: str) -> None:
    assert list(BanList.load(io.StringIO(f"{heading}kalbi\n"))) == [Ban("kalbi", language=language)]


def test_a_language_that_is_no_code_is_refused_with_its_line() -> None:
    with pytest.raises(BanError, match=r"^<text>:3: the language of the list is 'Türkçe'; it is a code of letters"):
        BanList.load(io.StringIO("# antislop 1\n# source: x\n# language: Türkçe\nkalbi\n"))


def test_a_language_in_other_formats_is_an_option_if_it_has_an_effect_and_else_a_remark() -> None:
    objects = [{"phrase": "kalbi", "language": code} for code in ("tr", "English (US)", None, ["tr"])]
    assert [ban.pattern.language for ban in BanList.load(io.StringIO(json.dumps(objects)))] == ["tr", "", "", ""]
    assert BanList.load(io.StringIO('[{"regex": "i+", "language": "tr"}]'))[0] == Ban.regex("i+")
    assert BanList.load(io.StringIO("phrase,language\nkalbi,tr\niki,en\n"), format="csv")[0] == Ban(
        "kalbi", language="tr"
    )


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

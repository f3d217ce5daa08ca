"""Lists are read in all published formats, and no bytes raise any error but `BanError`."""

from __future__ import annotations

import gzip
import io
import json
import re
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, NamedTuple

import pytest
from hypothesis import example, given, settings, strategies as st

from antislop.core.bans.ban_list import BanList, Refusal
from antislop.core.bans.bans import Ban
from antislop.core.bans.patterns.phrase import Phrase
from antislop.errors import BanError
from antislop.lists.limits import MAX_CHARACTERS, MAX_DEPTH, MAX_ENTRIES, MAX_LENGTH, MAX_REGEXES
from antislop.lists.reading import FORMATS
from tests.support.depth import DEPTH


class Case(NamedTuple):
    """A small list, its format, its bans, and the options and suffix that it is loaded with."""

    text: str
    format: str
    bans: list[str | Ban]
    options: Mapping[str, Any] = MappingProxyType({})
    suffix: str = ""


def anywhere(*phrases: str) -> list[str | Ban]:
    return [Ban(phrase, edges="anywhere") for phrase in phrases]


def ngrams(*phrases: str) -> list[str | Ban]:
    return [Ban.words(phrase.split(), skip_stop_words=True) for phrase in phrases]


def literally(*phrases: str) -> list[str | Ban]:
    return [Ban(Phrase(phrase, edges="anywhere")) for phrase in phrases]


WILD = Ban.wildcard("f*ck")
STARS = Ban(Phrase("*sighs*"))

READ: dict[str, Case] = {
    "text": Case("# slop\na testament to\n\n  delve \n", "text", ["a testament to", "delve"]),
    "text with comments": Case("  Elara \n\n  # another\ncat #3", "text", ["Elara", "cat #3"]),
    "text with flags": Case("delve\tweight=0.5 count=7\n", "text", [Ban("delve", weight=0.5, count=7)]),
    "text with a header": Case('# antislop 1\n" delve"\n\\bnot\\b\tregex\n', "text", [" delve", Ban.regex(r"\bnot\b")]),
    "text of which one line is quoted": Case('a b\nc d\n"e f"\n', "text", ["a b", "c d", "e f"]),
    "text with a quotation": Case('a b\nc d\n"so," she said, "so"\n', "text", ["a b", "c d", '"so," she said, "so"']),
    "text by its name": Case("- a\n- b\n", "text", ["a", "b"], suffix=".txt"),
    "text as asked": Case("[a]\n", "text", ["[a]"], {"format": "text"}),
    "text anywhere": Case(
        "eyes sparkl\ncat\tedges=word", "text", [*anywhere("eyes sparkl"), "cat"], {"edges": "anywhere"}
    ),
    "text with wildcards": Case(
        "a * of emotion*\tgap=2 weight=0.5\nf*ck\n", "text", [Ban.wildcard("a * of emotion*", gap=2, weight=0.5), WILD]
    ),
    "text with words before a colon": Case(
        'words: a b\n"regex:a"\nhttp://a\n', "text", [Ban("words: a b"), Ban("regex:a"), Ban("http://a")]
    ),
    "text with stars": Case(
        '\\*sighs\\*\n"\\\\*"\n\\o/\n* * *\n',
        "text",
        [STARS, Ban(Phrase("*")), Ban(Phrase("\\o/")), Ban(Phrase("* * *"))],
    ),
    "text anywhere with wildcards": Case("f*ck\neyes\n", "text", [WILD, *anywhere("eyes")], {"edges": "anywhere"}),
    "phrases with wildcards": Case('["f*ck", ["f*ck"], "\\\\*sighs\\\\*"]', "phrases", [WILD, WILD, STARS]),
    "phrases that say they are": Case(
        '["a", {"kind": "phrase", "phrase": "*sighs*"}, {"kind": "wildcard", "phrase": "f*ck"}]',
        "phrases",
        ["a", STARS, WILD],
    ),
    "factors with wildcards": Case('{"f*ck": 0.5}', "factors", [Ban.wildcard("f*ck", weight=0.5)]),
    "counts with wildcards": Case('[["f*ck", 5]]', "counts", [Ban.wildcard("f*ck", count=5)]),
    "statistics with wildcards": Case(
        '[{"phrase": "f*ck", "count": 3}]', "statistics", [Ban.wildcard("f*ck", count=3)]
    ),
    "csv with wildcards": Case(
        "phrase,weight,kind\nf*ck,0.5,\n\\*sighs\\*,,\n*sighs*,,phrase\n",
        "csv",
        [Ban.wildcard("f*ck", weight=0.5), STARS, STARS],
        suffix=".csv",
    ),
    "SillyTavern with stars": Case('"*sighs"\n"a * of"\n\\*\n', "sillytavern", literally("*sighs", "a * of", "\\*")),
    "phrases": Case('["a b", "c"]', "phrases", ["a b", "c"]),
    "phrases and another kind": Case(
        '["a b", {"kind": "loop"}, {"phrase": "c", "kind": "phrase"}]', "phrases", ["a b", Ban.loop(), "c"]
    ),
    "factors and another kind": Case(
        '[["a b", 0.5], {"kind": "regex", "phrase": "a|b"}]', "factors", [Ban("a b", weight=0.5), Ban.regex("a|b")]
    ),
    "regexes and another kind": Case(
        r'["\\bnot\\b.*", {"kind": "repeat", "words": 5, "of": "both"}]',
        "regexes",
        [Ban.regex(r"\bnot\b.*"), Ban.repeat(5, "both")],
    ),
    "statistics with a kind of their own": Case('[{"word": "a b", "kind": "noun", "score": 3}]', "statistics", ["a b"]),
    "csv with kinds": Case(
        "phrase,kind\na b,\n,loop\n,repeat\n", "csv", ["a b", Ban.loop(), Ban.repeat()], suffix=".csv"
    ),
    "csv with a column of another kind": Case(
        "phrase,kind,count\na b,noun,3\nc,regex,2\n", "csv", [Ban("a b", count=3), Ban("c", count=2)], suffix=".csv"
    ),
    "phrases with brackets and commas": Case(
        '["[a], b", "c]", ["[d,", 0.5]]', "factors", ["[a], b", "c]", Ban("[d,", 0.5)]
    ),
    "phrases with escapes": Case('["a", "b\\u00e9", "#c"]', "phrases", ["a", "bé", "#c"]),
    "a phrase of thousands of characters": Case(json.dumps(["ab " * 5000]), "phrases", ["ab " * 5000]),
    "phrases among factors": Case('["a", ["b", 0.5]]', "factors", ["a", Ban("b", 0.5)]),
    "phrases, each in a list": Case('[["elara"], ["kael"]]', "phrases", ["elara", "kael"]),
    "phrases anywhere": Case('["eyes sparkl"]', "phrases", anywhere("eyes sparkl"), {"edges": "anywhere"}),
    "phrases that keep their spaces": Case('[" delve", ", once a "]', "phrases", [" delve", ", once a "]),
    "factors": Case('[["delve", 0.03125], ["tapestry", 1]]', "factors", [Ban("delve", 0.03125), Ban("tapestry", 1)]),
    "factors of one": Case('[["a", 1], ["b", 1.0], ["c", 0.5]]', "factors", [Ban("a", 1), Ban("b", 1), Ban("c", 0.5)]),
    "counts": Case(
        '[["took a deep breath", 28671], ["x", 0]]',
        "counts",
        [Ban("took a deep breath", count=28671), Ban("x", count=0)],
    ),
    "counts as asked": Case('[["a", 1]]', "counts", [Ban("a", count=1)], {"format": "counts"}),
    "factors as asked": Case('[["a", 1], ["b", 0]]', "factors", [Ban("a", 1), Ban("b")], {"format": "factors"}),
    "words": Case('[["voice", "barely"], ["hm"]]', "ngrams", ngrams("voice barely", "hm")),
    "words in one string": Case('[["voice barely"], ["hm"], "a b"]', "ngrams", ngrams("voice barely", "hm", "a b")),
    "words as asked": Case('["voice barely"]', "ngrams", ngrams("voice barely"), {"format": "ngrams"}),
    "regexes in JSON": Case(
        r'["\\bnot\\s+just\\b", "each (?:a|b)"]', "regexes", [*map(Ban.regex, [r"\bnot\s+just\b", "each (?:a|b)"])]
    ),
    "regexes in text": Case(
        '"(?i)not [^.!?]{3,60} but",\n"each(?:\\s*a)"\n',
        "regexes",
        [*map(Ban.regex, ["(?i)not [^.!?]{3,60} but", r"each(?:\s*a)"])],
    ),
    "regexes without quotes": Case("\\bnot\\b\n[^a]b\\d\n", "regexes", [Ban.regex(r"\bnot\b"), Ban.regex(r"[^a]b\d")]),
    "regexes copied from JSON": Case('"\\\\bnot\\\\b",\n', "regexes", [Ban.regex(r"\bnot\b")]),
    "regexes as asked": Case('["a+"]', "regexes", [Ban.regex("a+")], {"format": "regexes"}),
    "regexes as asked, in text": Case(
        "a+\n'b+',\n", "regexes", [Ban.regex("a+"), Ban.regex("b+")], {"format": "regexes"}
    ),
    "SillyTavern": Case(
        'READ THIS FIRST!\nIt goes into the box.\n=====\nbare text\n" delve"\n"shivers down"\n[1, 22,3]\n"a",\n',
        "sillytavern",
        [*anywhere("bare text", " delve", "shivers down"), Ban.tokens([1, 22, 3]), *anywhere("a")],
    ),
    "SillyTavern without a heading": Case('"a "\nb\n', "sillytavern", anywhere("a ", "b")),
    "SillyTavern that begins with token ids": Case('[1]\n"a"\n', "sillytavern", [Ban.tokens([1]), *anywhere("a")]),
    "SillyTavern as whole words": Case('"a"\n"b"', "sillytavern", ["a", "b"], {"edges": "word"}),
    "SillyTavern as asked": Case("a\n\nb", "sillytavern", anywhere("a", "b"), {"format": "sillytavern"}),
    "a preset of SillyTavern": Case(
        '{"temp": 1,\n"banned_tokens": "\\" delve\\"\\nbare\\n[1, 2]", "global_banned_tokens": ""}',
        "sillytavern",
        [*anywhere(" delve", "bare"), Ban.tokens([1, 2])],
    ),
    "all presets of SillyTavern in one": Case(
        '{"preset": {"banned_tokens": "", "global_banned_tokens": "*sighs*"}}',
        "sillytavern",
        literally("*sighs*"),
        suffix=".json",
    ),
    "statistics": Case(
        json.dumps(
            {
                "m": {
                    "top_repetitive_words": [{"word": "elara", "score": 3.5}],
                    "top_bigrams": [{"ngram": "could see", "frequency": 7}],
                }
            }
        ),
        "statistics",
        ["elara", Ban.words(["could", "see"], skip_stop_words=True, count=7)],
    ),
    "statistics of runs": Case(
        json.dumps(
            {
                "n": 1,
                "results": [
                    {
                        "slop_word_hits": [["subtly", 34]],
                        "top": {"trigrams": [{"phrase": "a b c", "count": 2}]},
                        "hits": [{"sentence": "x"}],
                    }
                ],
            }
        ),
        "statistics",
        [Ban("subtly", count=34), Ban.words(["a", "b", "c"], skip_stop_words=True, count=2)],
    ),
    "a list of statistics": Case('[{"phrase": "a b", "count": 3}]', "statistics", [Ban("a b", count=3)]),
    "JSON Lines": Case(
        '{"phrase": "a b", "count": 3}\n\n{"ngram": "c d"}\n', "statistics", [Ban("a b", count=3), *ngrams("c d")]
    ),
    "JSON Lines of pairs": Case(
        '["took a deep breath", 97]\n["a", 5]\n', "statistics", [Ban("took a deep breath", count=97), Ban("a", count=5)]
    ),
    "an object of factors": Case('{"delve": 0.5,\n"a b": 1}', "factors", [Ban("delve", 0.5), Ban("a b", 1)]),
    "an object of counts": Case('{"delve": 12, "a b": 1}', "counts", [Ban("delve", count=12), Ban("a b", count=1)]),
    "an object as asked": Case('{"a": 1}', "counts", [Ban("a", count=1)], {"format": "counts"}),
    "CSV of weights": Case(
        "delve,0.03125\na testament to, 1\n", "csv", [Ban("delve", 0.03125), Ban("a testament to", 1)]
    ),
    "CSV of counts": Case("delve,28671\nx,0\n", "csv", [Ban("delve", count=28671), Ban("x", count=0)]),
    "CSV that looks like text by its name": Case("a b,0.5\nc,0\n", "csv", [Ban("a b", 0.5), "c"], suffix=".txt"),
    "CSV with names": Case(
        '# mine\nPhrase,Weight\n"well, well",0.5\ndelve,\nx\n',
        "csv",
        [Ban("well, well", 0.5), "delve", "x"],
        suffix=".csv",
    ),
    "CSV with more columns": Case(
        "rank,ngram,frequency,weight,ratio\n1,took breath,97,0.5,3.1\n",
        "csv",
        [Ban.words(["took", "breath"], skip_stop_words=True, count=97, weight=0.5)],
        suffix=".csv",
    ),
    "CSV of whole numbers that are weights": Case("phrase,weight\na,1\nb,0\n", "csv", [Ban("a", 1), "b"]),
    "CSV of few counts": Case("word,count\na,1\nb,0\n", "csv", [Ban("a", count=1), Ban("b", count=0)]),
    "CSV of phrases": Case('a b\n"well, well"\n', "csv", ["a b", "well, well"], suffix=".csv"),
    "CSV of phrases with a name": Case("phrase\na b\n", "csv", ["a b"], suffix=".csv"),
    "CSV with semicolons": Case("a, b;0,5\nc;1\n", "csv", [Ban("a, b", 0.5), Ban("c", 1)]),
    "TSV": Case("a, b\t0.5\nc\t1\n", "csv", [Ban("a, b", 0.5), Ban("c", 1)], suffix=".tsv"),
    "CSV with quotes": Case(
        '"""so"" she said",3\n" c","4"\n', "csv", [Ban('"so" she said', count=3), Ban(" c", count=4)]
    ),
    "CSV anywhere": Case(
        "eyes sparkl,0.5\nc,0\n",
        "csv",
        [Ban("eyes sparkl", 0.5, edges="anywhere"), *anywhere("c")],
        {"edges": "anywhere"},
    ),
    "text with numbers": Case("in May, 2020\nwell, well\n", "text", ["in May, 2020", "well, well"]),
    "one line of text with a number": Case("in May, 2020\n", "text", ["in May, 2020"]),
    "JSON Lines by its name": Case('"a b"\n', "statistics", ["a b"], suffix=".jsonl"),
}


def load(text: str | bytes, folder: Path, suffix: str = "", **options: Any) -> BanList:
    path = folder / f"list{suffix}"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return BanList.load(path, **options)


@pytest.mark.parametrize("case", READ)
def test_each_format_is_recognized_and_read(case: str, tmp_path: Path) -> None:
    text, kind, expected, options, suffix = READ[case]
    bans = load(text, tmp_path, suffix, **options)
    assert bans.format == kind
    assert bans == BanList(expected)
    assert [ban.count for ban in bans] == [ban.count for ban in BanList(expected)]
    assert bans.refused == ()
    assert bans.source == str(tmp_path / f"list{suffix}")
    assert BanList.load(bans.source, **options) == bans


@pytest.mark.parametrize("case", READ)
def test_the_recognized_format_can_be_passed(case: str, tmp_path: Path) -> None:
    text, kind, expected, options, suffix = READ[case]
    assert load(text, tmp_path, suffix, **{**options, "format": kind}) == BanList(expected)


@pytest.mark.parametrize("case", READ)
def test_a_list_of_each_format_is_the_same_after_saving_and_loading(case: str, tmp_path: Path) -> None:
    text, _, _, options, suffix = READ[case]
    bans = load(text, tmp_path, suffix, **options)
    bans.save(tmp_path / "saved.txt")
    again = BanList.load(tmp_path / "saved.txt")
    assert (again, [ban.count for ban in again]) == (bans, [ban.count for ban in bans])


@pytest.mark.parametrize("case", READ)
def test_the_ends_of_lines_make_no_difference(case: str, tmp_path: Path) -> None:
    text, kind, expected, options, suffix = READ[case]
    bans = load(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode(), tmp_path, suffix, **options)
    assert (bans.format, bans) == (kind, BanList(expected))


def test_open_files_are_read_as_paths_are(tmp_path: Path) -> None:
    path = tmp_path / "list.md"
    path.write_text("- a\n- b*\n", encoding="utf-8")
    expected = BanList(["a", Ban.wildcard("b*")])
    with path.open(encoding="utf-8") as text, path.open("rb") as raw:
        assert BanList.load(text) == BanList.load(raw) == expected
        assert text.read() == ""
    with gzip.open(tmp_path / "list.json.gz", "wt") as packed:
        packed.write('["a"]')
    with gzip.open(tmp_path / "list.json.gz", "rt") as packed:
        assert BanList.load(packed).format == "phrases"  # type: ignore[arg-type]
    assert BanList.load(io.StringIO("\ufeffa\r\nb")) == BanList(["a", "b"])
    assert BanList.load(io.StringIO("a")).source == "<text>"


# A leading space, and edges


def test_a_space_at_an_edge_must_occur_in_the_text(tmp_path: Path) -> None:
    bans = load('" delve"\n"sparkl"\n', tmp_path)
    assert list(bans) == [Ban(ban.text, edges="anywhere") for ban in bans]
    text = "xdelve, delves; delve sparkling"
    assert [text[match.start : match.end] for match in bans.find(text)] == [" delve", " delve", "sparkl"]
    assert bans.find("xdelve") == []


def test_stems_are_found_only_with_edges_anywhere(tmp_path: Path) -> None:
    assert load('["eyes sparkl"]', tmp_path).find("Her eyes sparkled.") == []
    assert len(load('["eyes sparkl"]', tmp_path, edges="anywhere").find("Her eyes sparkled.")) == 1


# Refusals


class Refused(NamedTuple):
    """A list, the line at which it is refused, a part of the reason, and the options and suffix of the load."""

    text: str | bytes
    line: int
    reason: str
    options: Mapping[str, Any] = MappingProxyType({})
    suffix: str = ""


REFUSED: dict[str, Refused] = {
    "nothing": Refused(b"", 1, "contains no ban"),
    "only a byte order mark": Refused(b"\xef\xbb\xbf", 1, "contains no ban"),
    "only white space and comments": Refused("\n \n# nothing\n", 1, "contains no ban"),
    "an empty JSON list": Refused("  \n[ ]\n", 1, "contains no ban"),
    "a bare bracket and comma": Refused('["[a], b", ["[,", 0.5]]', 1, "is a bare bracket, comma or colon"),
    "an empty phrase inside a JSON list": Refused('[\n"a",\n"b",\n\n  "",\n"c"\n]', 5, "contains no visible character"),
    "the second of two on one line": Refused('["a", ""]', 1, "contains no visible character"),
    "an entry after one of several lines": Refused('[["a",\n 0.5],\n  7]', 3, "a ban is a phrase"),
    "white space before the list": Refused('\n\n["a",\n[]]', 4, "a ban is a phrase"),
    "an object with a key nobody knows": Refused(
        '["a",\n{"phrase": "b", "strength": 1}]', 2, "'strength' of 'b' is unknown"
    ),
    "three in an entry": Refused('[["a", 0.5, 1]]', 1, "a ban is a phrase"),
    "a weight of 1.5": Refused('[["a", 0.5],\n["b", 1.5]]', 2, "the weight of 'b' is 1.5"),
    "a count among weights": Refused('[["a", 0.5],\n["b", 12]]', 2, "the weight of 'b' is 12"),
    "a weight that is a word": Refused('[["one", 0.5], ["two",\n"words"]]', 1, "the weight of 'two' is 'words'"),
    "a weight of JSON that is no number": Refused('[["a", NaN]]', 1, "the weight of 'a' is nan"),
    "a dict": Refused('{"a": "b"}', 1, "texts under names were found, as replacements are"),
    "a list that does not end": Refused('["a",\n"b"', 2, "not JSON"),
    "a comma too many": Refused('["a",\n"b",]', 2, "not JSON"),  # Python 3.13 points at the comma, others behind it
    "more after the list": Refused('["a"]\n["b"]', 2, "not JSON"),
    "too deep": Refused("[" * 100_000 + "]" * 100_000, 1, "not JSON"),
    "a number of thousands of digits": Refused('[["a", ' + "1" * 5000 + "]]", 1, "not JSON"),
    "not UTF-8": Refused(b"delve\ntapestry\ncaf\xe9\n", 3, "not UTF-8"),
    "UTF-16": Refused("delve".encode("utf-16"), 1, "not UTF-8"),
    "an invisible line": Refused("delve\n\u200b\n", 2, "contains no visible character"),
    "a flag nobody knows": Refused("a\ndelve\twieght=0.5\n", 2, "the flag 'wieght' of 'delve\\twieght=0.5' is unknown"),
    "a flag that is no word": Refused("delve\t0.5\n", 1, "the flag '0.5' of"),
    "a control character between flags": Refused("a\tregex\x1fwords\n", 1, "the flag '\\x1fwords' of"),
    "a flag without its value": Refused("delve\tweight\n", 1, "weight of 'delve\\tweight' can't be read"),
    "a flag with a value too much": Refused("delve\tcase_sensitive=1\n", 1, "write it as case_sensitive"),
    "a kind with a value": Refused(
        "delve\tregex=3\n", 1, "regex of 'delve\\tregex=3' can't be read: write it as regex"
    ),
    "a flag twice": Refused(
        "delve\tweight=0.5 weight=0.4\n", 1, "weight of 'delve\\tweight=0.5 weight=0.4' is given twice"
    ),
    "two kinds": Refused("delve\tregex words\n", 1, "kind of 'delve\\tregex words' is given twice"),
    "a weight above 1": Refused("delve\tweight=12\n", 1, "the weight of 'delve' is 12.0"),
    "a weight that is no number": Refused("delve\tweight=nan\n", 1, "write it as weight=0.25"),
    "a negative count": Refused("delve\tcount=-3\n", 1, "write it as count=3"),
    "exempt phrases without JSON": Refused("delve\texempt=[a]\n", 1, 'write it as exempt=["a phrase"]'),
    "an object with an unknown option": Refused('[{"phrase": "a", "kind": "regex", "gap": 2}]', 1, "gap"),
    "an object without a phrase": Refused('["a", {"kind": "wildcard"}]', 1, "no visible character"),
    "an object with exempt as a word": Refused('[{"phrase": "a", "kind": "phrase", "exempt": "b"}]', 1, "in brackets"),
    "an object with scopes of another shape": Refused(
        '[{"phrase": "a", "kind": "phrase", "scopes": ["quotes"]}]', 1, "a scope is 'inside', 'outside' or 'after'"
    ),
    "scopes of another shape": Refused('delve\tscopes=["quotes"]\n', 1, "a scope is 'inside', 'outside' or 'after'"),
    "a scope nobody knows": Refused('delve\tscopes=[["inside",["",1]]]\n', 1, "a scope's span is one of"),
    "a regex that does not compile": Refused('["\\\\b(", "\\\\bx"]', 1, "does not compile", {"format": "regexes"}),
    "a regex that becomes huge": Refused('["(?:a?){1000000000}"]', 1, "becomes too large", {"format": "regexes"}),
    "a regex in too many brackets": Refused(
        json.dumps(["(" * 4000 + "a" + ")" * 4000]), 1, "too complicated", {"format": "regexes"}
    ),
    "a newer version": Refused("# antislop 2\na\n", 1, "this list is of version 2, and up to 1 is supported"),
    "a regex with its kind in front": Refused(
        "a\nregex:(abc\n", 2, "'regex:(abc' names a kind in front: write (abc<tab>regex, or put a phrase that begins"
    ),
    "a regex with a short kind in front": Refused("# antislop 1\nre:a|b\n", 2, "write a|b<tab>regex, or put a phrase"),
    "words with their kind in front": Refused("words:a b\tgap=2\n", 1, "write a b<tab>words, or put a phrase"),
    "a count that is none": Refused('[["a", 3],\n["b", 2.5]]', 2, "count of 'b' is 2.5", {"format": "counts"}),
    "a number among words": Refused('[["a", "b"],\n["c", 1]]', 2, "a ban is a phrase", {"format": "ngrams"}),
    "a list in YAML": Refused("- a\n", 1, "a list in YAML can't be read: write one phrase per line", suffix=".yaml"),
    "groups in YAML": Refused("a:\n  - b\n  - c\n", 1, "'a:' has none of the bullets that most lines have"),
    "a wildcard that is a gap": Refused("- a\n- * of\n", 2, "begins or ends with a gap"),
    "a bullet": Refused("a\n* b\n", 2, r"'* b' begins or ends with a gap: leave out the * there, or write \* for the"),
    "a wildcard with edges": Refused("a\nb* c\tedges=anywhere\n", 2, "the wildcard 'b* c' has no option edges"),
    "a preset without bans": Refused('{"temp": 1, "banned_tokens": ""}', 1, "contains no ban: write one per line"),
    "a preset with token ids that are too large": Refused(
        '{"temp": 1,\n\n"banned_tokens": "a\\n[99999999]"}', 3, "token ids were expected"
    ),
    "token ids that are too large": Refused('"a"\n[99999999]\n', 2, "token ids were expected"),
    "a line that is no JSON": Refused('{"word": "a"}\n{"word"\n', 2, "not JSON"),
    "a line without a phrase": Refused('{"word": "a"}\n{"score": 3}\n', 2, "names no phrase, word"),
    "a phrase that is a number": Refused('{"words": [\n\n{"word": 7}]}', 3, "a ban is a phrase"),
    "statistics too deep": Refused('{"a":' * 30 + "1" + "}" * 30, 1, f"nested more than {MAX_DEPTH} deep"),
    "an object with a number too large": Refused('{"a": 0.5,\n"b": 3}', 2, "the weight of 'b' is 3"),
    "CSV with a weight too large": Refused("a,0.5\nb,3\n", 2, "the weight of 'b' is 3"),
    "CSV with a word for a number": Refused("a,0.5\nb,c\n", 2, "the weight 'c' is not a number", suffix=".csv"),
    "CSV with a comma too much": Refused("phrase,count\nwell, well,3\n", 2, "3 cells, and up to 2 were", suffix=".csv"),
    "CSV with a column nobody knows": Refused("phrase,strength\na,3\n", 1, "the column 'strength' is unknown"),
    "CSV with a quotation that never ends": Refused('a,1\n"b,2\nc,3\n', 2, "marks don't match", suffix=".csv"),
    "CSV with an empty phrase": Refused("a,1\n,2\n", 2, "contains no visible character", suffix=".csv"),
    "CSV with a count that is none": Refused("phrase,count\na,2.5\n", 2, "count of 'a' is 2.5"),
    "a bare number": Refused("7", 1, "a JSON list of phrases was expected, not int", suffix=".json"),
    "an entry that is too long": Refused(f"a\n{'b ' * MAX_LENGTH}\n", 2, f"more than {MAX_LENGTH}: shorten it"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_unusable_entries_are_refused_with_their_line(case: str, tmp_path: Path) -> None:
    text, line, reason, options, suffix = REFUSED[case]
    with pytest.raises(BanError) as caught:
        load(text, tmp_path, suffix, **options)
    assert str(caught.value).startswith(f"{tmp_path / 'list'}{suffix}:{line}: ")
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_csv_line_of_many_cells_is_read_at_once(tmp_path: Path) -> None:
    began = time.thread_time()
    with pytest.raises(BanError, match="40001 cells, and up to 2 were expected"):
        load("a,0.5\n" + "ab ," * 40_000, tmp_path, ".csv")
    assert time.thread_time() - began < 2


MIXED = {
    "text": "good\n\u200b\nfine\nbad\tweight=2\n",
    "phrases": '["good",\n"",\n"fine",\n7]',
    "factors": '[["good", 0],\n["bad", 2],\n"fine",\n["bad", "x"], ["fair", 0.5]]',
    "regexes": '["good",\n"(",\n"fine",\n"*"]',
    "sillytavern": '"good"\n" "\n"fine"\n[99999999]\n',
    "statistics": '{"word": "good"}\n{}\n["fine", 2]\n7\n',
    "csv": 'good,1\nbad,2\nfine,0.5\n"bad,1\n',
}


@pytest.mark.parametrize("kind", MIXED)
def test_unusable_entries_are_skipped_only_on_request_and_are_listed(kind: Any, tmp_path: Path) -> None:
    bans = load(MIXED[kind], tmp_path, format=kind, strict=False)
    assert [ban.text for ban in bans][:2] == ["good", "fine"]
    assert [place for place, _ in bans.refused] == [f"{tmp_path / 'list'}:{line}" for line in (2, 4)]
    assert all(isinstance(refusal, Refusal) and refusal.reason for refusal in bans.refused)
    with pytest.raises(BanError) as caught:
        load(MIXED[kind], tmp_path, format=kind)
    more = " (1 more refused; strict=False leaves them out)"
    assert str(caught.value) == f"{bans.refused[0].place}: {bans.refused[0].reason}{more}"


class _Broken(io.StringIO):
    def read(self, size: int | None = -1, /) -> Any:
        raise OSError(5, "input/output error")


class _Odd(io.StringIO):
    def read(self, size: int | None = -1, /) -> Any:
        return ["a"]


class _Endless(io.RawIOBase):
    def read(self, size: int = -1, /) -> bytes:
        assert size >= 0, "nobody could read all of it"
        return b"a" * min(size, 1_000_000)


HERE = Path(__file__).parent
CLOSED = io.StringIO("a")
CLOSED.close()
SOURCES: list[tuple[Any, dict[str, Any], str]] = [
    *((source, {}, "^a path or an open text file was expected, not ") for source in (None, 7, ["a"], {"a": 1})),
    *((source, {}, r"can't be read \(.+\): give the path") for source in (_Broken(), CLOSED, "\0")),
    *(
        (path, {}, rf"^{re.escape(str(path))}: can't be read \(.+\): give the path")
        for path in (HERE, HERE / "none.txt")
    ),
    (_Odd(), {}, "an open text file was expected"),
    (_Endless(), {}, f"longer than {MAX_CHARACTERS} characters"),
    (io.StringIO("a"), {"format": "ini"}, "^the format 'ini' is unknown: it is one of text, regexes, .*sillytavern$"),
    (io.StringIO("a"), {"edges": "stem"}, "^the edges are 'stem'; they are 'word' or 'anywhere'"),
]


@pytest.mark.parametrize(("source", "options", "sentence"), SOURCES)
def test_what_is_no_list_to_read_is_refused(source: Any, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BanError, match=sentence):
        BanList.load(source, **options)


def test_an_open_file_with_another_encoding_is_refused(tmp_path: Path) -> None:
    latin = tmp_path / "latin.txt"
    latin.write_bytes(b"caf\xe9\n")
    with latin.open(encoding="utf-8") as file, pytest.raises(BanError, match=r"latin.txt:1: not utf-8"):
        BanList.load(file)


# Limits


def test_the_limits_are_those_in_the_documentation() -> None:
    for limit in (MAX_CHARACTERS, MAX_ENTRIES, MAX_LENGTH, MAX_REGEXES):
        assert f"{limit:,} " in (BanList.load.__doc__ or "")


def test_too_many_entries_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_ENTRIES >= 500_000
    monkeypatch.setattr("antislop.lists.reading.MAX_ENTRIES", 1000)
    with pytest.raises(BanError, match=r"^<text>:1: more than 1000 entries: split the list$"):
        BanList.load(io.StringIO("[" + "0," * 1000 + "0]"), strict=False)


def test_too_many_regexes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_REGEXES >= 1000
    monkeypatch.setattr("antislop.lists.reading.MAX_REGEXES", 2)
    with pytest.raises(BanError, match=r"^<text>:3: more than 2 regexes: split the list$"):
        BanList.load(io.StringIO("a+\nb+\nc+"), format="regexes")


def test_loading_many_slow_regexes_is_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    def take_too_long(*_: Any, **__: Any) -> Any:
        raise TimeoutError

    monkeypatch.setattr("antislop.core.bans.patterns.regex.IncrementalRegex", take_too_long)
    text = "\n".join(f"a{number}+" for number in range(20))
    with pytest.raises(BanError, match=r"<text>:11: the regex 'a10\+' takes too long .* so do 10 before it"):
        BanList.load(io.StringIO(text), format="regexes", strict=False)


# Any bytes

_KEYS = ["word", "phrase", "ngram", "regex", "count", "weight", "edges", "gap", "exempt", "replace", "a b", "m"]
_KEYS += ["top_bigrams", "banned", "banned_tokens", "patterns", "allowed", "bad_words_ids"]
_json = st.recursive(
    st.none()
    | st.booleans()
    | st.floats()
    | st.integers()
    | st.text(max_size=5)
    | st.sampled_from([r"\bnot", "a b", " a"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(_KEYS), inner, max_size=3)
        | st.fixed_dictionaries(
            {"kind": st.sampled_from(["phrase", "words", "wildcard", "regex", "tokens", "loop", "repeat"])},
            optional=dict.fromkeys(
                ["phrase", "weight", "exempt", "scopes", "gap", "copies", "words", "of", "edges", "at_most"], inner
            ),
        )
    ),
    max_leaves=12,
)
_PIECES = (
    "a b| |\"|'|,|[|]|{|}|:|- |*|&a |*a|? |# |#|!!int |1|2.5|[1, 2]|\\b|(?:|)|{9}|?|---|%|\n|\n|\t|\r|\0|\ufeff|\u2028|"
    "!loop|!regex |kind|"
    'ß|weight=|scopes=|gap=3|exempt=[|regex|words|wildcard|tokens|# antislop 1\n|# antislop 2\n|# source: |===\n|"a"\n'
)
_pieces = st.sampled_from(["|", "- |\n", *_PIECES.split("|")])
_contents = (
    st.binary(max_size=80)
    | st.lists(_pieces, max_size=25).map(lambda pieces: "".join(pieces).encode())
    | _json.map(lambda value: json.dumps(value, indent=1).encode())
    | st.lists(_json, max_size=4).map(lambda values: "\n".join(map(json.dumps, values)).encode())
    | st.sampled_from([case.text.encode() for case in READ.values()]).flatmap(
        lambda text: st.integers(0, len(text)).map(lambda cut: text[:cut] + text[cut + 1 :])
    )
)


@settings(max_examples=300 * DEPTH, deadline=2000)
@given(
    content=_contents,
    kind=st.none() | st.sampled_from(sorted(FORMATS)),
    edges=st.sampled_from([None, "word", "anywhere"]),
    suffix=st.sampled_from(["", ".txt", ".json", ".jsonl", ".yaml", ".csv", ".tsv"]),
    strict=st.booleans(),
)
@example(content=b"- *a", kind=None, edges=None, suffix=".yaml", strict=False)
@example(content=b'{"word": ["\\ud800"]}', kind=None, edges=None, suffix="", strict=False)
@example(content=b"[1, " + b"2" * 5000 + b"]\n[1]", kind="sillytavern", edges=None, suffix="", strict=False)
@example(content=b'["\\ud800"]', kind=None, edges=None, suffix="", strict=True)
@example(content=b'[["a", 1e999], ["b", -1]]', kind=None, edges=None, suffix="", strict=True)
@example(content=b"\x1c[]", kind=None, edges=None, suffix="", strict=True)
def test_any_bytes_are_loaded_or_raise_a_ban_error(
    content: bytes, kind: Any, edges: Any, suffix: str, strict: bool
) -> None:
    file = io.BytesIO(content)
    file.name = f"list{suffix}"
    bans = load_or_refuse(file, format=kind, edges=edges, strict=strict)
    if isinstance(bans, BanError):
        assert str(bans).startswith(f"list{suffix}:")
        assert "\n" not in str(bans)
        return
    assert kind in (None, bans.format)
    assert bans.format in FORMATS
    assert all(isinstance(ban, Ban) for ban in bans)
    assert all("\n" not in reason and place.startswith(f"list{suffix}:") for place, reason in bans.refused)


def load_or_refuse(file: IO[bytes], **options: Any) -> BanList | BanError:
    try:
        return BanList.load(file, **options)
    except BanError as error:
        return error

"""Lists in the shapes that people's repositories have: each is read as it is meant, or refused with its line."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from antislop.core.bans.ban_list import BanList
from antislop.core.bans.bans import Ban
from antislop.core.bans.patterns.phrase import Phrase
from antislop.errors import BanError
from antislop.lists.signs import find_sign
from antislop.measure.lint import lint

WORDS = ["delve", "tapestry", "a testament to"]
ANYWHERE = [Ban(word, edges="anywhere") for word in WORDS]
LEGITIMATE = (
    *("Additionally,", "AT&T", "Oh, no, sir", "Well, well, well", "red, white, and blue", "not only X but", "What? No"),
    *("a * of emotion*", "*nods.*", "***", "\\o/", "[Your Name]", "(OOC: hi)", "{{user}}", "<think>", "</s>", "C++"),
    *(
        "...",
        "—",
        "--",
        ";",
        "```",
        ":)",
        "1984",
        "24/7",
        "e.g.",
        "and/or",
        "he/she",
        "$100",
        "don't",
        "5'11\"",
        "嘴角",
    ),
    *("— she said", "sorry :(", "rock 'n' roll", "'tis the season", 'so "good" that', "http://a.b/c", "<|im_end|>"),
)

SHAPES: dict[str, tuple[str, str, list[str] | list[Ban] | str]] = {
    # -- marks that all lines have
    "dashes": (".txt", "- delve\n- tapestry\n- a testament to\n", WORDS),
    "dashes in Markdown": (".md", "# Words\n\n- delve\n- tapestry\n\n## Phrases\n- a testament to\n", WORDS),
    "a backslash after a dash": (".txt", "- so\n- \\*sighs\\*\n", [Ban("so"), Ban(Phrase("*sighs*"))]),
    "stars": (".txt", "* delve\n* tapestry\n* a testament to\n", WORDS),
    "dots": ("", "• delve\n• tapestry\n  • a testament to\n", WORDS),
    "numbers": (".txt", "1. delve\n2. tapestry\n3. a testament to\n", WORDS),
    "numbers in brackets": ("", "1) delve\n2) tapestry\n10) a testament to\n", WORDS),
    "dashes and quotes": (".md", '- "delve"\n- "tapestry"\n- "a testament to"\n', WORDS),
    "numbers and bold letters": (".md", "1. **delve**\n2. **tapestry**\n3. **a testament to**\n", WORDS),
    "single quotes with commas": ("", "  'delve',\n  'tapestry',\n  'a testament to'\n", WORDS),
    "escaped quotes": (".txt", "'it\\'s worth noting',\n'that\\'s it',\n", ["it's worth noting", "that's it"]),
    "curly quotes": (".txt", "“delve”\n“tapestry”\n“a testament to”\n", WORDS),
    "backticks": (".txt", "`delve`\n`tapestry`\n`a testament to`\n", WORDS),
    "commas": (".txt", "delve,\ntapestry,\na testament to", WORDS),
    "commas that are meant": (".txt", "Additionally,\nMoreover,\n", ["Additionally,", "Moreover,"]),
    "double quotes with commas": ("", '"delve",\n"tapestry",\n"a testament to"', ANYWHERE),
    "double quotes with remarks": ("", '"delve",  # all of it\n# more\n"tapestry",\n"a testament to",', ANYWHERE),
    "JSON in a text file": (".txt", '["delve",\n "tapestry", "a testament to"]', WORDS),
    "a line in double quotes among others": (".txt", 'delve\nso\n"- tapestry"\n', ["delve", "so", "- tapestry"]),
    "options after a bullet": (
        ".txt",
        "- delve\tat_most=1\n- so\tat_most=1\n",
        [Ban("delve", at_most=1), Ban("so", at_most=1)],
    ),
    # -- marks that some lines have
    "a heading among bullets": (".txt", "Never use:\n- delve\n- so it goes\n", "1: has none of the bullets"),
    "a bullet among phrases": (".txt", "delve\ntapestry\n- a testament to\n", "3: has a bullet, a number"),
    "a number among phrases": (".txt", "delve\ntapestry\n3. testament\n", "3: has a bullet, a number"),
    "quotes among phrases": (".txt", "delve\ntapestry\n'testament',\n", "3: has a bullet, a number"),
    # -- pieces of programs
    "Python": (".txt", 'SLOP = [\n    "delve",\n    "tapestry",\n]\n', "1: a piece of a program"),
    "Python with types": ("", "SLOP: tuple[str, ...] = (\n    'delve',\n    'so',\n)\n", "1: a piece of a program"),
    "TypeScript": (".ts", "export const A: string[] = [\n  'delve',\n  'so',\n];\n", "1: a piece of a program"),
    "TOML": (".toml", 'banned_strings = ["delve", "so"]\n', "1: several entries"),
    "an end of JSON": ("", '"delve",\n"tapestry"\n],\n', "3: is a bare bracket"),
    "a part of a request": (".txt", '"banned_strings": [\n### Slop\n"Elara",\n"so"\n]', "1: several entries"),
    "a part of an object": ("", '"delve": "dig",\n"so": "thus",\n', "1: several entries"),
    "a part of a body": ("", '"banned_strings": ["delve",\n"so"\n],', "1: several entries"),
    "a comma alone": (".txt", "delve\n,\ntapestry", "2: is a bare bracket"),
    "a colon alone in CSV": (".csv", "phrase\ndelve\n:\n", "3: is a bare bracket"),
    # -- several entries in one line, and remarks
    "words with commas": (".txt", "delve, tapestry, utilize\n", "1: several entries"),
    "phrases with commas": ("", "in conclusion, to sum up, a testament to", "1: several entries"),
    "words with commas among phrases": ("", "a b\ndelve, tapestry, utilize\n", "2: several entries"),
    "words with commas without spaces": (".txt", "delve,tapestry\n", "1: several entries"),
    "quoted words with commas": ("", '"delve", "tapestry"\n', "1: several entries"),
    "forms with slashes": (".md", "- delve / delving\n- robust\n", "1: several entries"),
    "forms without spaces": (".txt", "foster/fostering\nso\n", "1: several entries"),
    "a part of speech": (".md", "- leverage (as verb)\n- robust\n", "1: seems to end with a remark"),
    "a comment after a phrase": (".txt", "delve  # all of it\nso\n", "1: seems to end with a remark"),
    "a table": (".md", "| Ban | Fix |\n|---|---|\n| delve | dig |\n", "1: several entries"),
    "XML": (".xml", "<list>\n<phrase>delve</phrase>\n</list>\n", "2: stands in a row of a table or between tags"),
    "HTML entities": (".txt", "it&#39;s\n", "1: is escaped"),
    "UTF-8 read as something else": (".txt", "itâ€™s\n", "1: is escaped"),
    # -- replacements
    "arrows": (".txt", "delve → dig\ncrucial → important\n", "1: names a replacement"),
    "arrows of ASCII": (".md", "- delve => dig\n- so -> thus\n", "1: names a replacement"),
    "an object of replacements": (
        ".json",
        '{"delve": "dig", "so": "thus"}',
        "1: texts under names were found, as replacements are",
    ),
    "an object of several replacements": (
        ".json",
        '{"a": ["x", "y"], "b": ["z"], "c": ["x"], "d": ["w"], "e": ["v"]}',
        "1: it has a, b, c, d, e: name those that are",
    ),
    # -- regexes
    "a regex among phrases": (".txt", "delve\nso\n\\bnot only \\w+, but\\b\n", "3: looks like a regex"),
    "a class in CSV": (".csv", '"utili[sz]e",0\ndelve,0\n', "1: looks like a regex"),
    "a regex between slashes": ("", "delve\nso\n/not (only|just) .* but/i\n", "3: looks like a regex"),
    "a group": (".json", '["delve", "so",\n"leverage(s|d)?"]', "2: looks like a regex"),
    "a letter that may be missing": (".md", "- delve\n- colou?r\n", "2: looks like a regex"),
    "a regex between strings": ("", '"delve"\n"so"\n"\\bnot\\b"\n', "3: looks like a regex"),
    "regexes between slashes": (".js", "/\\bdelve\\b/gi,\n/so+/,\n", [Ban.regex(r"(?i)\bdelve\b"), Ban.regex("so+")]),
    "regexes of Python": (".py", 'r"\\bdelve\\b",  # all\nr"so+",\n', [Ban.regex(r"\bdelve\b"), Ban.regex("so+")]),
    "regexes with replacements": ("", 'r"\\bdelve\\b": "dig",\nr"\\bso\\b": "thus",\n', "1: a piece of a program"),
    "compiled regexes": ("", 're.compile(r"\\bdelve\\b"),\nre.compile(r"\\bso\\b"),\n', "1: a piece of a program"),
    # -- objects
    "objects with other keys": (".json", '[{"phrase": "delve"}, {"text": "so", "severity": 3}]', ["delve", "so"]),
    "objects with unknown keys": (".json", '[{"phrase": "delve"},\n{"slop": "so"}]', "2: names no phrase, word"),
    "objects without any known key": (".json", '[{"find": "delve", "replace": "dig"}]', "1: names no phrase, word"),
    "a pattern without its kind": (".json", '[{"pattern": "\\\\bdelve\\\\b"}]', "1: looks like a regex"),
    "a pattern with its kind": (".json", '[{"pattern": "\\\\bso\\\\b", "kind": "regex"}]', [Ban.regex(r"\bso\b")]),
    "groups": (".json", '{"words": ["delve", "tapestry"], "phrases": ["a testament to"]}', WORDS),
    "groups in groups": (
        ".json",
        '{"version": 2, "hype": {"banned": ["delve", "tapestry"], "phrases": {"avoid": ["a testament to"]}}}',
        WORDS,
    ),
    "a body of a request": (
        ".json",
        '{"temperature": 1, "banned_strings": ["delve", "\\nYou:"], "banned_regex": ["\\\\bso\\\\b"]}',
        [Ban("delve"), Ban("\nYou:", line_feeds=True), Ban.regex("\\bso\\b")],
    ),
    "regexes without case": (".json", '{"banned_regex_case_insensitive": ["so"]}', [Ban.regex("(?i)so")]),
    "settings": (".json", '{"banned_strings": ["delve"],\n"samplers": ["dry"]}', ["delve"]),
    "exceptions": (".json", '{"words": ["delve"],\n"exceptions": ["so"]}', "2: holds no bans"),
    "good examples": (".json", '{"words": ["delve"],\n"good_examples": ["so"]}', ["delve"]),
    "what is not allowed": (".json", '{"not_allowed": ["delve"], "bad examples": ["so"]}', ["delve", "so"]),
    "rules of Vale": (
        ".yml",
        "extends: existence\ntokens:\n  - delve\n",
        "1: a list in YAML can't be read: write one phrase per line",
    ),
    "a preset with a list in its text": (".json", '{"banned_tokens": "[\\"delve\\"]"}', "1: a piece of a program"),
    # -- nothing
    "an empty file": (".txt", "", "1: contains no ban: write one per line"),
    "comments": (".txt", "# delve\n\n  # so\n", "1: contains no ban: write one per line"),
    "an empty list": (".json", "[]", "1: contains no ban: write one per line"),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_list_as_people_have_them_is_read_as_it_is_meant_or_refused(shape: str, tmp_path: Path) -> None:
    suffix, content, expected = SHAPES[shape]
    path = tmp_path / f"list{suffix}"
    path.write_text(content, encoding="utf-8")
    if isinstance(expected, str):
        line, _, reason = expected.partition(": ")
        with pytest.raises(BanError, match=rf"^{re.escape(str(path))}:{line}: .*{reason}[^\n]*$"):
            BanList.load(path)
    else:
        assert BanList.load(path) == BanList(expected)


@pytest.mark.parametrize("phrase", LEGITIMATE)
def test_a_phrase_with_punctuation_stays_what_it_is(phrase: str) -> None:
    assert find_sign(phrase) is None
    assert list(BanList.load(io.StringIO(f"a phrase\n{phrase}\n"))) == [Ban("a phrase"), Ban(phrase)]


def test_what_was_taken_off_is_named() -> None:
    assert BanList.load(io.StringIO("1. 'delve',\n2. 'so',\n")).marks == ("numbers", "quotation marks")
    assert BanList.load(io.StringIO("delve\nso\n")).marks == ()


def test_the_phrases_of_a_group_without_bans_are_left_out() -> None:
    text = '{"words": ["delve"], "allowed": {"a": ["so"], "b": ["x"]}}'
    bans = BanList.load(io.StringIO(text), strict=False)
    assert (list(bans), len(bans.refused)) == ([Ban("delve")], 1)


def test_a_list_of_the_package_keeps_every_phrase(tmp_path: Path) -> None:
    bans = BanList(
        Ban(Phrase(text)) for text in ("]", ",", "- delve", "'so',", r"\bso\b", "a → b", "a, b, c", "a (b)?")
    )
    bans.save(tmp_path / "saved")
    assert BanList.load(tmp_path / "saved") == bans
    BanList([]).save(tmp_path / "empty")
    assert BanList.load(tmp_path / "empty") == BanList([])
    (tmp_path / "kinds.json").write_text('[{"kind": "phrase", "phrase": "]"}, {"kind": "phrase", "phrase": "a → b"}]')
    assert [ban.text for ban in BanList.load(tmp_path / "kinds.json")] == ["]", "a → b"]


def test_lint_finds_what_no_text_contains_in_a_list_of_python() -> None:
    entries = [
        r"\bdelve\b",
        "- delve",
        "'delve',",
        "delve → dig",
        "]",
        "itâ€™s",
        "leverage (as verb)",
        "a testament to",
    ]
    assert [(finding.index, finding.kind) for finding in lint(BanList(entries))] == [(i, "kind") for i in range(7)]

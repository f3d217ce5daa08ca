"""Lists in the shapes that people's repositories have: each is read as it is meant, or refused with its line."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from antislop.errors import BanError
from antislop.lists.ban_list import BanList
from antislop.lists.lint.lint import lint
from antislop.lists.marks import find_sign
from antislop.matching.bans import Ban
from antislop.matching.patterns.phrase import Phrase

WORDS = ["delve", "tapestry", "a testament to"]
ANYWHERE = [Ban(word, edges="anywhere") for word in WORDS]
LEGITIMATE = (
    *("Well, well, well", "not only X but", "C++", "...", "—", "***", "1984", "e.g.", "24/7", "and/or", "he/she", ":)"),
    *(
        "Additionally,",
        "Oh, no, sir",
        "red, white, and blue",
        "[Your Name]",
        "(OOC: hi)",
        "<think>",
        "</s>",
        "<|im_end|>",
    ),
    *("{{user}}", "```", "$100", "US$", "don't", "rock 'n' roll", "'tis the season", "What? No", "*nods.*", r"\o/"),
    *(
        "— she said",
        "--",
        "AT&T",
        "5'11\"",
        "http://a.b/c",
        "sorry :(",
        "a * of emotion*",
        'so "good" that',
        "嘴角",
        ";",
    ),
)

SHAPES: dict[str, tuple[str, str, list[str] | list[Ban] | str]] = {
    # -- marks that all lines have
    "dashes": ("list.txt", "- delve\n- tapestry\n- a testament to\n", WORDS),
    "dashes in Markdown": ("list.md", "# Words\n\n- delve\n- tapestry\n\n## Phrases\n- a testament to\n", WORDS),
    "stars": ("list.txt", "* delve\n* tapestry\n* a testament to\n", WORDS),
    "dots": ("list", "• delve\n• tapestry\n  • a testament to\n", WORDS),
    "numbers": ("list.txt", "1. delve\n2. tapestry\n3. a testament to\n", WORDS),
    "numbers in brackets": ("list", "1) delve\n2) tapestry\n10) a testament to\n", WORDS),
    "dashes and quotes": ("list.md", '- "delve"\n- "tapestry"\n- "a testament to"\n', WORDS),
    "numbers and bold letters": ("list.md", "1. **delve**\n2. **tapestry**\n3. **a testament to**\n", WORDS),
    "single quotes with commas": ("list", "  'delve',\n  'tapestry',\n  'a testament to'\n", WORDS),
    "escaped quotes": ("list.txt", "'it\\'s worth noting',\n'that\\'s it',\n", ["it's worth noting", "that's it"]),
    "curly quotes": ("list.txt", "“delve”\n“tapestry”\n“a testament to”\n", WORDS),
    "backticks": ("list.txt", "`delve`\n`tapestry`\n`a testament to`\n", WORDS),
    "commas": ("list.txt", "delve,\ntapestry,\na testament to", WORDS),
    "commas that are meant": ("list.txt", "Additionally,\nMoreover,\n", ["Additionally,", "Moreover,"]),
    "double quotes with commas": ("list", '"delve",\n"tapestry",\n"a testament to"', ANYWHERE),
    "double quotes with remarks": ("list", '"delve",  # all of it\n# more\n"tapestry",\n"a testament to",', ANYWHERE),
    "JSON in a text file": ("list.txt", '["delve",\n "tapestry", "a testament to"]', WORDS),
    "a line in double quotes among others": ("list.txt", 'delve\nso\n"- tapestry"\n', ["delve", "so", "- tapestry"]),
    "options after a bullet": ("list.txt", "- delve\tat_most=1\n- so\tat_most=1\n", [Ban("delve", at_most=1), Ban("so", at_most=1)]),
    # -- marks that some lines have
    "a heading among bullets": ("list.txt", "Never use:\n- delve\n- so it goes\n", "1: 'Never use:' has none of the bullets"),
    "a bullet among phrases": ("list.txt", "delve\ntapestry\n- a testament to\n", "3: '- a testament to' has a bullet"),
    "a number among phrases": ("list.txt", "delve\ntapestry\n3. testament\n", "3: '3. testament' has a bullet, a number"),
    "quotes among phrases": ("list.txt", "delve\ntapestry\n'testament',\n", "3: \"'testament',\" has a bullet, a number or"),
    # -- pieces of programs
    "Python": ("list.txt", 'SLOP = [\n    "delve",\n    "tapestry",\n]\n', "1: 'SLOP = [' looks like a piece of a program"),
    "Python with types": ("list", "SLOP: tuple[str, ...] = (\n    'delve',\n    'so',\n)\n", "1: 'SLOP: tuple[str, ...] = ("),
    "TypeScript": ("list.ts", "export const A: string[] = [\n  'delve',\n  'so',\n];\n", "1: 'export const A: string[] = ["),
    "TOML": ("list.toml", 'banned_strings = ["delve", "so"]\n', "1: 'banned_strings = [\"delve\", \"so\"]' looks like sev"),
    "an end of JSON": ("list", '"delve",\n"tapestry"\n],\n', "3: '],' is a bare bracket, comma or colon: leave it out"),
    "a part of a request": ("list.txt", '"banned_strings": [\n### Slop\n"Elara",\n"so"\n]', "1: '\"banned_strings\": ["),
    "a comma alone": ("list.txt", "delve\n,\ntapestry", "2: ',' is a bare bracket"),
    "a colon alone in CSV": ("list.csv", "phrase\ndelve\n:\n", "3: ':' is a bare bracket"),
    # -- several entries in one line, and remarks
    "words with commas": ("list.txt", "delve, tapestry, utilize\n", "1: 'delve, tapestry, utilize' looks like several entries"),
    "phrases with commas": ("list", "in conclusion, to sum up, a testament to", "1: 'in conclusion, to sum up, a testa"),
    "words with commas among phrases": ("list", "a b\ndelve, tapestry, utilize\n", "2: 'delve, tapestry, utilize' looks"),
    "words with commas without spaces": ("list.txt", "delve,tapestry\n", "1: 'delve,tapestry' looks like several"),
    "quoted words with commas": ("list", '"delve", "tapestry"\n', "1: 'delve\", \"tapestry' looks like several entries"),
    "forms with slashes": ("list.md", "- delve / delving\n- robust\n", "1: 'delve / delving' looks like several entries"),
    "forms without spaces": ("list.txt", "foster/fostering\nso\n", "1: 'foster/fostering' looks like several entries"),
    "a part of speech": ("list.md", "- leverage (as verb)\n- robust\n", "1: 'leverage (as verb)' seems to end with a remark"),
    "a comment after a phrase": ("list.txt", "delve  # all of it\nso\n", "1: 'delve  # all of it' seems to end with a rem"),
    "a table": ("list.md", "| Ban | Fix |\n|---|---|\n| delve | dig |\n", "1: '| Ban | Fix |' "),
    "XML": ("list.xml", "<list>\n<phrase>delve</phrase>\n</list>\n", "2: '<phrase>delve</phrase>' stands in a row of"),
    "HTML entities": ("list.txt", "it&#39;s\n", "1: 'it&#39;s' is escaped"),
    "UTF-8 read as something else": ("list.txt", "itâ€™s\n", "1: 'itâ€™s' is escaped, or was decoded wrongly"),
    # -- replacements
    "arrows": ("list.txt", "delve → dig\ncrucial → important\n", "1: 'delve → dig' names a replacement"),
    "arrows of ASCII": ("list.md", "- delve => dig\n- so -> thus\n", "1: 'delve => dig' names a replacement"),
    "an object of replacements": ("list.json", '{"delve": "dig", "so": "thus"}', "1: a JSON list of phrases was expected"),
    "an object of several replacements": (
        *("list.json", '{"a": ["x", "y"], "b": ["z"], "c": ["x"], "d": ["w"], "e": ["v"]}'),
        "1: 5 groups of 6 entries look like phrases with replacements",
    ),
    "YAML of replacements": ("list.yaml", "a: [x]\nb: [y]\nc: [z]\nd: [v, w]\ne: [u]\n", "1: 5 groups of 6 entries look"),
    # -- regexes
    "a regex among phrases": ("list.txt", "delve\nso\n\\bnot only \\w+, but\\b\n", r"3: '\\bnot only \\w+, but\\b' looks like a regex"),
    "a class in CSV": ("list.csv", '"utili[sz]e",0\ndelve,0\n', "1: 'utili[sz]e' looks like a regex"),
    "a regex between slashes": ("list", "delve\nso\n/not (only|just) .* but/i\n", "3: '/not (only|just) .* but/i' looks"),
    "a group": ("list.json", '["delve", "so",\n"leverage(s|d)?"]', "2: 'leverage(s|d)?' looks like a regex"),
    "a letter that may be missing": ("list.yaml", "- delve\n- colou?r\n", "2: 'colou?r' looks like a regex"),
    "a regex between strings": ("list", '"delve"\n"so"\n"\\bnot\\b"\n', r"3: '\\bnot\\b' looks like a regex"),
    "regexes between slashes": ("list.js", "/\\bdelve\\b/gi,\n/so{2,}/,\n", [Ban.regex(r"(?i)\bdelve\b"), Ban.regex("so{2,}")]),
    "regexes of Python": ("list.py", 'r"\\bdelve\\b",  # all\nr"so{2,}",\n', [Ban.regex(r"\bdelve\b"), Ban.regex("so{2,}")]),
    "regexes with replacements": ("list", 'r"\\bdelve\\b": "dig",\nr"\\bso\\b": "thus",\n',  r"""1: '\\bdelve\\b": "dig' looks like a piece of a program"""),
    "compiled regexes": ("list", 're.compile(r"\\bdelve\\b"),\nre.compile(r"\\bso\\b"),\n', "1: 're.compile("),
    # -- objects
    "objects with other keys": ("list.json", '[{"phrase": "delve"}, {"text": "so", "severity": 3}]', ["delve", "so"]),
    "objects with unknown keys": ("list.json", '[{"phrase": "delve"},\n{"slop": "so"}]', "2: {\"slop\": \"so\"} names no phrase, "),
    "objects without any known key": ("list.json", '[{"find": "delve", "replace": "dig"}]', "1: {\"find\": \"delve\", \"repl"),
    "a pattern without its kind": ("list.json", '[{"pattern": "\\\\bdelve\\\\b"}]', r"1: '\\bdelve\\b' looks like a regex"),
    "a pattern with its kind": ("list.json", '[{"pattern": "\\\\bso\\\\b", "kind": "regex"}]', [Ban.regex(r"\bso\b")]),
    "groups": ("list.json", '{"words": ["delve", "tapestry"], "phrases": ["a testament to"]}', WORDS),
    "groups in groups": ("list.json", '{"version": 2, "hype": {"a": ["delve", "tapestry"], "b": ["a testament to"]}}', WORDS),
    "a body of a request": (
        *("body.json", '{"temperature": 1, "banned_strings": ["delve"], "banned_regex": ["\\\\bso\\\\b"]}'),
        [Ban("delve"), Ban.regex(r"\bso\b")],
    ),
    "regexes without case": ("list.json", '{"banned_regex_case_insensitive": ["so"]}', [Ban.regex("(?i)so")]),
    "settings": ("body.json", '{"banned_strings": ["delve"],\n"samplers": ["dry"]}', "2: the group 'samplers' holds no bans"),
    "exceptions": ("list.json", '{"words": ["delve"],\n"exceptions": ["so"]}', "2: the group 'exceptions' holds no bans"),
    "good examples": ("list.yaml", "words:\n- delve\ngood_examples:\n- so\n", "4: the group 'good_examples' holds no bans"),
    "what is not allowed": ("list.json", '{"not_allowed": ["delve"], "bad examples": ["so"]}', ["delve", "so"]),
    "rules of Vale": ("list.yml", "extends: existence\ntokens:\n  - delve\n", "1: 'extends: existence' is not a phrase"),
    "a preset with a list in its text": ("list.json", '{"banned_tokens": "[\\"delve\\"]"}', "1: '[\"delve\"]' looks like a p"),
    # -- nothing
    "an empty file": ("list.txt", "", "1: contains no ban: write one phrase per line"),
    "comments": ("list.txt", "# delve\n\n  # so\n", "1: contains no ban"),
    "an empty list": ("list.json", "[]", "1: contains no ban"),
    "empty groups": ("list.yaml", "words:\nphrases: []\n", "1: contains no ban"),
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_a_list_as_people_have_them_is_read_as_it_is_meant_or_refused(shape: str, tmp_path: Path) -> None:
    name, content, expected = SHAPES[shape]
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    if isinstance(expected, str):
        with pytest.raises(BanError) as caught:
            BanList.load(path)
        assert str(caught.value).startswith(f"{path}:{expected}")
        assert "\n" not in str(caught.value)
    else:
        assert BanList.load(path) == BanList(expected)


@pytest.mark.parametrize("phrase", LEGITIMATE)
def test_a_phrase_with_punctuation_stays_what_it_is(phrase: str) -> None:
    assert find_sign(phrase) is None
    assert list(BanList.load(io.StringIO(f"a phrase\n{phrase}\n"))) == [Ban("a phrase"), Ban(phrase)]


def test_what_was_taken_off_is_named() -> None:
    assert BanList.load(io.StringIO("1. 'delve',\n2. 'so',\n")).marks == ("numbers", "quotation marks")
    assert BanList.load(io.StringIO("delve\nso\n")).marks == ()


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

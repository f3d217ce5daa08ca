"""Lists in the shapes that people, packages and tools write: each is read as it is meant, or refused in a sentence."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from antislop.core.bans.ban_list import BanList
from antislop.core.bans.bans import Ban
from antislop.core.bans.patterns.phrase import Phrase
from antislop.errors import BanError
from antislop.lists.own import write_lines
from antislop.lists.signs import find_sign, names_bans
from antislop.measure.lint import lint

WORDS = ["delve", "tapestry", "a testament to"]
PAIR = ["delve", "a testament to"]
TOKENS = [Ban.tokens([23]), Ban.tokens([49211, 7001])]
REGEX = Ban.regex(r"\bnot just \w+")


def anywhere(*words: str) -> list[Ban]:
    return [Ban(Phrase(word, edges="anywhere")) for word in words]


SHAPES: dict[str, tuple[str, str | bytes, list[str] | list[Ban] | str]] = {
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
    "double quotes with commas": ("", '"delve",\n"tapestry",\n"a testament to"', anywhere(*WORDS)),
    "double quotes with remarks": (
        "",
        '"delve",  # all of it\n# more\n"tapestry",\n"a testament to",',
        anywhere(*WORDS),
    ),
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
    "a part of speech in brackets": (".md", "- leverage (as verb)\n- robust\n", "1: seems to end with a remark"),
    "a comment after a phrase": (".txt", "delve  # all of it\nso\n", "1: seems to end with a remark"),
    "a table": (".md", "| Ban | Fix |\n|---|---|\n| delve | dig |\n", "1: several entries"),
    "XML": (".xml", "<list>\n<phrase>delve</phrase>\n</list>\n", "2: stands in a row of a table or between tags"),
    "HTML entities": (".txt", "it&#39;s\n", "1: is escaped"),
    "UTF-8 read as something else": (".txt", "itâ€™s\n", "1: is escaped"),
    # -- replacements
    "arrows": (".txt", "delve → dig\ncrucial → important\n", "1: names a replacement"),
    "arrows of ASCII": (".md", "- delve => dig\n- so -> thus\n", "1: names a replacement"),
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
    "tokens of Vale": (
        ".yml",
        "extends: existence\ntokens:\n  - delve\n",
        "1: a list in YAML can't be read: write one",
    ),
    "a preset with a list in its text": (".json", '{"banned_tokens": "[\\"delve\\"]"}', "1: a piece of a program"),
    # -- nothing
    "an empty file": (".txt", "", "1: contains no ban: write one per line"),
    "comments": (".txt", "# delve\n\n  # so\n", "1: contains no ban: write one per line"),
    "an empty list": (".json", "[]", "1: contains no ban: write one per line"),
    # -- phrases with what to write instead: the phrases, never the replacements
    "replacements by phrase (retext-simplify)": (
        ".json",
        '{"delve": {"replace": ["dig"]}, "a testament to": {"replace": ["proof", "sign"], "omit": true}}',
        PAIR,
    ),
    "suggestions by phrase": (
        ".json",
        '{"delve": {"suggestions": ["dig"], "severity": "high"}, "a testament to": {"suggestions": []}}',
        PAIR,
    ),
    "lists of replacements by phrase": (
        ".json",
        '{"delve": ["dig", "look", "search"], "leverage": ["use", "apply", "employ"]}',
        "delve, leverage: name",
    ),
    "one replacement by phrase": (".json", '{"delve": "dig", "utilize": "use"}', "as replacements are"),
    "pairs of phrase and replacement": (".json", '[["delve", "dig"], ["utilize", "use"]]', "two texts each"),
    "pairs with replacements of several words": (
        ".json",
        '[["delve", "look", "dig"], ["a testament to", "proof", "sign of"]]',
        "texts of several words",
    ),
    "lists of replacements in a group": (
        ".json",
        '{"banned": {"delve": ["dig", "look"], "utilize": ["use", "apply", "employ"]}}',
        "delve, utilize",
    ),
    "replacements in a group": (".json", '{"banned": {"utilize": "use", "delve": "dig"}}', "replacement"),
    "objects with replacements": (
        ".json",
        '[{"phrase": "delve", "replacement": "dig"}, {"phrase": "a testament to", "alternatives": ["proof"]}]',
        PAIR,
    ),
    "objects to find and to replace": (".json", '[{"find": "delve", "replace": "dig"}]', "1: names no phrase, word"),
    "the word to use with those to avoid": (
        ".json",
        '[{"term": "use", "avoid": ["utilize", "leverage"]}]',
        "key 'avoid' of 'use' is unknown",
    ),
    "preferred and banned words": (
        ".json",
        '[{"preferred": "use", "banned": ["delve"]}, {"preferred": "proof", "banned": ["a testament to"]}]',
        PAIR,
    ),
    "words by gender (retext-equality)": (
        ".json",
        '[{"id": "a", "inconsiderate": {"delve": "x"}, "considerate": {"dig": "a"}}]',
        "names no phrase",
    ),
    "replacements in CSV": (".csv", "phrase,replacement\ndelve,dig\na testament to,proof\n", PAIR),
    "bars and replacements": (".txt", "delve|dig\nutilize|use\n", "several entries between bars"),
    "equals signs and replacements": (".txt", "delve = dig\nutilize = use\n", "colon or ="),
    "texts with labels": (".jsonl", '{"text": "delve", "label": 0}\n{"text": "so", "label": 1}\n', "key 'label'"),
    "colons and replacements": (".txt", "color: colour\ncenter: centre\n", "colon"),
    "a replacement beside a list": (".json", '{"utilize": "use", "hype": ["delve"]}', "utilize, hype"),
    # -- groups
    "a group among settings": (".json", '{"temperature": 1, "stop": ["###"], "banned_strings": ["delve"]}', ["delve"]),
    "approved words": (".json", '{"approved": ["dig"], "banned_words": ["delve", "a testament to"]}', PAIR),
    "required terms": (".json", '{"required_terms": ["dig"], "max_words": 300}', "required_terms: name"),
    "a brief for a writer": (
        ".json",
        '{"must_include": ["dig"], "recommended": ["look"], "tone_keywords": ["warm"]}',
        "tone_keywords: name",
    ),
    "a brief with words to avoid": (
        ".json",
        '{"mustInclude": ["dig"], "wordsToAvoid": ["delve", "a testament to"]}',
        PAIR,
    ),
    "words not to use": (".json", '{"style": {"do_not_use": ["delve"], "use": ["dig"]}}', ["delve"]),
    "a package.json": (
        ".json",
        '{"name": "x", "files": ["lib"], "keywords": ["prose"], "scripts": {"test": "run"}}',
        "files, keywords",
    ),
    "a story of KoboldAI": (
        ".json",
        '{"gamestarted": true, "prompt": "Once", "actions": ["She went."], "memory": ""}',
        "actions",
    ),
    "settings of koboldcpp": (
        ".json",
        '{"max_length": 80, "banned_tokens": ["delve"], "stop_sequence": ["\\n"]}',
        ["delve"],
    ),
    "a request to vLLM": (".json", '{"model": "m", "bad_words": ["delve", "a testament to"]}', PAIR),
    "a request to llama.cpp": (
        ".json",
        '{"prompt": "Hi", "logit_bias": [["delve", false]], "samplers": ["top_k"]}',
        "logit_bias, samplers",
    ),
    "a task of lm-eval": (".json", '{"task": "t", "generation_kwargs": {"until": ["\\n"]}}', "generation_kwargs"),
    "stop words by language (stopwords-iso)": (".json", '{"af": ["die"], "en": ["the", "of"]}', "af, en: name"),
    "one list with any name": (".json", '{"mine": ["delve", "a testament to"]}', PAIR),
    "one mapping with any name": (".json", '{"mine": {"delve": 0.5}}', [Ban("delve", weight=0.5)]),
    "words of a package (bad-words)": (".json", '{"words": ["delve", "a testament to"]}', PAIR),
    "categories under slop": (
        ".json",
        '{"slop": {"openers": ["delve"], "closers": ["a testament to"]}}',
        "openers, closers",
    ),
    "an allowlist only": (".json", '{"allowed": ["delve"]}', "holds no bans by its name"),
    "a switch of an entry": (".json", '[{"phrase": "delve", "enabled": false}]', "key 'enabled' of 'delve' is unknown"),
    "a strength of an entry": (".json", '[{"word": "delve", "strength": 0.5}]', "key 'strength'"),
    "a switch in CSV": (".csv", "phrase,count,enabled\ndelve,3,false\nso,2,true\n", "the column 'enabled' is unknown"),
    # -- numbers
    "a set of JavaScript (badwords-list)": (".json", '{"delve": 1, "a testament to": 1}', "is 1"),
    "a set of booleans": (".json", '{"delve": true, "a testament to": true}', "true or false"),
    "a counter of ones": (".json", '[["delve", 1], ["a testament to", 1]]', "is 1"),
    "CSV of ones": (".csv", "delve,1\na testament to,1\n", "is 1"),
    "ratings from 0 to 2 (cuss)": (
        ".json",
        '{"delve": 2, "a testament to": 0}',
        [Ban("delve", count=2), Ban("a testament to", count=0)],
    ),
    "weights in a group": (".json", '{"banned": [["delve", 0.5]]}', [Ban("delve", weight=0.5)]),
    "options of an object": (
        ".json",
        '[{"phrase": "delve", "weight": 0.25, "edges": "anywhere", "case_sensitive": true}]',
        [Ban("delve", weight=0.25, edges="anywhere", case_sensitive=True)],
    ),
    "options in CSV": (
        ".csv",
        "phrase,weight,edges,case_sensitive\ndelve,0.25,anywhere,true\n",
        [Ban("delve", weight=0.25, edges="anywhere", case_sensitive=True)],
    ),
    # -- lines
    "sqlite3": (".txt", "delve|3\na testament to|12\n", [Ban("delve", count=3), Ban("a testament to", count=12)]),
    "one line of psql": (".txt", "delve|3\n", "number after a bar"),
    "uniq -c": (".txt", "     12 delve\n      3 a testament to\n", "number in front"),
    "one line of uniq -c": (".txt", "   12 delve\n", "number in front"),
    "numbers after phrases": (".txt", "delve 12\ntapestry 3\n", "number behind"),
    "numbers after colons": (".txt", "delve: 12\ntapestry: 3\n", "number behind"),
    "Hunspell": (".dic", "2\ndelve/DGRS\ntapestry/MS\n", "flags of Hunspell"),
    "a negated word": (".txt", "so\n!delve\n", "begins with a !"),
    "a part of speech": (".txt", "delve_VERB\ntapestry_NOUN\n", "part of speech"),
    "KoboldAI's separators": (".txt", "shiver down||$$||delve\n", "several entries"),
    "spaces for the tab": (".txt", "delve    weight=0.1\n", "after a tab"),
    "spaces for the tab in our format": (".txt", "# antislop 1\ndelve    weight=0.1\n", "after a tab"),
    "UTF-16 without a mark": (".txt", "delve\ntapestry\n".encode("utf-16-le"), "binary data"),
    "NUL bytes": (".txt", b"delve\0tapestry\0", "binary data"),
    "rules of Vale": (".yml", "extends: substitution\nswap:\n  delve: dig\n", "a list in YAML can't be read"),
    # -- token ids and regexes
    "token ids": (".json", "[[23], [49211, 7001]]", TOKENS),
    "bad_words_ids": (".json", '{"temperature": 1.0, "bad_words_ids": [[23], [49211, 7001]]}', TOKENS),
    "token ids without brackets": (".json", "[23, 49211]", "token ids"),
    "objects of regexes": (".json", '[{"regex": "\\\\bnot just \\\\w+"}, {"phrase": "delve"}]', [REGEX, Ban("delve")]),
    "a group of patterns": (
        ".json",
        '{"patterns": ["\\\\bnot just \\\\w+"], "words": ["delve"]}',
        [REGEX, Ban("delve")],
    ),
    "a preset of SillyTavern": (
        ".json",
        '{"temp": 1, "banned_tokens": "delve\\n\\"a testament to\\"", "samplers": ["k"]}',
        anywhere(*PAIR),
    ),
}
"""By what a file is: its suffix, its text, and its bans, or the line and a part of the sentence that refuses it."""


@pytest.mark.parametrize("shape", SHAPES)
def test_a_list_as_people_have_them_is_read_as_it_is_meant_or_refused(shape: str, tmp_path: Path) -> None:
    suffix, text, expected = SHAPES[shape]
    path = tmp_path / f"list{suffix}"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    if isinstance(expected, str):
        line, reason = re.split(r"(?<=^\d): ", expected) if expected[0].isdigit() else (r"\d+", expected)
        with pytest.raises(BanError, match=rf"\A{re.escape(str(path))}:{line}: [^\n]*{re.escape(reason)}[^\n]*\Z"):
            BanList.load(path)
        return
    bans = BanList.load(path)
    assert bans == BanList(expected)
    assert [ban.count for ban in bans] == [ban.count for ban in BanList(expected)]


LEGITIMATE = (
    *("Additionally,", "AT&T", "Oh, no, sir", "Well, well, well", "red, white, and blue", "not only X but", "What? No"),
    *("a * of emotion*", "*nods.*", "***", "\\o/", "[Your Name]", "(OOC: hi)", "{{user}}", "<think>", "</s>", "C++"),
    *["...", "—", "--", ";", "```", ":)", "1984", "24/7", "e.g.", "and/or", "he/she", "$100", "don't", "5'11\""],
    *("嘴角", "— she said", "sorry :(", "rock 'n' roll", "'tis the season", 'so "good" that', "http://a.b/c"),
    "<|im_end|>",
)


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


def test_a_group_is_chosen_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "list.json"
    path.write_text('{"a": {"verbs": ["delve"], "nouns": ["tapestry"]}, "b": ["so"], "banned": ["it"]}')
    assert [ban.text for ban in BanList.load(path)] == ["it"]
    assert BanList.load(path).left_out == ("a", "b")
    chosen = BanList.load(path, group="a")
    assert ([ban.text for ban in chosen], chosen.left_out) == (["delve", "tapestry"], ())
    assert [ban.text for ban in BanList.load(path, group=["nouns", "b"])] == ["tapestry", "so"]
    with pytest.raises(BanError, match=r"there is no group c: it has a, b, banned: name those that are"):
        BanList.load(path, group="c")


NAMES = {
    True: "banned bannedWords BANNED_STRINGS words_to_avoid avoid flagged deny_list denylist blacklist slop_words"
    " phrases bigrams top_words do_not_use neverSay never bad_words_ids forbidden-phrases clichés not_allowed",
    False: "allowed allowlist exceptions approved preferred_words slop_replacements good_examples whitelist",
    None: "required_terms must_include tone_keywords categories keywords files banner badges blackboard flags actions"
    " no_slop not_banned unbanned stopwords list strings bandwidth bank samplers stop",
}


@pytest.mark.parametrize("says", NAMES)
def test_a_group_is_bans_by_the_words_of_its_name(says: bool | None) -> None:
    assert {name: names_bans(name) for name in NAMES[says].split()} == dict.fromkeys(NAMES[says].split(), says)


def test_the_signs_of_a_list_are_those_of_lint() -> None:
    words = ("delve", "tapestry", "so", "it", "goes", "on", "and", "off")
    counted = [f"{word} {number}" for number, word in enumerate(words)]
    lines = [*counted, "!so", "delve_VERB", "delve/DGRS", "a||$$||b", "so it: 3", "delve|3"]
    bans = BanList(lines)
    assert {finding.index for finding in lint(bans) if finding.kind == "kind"} == set(range(len(lines)))
    assert len(BanList.load(io.StringIO("\n".join([*lines, "so it goes"])), strict=False).refused) == len(lines)
    written = io.StringIO("\n".join(write_lines(bans)))
    assert BanList.load(written) == bans

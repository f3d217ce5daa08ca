"""Lists as packages, tools and people write them: the words that a person would expect, or one sentence."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from antislop.core.bans.ban_list import BanList
from antislop.core.bans.bans import Ban
from antislop.core.bans.patterns.phrase import Phrase
from antislop.errors import BanError
from antislop.lists.own import write_lines
from antislop.lists.signs import names_bans
from antislop.measure.lint import lint

WORDS = ["delve", "a testament to"]
TOKENS = [Ban.tokens([23]), Ban.tokens([49211, 7001])]
REGEX = Ban.regex(r"\bnot just \w+")


class Shape(NamedTuple):
    """The text of a file, its suffix, and its bans, or a part of the sentence that refuses the file."""

    suffix: str
    text: str | bytes
    expected: list[str] | list[Ban] | str


def anywhere(*words: str) -> list[Ban]:
    return [Ban(Phrase(word, edges="anywhere")) for word in words]


SHAPES: dict[str, Shape] = {
    # -- phrases with what to write instead: the phrases, never the replacements
    "replacements by phrase (retext-simplify)": Shape(
        ".json",
        '{"delve": {"replace": ["dig"]}, "a testament to": {"replace": ["proof", "sign"], "omit": true}}',
        WORDS,
    ),
    "suggestions by phrase": Shape(
        ".json", '{"delve": {"suggestions": ["dig"], "severity": "high"}, "a testament to": {"suggestions": []}}', WORDS
    ),
    "lists of replacements by phrase": Shape(
        ".json", '{"delve": ["dig", "look", "search"], "leverage": ["use", "apply", "employ"]}', "delve, leverage: name"
    ),
    "one replacement by phrase": Shape(".json", '{"delve": "dig", "utilize": "use"}', "as replacements are"),
    "pairs of phrase and replacement": Shape(".json", '[["delve", "dig"], ["utilize", "use"]]', "two texts each"),
    "pairs with replacements of several words": Shape(
        ".json", '[["delve", "look", "dig"], ["a testament to", "proof", "sign of"]]', "texts of several words"
    ),
    "lists of replacements in a group": Shape(
        ".json", '{"banned": {"delve": ["dig", "look"], "utilize": ["use", "apply", "employ"]}}', "delve, utilize"
    ),
    "replacements in a group": Shape(".json", '{"banned": {"utilize": "use", "delve": "dig"}}', "replacement"),
    "objects with replacements": Shape(
        ".json",
        '[{"phrase": "delve", "replacement": "dig"}, {"phrase": "a testament to", "alternatives": ["proof"]}]',
        WORDS,
    ),
    "objects to find and to replace": Shape(".json", '[{"find": "delve", "replace": "dig"}]', "names no phrase, word"),
    "the word to use with those to avoid": Shape(
        ".json", '[{"term": "use", "avoid": ["utilize", "leverage"]}]', "key 'avoid' of 'use' is unknown"
    ),
    "preferred and banned words": Shape(
        ".json",
        '[{"preferred": "use", "banned": ["delve"]}, {"preferred": "proof", "banned": ["a testament to"]}]',
        WORDS,
    ),
    "words by gender (retext-equality)": Shape(
        ".json", '[{"id": "a", "inconsiderate": {"delve": "x"}, "considerate": {"dig": "a"}}]', "names no phrase"
    ),
    "replacements in CSV": Shape(".csv", "phrase,replacement\ndelve,dig\na testament to,proof\n", WORDS),
    "bars and replacements": Shape(".txt", "delve|dig\nutilize|use\n", "several entries between bars"),
    "equals signs and replacements": Shape(".txt", "delve = dig\nutilize = use\n", "colon or ="),
    "texts with labels": Shape(".jsonl", '{"text": "delve", "label": 0}\n{"text": "so", "label": 1}\n', "key 'label'"),
    "colons and replacements": Shape(".txt", "color: colour\ncenter: centre\n", "colon"),
    "a replacement beside a list": Shape(".json", '{"utilize": "use", "hype": ["delve"]}', "utilize, hype"),
    # -- groups
    "a group among settings": Shape(
        ".json", '{"temperature": 1, "stop": ["###"], "banned_strings": ["delve"]}', ["delve"]
    ),
    "approved words": Shape(".json", '{"approved": ["dig"], "banned_words": ["delve", "a testament to"]}', WORDS),
    "required terms": Shape(".json", '{"required_terms": ["dig"], "max_words": 300}', "required_terms: name"),
    "a brief for a writer": Shape(
        ".json", '{"must_include": ["dig"], "recommended": ["look"], "tone_keywords": ["warm"]}', "tone_keywords: name"
    ),
    "a brief with words to avoid": Shape(
        ".json", '{"mustInclude": ["dig"], "wordsToAvoid": ["delve", "a testament to"]}', WORDS
    ),
    "words not to use": Shape(".json", '{"style": {"do_not_use": ["delve"], "use": ["dig"]}}', ["delve"]),
    "a package.json": Shape(
        ".json", '{"name": "x", "files": ["lib"], "keywords": ["prose"], "scripts": {"test": "run"}}', "files, keywords"
    ),
    "a story of KoboldAI": Shape(
        ".json", '{"gamestarted": true, "prompt": "Once", "actions": ["She went."], "memory": ""}', "actions"
    ),
    "settings of koboldcpp": Shape(
        ".json", '{"max_length": 80, "banned_tokens": ["delve"], "stop_sequence": ["\\n"]}', ["delve"]
    ),
    "a request to vLLM": Shape(".json", '{"model": "m", "bad_words": ["delve", "a testament to"]}', WORDS),
    "a request to llama.cpp": Shape(
        ".json", '{"prompt": "Hi", "logit_bias": [["delve", false]], "samplers": ["top_k"]}', "logit_bias, samplers"
    ),
    "a task of lm-eval": Shape(".json", '{"task": "t", "generation_kwargs": {"until": ["\\n"]}}', "generation_kwargs"),
    "stop words by language (stopwords-iso)": Shape(".json", '{"af": ["die"], "en": ["the", "of"]}', "af, en: name"),
    "one list with any name": Shape(".json", '{"mine": ["delve", "a testament to"]}', WORDS),
    "one mapping with any name": Shape(".json", '{"mine": {"delve": 0.5}}', [Ban("delve", weight=0.5)]),
    "words of a package (bad-words)": Shape(".json", '{"words": ["delve", "a testament to"]}', WORDS),
    "categories under slop": Shape(
        ".json", '{"slop": {"openers": ["delve"], "closers": ["a testament to"]}}', "openers, closers"
    ),
    "an allowlist only": Shape(".json", '{"allowed": ["delve"]}', "holds no bans by its name"),
    "a switch of an entry": Shape(
        ".json", '[{"phrase": "delve", "enabled": false}]', "key 'enabled' of 'delve' is unknown"
    ),
    "a strength of an entry": Shape(".json", '[{"word": "delve", "strength": 0.5}]', "key 'strength'"),
    "a switch in CSV": Shape(
        ".csv", "phrase,count,enabled\ndelve,3,false\nso,2,true\n", "the column 'enabled' is unknown"
    ),
    # -- numbers
    "a set of JavaScript (badwords-list)": Shape(".json", '{"delve": 1, "a testament to": 1}', "is 1"),
    "a set of booleans": Shape(".json", '{"delve": true, "a testament to": true}', "true or false"),
    "a counter of ones": Shape(".json", '[["delve", 1], ["a testament to", 1]]', "is 1"),
    "CSV of ones": Shape(".csv", "delve,1\na testament to,1\n", "is 1"),
    "ratings from 0 to 2 (cuss)": Shape(
        ".json", '{"delve": 2, "a testament to": 0}', [Ban("delve", count=2), Ban("a testament to", count=0)]
    ),
    "weights in a group": Shape(".json", '{"banned": [["delve", 0.5]]}', [Ban("delve", weight=0.5)]),
    "options of an object": Shape(
        ".json",
        '[{"phrase": "delve", "weight": 0.25, "edges": "anywhere", "case_sensitive": true}]',
        [Ban("delve", weight=0.25, edges="anywhere", case_sensitive=True)],
    ),
    "options in CSV": Shape(
        ".csv",
        "phrase,weight,edges,case_sensitive\ndelve,0.25,anywhere,true\n",
        [Ban("delve", weight=0.25, edges="anywhere", case_sensitive=True)],
    ),
    # -- lines
    "sqlite3": Shape(".txt", "delve|3\na testament to|12\n", [Ban("delve", count=3), Ban("a testament to", count=12)]),
    "one line of psql": Shape(".txt", "delve|3\n", "number after a bar"),
    "uniq -c": Shape(".txt", "     12 delve\n      3 a testament to\n", "number in front"),
    "one line of uniq -c": Shape(".txt", "   12 delve\n", "number in front"),
    "numbers after phrases": Shape(".txt", "delve 12\ntapestry 3\n", "number behind"),
    "numbers after colons": Shape(".txt", "delve: 12\ntapestry: 3\n", "number behind"),
    "Hunspell": Shape(".dic", "2\ndelve/DGRS\ntapestry/MS\n", "flags of Hunspell"),
    "a negated word": Shape(".txt", "so\n!delve\n", "begins with a !"),
    "a part of speech": Shape(".txt", "delve_VERB\ntapestry_NOUN\n", "part of speech"),
    "KoboldAI's separators": Shape(".txt", "shiver down||$$||delve\n", "several entries"),
    "spaces for the tab": Shape(".txt", "delve    weight=0.1\n", "after a tab"),
    "spaces for the tab in our format": Shape(".txt", "# antislop 1\ndelve    weight=0.1\n", "after a tab"),
    "UTF-16 without a mark": Shape(".txt", "delve\ntapestry\n".encode("utf-16-le"), "binary data"),
    "NUL bytes": Shape(".txt", b"delve\0tapestry\0", "binary data"),
    "rules of Vale": Shape(".yml", "extends: substitution\nswap:\n  delve: dig\n", "a list in YAML can't be read"),
    # -- token ids and regexes
    "token ids": Shape(".json", "[[23], [49211, 7001]]", TOKENS),
    "bad_words_ids": Shape(".json", '{"temperature": 1.0, "bad_words_ids": [[23], [49211, 7001]]}', TOKENS),
    "token ids without brackets": Shape(".json", "[23, 49211]", "token ids"),
    "objects of regexes": Shape(
        ".json", '[{"regex": "\\\\bnot just \\\\w+"}, {"phrase": "delve"}]', [REGEX, Ban("delve")]
    ),
    "a group of patterns": Shape(
        ".json", '{"patterns": ["\\\\bnot just \\\\w+"], "words": ["delve"]}', [REGEX, Ban("delve")]
    ),
    "a preset of SillyTavern": Shape(
        ".json", '{"temp": 1, "banned_tokens": "delve\\n\\"a testament to\\"", "samplers": ["k"]}', anywhere(*WORDS)
    ),
}


def test_there_are_enough_shapes() -> None:
    assert len(SHAPES) >= 60


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_is_read_as_it_is_meant_or_refused_in_one_sentence(name: str, tmp_path: Path) -> None:
    suffix, text, expected = SHAPES[name]
    path = tmp_path / f"list{suffix}"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    if isinstance(expected, str):
        with pytest.raises(BanError, match=rf"\A{re.escape(str(path))}:\d+: [^\n]*{re.escape(expected)}[^\n]*\Z"):
            BanList.load(path)
        return
    bans = BanList.load(path)
    assert bans == BanList(expected)
    assert [ban.count for ban in bans] == [ban.count for ban in BanList(expected)]


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

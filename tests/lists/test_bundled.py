"""The bundled constructions and dashes are found as people mean them, however a text is cut into pieces."""

from __future__ import annotations

import re
import time
from itertools import accumulate, pairwise
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, strategies as st

import antislop
from antislop.core.bans.ban_list import BanList
from antislop.core.bans.text_matcher import TextMatcher
from antislop.core.bans.token_matcher import Matcher
from antislop.errors import BanError
from antislop.lists.bundled import Construction, read_constructions
from antislop.measure.lint import lint
from tests.support.depth import sample_size
from tests.support.oracles import cut_at, find_in_pieces, matches
from tests.support.refusals import refused
from tests.support.toys import Words

# Constructions


ALL = read_constructions()
constructions = pytest.mark.parametrize("construction", ALL, ids=[entry.name for entry in ALL])
PLAIN = (
    "The old house stood at the end of the lane. Nobody had lived there for years, and the garden was wild. "
    "On some evenings a light went through its rooms; then the dogs barked until morning."
)


@constructions
def test_every_example_contains_its_construction(construction: Construction) -> None:
    bans = BanList([construction.ban])
    assert len(set(construction.examples)) >= 12
    assert [text for text in construction.examples if not bans.find(text)] == []


@constructions
def test_no_counterexample_contains_its_construction(construction: Construction) -> None:
    bans = BanList([construction.ban])
    assert len(set(construction.counterexamples)) >= 12
    assert [text for text in construction.counterexamples if bans.find(text)] == []


@constructions
def test_curly_and_straight_apostrophes_and_quotes_are_the_same(construction: Construction) -> None:
    bans, straight = BanList([construction.ban]), str.maketrans("‘’“”", "''\"\"")
    for text in (*construction.examples, *construction.counterexamples):
        assert bool(bans.find(text.translate(straight))) == bool(bans.find(text)), text


@constructions
def test_the_match_in_an_example_does_not_depend_on_how_it_is_cut(construction: Construction) -> None:
    for text in construction.examples[: sample_size(len(construction.examples))]:
        expected = [(0, *match[1:]) for match in BanList([construction.ban]).find(text)]
        places = Random(text).sample(range(len(text)), min(len(text), sample_size(len(text))))
        for pieces in (*([text[:cut], text[cut:]] for cut in places), list(text)):
            assert find_in_pieces([construction.ban], pieces) == expected


@given(data=st.data(), cuts=st.lists(st.integers(0, 400), max_size=12))
def test_all_constructions_together_match_as_each_does_alone(data: st.DataObject, cuts: list[int]) -> None:
    sentences = st.sampled_from([text for entry in ALL for text in (*entry.examples, *entry.counterexamples)])
    text = " ".join(data.draw(st.lists(sentences, min_size=1, max_size=5)))
    expected = sorted(
        (number, *span)
        for number, entry in enumerate(ALL)
        for span in matches(entry.ban.text, text, max_span=entry.ban.pattern.max_span)
    )
    assert find_in_pieces([entry.ban for entry in ALL], cut_at(text, cuts)) == expected


@constructions
def test_no_example_is_longer_than_the_declared_span(construction: Construction) -> None:
    longest = max(len(text) for text in construction.examples)
    assert longest <= construction.ban.pattern.max_span


def test_no_text_is_held_back_before_a_construction_begins() -> None:
    words = [f" {word}" for word in PLAIN.split()]
    matcher = Matcher(antislop.constructions(), Words(*words))
    state, held = matcher.start(), []
    for token in range(len(words)):
        state = matcher.feed(state, token)
        held += [words[token]] if state.earliest_start < state.length else []
    assert held == [" The", " and", " was", " a"]  # "The result?", "and honestly?", "was not …"; "a" may become "are"


def test_all_constructions_together_take_microseconds_per_token() -> None:
    """The bound leaves room for other work on the machine; data/README.md contains the measured time."""
    text = " ".join(text for entry in ALL for text in entry.counterexamples)
    pieces = [text[start:end] for start, end in pairwise(range(0, len(text), 4))]
    detector = TextMatcher(antislop.constructions())
    place, rest, begun = detector.phrases.start, detector.start, time.process_time()
    for piece in pieces:
        place, rest, _ = detector.read(place, rest, piece)
    assert (time.process_time() - begun) / len(pieces) < 500e-6
    assert not detector.timed_out


def test_constructions_are_chosen_by_name_and_an_unknown_name_is_refused_with_a_list_of_names() -> None:
    assert len(antislop.constructions()) == len(ALL) == len({entry.name for entry in ALL})
    assert [ban.text for ban in antislop.constructions("more-than-just")] == [
        entry.ban.text for entry in ALL if entry.name == "more-than-just"
    ]
    with pytest.raises(BanError, match="no construction 'tapestry'; there are not-x-but-y, "):
        antislop.constructions("tapestry")


# Dashes, where hyphens, ranges and Markdown are left alone


FOUND = {  # the text, and what is found in it
    "an em dash between words": ("He stopped—then ran.", ["—"]),
    "a spaced em dash": ("He stopped — then ran.", ["—"]),
    "a pair of em dashes": ("It—he knew—was late.", ["—", "—"]),
    "an em dash at a line's start": ("— Who is it?", ["—"]),
    "an em dash at the end": ("“I thought—”", ["—"]),
    "an em dash between numbers": ("1990—1995", ["—"]),
    "an em dash in a cell": ("| a | — |", ["—"]),
    "an em dash in code": ("```\nx — y\n```", ["—"]),
    "other long dashes": ("He ran ― and ⸺ or ⸻.", ["―", "⸺", "⸻"]),
    "a spaced en dash": ("He stopped – then ran.", [" –"]),
    "an en dash with a space before it": ("He stopped –then ran.", [" –"]),
    "an en dash with a space after it": ("He stopped– then ran.", ["–"]),
    "an en dash with a no-break space": ("He stopped\u00a0– then ran.", ["\u00a0–"]),
    "an en dash at the end of a speech": ("“I thought–”", ["–"]),
    "an en dash at the end of a text": ("I thought –", [" –"]),
    "an en dash after a year": ("In 1990 – the year of the flood – he left.", [" –", " –"]),
    "a figure dash as a dash": ("He stopped ‒ then ran.", [" ‒"]),
    "a spaced hyphen": ("He stopped - then ran.", [" -"]),
    "a spaced hyphen at a line's end": ("He stopped -\nthen ran.", [" -"]),
    "a spaced hyphen at the end of a text": ("He stopped -", [" -"]),
    "a spaced hyphen after bold": ("**Term** - its meaning", ["* -"]),
    "a spaced hyphen after a quote": ('"Go." - She went.', ['" -']),
    "a spaced hyphen in an item": ("- an item - with a remark", [" -"]),
    "a spaced hyphen in a title": ("# Part one - The house", [" -"]),
    "a spaced hyphen in a cell": ("| one - two |", [" -"]),
    "a spaced hyphen after code": ("```\nx - y\n```\nSo - it ran.", [" -"]),
    "two hyphens between words": ("He stopped--then ran.", ["--"]),
    "two hyphens with spaces": ("He stopped -- then ran.", [" --"]),
    "two hyphens at the end of a speech": ('"I thought--"', ["--"]),
    "two hyphens after a speech": ('"Well,"--he paused--"no."', [',"--', "--"]),
    "two hyphens after a curly quote": ("“Well”--he paused.", ["”--"]),
    "three hyphens between words": ("He stopped---then ran.", ["---"]),
    "three hyphens with spaces": ("He stopped --- then ran.", [" ---"]),
}
LEFT_ALONE = {
    "a hyphen within a word": "a well-known, twenty-one-year-old mother-in-law",
    "a suspended hyphen": "pre- and post-war",
    "a hyphen at a word's start": "the suffix -ness",
    "a no-break hyphen": "well‑known",
    "a range of years": "1990–1995 and 1990-1995",
    "a range of years with spaces": "1990 – 1995, 1990 - 1995, 1990 -- 1995",
    "a range of years in TeX": "1990--1995",
    "a range of prices": "$10 – $20, 10 € - 20 €",
    "a range of times": "9 am – 5 pm, 9:00-17:00",
    "a range of days": "May 5 – June 10",
    "an open range": "(1990–)",
    "an en dash that joins": "the Paris–London train, Bose–Einstein statistics",
    "a date": "2024-01-05, 5-6 May",
    "a phone number": "555-1234, +1 555-123-4567, 0171 - 123 45",
    "a negative number": "at -5 degrees, –5 or −5, x = -3",
    "a subtraction": "5 - 3 = 2",
    "an item": "- one\n- two\n– three",
    "an indented item": "- one\n  - two\n\t- three\n    – four",
    "an item in a quotation": "> - one\n> - two",
    "a task": "- [ ] one\n- [x] two",
    "a rule": "one\n\n---\n\ntwo\n\n- - -\n\n--------",
    "front matter": "---\ntitle: x\n---\n",
    "a heading's rule": "Title\n--\ntext",
    "a table": "| a | b |\n|---|:--:|\n| - | – |\n| -- | c |",
    "a table without edges": "a | b\n--- | ---\nc | -",
    "an option": "run it with --help, or -h, or `--no-dashes`, or (--x)",
    "an option at a line's start": "--help",
    "an option in quotes": "pass \"--help\" or '--help'",
    "fenced code": "```sh\nx - y -- z – a\ni--\n```",
    "a comment in HTML": "<!-- a remark -->",
    "an arrow": "a --> b, a -> b, a <-- b",
    "a minus sign": "a − b",
    "a long vowel": "コーヒー",
}


IN_DIALOGUE = {  # by the language and the text, what is found
    ("fr", "— Viens, dit-il. — Non — jamais.\nIl partit — vite."): ["—"],
    ("fr", "– Viens – vite.\n― Non."): [],
    ("fr", "« — Viens », dit-il — ou non."): [],
    ("fr", "« – Viens. »\n\t— Non. »"): [],
    ("fr", "Il dit :\r\n  — Viens.\r\nIl partit – vite."): [" –"],
    ("fr", "« Viens », dit-il — vite."): ["—"],
    ("fr", "- **Un** – le début\n- deux - la fin — ici"): ["* –", " -", "—"],
    ("es", "—No lo sé —dijo ella—. Vámonos.\n¿Y él —el otro— qué?"): ["—", "—"],
    ("es", "-- ¿Quién? -- dijo.\nFue -- creo -- él."): [" --", " --"],
    ("pt", "> — Quem? — disse ele.\n\nEle — não."): ["—"],
    ("pl", "„— Kto tam? – zapytał”"): [],
    ("ru", "— Кто там? — спросил он.\n\nМосква — столица."): ["—"],
    ("sv", "– Vem är det? frågade han – trött.\nHan gick – trött."): [" –"],
    ("it", "```\n— x - y\n```\nChi - disse - è?"): [" -", " -"],
    ("de", "— Wer? – fragte er."): ["—", "? –"],
    ("en", "— Who? – he asked."): ["—", "? –"],
}


def read_token_by_token(tokens: list[str], bans: BanList | None = None) -> list[tuple[str, int]]:
    """Return the ban and the first token of each violation."""
    matcher = Matcher(bans or antislop.dashes(), Words(*tokens))
    states = list(accumulate(range(len(tokens)), matcher.feed, initial=matcher.start()))
    violations = [*(found for state in states for found in state.violations), *matcher.finish(states[-1])]
    return sorted((found.ban.text, found.start) for found in violations)


def cut_into_words(text: str) -> list[str]:
    """Cut a text as most tokenizers do: a space belongs to what is after it."""
    return re.findall(r" ?\w+| ?[^\w\s]+|\s", text)


@pytest.mark.parametrize("language", ["en", "fr"])
def test_the_list_is_saved_as_it_is_and_has_no_faults(tmp_path: Path, language: str) -> None:
    bans = antislop.dashes(language=language)
    bans.save(tmp_path / "dashes.txt")
    assert BanList.load(tmp_path / "dashes.txt") == bans
    assert lint(bans) == []


@pytest.mark.parametrize(("language", "text"), IN_DIALOGUE)
def test_dashes_of_dialogue_are_left_alone_in_languages_whose_dialogue_has_them(language: str, text: str) -> None:
    bans = antislop.dashes(language=language)
    found = bans.find(text)
    assert [text[match.start : match.end] for match in found] == IN_DIALOGUE[language, text]
    for tokens in (list(text), cut_into_words(text)):
        owners = [number for number, token in enumerate(tokens) for _ in token]
        assert read_token_by_token(tokens, bans) == sorted((match.ban.text, owners[match.start]) for match in found)


def test_dashes_are_those_of_english_where_no_dialogue_begins_with_one_and_an_unknown_language_is_refused() -> None:
    assert antislop.dashes(language="de") == antislop.dashes(language="en") == antislop.dashes()
    assert not any(dash.scopes for dash in antislop.dashes()[:4])
    refused("the language 'xx' is not known: pass one of en, de, ", antislop.dashes, language="xx")


@pytest.mark.parametrize("case", [*FOUND, *LEFT_ALONE])
def test_dashes_are_found_and_what_looks_like_them_is_left_alone(case: str) -> None:
    text, expected = FOUND[case] if case in FOUND else (LEFT_ALONE[case], [])
    found = antislop.dashes().find(text)
    assert [text[match.start : match.end] for match in found] == expected
    for tokens in (list(text), cut_into_words(text)):
        owners = [number for number, token in enumerate(tokens) for _ in token]
        assert read_token_by_token(tokens) == sorted((match.ban.text, owners[match.start]) for match in found)

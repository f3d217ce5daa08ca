"""Exempt phrases, scopes and free occurrences decide alike however a text is cut, and as in a naive search."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, chain

import pytest
import regex
from hypothesis import assume, example, given, settings, strategies as st

from antislop.core.bans.ban_list import BanList
from antislop.core.bans.bans import Ban
from antislop.core.bans.scopes import SPANS, Scope, Where
from antislop.core.bans.token_matcher import Matcher, Violation
from tests.support.ban_cases import RULES, SPAN
from tests.support.oracles import counting, cut_at, find_in_pieces, occurrences, read_code, scope_at
from tests.support.toys import Markov, Words, run

THINK = {2: "<think>", 3: "</think>"}
WORDS = Words("a", " ", None, None, "b", "<thi", "nk>", "</think>", None, '"', ".", "\n", contents=THINK)
A, SPACE, BEGIN, END, B = range(5)
DOT, LINE = 10, 11


def violations(
    bans: Sequence[Ban], tokens: Sequence[int], *, prompt: Sequence[int] = (), **options: bool
) -> list[Violation]:
    """Return the violations of a text that ends after the tokens."""
    matcher = Matcher(bans, WORDS)
    states = list(accumulate(tokens, matcher.feed, initial=matcher.start(prompt, **options)))
    return [*chain.from_iterable(state.violations for state in states[1:]), *matcher.finish(states[-1])]


# All rules


chunks = st.lists(
    st.sampled_from(["a", "b", "ab", " ", "c", ".", '"', "```", "<t>", "</t>", "`", "<", "\n", "\n—", "”"]), max_size=24
)
places = st.lists(st.integers(0, 60), max_size=8)


def join(pieces: Sequence[str]) -> str:
    """Join pieces, without two kinds of white space in a row, which the naive search does not fold to one."""
    return regex.sub(r"\s+", lambda spaces: spaces[0][0], "".join(pieces))


FORMS: tuple[Ban, ...] = (
    Ban("a"),
    Ban("ab", edges="anywhere"),
    Ban("a b"),
    Ban.regex("a.?b"),
    Ban.regex(r"b\b"),
    Ban.words(["a", "b"], gap=1),
)


def with_rules(ban: Ban, rules: dict[str, object]) -> Ban:
    return replace(ban, **rules)  # type: ignore[arg-type]


@pytest.mark.parametrize("rules", RULES, ids=str)
@given(pieces=chunks, cuts=places, ban=st.sampled_from(FORMS))
def test_rules_do_not_depend_on_how_a_text_is_cut(
    rules: dict[str, object], pieces: list[str], cuts: list[int], ban: Ban
) -> None:
    text, ruled = join(pieces), with_rules(ban, rules)
    assert find_in_pieces([ruled], cut_at(text, cuts)) == [(0, *span) for span in sorted(counting(text, ruled))]


@given(
    pieces=chunks, cuts=places, chosen=st.lists(st.tuples(st.sampled_from(FORMS), st.sampled_from(RULES)), max_size=5)
)
def test_the_rules_of_one_ban_do_not_affect_another(
    pieces: list[str], cuts: list[int], chosen: list[tuple[Ban, dict[str, object]]]
) -> None:
    text, bans = join(pieces), [with_rules(*pair) for pair in chosen]
    expected = sorted((i, *span) for i, ban in enumerate(bans) for span in counting(text, ban))
    assert find_in_pieces(bans, cut_at(text, cuts)) == expected


@pytest.mark.parametrize(
    "text",
    [
        'He "said a" a.',
        "He “said a” a.",
        "Er „sagte a“ a.",
        "Il « dit a » a.",
        "彼「言 a」a",
        'An "open a\na.',
        "Er »sagte a« a.",
        "Han sa »a» a.",
        "Han sa ”a” a.",
        "『a』でない a",
        "＂a＂ a",
        "″a″ a",
        "« dit a,\nil » part a",
    ],
)
def test_quotation_marks_of_any_kind_open_and_close_a_quotation(text: str) -> None:
    inner, outer = [match.start for match in BanList(["a"]).find(text)]
    for where, place in (("inside", inner), ("outside", outer)):
        ban = Ban("a", scopes=[Scope(where, "quotes")])  # type: ignore[arg-type]
        assert [match.start for match in BanList([ban]).find(text)] == [place]


# An opening


TWO_WORDS: dict[str, object] = {"opening": "word", "scopes": [Scope("outside", ("<b .b>", "</b>"))]}
OPENINGS = [TWO_WORDS, *(rules for rules in RULES if "opening" in rules)]
opened = st.lists(
    st.sampled_from(["<t>b</t>", "<b .b> b", "</b>", '"', "a", "b", " ", "*", ". ", "\n", "\n\n", "<"]), max_size=9
)


@given(
    pieces=opened,
    cuts=places,
    rules=st.sampled_from(OPENINGS),
    form=st.sampled_from([Ban("a", edges="anywhere"), Ban.regex("[ *.]?b?a")]),
)
@example(
    pieces=["<t>", "b", "</t>", " a"],
    cuts=[2],
    rules={"opening": "word", "scopes": [Scope("outside", SPAN)]},
    form=Ban("a"),
)
@example(pieces=["<b .b>", "b", "</b>", " a"], cuts=[4, 5], rules=TWO_WORDS, form=Ban("a"))
@example(pieces=["b", " ", "a"], cuts=[], rules={"opening": "word"}, form=Ban.regex(" a"))
@example(pieces=["b", ". ", "a"], cuts=[], rules={"opening": "sentence"}, form=Ban.regex(r"\. a"))
@example(pieces=["b", ".", "a"], cuts=[2], rules={"opening": "sentence"}, form=Ban("a"))
@example(pieces=["b <", "a"], cuts=[2, 3], rules={"opening": "word", "scopes": [Scope("outside", SPAN)]}, form=Ban("a"))
def test_a_ban_of_the_opening_holds_where_the_first_unit_is(
    pieces: list[str], cuts: list[int], rules: dict[str, object], form: Ban
) -> None:
    text, ruled = join(pieces), with_rules(form, rules)
    assert find_in_pieces([ruled], cut_at(text, cuts)) == [(0, *span) for span in sorted(counting(text, ruled))]


@pytest.mark.parametrize("prompt", [[], [A, SPACE], [A, B, SPACE, A], [A, BEGIN, SPACE]])
@given(tokens=st.lists(st.sampled_from([A, SPACE, B, DOT, LINE]), max_size=10), rules=st.sampled_from(OPENINGS))
def test_the_opening_is_that_of_the_reply_to_a_prompt(
    prompt: list[int], tokens: list[int], rules: dict[str, object]
) -> None:
    text = WORDS.text(tokens)
    assume(join([text]) == text)
    forms = ("a b a", "b a", "a", "b")
    bans = [with_rules(Ban(form, edges="anywhere"), {"opening": rules["opening"]}) for form in forms]
    found = {(violation.ban.text, violation.start) for violation in violations(bans, tokens, prompt=prompt)}
    assert found == {(ban.text, start) for ban in bans for start, _ in counting(text, ban)}


def test_a_phrase_of_the_opening_is_found_behind_one_that_began_in_the_prompt() -> None:
    bans = [Ban(phrase, opening="word") for phrase in ("a b b", "b a")]
    assert [(v.ban.text, v.start) for v in violations(bans, [B, SPACE, A], prompt=[A, SPACE])] == [("b a", 0)]


def test_nothing_is_held_back_when_the_opening_is_over() -> None:
    matcher = Matcher([Ban("a b", opening="sentence"), Ban.regex("a{9}", opening="word")], WORDS)
    states = list(accumulate([A, SPACE, A, A, DOT, A, SPACE, A], matcher.feed, initial=matcher.start([A])))
    assert [state.earliest_start for state in states] == [0, 0, 2, 2, 4, 5, 5, 7, 8]


OPENED = {
    "Certainly! Certainly.": [0, 0, 0],
    '\n**"Certainly': [4, 4, 4],
    "Sure, certainly. Certainly": [None, 6, 6],
    "Sure. Certainly\nCertainly\n \nCertainly": [None, None, 6],
    "Sure.\n\nCertainly": [None, None, None],
    "---\n\nCertainly": [5, 5, 5],
    "是Certainly": [None, 1, 1],
}


@pytest.mark.parametrize(("text", "starts"), OPENED.items())
def test_the_opening_is_the_first_word_sentence_or_paragraph(text: str, starts: list[int | None]) -> None:
    for opening, start in zip(("word", "sentence", "paragraph"), starts, strict=True):
        bans = BanList([Ban("Certainly", edges="anywhere", opening=opening)])  # type: ignore[arg-type]
        found = [match.start for match in bans.find(text)]
        assert found[:1] == ([] if start is None else [start]), opening


# Scopes begin and end at special tokens as at text, and a rewind restores the scope of the kept text


SCOPES = [
    Scope(where, span) for where in ("inside", "outside", "after") for span in ("think", "quotes", ("<think>b", "a"))
]  # type: ignore[arg-type]


def naive(ban: Ban, tokens: Sequence[int]) -> list[int]:
    """Return the tokens in which a ban begins. Special tokens end matches, but not scopes."""
    whole, parts = "", [""]
    owners: list[list[int]] = [[]]
    begins = [0]
    for number, token in enumerate(tokens):
        text = WORDS.breaks[token] if token in WORDS.breaks else WORDS.text([token])
        whole += text
        if token in WORDS.breaks:
            parts, owners, begins = [*parts, ""], [*owners, []], [*begins, len(whole)]
        else:
            parts[-1] += text
            owners[-1] += [number] * len(text)
    counts = [scope_at(whole, scope) for scope in ban.scopes]
    return sorted(
        owner[start]
        for part, owner, begin in zip(parts, owners, begins, strict=True)
        for start, _ in occurrences(part, ban)
        if all(inside[begin + start] for inside in counts)
    )


@given(
    tokens=st.lists(st.integers(0, len(WORDS) - 1), max_size=14), scopes=st.sets(st.sampled_from(SCOPES), min_size=1)
)
@example(tokens=[BEGIN, A, END, A], scopes={Scope("after", "think")})
@example(tokens=[BEGIN, B, A, A], scopes={Scope("inside", ("<think>b", "a"))})
@example(tokens=[5, 6, A, END, A], scopes={Scope("outside", "think")})
def test_a_ban_applies_by_the_scopes_of_the_text_with_its_special_tokens(tokens: list[int], scopes: set[Scope]) -> None:
    ban = Ban("a", edges="anywhere", scopes=tuple(scopes))  # type: ignore[arg-type]
    assert [violation.start for violation in violations([ban], tokens)] == naive(ban, tokens)


@pytest.mark.parametrize("lookback", [True, False])
@pytest.mark.parametrize(("where", "starts"), [("inside", [0]), ("outside", [3]), ("after", [3])])
def test_a_span_that_the_prompt_opens_continues_in_the_output(where: Where, starts: list[int], lookback: bool) -> None:
    ban = Ban("a", scopes=[Scope(where, "think")])
    found = violations([ban], [A, SPACE, END, A], prompt=[A, BEGIN], lookback=lookback)
    assert [violation.start for violation in found] == starts


@pytest.mark.parametrize(
    ("prompt", "starts"),
    [("a", [0, 2]), ("a[/INST]", []), ("a<|assistant|>", []), ("a\n", []), ("", []), ("—a", []), ("—a\na", [0, 2])],
)
def test_a_reply_begins_with_dialogue_after_a_special_token_or_a_line_feed(prompt: str, starts: list[int]) -> None:
    tokens = ["a", " ", "—", "\n", "[/INST]", "<|assistant|>"]
    words = Words(*tokens[:4], None, None, contents={4: tokens[4], 5: tokens[5]})
    matcher = Matcher([Ban("—", scopes=[Scope("outside", "dialogue")])], words)
    state = matcher.start([tokens.index(one) for one in re.findall(r"\[.*?\]|<.*?>|(?s:.)", prompt)])
    states = list(accumulate([2, 0, 2, 3], matcher.feed, initial=state))
    assert [violation.start for state in states for violation in state.violations] == starts


def test_a_span_that_was_opened_and_closed_in_the_prompt_has_ended() -> None:
    assert [v.start for v in violations([Ban("a", scopes=[Scope("after", "think")])], [A], prompt=[BEGIN, END])] == [0]


def test_a_rewind_over_a_special_token_restores_the_scope_before_it() -> None:
    matcher = Matcher(
        [Ban("a b", scopes=[Scope("outside", "think")]), Ban("a", scopes=[Scope("inside", "think")])], WORDS
    )
    states = list(accumulate([A, BEGIN, A], matcher.feed, initial=matcher.start()))
    assert [violation.ban.text for violation in matcher.finish(states[-1])] == ["a"]
    again = list(accumulate([SPACE, B], matcher.feed, initial=states[-1].back_to(1)))
    assert [(violation.ban.text, violation.start) for violation in matcher.finish(again[-1])] == [("a b", 0)]


def test_a_special_token_still_separates_words() -> None:
    assert violations([Ban("a b"), Ban("ab")], [A, BEGIN, B, A, SPACE, END, B]) == []


@pytest.mark.parametrize("where", ["inside", "outside", "after"])
@pytest.mark.parametrize("do_sample", [True, False])
def test_a_reasoning_model_writes_a_ban_only_outside_of_its_scopes(where: Where, do_sample: bool) -> None:
    ban = Ban("a", edges="anywhere", scopes=[Scope(where, "think")])
    texts = [run(Markov(4, length=12, seed=seed), WORDS, [ban], do_sample=do_sample)[0] for seed in range(12)]
    assert not any(naive(ban, text) for text in texts)
    assert where == "after" or any(A in text and BEGIN in text for text in texts)
    assert any(A in text for text in texts), "banned outside of its scopes"


def test_the_spans_of_reasoning_models_have_a_name() -> None:
    for begin, ends in SPANS["think"].items():
        words = Words("a", None, None, " ", contents={1: begin, 2: ends[0]})
        matcher = Matcher([Ban("a", scopes=[Scope("inside", "think")])], words)
        states = list(accumulate([0, 3, 1, 0, 3, 2, 0, 3], matcher.feed, initial=matcher.start()))
        assert [violation.start for state in states for violation in state.violations] == [3]


CODE = [*"abc", "`", "``", "```", "````", "~~~", "~~~~", "\\", " ", "    ", "\n", "\n", "\n\n", "\r\n", "js"]


@settings(max_examples=300)
@given(st.lists(st.sampled_from(CODE), max_size=25).map("".join), places)
@example("so ``` a\nb", [])
@example("````md\n```\na\n````\nb", [])
@example("```a``` b `c` \\`a\n~~~ `\na\n~~~~ b\n  ~~~\nc", [3])
@example(" ```\na\n    ```\nb\n   ```\nc", [])
@example("```\na\n    ```\nb\n```\nc", [])
def test_code_is_read_by_the_rules_for_markdown_whatever_the_pieces(text: str, cuts: list[int]) -> None:
    scope = Scope("inside", "code")
    state, found = scope.start, list[bool]()
    for piece in cut_at(text, cuts):
        before = scope.applies(state)
        state, changes = scope.read(state, piece)
        for index in range(len(piece)):
            before = dict(changes).get(index, before)
            found.append(before)
        assert len(state.tail) < 140
    expected = read_code(text)
    assert "".join(c for c, one in zip(text, found, strict=True) if one and c.isalpha()) == "".join(
        c for c, one in zip(text, expected, strict=True) if one and c.isalpha()
    )

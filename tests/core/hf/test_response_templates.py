"""Bans apply where transformers' own parser finds the answer, the thoughts and the tool calls of a message."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, strategies as st
from transformers.cli.serving.utils import _RESPONSE_TEMPLATE_FALLBACKS
from transformers.utils.chat_parsing import ResponseParser

from antislop.core.bans.ban_list import BanList, read_bans
from antislop.core.bans.bans import Ban
from antislop.core.bans.scopes import BanScope, Scope, ScopeState
from antislop.core.bans.token_matcher import Matcher
from antislop.core.hf.compiled_bans import chat_scope
from antislop.core.trace.events import Drawn, Report, Rewound
from tests.support.refusals import refused
from tests.support.toys import Markov, Words, run

HARMONY = {
    "start_anchor": "<|start|>assistant",
    "fields": {
        "reasoning_content": {"open": "<|channel|>analysis<|message|>", "close": "<|end|>"},
        "tool_calls": {
            "open_pattern": r"<\|channel\|>commentary to=functions\.(?P<name>\w+)[^<]*<\|message\|>",
            "close": ["<|call|>", "<|end|>"],
            "repeats": True,
            "content": "text",
            "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
        },
        "content": {"open": "<|channel|>final<|message|>", "close_pattern": r"<\|(?:return|end)\|>"},
    },
}
"""The shape of gpt-oss's messages, in which the answer has delimiters, too."""


def of_type(kind: str) -> dict[str, Any]:
    return next(template for kinds, template in _RESPONSE_TEMPLATE_FALLBACKS.items() if kind in kinds)


DIALECTS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "qwen3": (of_type("qwen3"), ["<think>", "</think>", "<tool_call>", "</tool_call>"]),
    "qwen3_5": (
        of_type("qwen3_5"),
        [
            "<think>",
            "</think>",
            "\n<tool_call>\n<function=f>",
            "</function>\n</tool_call>",
            "</function>",
            "<|im_end|>",
        ],
    ),
    "gemma4": (
        of_type("gemma4"),
        ["<|channel>thought\n", "<channel|>", "<|tool_call>call:f{", "<tool_call|>", "<eos>"],
    ),
    "gpt-oss": (
        HARMONY,
        [
            "<|channel|>analysis<|message|>",
            "<|end|>",
            "<|channel|>commentary to=functions.f json<|message|>",
            "<|call|>",
            "<|channel|>final<|message|>",
            "<|return|>",
        ],
    ),
}
PARTS: dict[BanScope, set[str]] = {
    "answer": {"content", "between"},
    "thinking": {"reasoning_content", "thinking"},
    "all": {"content", "between", "reasoning_content", "thinking"},
}


def fields_of(template: dict[str, Any], text: str) -> list[str]:
    """Return in which field of a message each § of its text is, by transformers' parser."""
    as_text = {name: {**field, "content": "text"} for name, field in template["fields"].items()}
    if template is HARMONY:
        as_text["between"] = {"content": "text"}  # what the parser drops otherwise
    parser = ResponseParser({**template, "fields": as_text}, prefix="")
    events = [*parser.feed(text), *parser.finalize()[1]]
    return [event["field"] for event in events if event["type"] == "region_chunk" for c in event["text"] if c == "§"]


def find_marked(scope: Scope, pieces: Sequence[str]) -> list[bool]:
    """Return whether bans apply at each § of a text that is read in pieces."""
    state, is_on, found = ScopeState(), scope.applies(ScopeState()), []
    for piece in pieces:
        state, changes = scope.read(state, piece)
        for index, character in enumerate([*piece, ""]):
            is_on = dict(changes).get(index, is_on)
            found += [is_on] if character == "§" else []
    return found


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("where", PARTS)
@given(data=st.data())
def test_a_scope_is_where_the_parser_finds_its_part(dialect: str, where: BanScope, data: st.DataObject) -> None:
    template, marks = DIALECTS[dialect]
    text = "".join(data.draw(st.lists(st.sampled_from(["§", " §", "§ ", "<", "\n", " " * 90, *marks]), max_size=16)))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=20)) | {0, len(text)})
    pieces = [text[start:end] for start, end in pairwise(cuts)]
    assert find_marked(chat_scope(template, where), pieces) == [
        field in PARTS[where] for field in fields_of(template, text)
    ]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_the_prompt_says_of_delimiters_opens_nothing_in_the_message(dialect: str) -> None:
    template, marks = DIALECTS[dialect]
    anchor = template["start_anchor"]
    prompt = f"write {''.join(marks)} or {marks[0]}, please" + (anchor if isinstance(anchor, str) else anchor[0])
    assert find_marked(chat_scope(template, "answer"), [prompt, "§"]) == [True]
    assert find_marked(chat_scope(template, "answer"), [prompt, marks[0], "§"]) == [False]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_long_run_of_spaces_costs_each_token_the_same(dialect: str) -> None:
    """5,000 took 2 s when each token had all of them searched again."""
    scope, state, began = chat_scope(DIALECTS[dialect][0], "answer"), ScopeState(), time.process_time()
    for _ in range(5000):
        state, _ = scope.read(state, " ")
    assert len(state.tail) < 100
    assert time.process_time() - began < 1


@pytest.mark.parametrize(("where", "banned"), [("answer", [1, 11]), ("thinking", [4]), ("all", [1, 4, 11])])
def test_bans_hold_in_the_parts_of_their_scope(where: BanScope, banned: list[int]) -> None:
    contents = {2: "<think>", 5: "</think>", 6: "<tool_call>", 9: "</tool_call>"}
    words = Words(" ", "a", None, " ", "a", None, None, "a", "<think>", None, " ", "a", contents=contents)
    bans = read_bans(BanList(["a"]), scopes=[chat_scope(DIALECTS["qwen3"][0], where)])
    matcher = Matcher(bans, words)
    states = list(accumulate(range(len(words)), matcher.feed, initial=matcher.start([])))
    ends = [*(state.violations for state in states[1:]), matcher.finish(states[-1])]
    assert sorted({violation.start for each in ends for violation in each}) == banned


def part_of(template: dict[str, Any], text: str) -> str:
    """Return the part of a message that its text has come to."""
    (*_, field) = fields_of(template, f"{text}§")
    return {"tool_calls": "tool_calls", "content": "answer", "between": "answer"}.get(field, "thinking")


@pytest.mark.parametrize("dialect", DIALECTS)
@given(data=st.data())
def test_a_rewind_is_counted_in_the_part_in_which_its_ban_begins(dialect: str, data: st.DataObject) -> None:
    template, marks = DIALECTS[dialect]
    names = {number: mark for number, mark in enumerate(marks) if data.draw(st.booleans())}
    surfaces = [None if number in names else mark for number, mark in enumerate(marks)]
    words = Words(*surfaces, "a", " ", "<", "\n", contents=names)
    bans = [Ban("a", edges="anywhere", scopes=[chat_scope(template, data.draw(st.sampled_from(get_args(BanScope))))])]
    bans += [Ban.regex("a", scopes=[Scope("inside", (marks[0], "."))])]
    model = Markov(len(words), length=20, seed=data.draw(st.integers(0, 99)))
    _, report = run(model, words, bans, prompt=[len(marks) + 1] * 2)
    written, parts = [], []
    for event in report.events:
        written += [event.token] if isinstance(event, Drawn) else []
        if isinstance(event, Rewound):
            before = [*written, *event.withdrawn][: event.violation.start]
            text = "".join(names.get(token) or words.text([token]) for token in before)
            parts.append(part_of(template, f"  {text}"))
            del written[event.length :]
    assert report.rewinds_by_part == Counter(parts)
    assert Report.total([report, report]).rewinds_by_part == Counter(parts * 2)


def test_bans_without_such_a_scope_know_no_parts() -> None:
    words = Words("a", " ", "b")
    bans = [Ban("a", edges="anywhere", scopes=[Scope("outside", "think")])]
    _, report = run(Markov(3, length=9), words, bans)
    assert report.rewinds and "rewinds_by_part" not in report.to_dict()


def test_a_ban_that_says_where_it_applies_gets_no_other_scope() -> None:
    scope = chat_scope(DIALECTS["qwen3"][0], "answer")
    inside, outside = Scope("inside", ("<tool_call>", "</tool_call>")), Scope("outside", "quotes")
    bans = BanList([Ban("a", scopes=[inside]), Ban("b", scopes=[outside]), Ban("c"), Ban.tokens([5])])
    combined = read_bans(bans, scopes=[scope])
    assert [ban.scopes for ban in combined] == [(inside,), (outside, scope), (scope,), ()]


@pytest.mark.parametrize(
    ("template", "where", "error"),
    [
        ({"fields": {}}, "answer", "the response template is not valid: .*fields"),
        ({"start_anchor": "x", "fields": {"content": {}}}, "thinking", "the response template has no thoughts"),
    ],
)
def test_a_template_that_says_too_little_is_refused(template: dict[str, Any], where: BanScope, error: str) -> None:
    refused(error, chat_scope, template, where)


def test_a_list_with_such_a_scope_is_saved_and_read_again(tmp_path: Path) -> None:
    bans = read_bans(BanList(["a", Ban("b", weight=0.5)]), scopes=[chat_scope(DIALECTS["gemma4"][0], "all")])
    for name in ("bans.txt", "bans.jsonl"):
        bans.save(tmp_path / name)
        assert list(BanList.load(tmp_path / name)) == list(bans)
    broken = (tmp_path / "bans.txt").read_text().replace("call:", "call:(")
    (tmp_path / "bans.txt").write_text(broken)
    refused("the regions of a scope can't be read", BanList.load, tmp_path / "bans.txt")

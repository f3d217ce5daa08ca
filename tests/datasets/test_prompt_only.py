"""The request for banned phrases fits into the prompt, and leaves the user's own words unchanged."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given, strategies as st

from antislop import Ban
from antislop.datasets.maker import INSTRUCTION, AvoidanceInstruction
from antislop.files.prompts import Prompt
from tests.support.models import build_tokenizer

TOKENIZER = build_tokenizer()
PHRASES = ["ab", "c d", "feed", "aaaa", "bead a cab"]


def count(prompt: Prompt) -> int:
    return len(TOKENIZER(prompt.text)["input_ids"])


def test_without_a_limit_the_request_before_the_text_names_all_phrases() -> None:
    asked, number = AvoidanceInstruction(map(Ban, PHRASES), TOKENIZER).add_to(
        Prompt("k", "One day", None, {}), room=None
    )
    assert number == 5
    assert asked.text == INSTRUCTION + '"ab", "c d", "feed", "aaaa", "bead a cab".\n\nOne day'


@given(st.integers(0, 200))
def test_the_request_names_as_many_phrases_as_fit(room: int) -> None:
    prompt = Prompt("k", "abc", None, {})
    texts = [
        f"{INSTRUCTION}{', '.join(f'{chr(34)}{p}{chr(34)}' for p in PHRASES[:n])}.\n\nabc" if n else "abc"
        for n in range(6)
    ]
    best = max((n for n in range(6) if len(TOKENIZER(texts[n])["input_ids"]) <= room), default=0)
    asked, number = AvoidanceInstruction(map(Ban, PHRASES), TOKENIZER).add_to(prompt, room=room)
    assert asked.text == texts[number]
    assert number == best


def test_bans_without_words_are_not_named_in_the_request() -> None:
    bans = [Ban.regex("a+b"), Ban.tokens([3]), Ban("always", weight=1.0), Ban("rare", weight=0.5)]
    assert AvoidanceInstruction(bans, TOKENIZER).phrases == ["rare"]
    prompt = Prompt("k", "a", None, {})
    assert AvoidanceInstruction(bans[:2], TOKENIZER).add_to(prompt, room=None) == (prompt, 0)


@pytest.mark.parametrize("system", [None, "Be brief."])
def test_a_chat_gets_the_request_in_its_system_message(system: str | None) -> None:
    tokenizer = copy.deepcopy(TOKENIZER)
    tokenizer.chat_template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[go]"
    before = [] if system is None else [{"role": "system", "content": system}]
    prompt = Prompt("k", "unused", [*before, {"role": "user", "content": "hi"}], {}, has_special_tokens=True)
    asked, number = AvoidanceInstruction([Ban("ab")], tokenizer).add_to(prompt, room=None)
    wanted = f"{system}\n\n" if system else ""
    assert asked.text == f'[system]{wanted}{INSTRUCTION}"ab".[user]hi[go]'
    assert number == 1

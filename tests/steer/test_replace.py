"""Replaced phrases never stay, the text around them stays to the byte, and the model reads nothing twice."""

from __future__ import annotations

import random
import re
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

import antislop
from antislop import AntiSlop
from antislop.core.trace.events import Forwarded, Truncated
from antislop.errors import InputError
from antislop.steer import Replace
from tests.support.controllers import write_stream
from tests.support.depth import DEPTH

MODEL, TOKENIZER = antislop.tiny_model()
PHRASES = {"ab": "x", "a": "yé", "b a b": "x y", "bé": "zzz", "b,": "xx;", "ba": "Xx"}
LETTERS = set(" ab,.éAB")
TOKENS = [token for token in range(3, len(TOKENIZER)) if {*TOKENIZER.decode([token])} <= LETTERS | {"\ufffd"}]
TOKENS = [token for token in TOKENS if "\ufffd" not in TOKENIZER.decode([token])]
PARTIAL = TOKENIZER.encode("é", add_special_tokens=False)


def substitute(text: str, phrases: Mapping[str, str]) -> str:
    """The whole text at once."""

    def write(match: re.Match[str]) -> str:
        new = next(new for old, new in phrases.items() if old.lower() == match[0].lower())
        return new[0].upper() + new[1:] if match[0][0].isupper() else new

    words = "|".join(
        rf"(?<!\w){re.escape(old)}" + (r"(?!\w)" if old[-1].isalnum() else "")
        for old in sorted(phrases, key=len, reverse=True)
    )
    return re.sub(words, write, text, flags=re.IGNORECASE)


@pytest.mark.parametrize("seed", range(60 * DEPTH))
def test_any_tokens_become_what_replacing_in_the_whole_text_makes_of_them(seed: int) -> None:
    choice = random.Random(seed)
    tokens: list[int] = []
    while len(tokens) < 40:
        tokens += PARTIAL if choice.random() < 0.1 else [choice.choice(TOKENS)]
    written = write_stream(Replace(PHRASES, TOKENIZER), tokens)
    assert TOKENIZER.decode(written) == substitute(TOKENIZER.decode(tokens), PHRASES)


@pytest.mark.parametrize("name", ["gpt2", "llama2", "mistral-v3", "t5"])
def test_vocabularies_that_spell_spaces_otherwise_replace_the_same(name: str, assets: Path, tmp_path: Path) -> None:
    with tarfile.open(assets / "tokenizers.tar.xz") as archive:
        members = [member for member in archive if f"/{name}/" in member.name]
        archive.extractall(tmp_path, members, filter="data")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "tokenizers" / name)
    text, phrases = "They utilize tools. We UTILIZE\na héllo-utilize", {"utilize": "use", "tools": "große Sachen"}
    for seed in range(5 * DEPTH):
        choice, rest, tokens = random.Random(seed), text, list[int]()
        while rest:
            size = choice.randrange(1, 9)
            tokens += tokenizer.encode(rest[:size], add_special_tokens=False)
            rest = rest[size:]
        written = write_stream(Replace(phrases, tokenizer), tokens)
        assert tokenizer.decode(written) == substitute(tokenizer.decode(tokens), phrases)


WORDS = {"the": "that", "was": "is", "a": "one", "in the": "within that one"}


@pytest.mark.parametrize("length", [31, 32])
def test_no_phrase_is_left_and_the_prompt_is_read_once(length: int) -> None:
    sampler, inputs = AntiSlop(TOKENIZER, []), TOKENIZER("Once upon a time", return_tensors="pt")
    size, replaced, pattern = inputs["input_ids"].shape[1], 0, re.compile(r"\b(the|was|a)\b", re.IGNORECASE)
    options = {**inputs, "do_sample": True, "max_new_tokens": length, "return_dict_in_generate": True}
    for seed in range(4):
        torch.manual_seed(seed)
        plain = TOKENIZER.decode(sampler.generate(MODEL, **options).sequences[0, size:])
        torch.manual_seed(seed)
        out = sampler.generate(MODEL, **options, controller=Replace(WORDS, TOKENIZER))
        text = TOKENIZER.decode(out.sequences[0, size:])
        assert not pattern.search(text)
        first = pattern.search(plain)
        assert first is not None
        assert text.startswith(plain[: first.start()])
        fed = [event.fed for event in out.report.events if isinstance(event, Forwarded)]
        assert fed[0] == size
        assert sum(fed) == size + len(out.sequences[0]) - size - 1 + out.report.cut_tokens
        replaced += sum(isinstance(event, Truncated) for event in out.report.events)
    assert replaced > 8


def test_a_stream_comes_before_the_end_and_is_the_text() -> None:
    sampler, inputs = AntiSlop(TOKENIZER, []), TOKENIZER("Once upon a time", return_tensors="pt")
    torch.manual_seed(0)
    options = {**inputs, "do_sample": True, "max_new_tokens": 60, "controller": Replace({"the": "that"}, TOKENIZER)}
    pieces = list(sampler.stream(MODEL, **options))
    torch.manual_seed(0)
    ids = sampler.generate(MODEL, **options)
    assert "".join(pieces) == TOKENIZER.decode(ids[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    assert len(pieces) > 20


def test_a_banned_replacement_is_not_written() -> None:
    sampler, inputs = AntiSlop(TOKENIZER, ["this"]), TOKENIZER("Once upon a time", return_tensors="pt")
    controller = Replace({"the": "this", "was": "is", "this is": "it is"}, TOKENIZER)
    rewinds = 0
    for seed in range(3):
        torch.manual_seed(seed)
        options = {**inputs, "do_sample": True, "max_new_tokens": 40, "return_dict_in_generate": True}
        out = sampler.generate(MODEL, **options, controller=controller)
        text = TOKENIZER.decode(out.sequences[0, inputs["input_ids"].shape[1] :])
        assert not re.search(r"\b(the|was|this)\b", text, re.IGNORECASE)
        rewinds += out.report.rewinds
    assert rewinds > 4


@pytest.mark.parametrize(
    "phrases", [{}, "use", {"use": 3}, {"": "x"}, {"x": ""}, {"use": "use it"}, {"a": "b", "b": "c"}]
)
def test_phrases_that_would_not_end_are_refused(phrases: Any) -> None:
    with pytest.raises(InputError, match=r"Replace takes|replaced again"):
        Replace(phrases, TOKENIZER)


def test_case_counts_if_asked() -> None:
    tokens = TOKENIZER.encode(" Utilize it, utilize this; UTILIZE", add_special_tokens=False)
    both = write_stream(Replace({"utilize": "use"}, TOKENIZER), tokens)
    assert TOKENIZER.decode(both) == " Use it, use this; Use"
    one = write_stream(Replace({"utilize": "use"}, TOKENIZER, case_sensitive=True), tokens)
    assert TOKENIZER.decode(one) == " Utilize it, use this; UTILIZE"

"""A prompt that is rendered text, with the token that begins a text, gets this token once, in every door."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tokenizers.processors import TemplateProcessing
from transformers import LlamaTokenizer, PreTrainedTokenizerBase

from antislop import AntiSlop
from antislop.core.hf import encode
from antislop.datasets import ModelRecordMaker
from antislop.datasets.samples import SampleSpec
from antislop.files.models import ModelSpec
from antislop.files.prompts import read_prompts
from antislop.serve.application import make_app
from tests.support.backends import SlowBackend, send
from tests.support.commands import invoke
from tests.support.models import build_model, build_tokenizer

ASKED: dict[str, Any] = {"max_new_tokens": 1, "do_sample": False}


def build(template: str, **special: str) -> PreTrainedTokenizerBase:
    """Return a tokenizer whose post-processor puts special tokens around a text."""
    tokenizer = build_tokenizer()
    tokens = [(token, tokenizer.convert_tokens_to_ids(token)) for token in ("<s>", "</s>")]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=template, special_tokens=tokens)
    for name, token in special.items():
        setattr(tokenizer, name, token)
    return tokenizer


def build_by_config(*, adds: bool) -> PreTrainedTokenizerBase:
    tokens = {token: number for number, token in enumerate(["<s>", "</s>", "<unk>", "▁", "a", "b", ".", "c"])}
    return LlamaTokenizer(vocab=tokens, merges=[], add_bos_token=adds)


BOS = build("<s> $A")
TABLE = [
    (BOS, "ca.", "<s>ca."),
    (BOS, "<s>ca.", "<s>ca."),
    (BOS, "ca<s>.", "<s>ca<s>."),  # what is written later stays
    (BOS, "<s><s>ca.", "<s><s>ca."),  # as it is written
    (build("<s> $A </s>"), "<s>ca.", "<s>ca.</s>"),
    (build("<s> </s> $A"), "<s></s>ca.", "<s></s>ca."),  # two tokens begin a text
    (build("<s> </s> $A"), "<s>ca.", "<s></s><s>ca."),
    (build("</s> $A", bos_token="</s>"), "</s>ca.", "</s>ca."),  # bos is eos
    (build("$A", bos_token="</s>"), "</s>ca.", "</s>ca."),  # as in GPT-2, which adds none
    (build("$A"), "<s><s>ca.", "<s><s>ca."),
    (build_by_config(adds=True), "<s>ab.", "<s>ab."),
    (build_by_config(adds=False), "<s>ab.", "<s>ab."),
]


@pytest.mark.parametrize(("tokenizer", "text", "read"), TABLE)
def test_a_tokenizer_adds_what_a_text_does_not_begin_with(
    tokenizer: PreTrainedTokenizerBase, text: str, read: str
) -> None:
    assert encode(text, tokenizer) == tokenizer(read, add_special_tokens=False)["input_ids"]
    assert encode(text, tokenizer, special_tokens=False) == tokenizer(text, add_special_tokens=False)["input_ids"]
    ids = tokenizer(text)["input_ids"]
    assert encode(ids, tokenizer) == encode(torch.tensor(ids), tokenizer) == ids, "ids are never touched"


def complete(text: str) -> list[int]:
    backend = SlowBackend(BOS, lambda _: [])
    send(make_app(backend), json={"prompt": text, "max_tokens": 1})
    return list(backend.written[0].prompt)


def make_record(model: Any, text: str) -> None:
    maker = ModelRecordMaker(model, BOS, ["zzzz"], settings=ASKED)
    [prompt] = read_prompts([text])
    list(maker.make([SampleSpec(prompt, 0, "banned")]))


def command(_: Any, text: str) -> None:
    invoke("generate", text, "--max-new-tokens", "1", "--greedy")


SAMPLER = AntiSlop(BOS, ["zzzz"])
DOORS: dict[str, Callable[[Any, str], object]] = {
    "generate": lambda model, text: SAMPLER.generate(model, text, **ASKED),
    "stream": lambda model, text: list(SAMPLER.stream(model, text, **ASKED)),
    "generate_many": lambda model, text: list(SAMPLER.generate_many(model, [text], **ASKED)),
    "dataset": make_record,
    "command": command,
}


@pytest.mark.parametrize("door", [*DOORS, "server"])
def test_each_door_reads_one_bos(door: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, reads = build_model(), list[list[int]]()
    monkeypatch.setattr(ModelSpec, "load", lambda _: (model, BOS))
    model.register_forward_pre_hook(lambda _, __, read: reads.append(read["input_ids"][0].tolist()), with_kwargs=True)
    for text in ("ca.", "<s>ca."):
        if door == "server":
            reads.append(complete(text))
        else:
            DOORS[door](model, text)
    plain = BOS("ca.")["input_ids"]
    assert [read for read in reads if len(read) > 1] == [plain, plain] and plain.count(BOS.bos_token_id) == 1

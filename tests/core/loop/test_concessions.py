"""A banned phrase that is conceded is always reported."""

from __future__ import annotations

import inspect
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    set_seed,
)

from antislop import AntiSlop, ConcededWarning
from antislop.core.trace.events import Conceded
from tests.support.models import build_model, build_tokenizer

TOKENIZER = build_tokenizer()
PROMPT = torch.tensor([[0, 5, 9, 2]])


class OnlyA(LogitsProcessor):
    """A processor that permits only "a"."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        only = torch.full_like(scores, -torch.inf)
        only[:, TOKENIZER.convert_tokens_to_ids("a")] = 0.0
        return only


SETTINGS: dict[str, Any] = {
    "max_new_tokens": 4,
    "attention_mask": torch.ones_like(PROMPT),
    "logits_processor": LogitsProcessorList([OnlyA()]),
}


@pytest.fixture(scope="module")
def llama() -> PreTrainedModel:
    """Return a model that is certain of "a": by its own logits, no other token is likely either."""
    model = build_model("llama")
    head = torch.nn.Linear(model.config.hidden_size, model.config.vocab_size)
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    head.bias.data[TOKENIZER.convert_tokens_to_ids("a")] = 40.0
    model.lm_head = head.requires_grad_(False)
    return model


def write_by_hook(sampler: AntiSlop, model: PreTrainedModel) -> None:
    model.generate(PROMPT, custom_generate=sampler, **SETTINGS)


def write(sampler: AntiSlop, model: PreTrainedModel) -> None:
    sampler.generate(model, PROMPT, **SETTINGS)


def write_stream(sampler: AntiSlop, model: PreTrainedModel) -> None:
    list(sampler.stream(model, PROMPT, **SETTINGS))


def write_many(sampler: AntiSlop, model: PreTrainedModel) -> None:
    settings = {name: value for name, value in SETTINGS.items() if name != "attention_mask"}
    done = list(sampler.generate_many(model, [PROMPT[0], PROMPT[0]], **settings))
    assert [text.conceded for text in done] == [text.report.conceded for text in done] == [4, 4]


WAYS = (write_by_hook, write, write_stream, write_many)


@pytest.mark.parametrize("way", WAYS)
def test_a_sampler_warns_once_of_conceded_phrases(llama: PreTrainedModel, way: Any) -> None:
    sampler = AntiSlop(TOKENIZER, banned_strings=["aa"])
    with pytest.warns(ConcededWarning, match="the banned 'aa' was let through at token 0") as caught:
        way(sampler, llama)
    assert len(caught) == 1
    assert caught[0].filename == inspect.getsourcefile(way), "the warning names the line that called the library"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        way(sampler, llama)
    with pytest.warns(ConcededWarning):
        way(AntiSlop(TOKENIZER, banned_strings=["aa"]), llama)


def test_without_a_concession_there_is_no_warning(llama: PreTrainedModel) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        AntiSlop(TOKENIZER, banned_strings=["aa"], on_exhausted="stop").generate(llama, PROMPT, **SETTINGS)
        AntiSlop(TOKENIZER, ["b"]).generate(llama, PROMPT, **SETTINGS)


@pytest.fixture(scope="module")
def story(assets: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, dict[str, Any]]:
    """Return a real model, its tokenizer, and a prompt that it continues with " time" only."""
    folder = assets / "models" / "stories3M"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    encoded = tokenizer("Once upon a", return_tensors="pt")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model, tokenizer, {**{n: encoded[n] for n in ("input_ids", "attention_mask")}, "max_new_tokens": 8}


GREEDY: dict[str, Any] = {"do_sample": False}
SAMPLED: dict[str, Any] = {"do_sample": True, "top_k": 0}


@pytest.mark.parametrize("settings", [GREEDY, SAMPLED, {**SAMPLED, "min_p": 0.05}], ids=["greedy", "sampled", "min-p"])
def test_a_phrase_without_a_likely_alternative_is_conceded(story: Any, settings: dict[str, Any]) -> None:
    """Not "Once upon a timeson", which has a probability of 3 in 100,000,000,000,000."""
    model, tokenizer, inputs = story
    sampler = AntiSlop(tokenizer, ["once upon a time"])
    set_seed(0)
    with pytest.warns(ConcededWarning, match="once upon a time"):
        out = sampler.generate(model, **inputs, **settings, return_dict_in_generate=True)
    assert tokenizer.decode(out.sequences[0], skip_special_tokens=True).startswith("Once upon a time,")
    assert [event.violation.start for event in out.report.events if isinstance(event, Conceded)] == [0]


@pytest.mark.parametrize("settings", [GREEDY, {**SAMPLED, "min_p": 0.05}], ids=["greedy", "min-p"])
def test_one_more_token_is_withdrawn_if_the_text_allows_it(story: Any, settings: dict[str, Any]) -> None:
    """After " upon" comes " a", and then " time": only a rewind to before " upon" leads to another text."""
    model, tokenizer, _ = story
    sampler = AntiSlop(tokenizer, ["a time"])
    encoded = tokenizer("Once", return_tensors="pt")
    for seed in range(3):
        set_seed(seed)
        ids = sampler.generate(model, encoded["input_ids"], max_new_tokens=8, **settings)
        assert tokenizer.decode(ids[0], skip_special_tokens=True).startswith(("Once there", "Once,"))


def test_a_lower_floor_finds_an_unlikely_alternative(story: Any) -> None:
    model, tokenizer, inputs = story
    sampler = AntiSlop(tokenizer, ["once upon a time"], probability_floor=1e-5)
    for seed in range(5):
        set_seed(seed)
        out = sampler.generate(model, **inputs, **SAMPLED, min_p=0.05, return_dict_in_generate=True)
        assert not sampler.bans.find(tokenizer.decode(out.sequences[0], skip_special_tokens=True))
        assert out.report.conceded == 0

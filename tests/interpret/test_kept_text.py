"""`generate` returns activations, hidden states and attentions of what it kept, and nothing of what it withdrew."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from antislop import AntiSlop, Ban
from antislop.interpret import ActivationCache, run_with_cache
from tests.support import families
from tests.support.models import build_tokenizer

TOKENIZER = build_tokenizer()
FREE = AntiSlop(TOKENIZER, [])
PICKY = AntiSlop(TOKENIZER, [Ban(text, edges="anywhere") for text in ("ab", "cd", "ef", "gh", "da", "cc", "ed")])
INPUTS = families.prepare("llama", [3, 4, 5], [6, 7, 8, 9])
PROMPT = 4
FEW = ("llama", "gpt2", "gemma3", "qwen3-next")
SAMPLED: dict[str, Any] = {"do_sample": True, "max_new_tokens": 14, "return_dict_in_generate": True}


def build(family: str, *, attention: str = "eager") -> PreTrainedModel:
    model = families.build(family)
    model.set_attn_implementation(attention)
    return model


def mask_of(sequences: Tensor) -> Tensor:
    """Return 1 for the tokens of prompts and texts, 0 for padding before and behind them."""
    is_end = (sequences[:, PROMPT:] == 1).long()
    return torch.cat([INPUTS["attention_mask"], (is_end.cumsum(dim=1) - is_end == 0).long()], dim=1)


def assert_equal(cache: ActivationCache, other: ActivationCache) -> None:
    assert list(cache) == list(other)
    assert all(torch.equal(cache[name], other[name]) for name in cache)


@pytest.mark.parametrize("family", FEW)
def test_a_returned_cache_is_bitwise_that_of_the_kept_text(family: str) -> None:
    """Also in a batch whose rows have padding before and behind them."""
    model = build(family)
    torch.manual_seed(0)
    out, cache = PICKY.generate(model, **INPUTS, **SAMPLED, return_cache=True)
    assert out.report.withdrawn
    _, clean = run_with_cache(model, out.sequences, attention_mask=mask_of(out.sequences))
    assert_equal(cache, clean)
    assert any(name.endswith(".pattern") for name in cache)

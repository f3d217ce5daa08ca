"""Inputs other than ids: embeddings, and models whose cache is turned off."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from antislop import AntiSlop, Ban
from tests.support.models import build_model, build_tokenizer

TOKENIZER = build_tokenizer()
PROMPTS = torch.tensor([[0, 5, 9, 2, 12, 7], [3, 6, 8, 8, 3, 4]])
COMMON = [Ban(piece, edges="anywhere") for piece in ("ab", "cd", "ea", "fa", "bde")]
ASKED = {"max_new_tokens": 30, "do_sample": True, "top_k": 0, "attention_mask": torch.ones_like(PROMPTS)}


def assert_exact(model: Any, out: Any, prompts: Tensor) -> None:
    """The kept logits are those of one fresh forward pass."""
    logits = torch.stack(out.logits, dim=1)
    fresh = model(torch.cat([prompts, out.sequences[:, -logits.shape[1] :]], dim=1)).logits[
        :, prompts.shape[1] - 1 : -1
    ]
    is_kept = logits.abs().sum(-1) > 0  # 0 after a row's end
    assert out.report.rewinds >= 3
    assert torch.allclose(logits[is_kept], fresh.detach()[is_kept], atol=1e-4)


def run(model: Any, **inputs: Any) -> Any:
    """Sample with bans."""
    torch.manual_seed(1)
    return AntiSlop(TOKENIZER, COMMON).generate(
        model, return_dict_in_generate=True, output_logits=True, **inputs, **ASKED
    )


def test_embeddings_in_the_place_of_a_prompt() -> None:
    model = build_model("llama")
    embeds = model.get_input_embeddings()(PROMPTS)
    torch.manual_seed(0)
    expected = model.generate(inputs_embeds=embeds, **ASKED)
    torch.manual_seed(0)
    ours = model.generate(inputs_embeds=embeds, custom_generate=AntiSlop(TOKENIZER, ["zz"]), **ASKED)
    assert torch.equal(ours, expected)
    assert_exact(model, run(model, inputs_embeds=embeds), PROMPTS)


def test_a_model_whose_cache_is_turned_off_gets_one() -> None:
    """As in MPT. The sampler rewinds a cache, which does not change the text."""
    model = build_model("llama")
    model.generation_config.use_cache = False
    torch.manual_seed(0)
    expected = model.generate(PROMPTS, **ASKED)
    torch.manual_seed(0)
    assert torch.equal(AntiSlop(TOKENIZER, ["zz"]).generate(model, PROMPTS, **ASKED), expected)
    assert_exact(model, run(model, inputs=PROMPTS), PROMPTS)

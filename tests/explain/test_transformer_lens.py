"""TransformerLens reads the same residual stream, patterns and logits from a text that was written under bans.

Tested with 4.3.0, which wraps the model of transformers, and 2.18.0, which computes it by code of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from antislop import AntiSlop, Ban
from antislop.explain import ActivationCache, run_with_cache
from tests.support.models import build_model, build_tokenizer

lens: Any = pytest.importorskip("transformer_lens", reason="transformer_lens is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")  # its own
TOKENIZER = build_tokenizer()
BANS = [Ban(text, edges="anywhere") for text in ("ab", "cd", "ef", "gh", "da", "cc", "ed")]
PAIRS = {
    "blocks.{}.hook_resid_post": "model.layers.{}",
    "blocks.{}.hook_mlp_out": "model.layers.{}.mlp",
    "blocks.{}.hook_attn_out": "model.layers.{}.self_attn",
    "blocks.{}.attn.hook_pattern": "model.layers.{}.self_attn.pattern",
}


def write(model: PreTrainedModel) -> tuple[Tensor, Tensor, ActivationCache]:
    """Return ids that were written with rewinds, their logits, and the returned cache."""
    torch.manual_seed(0)
    sampler, prompt = AntiSlop(TOKENIZER, BANS), torch.tensor([[3, 4, 5]])
    settings: dict[str, Any] = {"do_sample": True, "max_new_tokens": 40, "min_new_tokens": 40}
    out = sampler.generate(model, prompt, **settings, return_dict_in_generate=True)
    assert out.report.rewinds >= 5
    torch.manual_seed(0)
    ids, cache = sampler.generate(model, prompt, **settings, return_cache=True)
    assert torch.equal(ids, out.sequences)
    return ids, run_with_cache(model, ids)[0], cache


def assert_close(theirs: Any, cache: ActivationCache, logits: Tensor, their_logits: Tensor) -> None:
    errors = {"logits": float((logits - their_logits).abs().max())}
    for their_name, name in PAIRS.items():
        for layer in range(2):
            errors[name.format(layer)] = float(
                (theirs[their_name.format(layer)] - cache[name.format(layer)]).abs().max()
            )
    assert max(errors.values()) < 1e-4, errors


def test_a_bridge_reads_the_same(tmp_path: Path) -> None:
    if "TransformerBridge" not in dir(lens):
        pytest.skip("this version of transformer_lens has no TransformerBridge")
    model = build_model()
    model.set_attn_implementation("eager")
    model.save_pretrained(tmp_path)
    TOKENIZER.save_pretrained(tmp_path)
    ids, logits, cache = write(model)
    their_logits, theirs = lens.TransformerBridge.boot_transformers(str(tmp_path), device="cpu").run_with_cache(ids)
    assert_close(theirs, cache, logits, their_logits)


def test_a_hooked_transformer_reads_the_same() -> None:
    if "HookedTransformer" not in dir(lens):
        pytest.skip("this version of transformer_lens has no HookedTransformer")
    from transformer_lens.pretrained.weight_conversions import convert_llama_weights

    model = build_model()
    model.set_attn_implementation("eager")
    ids, logits, cache = write(model)
    config = model.config
    hooked_config = lens.HookedTransformerConfig(
        d_model=config.hidden_size,
        n_layers=config.num_hidden_layers,
        n_heads=config.num_attention_heads,
        n_key_value_heads=config.num_key_value_heads,
        d_head=config.head_dim,
        rotary_dim=config.head_dim,
        d_mlp=config.intermediate_size,
        d_vocab=config.vocab_size,
        n_ctx=128,
        act_fn="silu",
        gated_mlp=True,
        normalization_type="RMS",
        eps=config.rms_norm_eps,
        final_rms=True,
        positional_embedding_type="rotary",
        device="cpu",
    )
    hooked = lens.HookedTransformer(hooked_config)
    assert not hooked.load_state_dict(convert_llama_weights(model, hooked_config), strict=False).unexpected_keys
    their_logits, theirs = hooked.run_with_cache(ids)
    assert_close(theirs, cache, logits, their_logits)

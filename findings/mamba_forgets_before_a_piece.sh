#!/usr/bin/env bash
# Expected: a prompt that is read in two pieces, the second with the cache of the first, has the logits of one pass; and
#   prefill_chunk_size changes memory, not texts.
# Seen: Mamba, FalconMamba and Jamba scan several tokens from a zero state, whatever the cache holds. Mamba 2, which is
#   run beside them, goes on from its state. For Jamba, generate(prefill_chunk_size=…) gives other logits, in silence;
#   for Mamba it raises an error. A single token after a cache is right for all of them.
# Why it matters: turns of a chat that reuse a cache, and long prompts in chunks, are continued from the latest piece
#   alone by the recurrent layers.
# Versions: transformers 5.23.0, torch 2.13.0.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet transformers==5.23.0 torch==2.13.0
HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error "$folder/venv/bin/python" - <<'PYTHON'
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

SHAPE = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "pad_token_id": 1}
MODELS = {
    "mamba": {"state_size": 8},
    "falcon_mamba": {"state_size": 8},
    "mamba2": {"state_size": 8, "num_heads": 8, "head_dim": 8, "n_groups": 1, "chunk_size": 8},
    "jamba": {
        "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "attn_layer_period": 2,
        "attn_layer_offset": 1, "expert_layer_period": 2, "num_experts": 1, "mamba_d_state": 8, "mamba_expand": 1,
        "mamba_dt_rank": 4, "use_mamba_kernels": False,
    },
}
IDS = torch.tensor([[4, 8, 3, 30, 22, 9, 11, 2, 6, 13, 40, 7]])
print("transformers", transformers.__version__)


def differ(name: str, pieces: list[int]) -> float:
    """Return the largest difference of the last logits between one pass and passes over pieces of these lengths."""
    cache, argument = DynamicCache(config=models[name].config), "cache_params" if "mamba" in name else "past_key_values"
    for piece in IDS.split(pieces, dim=1):
        logits = models[name](piece, use_cache=True, **{argument: cache}).logits
    return float((logits[0, -1] - models[name](IDS, use_cache=False).logits[0, -1]).abs().max())


models, wrong, single = {}, {}, {}
with torch.no_grad():
    for name, settings in MODELS.items():
        torch.manual_seed(0)
        models[name] = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **SHAPE, **settings)).eval()
        for path, weight in models[name].named_parameters():
            if weight.ndim > 1 and "A_log" not in path:
                weight *= 8 if name == "jamba" else 2  # random weights are too small for the past to matter
        wrong[name], single[name] = differ(name, [6, 6]), differ(name, [11, 1])
        print(f"{name}: off by {wrong[name]:.4f} after pieces of 6 and 6, by {single[name]:.4f} after 11 and 1; expected 0")
settings = {"max_new_tokens": 1, "do_sample": False, "return_dict_in_generate": True, "output_logits": True}
whole, chunks = (
    models["jamba"].generate(IDS, attention_mask=torch.ones_like(IDS), **settings, **more).logits[0]
    for more in ({}, {"prefill_chunk_size": 5})
)
in_chunks = float((whole - chunks).abs().max())
print(f"jamba: generate(prefill_chunk_size=5) is off by {in_chunks:.4f}; expected 0")
is_right = max(single.values()) < 1e-3 and wrong.pop("mamba2") < 1e-3
raise SystemExit(not (is_right and min(wrong.values()) > 0.01 and in_chunks > 0.01))
PYTHON

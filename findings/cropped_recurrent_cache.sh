#!/usr/bin/env bash
# `crop` of a cache with recurrent layers raises nothing, and the next logits are those of no text.
#
# Expected: after `activate_past_recording` the logits of the shorter text, or an error where the state can't go back.
# Seen: keys and convolutions are cut; the recurrent state of Qwen3-Next still contains what was taken back.
# Why it matters: speculative decoding and samplers that go back rely on it. `is_croppable` is False; nothing asks it.
# Versions: transformers 5.23.0 torch 2.13.0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile transformers==5.23.0 torch==2.13.0
"$folder/venv/bin/python" - <<'PYTHON'
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

torch.manual_seed(0)
config = AutoConfig.for_model(
    "qwen3_next", vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=2,
    num_key_value_heads=1, head_dim=16, linear_num_key_heads=2, linear_num_value_heads=2, linear_key_head_dim=16,
    linear_value_head_dim=16, num_experts=2, num_experts_per_tok=1, moe_intermediate_size=32,
    shared_expert_intermediate_size=32,
)
model = AutoModelForCausalLM.from_config(config).eval()
with torch.no_grad():
    for weight in model.parameters():
        if weight.dim() > 1:
            weight.mul_(4)
    ids = torch.randint(64, (1, 12))
    cache = DynamicCache(config=config)
    cache.activate_past_recording()
    model(ids[:, :8], past_key_values=cache)
    for place in range(8, 12):
        logits = model(ids[:, place : place + 1], past_key_values=cache).logits[0, -1]
    floor = float((logits - model(ids).logits[0, -1]).abs().max())
    claims = cache.is_croppable
    cache.crop(-3)
    after = model(torch.tensor([[5]]), past_key_values=cache).logits[0, -1]
    fresh = model(torch.cat([ids[:, :9], torch.tensor([[5]])], dim=1)).logits[0, -1]
difference = float((after - fresh).abs().max())
print(f"transformers {transformers.__version__}: expected logits as of the shorter text, or a refusal by crop")
print(f"seen: is_croppable {claims}, no error, and logits that differ by {difference:.2f}; {floor:.0e} without crop")
assert difference > 0.01 > 100 * floor
PYTHON

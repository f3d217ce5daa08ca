#!/usr/bin/env bash
# Past the boundary of `longrope` (Phi-3), cached decoding has other logits than one pass over the same tokens.
#
# Expected: a cache changes the speed only.
# Seen: keys that were stored before the boundary keep the short factors; one pass rotates all with the long ones.
# Why it matters: a text that crosses the boundary can't be checked, resumed or scored by reading it again.
# Versions: transformers 5.23.0 torch 2.13.0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile transformers==5.23.0 torch==2.13.0
"$folder/venv/bin/python" - <<'PYTHON'
import torch
import transformers
from transformers import DynamicCache, Phi3Config, Phi3ForCausalLM

torch.manual_seed(0)
config = Phi3Config(
    vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
    max_position_embeddings=64, original_max_position_embeddings=16, pad_token_id=0,
    rope_parameters={
        "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 8, "long_factor": [4.0] * 8,
        "original_max_position_embeddings": 16, "partial_rotary_factor": 1.0,
    },
)
model = Phi3ForCausalLM(config).eval()
with torch.no_grad():
    for weight in model.parameters():
        if weight.dim() > 1:
            weight.mul_(8)
    ids, cache = torch.randint(64, (1, 20)), DynamicCache(config=config)
    model(ids[:, :14], past_key_values=cache)
    differences = []
    for place in range(14, 20):
        cached = model(ids[:, place : place + 1], past_key_values=cache).logits[0, -1]
        differences.append(float((cached - model(ids[:, : place + 1]).logits[0, -1]).abs().max()))
print(f"transformers {transformers.__version__}: expected the logits of one pass, with a cache as well")
print("seen, tokens 15 to 20 (the boundary is 16): " + " ".join(f"{each:.1e}" for each in differences))
assert max(differences[:2]) < 1e-3 and min(differences[2:]) > 0.01
PYTHON

#!/usr/bin/env bash
# Left padding gives NaN logits to real tokens in float64 with eager attention.
#
# Expected: float64 as the precise reference of float32, for the same mask.
# Seen: all real tokens of the padded row are NaN; float32, and sdpa in both precisions, are right.
# Why it matters: whoever compares a batch with single rows in float64, to be exact, compares with NaN.
# Versions: transformers 5.23.0 torch 2.13.0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile transformers==5.23.0 torch==2.13.0
"$folder/venv/bin/python" - <<'PYTHON'
import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
ids, mask = torch.randint(1, 64, (1, 8)), torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1]])
positions = (mask.cumsum(-1) - 1).clamp(min=0)
seen = {}
for attention in ("eager", "sdpa"):
    for dtype in (torch.float32, torch.float64):
        torch.manual_seed(0)
        model = LlamaForCausalLM._from_config(config, attn_implementation=attention).eval().to(dtype)
        with torch.no_grad():
            logits = model(ids, attention_mask=mask, position_ids=positions).logits[0, 3:]
        seen[attention, str(dtype).removeprefix("torch.")] = int(logits.isnan().any(-1).sum())
print(f"transformers {transformers.__version__}, torch {torch.__version__}: expected no NaN in logits of 5 real tokens")
print(f"seen, tokens with NaN: {seen}")
assert seen == {("eager", "float32"): 0, ("eager", "float64"): 5, ("sdpa", "float32"): 0, ("sdpa", "float64"): 0}
PYTHON

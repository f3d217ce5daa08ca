#!/usr/bin/env bash
# With `rope_type="dynamic"` a long text changes the logits of a short one that is read after it.
#
# Expected: a forward pass without a cache depends on its tokens alone.
# Seen: the rotary embedding keeps the frequencies of the longest text; a text past the original length gets them, too.
# Why it matters: the same request gives other logits on a server, depending on what others had sent before.
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

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
    max_position_embeddings=16, rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0},
)
model = LlamaForCausalLM(config).eval()
with torch.no_grad():
    for weight in model.parameters():
        if weight.dim() > 1:
            weight.mul_(8)
    short, long = torch.randint(64, (1, 18)), torch.randint(64, (1, 60))
    first = model(short).logits
    model(long)
    second = model(short).logits
difference = float((first - second).abs().max())
print(f"transformers {transformers.__version__}: expected the same logits for the same text, whatever was read between")
print(f"seen: a difference of {difference:.2f} (standard deviation of logits {float(first.std()):.2f})")
assert difference > 0.01
PYTHON

#!/usr/bin/env bash
# A cache whose sliding windows are full says `is_croppable`, and `crop` raises.
#
# Expected: a capability check that answers for this cache as it is.
# Seen: `is_croppable` is True by the kind of the layers; `crop(-2)` raises `RuntimeError` once a window was passed.
# Why it matters: code that asks first, before it starts on a long text, fails in its middle.
# Versions: transformers 5.23.0 torch 2.13.0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile transformers==5.23.0 torch==2.13.0
"$folder/venv/bin/python" - <<'PYTHON'
import torch
import transformers
from transformers import DynamicCache, MistralConfig, MistralForCausalLM

config = MistralConfig(
    vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=1, sliding_window=8,
)
model, cache = MistralForCausalLM(config).eval(), DynamicCache(config=config)
with torch.no_grad():
    model(torch.randint(64, (1, 20)), past_key_values=cache)
claims = cache.is_croppable
try:
    cache.crop(-2)
    seen = "no error"
except Exception as error:
    seen = f"{type(error).__name__}: {error}"
print(f"transformers {transformers.__version__}: expected crop to work where is_croppable is True")
print(f"seen: is_croppable is {claims}; crop(-2): {seen}")
assert claims and seen != "no error"
PYTHON

#!/usr/bin/env bash
# `QuantizedCache` says that it is croppable, and `crop` raises an `IndexError`.
#
# Expected: a shorter cache where `is_croppable` is True, or False for a cache that holds packed blocks.
# Seen: `is_croppable` is True, and `crop` indexes the quantized tensors as if they were keys.
# Why it matters: assisted generation and samplers that go back choose a cache by this property.
# Versions: transformers 5.23.0 torch 2.13.0 optimum-quanto 0.2.7
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile transformers==5.23.0 torch==2.13.0 optimum-quanto==0.2.7
"$folder/venv/bin/python" - <<'PYTHON'
import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM, QuantizedCache

torch.manual_seed(0)
config = LlamaConfig(vocab_size=64, hidden_size=128, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
model = LlamaForCausalLM(config).eval()
cache = QuantizedCache("quanto", config, nbits=4, q_group_size=64, residual_length=4)
with torch.no_grad():
    ids = torch.randint(64, (1, 24))
    model(ids[:, :16], past_key_values=cache)
    for place in range(16, 24):
        model(ids[:, place : place + 1], past_key_values=cache)
    claims, length = cache.is_croppable, cache.get_seq_length()
    try:
        cache.crop(-6)
        held = cache.layers[0].keys.shape[-2]
        output = model(torch.tensor([[5]]), past_key_values=cache)
        seen = f"no error, length {cache.get_seq_length()}, residual keys {held}"
    except Exception as error:
        seen = f"{type(error).__name__}: {error}"
print(f"transformers {transformers.__version__}: expected a cache of {length - 6} tokens where is_croppable is True")
print(f"seen: is_croppable {claims}, crop(-6) of {length}: {seen}")
assert claims and seen.startswith("IndexError")
PYTHON

#!/usr/bin/env bash
# transformers: generate_batch leaves a model in evaluation mode
#
# One would expect that a call which writes texts leaves the model as it was: generate does, and generate_batch itself
# sets the kind of attention back that it has changed.
# What happens: continuous batching calls model.eval(), and nobody calls model.train() afterwards.
# Why it matters: a loop that trains on its own completions goes on without dropout after the first batch of them, unless
# it calls model.train() itself.
# Seen with transformers 5.24.0, torch 2.13.0.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.24.0
HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PYTHON'
import torch
import transformers
from transformers import ContinuousBatchingConfig, GenerationConfig, LlamaConfig, LlamaForCausalLM

model = LlamaForCausalLM(
    LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
).train()
ids = torch.tensor([[5, 9, 7]])
model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=3, pad_token_id=0)
after_generate = model.training
model.generate_batch(
    [[5, 9, 7]],
    generation_config=GenerationConfig(max_new_tokens=3, do_sample=False, eos_token_id=-1),
    continuous_batching_config=ContinuousBatchingConfig(num_blocks=4, max_batch_tokens=64),
)
print("transformers", transformers.__version__, "torch", torch.__version__)
print("expected: model.training is True after generate and after generate_batch")
print("seen:", after_generate, "and", model.training)
assert after_generate and not model.training
PYTHON

#!/usr/bin/env bash
# `generate` without an attention mask masks each token of the prompt that equals the padding token.
#
# Expected: a prompt of one row without padding is read as `forward` reads it.
# Seen: where the padding id occurs in the prompt, `generate` guesses a mask with holes, and the logits differ.
# Why it matters: with small vocabularies, or a padding token that is a real one, tests and texts change in silence.
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
config = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
model = LlamaForCausalLM(config).eval()
with torch.no_grad():
    for weight in model.parameters():
        if weight.dim() > 1:
            weight.mul_(8)
ids = torch.tensor([[1, 9, 0, 7, 0, 5]])
settings = {"max_new_tokens": 1, "do_sample": False, "pad_token_id": 0, "eos_token_id": 2, "output_logits": True}
settings["return_dict_in_generate"] = True
guessed = model.generate(ids, **settings).logits[0]
passed = model.generate(ids, attention_mask=torch.ones_like(ids), **settings).logits[0]
with torch.no_grad():
    plain = model(ids).logits[:, -1]
print(f"transformers {transformers.__version__}: expected one answer for a prompt without padding, as of forward")
print(
    f"seen: differences of logits to forward: {float((passed - plain).abs().max()):.1e} with a mask of ones, "
    f"{float((guessed - plain).abs().max()):.1e} without a mask, since id 0 in the prompt is taken for padding"
)
assert torch.allclose(passed, plain, atol=1e-4) and not torch.allclose(guessed, plain, atol=1e-2)
PYTHON

#!/usr/bin/env bash
# Beams, an assistant and drafts from the prompt are accepted beside a callable `custom_generate`, and dropped.
#
# Expected: a refusal, or what these modes need among the loop's arguments.
# Seen: no error and no warning; the assistant does not reach the loop, and nothing prepares beams.
# Why it matters: a loop that does not look into `generation_config` writes another kind of text than the call asked for.
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

calls = []


def loop(model, input_ids, **arguments):
    calls.append(sorted(arguments))
    return input_ids


def build():
    return LlamaForCausalLM(LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1)).eval()


model, ids = build(), torch.tensor([[1, 2, 3, 1, 2]])
modes = {
    "beams": {"num_beams": 4},
    "an assistant": {"assistant_model": build()},
    "drafts from the prompt": {"prompt_lookup_num_tokens": 2},
}
for name, mode in modes.items():
    model.generate(ids, max_new_tokens=4, custom_generate=loop, **mode)
print(f"transformers {transformers.__version__}: expected a refusal, or what the mode needs among the loop's arguments")
for name, arguments in zip(modes, calls, strict=True):
    print(f"seen: {name}: no error; the loop got {arguments}")
assert len(calls) == 3
assert not any("assistant" in argument or "beam" in argument for arguments in calls for argument in arguments)
PYTHON

#!/usr/bin/env bash
# A streamer that is passed to `generate` beside a callable `custom_generate` gets the prompt, and never an end.
#
# Expected: the loop gets the streamer, or `generate` refuses it, since only the loop can feed it.
# Seen: `generate` puts the prompt into it and keeps it. Whoever iterates over a `TextIteratorStreamer` waits for ever.
# Why it matters: a decoding loop of one's own can't stream behind `generate`, and nothing says so.
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
from transformers.generation.streamers import BaseStreamer


class Counter(BaseStreamer):
    puts, ends = 0, 0

    def put(self, value):
        self.puts += 1

    def end(self):
        self.ends += 1


passed = {}


def loop(model, input_ids, **arguments):
    passed.update(arguments)
    return torch.cat([input_ids, torch.tensor([[7, 8, 9]])], dim=1)


model = LlamaForCausalLM(LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1))
ids = torch.tensor([[1, 2, 3]])
plain, custom = Counter(), Counter()
model.generate(ids, max_new_tokens=3, do_sample=False, eos_token_id=None, streamer=plain)
model.generate(ids, max_new_tokens=3, custom_generate=loop, streamer=custom)
print(f"transformers {transformers.__version__}: expected the same calls of the streamer, or the streamer for the loop")
print(f"seen: plain generate: {plain.puts} puts, {plain.ends} end; custom loop: {custom.puts} put, {custom.ends} ends;")
print(f"the loop got {sorted(passed)}")
assert (plain.puts, plain.ends) == (4, 1)
assert (custom.puts, custom.ends) == (1, 0) and "streamer" not in passed
PYTHON

#!/usr/bin/env bash
# `stop_strings` with a callable `custom_generate` raises that there is no tokenizer, although one was passed.
#
# Expected: `generate(…, stop_strings=…, tokenizer=…)` prepares the stopping criterion, as it does without a custom loop.
# Seen: the tokenizer is taken from the arguments before the criteria are made, and the error asks for it again.
# Why it matters: a custom loop has to make its own criterion of stop strings, outside of `generate`.
# Versions: transformers 5.23.0 torch 2.13.0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile transformers==5.23.0 torch==2.13.0
"$folder/venv/bin/python" - <<'PYTHON'
import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

pieces = Tokenizer(BPE({piece: number for number, piece in enumerate(sorted(ByteLevel.alphabet()))}, []))
pieces.pre_tokenizer, pieces.decoder = ByteLevel(add_prefix_space=False), ByteLevelDecoder()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=pieces)
model = LlamaForCausalLM(LlamaConfig(vocab_size=256, hidden_size=32, intermediate_size=64, num_hidden_layers=1))
settings = {"max_new_tokens": 2, "stop_strings": ["end"], "tokenizer": tokenizer}
ids = torch.tensor([[1, 2, 3]])
model.generate(ids, **settings)
try:
    model.generate(ids, custom_generate=lambda model, input_ids, **arguments: input_ids, **settings)
    seen = "no error"
except ValueError as error:
    seen = f"ValueError: {error}"
print(f"transformers {transformers.__version__}: expected both calls to take stop_strings, as both have the tokenizer")
print(f"seen with a custom loop: {seen}")
assert "tokenizer" in seen
PYTHON

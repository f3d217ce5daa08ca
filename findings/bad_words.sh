#!/usr/bin/env bash
# `bad_words_ids` forbids one splitting of a word into tokens; the text still has the word in others.
#
# Expected: a text without the word.
# Seen: the banned id never occurs, and its letters follow one another all the same.
# Why it matters: with a vocabulary of real size a phrase has many splittings, and a list of ids is no ban of a phrase.
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
from tokenizers.models import BPE
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

vocabulary = {piece: number for number, piece in enumerate(["a", "b", "c", "ab", "abc", "bc"])}
tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(BPE(vocabulary, [("a", "b"), ("ab", "c")])))
banned = tokenizer("abc", add_special_tokens=False)["input_ids"]
model = LlamaForCausalLM(LlamaConfig(vocab_size=6, hidden_size=32, intermediate_size=64, num_hidden_layers=1)).eval()
torch.manual_seed(0)
ids = model.generate(
    torch.tensor([[1]]), attention_mask=torch.ones(1, 1, dtype=torch.long), max_new_tokens=200, min_new_tokens=200,
    do_sample=True, bad_words_ids=[banned], pad_token_id=0, eos_token_id=None,
)[0, 1:]
text = "".join(tokenizer.convert_ids_to_tokens(ids))
print(f"transformers {transformers.__version__}: expected a text without 'abc', whose ids {banned} are bad_words_ids")
print(f"seen: {text.count('abc')} times 'abc' in 200 tokens, as a+b+c, ab+c or a+bc")
assert banned[0] not in ids.tolist() and text.count("abc") > 5
PYTHON

#!/usr/bin/env bash
# llama.cpp's streamed /completion leaves out the ids of tokens that end within a character.
#
# Expected: with `return_tokens`, the ids of all written tokens.
# Seen: `tokens_predicted` jumps, and the event has the last id only. A random model of bytes shows it at once.
# Why it matters: a client that continues a text by its ids (emoji, Chinese) would send another prompt than was written.
# Versions: xllamacpp 2026.10.11549 gguf 0.19.0 numpy 2.4.6
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile xllamacpp==2026.10.11549 gguf==0.19.0 numpy==2.4.6
"$folder/venv/bin/python" - "$folder" 2026.10.11549 <<'PYTHON'
import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import gguf
import numpy
import xllamacpp

path, random = Path(sys.argv[1], "tiny.gguf"), numpy.random.default_rng(0)
writer = gguf.GGUFWriter(path, "llama")
alphabet = [chr(byte) for byte in (*range(33, 127), *range(161, 173), *range(174, 256))]  # GPT-2's names of bytes
alphabet += [chr(256 + number) for number in range(68)]
tokens, size = [*alphabet, "<s>", "</s>", "Ġa"], 32
for name, value in {
    "vocab_size": len(tokens), "context_length": 512, "embedding_length": size, "feed_forward_length": size,
    "block_count": 1, "head_count": 2, "head_count_kv": 2, "rope_dimension_count": 16, "layer_norm_rms_eps": 1e-5,
    "tokenizer_model": "gpt2", "tokenizer_pre": "gpt-2", "token_list": tokens, "token_merges": ["Ġ a"],
    "token_types": [1] * 256 + [3, 3, 1], "bos_token_id": 256, "eos_token_id": 257, "file_type": 0,
}.items():
    getattr(writer, f"add_{name}")(value)
for name in ("token_embd", "output_norm", "output", *(f"blk.0.{part}" for part in (
    "attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down"))):
    rows = len(tokens) if name in ("token_embd", "output") else size
    shape = (size,) if name.endswith("norm") else (rows, size)
    writer.add_tensor(f"{name}.weight", random.standard_normal(shape).astype("float32"))
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()

params = xllamacpp.CommonParams()
params.model.path, params.n_ctx, params.n_parallel, params.warmup, params.verbosity = str(path), 512, 1, False, -1
server = xllamacpp.Server(params)
body = {"prompt": [256, 65], "n_predict": 60, "seed": 1, "return_tokens": True, "temperature": 2.0, "stream": True}
request = urllib.request.Request(
    f"{server.listening_address}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
)
with urllib.request.urlopen(request, timeout=60) as answer:
    events = [json.loads(line[5:]) for line in answer if line.startswith(b"data:")]
named, counts = sum(len(event["tokens"]) for event in events), [event["tokens_predicted"] for event in events]
print(f"llama.cpp of xllamacpp {sys.argv[2]}: expected the ids of all {counts[-1]} written tokens, with return_tokens")
print(f"seen: {named} ids in {len(events)} streamed events; tokens_predicted goes {counts[:12]} …")
assert named < counts[-1]
sys.stdout.flush()
subprocess.os._exit(0)  # the server's threads
PYTHON

#!/usr/bin/env bash
# `transformers serve` answers a completion with `logprobs` without log-probabilities; it refuses unknown fields.
#
# Expected: log-probabilities, or the status 422 that `top_k` gets.
# Seen: `logprobs` is on a list of known and unused fields, the answer has none, and a line of the log says so.
# Why it matters: a client that needs them can't tell from the status; a prompt of token ids is refused as well.
# Versions: transformers[serving] 5.23.0 torch 2.13.0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile 'transformers[serving]==5.23.0' torch==2.13.0
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import transformers
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

folder = Path(sys.argv[1])
pieces = Tokenizer(BPE({piece: number for number, piece in enumerate(sorted(ByteLevel.alphabet()))}, []))
pieces.pre_tokenizer, pieces.decoder = ByteLevel(add_prefix_space=False), ByteLevelDecoder()
PreTrainedTokenizerFast(tokenizer_object=pieces, eos_token="!").save_pretrained(folder / "model")
config = LlamaConfig(
    vocab_size=256, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, bos_token_id=None,
    eos_token_id=None,
)
LlamaForCausalLM(config).save_pretrained(folder / "model")
with socket.create_server(("127.0.0.1", 0)) as free:
    url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
(folder / "hub").mkdir()
environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(folder / "hub")}
command = [sys.executable, "-c", "from transformers.cli.transformers import main; main()", "serve", "--device", "cpu"]
command += ["--host", "127.0.0.1", "--port", url.rpartition(":")[2].removesuffix("/v1"), str(folder / "model")]


def ask(**body):
    data = json.dumps({"model": str(folder / "model"), "prompt": "A", "max_tokens": 3, **body}).encode()
    request = urllib.request.Request(f"{url}/completions", data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)["choices"][0]
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


with open(folder / "log", "w") as log, subprocess.Popen(command, env=environment, stdout=log, stderr=log) as server:
    try:
        for _ in range(300):
            if "startup complete" in (folder / "log").read_text() or server.poll() is not None:
                break
            time.sleep(0.2)
        told, unknown, ids = ask(logprobs=3), ask(top_k=5), ask(prompt=[1, 2])
    finally:
        server.terminate()
print(f"transformers {transformers.__version__}: expected log-probabilities, or a refusal of `logprobs`")
print(f"seen: logprobs=3 is answered {told[0]}, with logprobs {told[1].get('logprobs')}; top_k=5: {unknown}; ids: {ids}")
assert told[0] == 200 and told[1].get("logprobs") is None
assert unknown[0] == 422 and ids[0] == 400
PYTHON

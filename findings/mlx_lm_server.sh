#!/usr/bin/env bash
# `mlx_lm.server` has OpenAI's /v1/completions with other types: `logprobs` is true or false, and a prompt is a text.
#
# Expected: `logprobs` as a number, prompts of token ids, and -1 for no `top_k`, as vLLM and others have them.
# Seen: 400, 404 and 400; with `logprobs: true` the answer has the shape of chats, with ids in place of texts.
# Why it matters: clients that rewind need the tokens of an answer, and a prompt that is not split anew.
# Versions: mlx-lm 0.32.2 mlx[cpu] 0.32.4 transformers 5.23.0 torch 2.13.0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile mlx-lm==0.32.2 'mlx[cpu]==0.32.4' transformers==5.23.0 torch==2.13.0
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

import mlx_lm
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
command = [sys.executable, "-m", "mlx_lm.server", "--host", "127.0.0.1", "--model", str(folder / "model")]
command += ["--port", url.rpartition(":")[2].removesuffix("/v1")]


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
            if "Starting httpd" in (folder / "log").read_text() or server.poll() is not None:
                break
            time.sleep(0.2)
        asked = {"as it is": {}, "logprobs=1": {"logprobs": 1}, "logprobs=true": {"logprobs": True}}
        asked |= {"top_k=-1": {"top_k": -1}, "a prompt of ids": {"prompt": [1, 2]}}
        seen = {name: ask(**body) for name, body in asked.items()}
    finally:
        server.terminate()
print(f"mlx_lm {mlx_lm.__version__}: expected /v1/completions to read logprobs, a number, and a prompt of ids, as OpenAI's")
for name, (status, answer) in seen.items():
    print(f"seen: {name}: {status} {answer if status != 200 else answer.get('logprobs')}")
assert seen["as it is"][0] == 200
assert [seen[name][0] for name in ("logprobs=1", "top_k=-1", "a prompt of ids")] == [400, 400, 404]
assert "tokens" not in seen["logprobs=true"][1]["logprobs"]
PYTHON

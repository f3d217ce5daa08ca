#!/usr/bin/env bash
# `transformers serve` of a local folder answers 500 to `GET /v1/models` on a machine without a cache of the Hub.
#
# Expected: a list with the served model.
# Seen: the route lists the cache of the Hub only, and its scan raises while that folder is missing; then it is empty.
# Why it matters: clients ask this route first, and in a fresh container that serves a mounted model all of them fail.
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
absent = folder / "hub"  # the folder that the first download makes
environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(absent)}
command = [sys.executable, "-c", "from transformers.cli.transformers import main; main()", "serve", "--device", "cpu"]
command += ["--host", "127.0.0.1", "--port", url.rpartition(":")[2].removesuffix("/v1"), str(folder / "model")]


def ask():
    try:
        with urllib.request.urlopen(f"{url}/models", timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


with open(folder / "log", "w") as log, subprocess.Popen(command, env=environment, stdout=log, stderr=log) as server:
    try:
        for _ in range(300):
            if "startup complete" in (folder / "log").read_text() or server.poll() is not None:
                break
            time.sleep(0.2)
        without = ask()
        absent.mkdir()
        with_cache = ask()
    finally:
        server.terminate()
print(f"transformers {transformers.__version__}: expected a list of models, as it serves one from a folder")
print(f"seen: GET /v1/models without a cache folder of the Hub: {without}; with an empty one: {with_cache}")
assert without[0] == 500 and with_cache[0] == 200
PYTHON

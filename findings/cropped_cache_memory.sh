#!/usr/bin/env bash
# A cropped cache keeps the memory of what was taken back until the next token.
#
# Expected: `crop` frees the keys and values that it removes.
# Seen: the tensors become views of the old ones; only the concatenation of the next token lets the old memory go.
# Why it matters: a service that crops a long cache in order to keep a short prefix keeps all of it in memory.
# Versions: transformers 5.23.0 torch 2.13.0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile transformers==5.23.0 torch==2.13.0
"$folder/venv/bin/python" - <<'PYTHON'
import torch
import transformers
from transformers import DynamicCache


def count_bytes(cache):
    return sum(layer.keys.untyped_storage().nbytes() for layer in cache.layers)


cache = DynamicCache()
cache.update(torch.zeros(1, 2, 1000, 16), torch.zeros(1, 2, 1000, 16), 0)
before = count_bytes(cache)
cache.crop(-990)
after, shape = count_bytes(cache), tuple(cache.layers[0].keys.shape)
cache.update(torch.zeros(1, 2, 1, 16), torch.zeros(1, 2, 1, 16), 0)
later = count_bytes(cache)
print(f"transformers {transformers.__version__}: expected a hundredth of {before} bytes after cropping 1,000 tokens to 10")
print(f"seen: {after} bytes for keys of shape {shape}; {later} after the next token")
assert after == before and later < before / 50
PYTHON

#!/usr/bin/env bash
# On a CPU, `torch.multinomial` of one sample is the largest of p / e, with e drawn by `exponential_` from the same seed.
#
# Expected: two unrelated ways to draw, that agree by chance.
# Seen: the same tokens in each of 100 seeds and three sizes of vocabularies.
# Why it matters: a batch of rows can be drawn by one kernel, with each row's own generator, and stay equal to `generate`.
# Versions: torch 2.13.0 numpy 2.4.6
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import torch

same = {}
for size in (50, 4096, 151936):
    hits = 0
    for seed in range(100):
        probabilities = torch.randn(4, size, generator=torch.Generator().manual_seed(seed)).softmax(-1)
        drawn = torch.multinomial(probabilities, 1, generator=torch.Generator().manual_seed(seed))
        noise = torch.empty_like(probabilities).exponential_(1, generator=torch.Generator().manual_seed(seed))
        hits += int(torch.equal(drawn[:, 0], (probabilities / noise).argmax(-1)))
    same[size] = hits
print(f"torch {torch.__version__}: expected two ways to draw that agree as often as chance has it")
print(f"seen: the same four tokens in so many of 100 seeds, by the size of the vocabulary: {same}")
assert min(same.values()) == 100
PYTHON

#!/usr/bin/env bash
# NaN in a column that is masked out of attention still reaches every query.
#
# Expected: a masked column has no part in the result.
# Seen: a weight of exactly 0 times NaN is NaN, and minus infinity plus NaN as well; a huge finite value does no harm.
# Why it matters: places of a preallocated cache that are reused must be cleared; a mask alone does not isolate rows.
# Versions: torch 2.13.0 numpy 2.4.6
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import torch
from torch.nn.functional import scaled_dot_product_attention

torch.manual_seed(0)
query, keys, values = (torch.randn(1, 1, length, 8) for length in (2, 4, 4))
mask = torch.tensor([[True, True, True, False]]).expand(2, 4)[None, None]
clean = scaled_dot_product_attention(query, keys, values, attn_mask=mask)
seen = {}
for name in ("keys", "values"):
    dirty = {"keys": keys.clone(), "values": values.clone()}
    dirty[name][:, :, 3] = float("nan")
    seen[name] = int(scaled_dot_product_attention(query, dirty["keys"], dirty["values"], attn_mask=mask).isnan().any(-1).sum())
dirty = values.clone()
dirty[:, :, 3] = 1e30
same = torch.equal(scaled_dot_product_attention(query, keys, dirty, attn_mask=mask), clean)
print(f"torch {torch.__version__}: expected that a masked column has no part in the result")
print(f"seen: with NaN in the masked column, queries of 2 with NaN: {seen}; with 1e30 the result is unchanged: {same}")
assert seen["values"] == 2 and same
PYTHON

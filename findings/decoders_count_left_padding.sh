#!/usr/bin/env bash
# Expected: in a batch that is padded on the left, with its attention_mask, each row has the logits of the row alone.
# Seen: decoders whose forward pass takes no position_ids (BART's, Marian's, PLBart's, Whisper's, … used alone) count
#   the columns of the cache, padding included: the logits of a padded row are others, in generate() too, without a
#   warning. BLOOM, which takes no position_ids either, counts the tokens of the mask and is right.
# Why it matters: whoever batches prompts of different lengths, or moves rows in a cache, gets other texts from them.
# Versions: transformers 5.23.0, torch 2.13.0.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet transformers==5.23.0 torch==2.13.0
HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error "$folder/venv/bin/python" - <<'PYTHON'
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

DECODER = {
    "vocab_size": 64, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "decoder_ffn_dim": 48,
    "decoder_attention_heads": 4, "pad_token_id": 1, "decoder_start_token_id": 0, "forced_eos_token_id": None,
    "max_position_embeddings": 64,
}
BLOOM = {"vocab_size": 64, "hidden_size": 32, "n_layer": 2, "n_head": 4, "pad_token_id": 1}
ROW, PADDING = [5, 9, 21, 7, 40], [1, 1, 1]
print("transformers", transformers.__version__)
seen = {}
for name, settings in (("bart", DECODER), ("marian", DECODER), ("plbart", DECODER), ("bloom", BLOOM)):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **settings)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight *= 10  # random weights are too small for positions to matter
    padded = torch.tensor([PADDING + ROW, [*ROW, 33, 12, 50]])
    mask = (padded != 1).long()
    settings = {"max_new_tokens": 1, "do_sample": False, "return_dict_in_generate": True, "output_logits": True}
    alone = model.generate(torch.tensor([ROW]), attention_mask=torch.ones((1, len(ROW)), dtype=torch.long), **settings)
    batch = model.generate(padded, attention_mask=mask, **settings)
    seen[name] = float((batch.logits[0][0] - alone.logits[0][0]).abs().max())
    print(f"{name}: the logits of the padded row are off by {seen[name]:.6f}; expected 0.00")
raise SystemExit(not (seen.pop("bloom") < 1e-3 and min(seen.values()) > 0.1))
PYTHON

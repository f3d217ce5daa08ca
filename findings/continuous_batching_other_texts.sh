#!/usr/bin/env bash
# transformers: generate_batch writes other texts than generate for models that it can't run
#
# One would expect that generate_batch writes what generate does, or raises an error for a model whose attention does not
# read the paged cache.
# What happens: five families get tokens without an error, and other tokens than from generate. BLOOM, MPT and GPT-Neo
# compute attention in code of their own, which never reads that cache. HRM-Text reads it, and so does Moshi, whose
# prompts are cut to the window that its configuration has and its own passes do not apply.
# Why it matters: throughput is measured, and data are made, with texts that the model would not write.
# Seen with transformers 5.23.0, torch 2.13.0.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.23.0
HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PYTHON'
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

shape = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
long = {**shape, "intermediate_size": 48, "max_position_embeddings": 512}
models = {
    "llama": {**long, "num_key_value_heads": 2},
    "bloom": shape,
    "mpt": {"vocab_size": 64, "d_model": 32, "n_heads": 4, "n_layers": 2, "expansion_ratio": 2, "max_seq_len": 512, "use_cache": True},
    "gpt_neo": {
        "vocab_size": 64, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "intermediate_size": 48,
        "max_position_embeddings": 512, "attention_types": [[["global", "local"], 1]], "window_size": 256,
    },
    "hrm_text": {**long, "num_key_value_heads": 4, "head_dim": 8},
    "moshi": {**long, "num_key_value_heads": 4, "head_dim": 8, "ffn_dim": 48, "sliding_window": 8},
}
prompts = [[5, 9, 7, 11, 13, 30, 31, 8, 20, 33, 41, 6, 17, 19, 23, 29], [40, 3, 22]]
config = GenerationConfig(max_new_tokens=12, do_sample=False, eos_token_id=-1)
seen = {}
for name, settings in models.items():
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **settings)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight *= 12
    alone = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        text = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=GenerationConfig(max_new_tokens=12, do_sample=False, eos_token_id=-1, pad_token_id=0))
        alone.append(text[0, len(prompt) :].tolist())
    outputs = model.generate_batch(
        prompts, generation_config=config, continuous_batching_config=ContinuousBatchingConfig(num_blocks=8, max_batch_tokens=64)
    )
    errors = [output.error for output in outputs.values()]
    texts = [output.generated_tokens for output in outputs.values()]
    seen[name] = "an error" if any(errors) else "equal" if texts == alone else "different"
print("transformers", transformers.__version__, "torch", torch.__version__)
print("expected: equal, or an error")
print("seen:", seen)
assert seen == {name: "equal" if name == "llama" else "different" for name in models}
PYTHON

#!/usr/bin/env bash
# transformers: a call of generate beside continuous batching leaves the model bidirectional
#
# One would expect that two threads may run one model's forward passes at a time, since they only read its weights, and
# that after both have returned the model is as it was.
# What happens: in continuous batching with eager or SDPA attention, each forward pass sets config.is_causal to False,
# and afterwards sets back what it found. A pass of another thread that begins in between finds False, and sets it back
# when it ends, after the first pass has removed it. From then on, generate attends to later tokens in each prompt,
# without a warning, until the model is loaded again.
# Why it matters: a server, or a training loop with a thread for evaluation, gets other texts for the rest of its life.
# Seen with transformers 5.24.0, torch 2.13.0.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.24.0
HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PYTHON'
import threading
import torch
import transformers
from transformers import ContinuousBatchingConfig, GenerationConfig, LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, eos_token_id=None, pad_token_id=0,
    )
).eval()
with torch.no_grad():
    for weight in model.parameters():
        if weight.ndim > 1:
            weight *= 12
prompt = [5, 9, 7, 11, 13, 30, 31, 8]


def write():
    ids = torch.tensor([prompt])
    return model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False)[0].tolist()


before, had = write(), hasattr(model.config, "is_causal")
batching, plain_began, batch_ended = (threading.Event() for _ in range(3))
batch_thread = None


def wait(module, arguments):
    """Have a pass of `generate` begin within the first pass of continuous batching, and end after it."""
    if threading.current_thread() is plain:
        plain_began.set()
        batch_ended.wait(20)
    elif not batching.is_set():
        batching.set()
        plain_began.wait(20)


model.model.layers[0].register_forward_pre_hook(wait)
plain = threading.Thread(target=lambda: batching.wait(20) and write())
plain.start()
model.generate_batch(
    [prompt],
    generation_config=GenerationConfig(max_new_tokens=3, do_sample=False, eos_token_id=-1),
    continuous_batching_config=ContinuousBatchingConfig(num_blocks=4, max_batch_tokens=64),
)
batch_ended.set()
plain.join()
after = write()
print("transformers", transformers.__version__, "torch", torch.__version__)
print("expected: config has no is_causal before and after, and generate writes the same text twice")
print("seen: is_causal", had, "->", getattr(model.config, "is_causal", "none"), "and the texts are", "equal" if before == after else "different")
assert not had and model.config.is_causal is False and before != after
PYTHON

#!/usr/bin/env bash
# Expected: AutoModelForCausalLM.from_pretrained(FOLDER) on the folder of an activated LoRA (aLoRA) loads a model that
# writes what the adapter writes, or says that it can't.
# What happens: it loads the adapter's layers without a warning, and writes exactly what the base model writes. The
# adapter is switched on by offsets that only PeftModel.generate computes from the prompt; nobody passes them here.
# Why it matters: servers and commands that take "a model or an adapter" answer with the untuned model, in silence.
# Versions: transformers 5.23.0, peft 0.21.2, torch 2.13.0.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.23.0 peft==0.21.2 numpy==2.4.6
cd "$folder"
HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PYTHON'
import peft
import torch
import transformers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, bos_token_id=0, eos_token_id=1, pad_token_id=1,
)
base = LlamaForCausalLM(config)
with torch.no_grad():
    for weight in base.parameters():
        if weight.ndim == 2:
            weight *= 8
base.save_pretrained("base")
invocation, prompt = [12, 7], torch.tensor([[3, 5, 9, 2, 12, 7]])
asked = {"max_new_tokens": 12, "do_sample": False, "attention_mask": torch.ones_like(prompt)}

lora = peft.LoraConfig(
    task_type="CAUSAL_LM", target_modules=["q_proj", "v_proj"], init_lora_weights=False,
    alora_invocation_tokens=invocation,
)
adapted = peft.get_peft_model(LlamaForCausalLM.from_pretrained("base"), lora).eval()
adapted.save_pretrained("adapter")

by_base = LlamaForCausalLM.from_pretrained("base").generate(prompt, **asked).tolist()
by_peft = adapted.generate(input_ids=prompt, **asked).tolist()
loaded = AutoModelForCausalLM.from_pretrained("adapter")
by_auto = loaded.generate(prompt, **asked).tolist()

print(f"transformers {transformers.__version__}, peft {peft.__version__}, torch {torch.__version__}")
print("adapters in the loaded model:", [*loaded.peft_config])
print("expected: AutoModelForCausalLM writes what PeftModel writes,", by_peft[0][6:])
print("seen:     it writes what the base writes,                   ", by_auto[0][6:])
assert by_peft != by_base, "the adapter does nothing"
raise SystemExit(0 if by_auto == by_base else 1)
PYTHON

"""Write JSON that is valid by a schema, under bans, and force what is certain.

    python examples/json_grammar.py

Needs llguidance: pip install 'antislop-lm[grammar]'.
"""

from __future__ import annotations

import json

import torch

import antislop
from antislop import AntiSlop
from antislop.steer import Grammar

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "category": {"enum": ["kitchen", "garden"]}},
    "required": ["name", "category"],
    "additionalProperties": False,
}


def main() -> None:
    """Print a product, and what it cost."""
    model, tokenizer = antislop.tiny_model()
    sampler = AntiSlop(tokenizer, antislop.default_bans())
    inputs = tokenizer("A lamp as JSON: ", return_tensors="pt")
    grammar = Grammar.from_json_schema(SCHEMA, tokenizer)
    torch.manual_seed(0)
    options = {"do_sample": True, "max_new_tokens": 80, "return_dict_in_generate": True}
    out = sampler.generate(model, **inputs, **options, controller=grammar)
    tokens = out.sequences[0, inputs["input_ids"].shape[1] :]
    print(json.loads(tokenizer.decode(tokens, skip_special_tokens=True)))
    print(f"{len(tokens)} tokens in {out.report.forward_passes} forward passes")


if __name__ == "__main__":
    main()

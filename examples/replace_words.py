"""Replace words while the text is written, in a stream.

    python examples/replace_words.py

The phrases are found however the model spells them in tokens, and the model reads the prompt once.
"""

from __future__ import annotations

import torch

import antislop
from antislop import AntiSlop
from antislop.steer import Replace

WORDS = {"eyes": "hands", "the": "that", "a tapestry of": "some"}


def main() -> None:
    """Print a text with other words."""
    model, tokenizer = antislop.tiny_model()
    sampler = AntiSlop(tokenizer, antislop.default_bans())
    torch.manual_seed(0)
    inputs = tokenizer("Once upon a time", return_tensors="pt")
    controller = Replace(WORDS, tokenizer)
    for piece in sampler.stream(model, **inputs, do_sample=True, max_new_tokens=60, controller=controller):
        print(piece, end="", flush=True)
    print()


if __name__ == "__main__":
    main()

"""Write each sentence again until it passes a check.

    python examples/write_again.py

Put your own function in the place of `is_plain`; a language model that judges the sentence fits there as well.
"""

from __future__ import annotations

import torch

import antislop
from antislop import AntiSlop
from antislop.steer import Regenerate


def is_plain(sentence: str) -> bool:
    """Return whether a sentence is short and compares nothing."""
    return len(sentence.split()) <= 14 and " like " not in sentence


def main() -> None:
    """Print a text, and how often a sentence was written again."""
    model, tokenizer = antislop.tiny_model()
    sampler = AntiSlop(tokenizer, antislop.default_bans())
    torch.manual_seed(0)
    inputs = tokenizer("Once upon a time", return_tensors="pt")
    controller = Regenerate(is_plain, tokenizer, attempts=8)
    ids = sampler.generate(model, **inputs, do_sample=True, max_new_tokens=80, controller=controller)
    print(tokenizer.decode(ids[0], skip_special_tokens=True))
    print(f"{len(controller.rejected)} rejected, {len(controller.conceded)} of them kept")


if __name__ == "__main__":
    main()

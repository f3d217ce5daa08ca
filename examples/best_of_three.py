"""Write three candidates of each sentence, and continue the one that repeats the fewest words.

    python examples/best_of_three.py

Put your own score in the place of `count_words`: the highest one wins.
"""

from __future__ import annotations

import torch

import antislop
from antislop import AntiSlop
from antislop.steer import BestOf


def count_words(sentence: str) -> float:
    """Return the share of different words of a sentence."""
    words = sentence.lower().split()
    return len(set(words)) / len(words)


def main() -> None:
    """Print the winner, and how many rows took part."""
    model, tokenizer = antislop.tiny_model()
    sampler = AntiSlop(tokenizer, antislop.default_bans())
    torch.manual_seed(0)
    inputs = tokenizer("Once upon a time", return_tensors="pt")
    controller = BestOf(3, count_words, tokenizer, unit="sentence")
    rows = sampler.generate(model, **inputs, do_sample=True, max_new_tokens=60, controller=controller, max_forks=3)
    print(tokenizer.decode(controller.winners[0], skip_special_tokens=True))
    print(f"the best of {len(rows)} rows")


if __name__ == "__main__":
    main()

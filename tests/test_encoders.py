"""What an encoder reads is masked, continued and cached apart from what the decoder writes."""

from __future__ import annotations

import torch
from families import build
from models import build_tokenizer
from transformers import set_seed

from antislop import AntiSlop, Ban

TOKENIZER = build_tokenizer()


def test_the_encoders_padding_hides_nothing_of_the_decoders_prompt() -> None:
    """Also where both are equally long: what begins in the decoder's prompt is not completed."""
    model, read = build("t5"), torch.tensor([[5, 9, 7, 1, 1]])
    mask = torch.tensor([[1, 1, 1, 0, 0]])
    prompt = torch.tensor([[0, *TOKENIZER("jj.a")["input_ids"]]])
    assert prompt.shape == mask.shape
    sampler = AntiSlop(TOKENIZER, [Ban("a" + letter, edges="anywhere") for letter in "abcdefgh"])
    asked = {"max_new_tokens": 2, "do_sample": True, "suppress_tokens": [1]}
    for seed in range(20):
        set_seed(seed)
        ids = sampler.generate(model, read, attention_mask=mask, decoder_input_ids=prompt, **asked)
        assert not sampler.bans.find(TOKENIZER.decode(ids[0, 1:])), seed

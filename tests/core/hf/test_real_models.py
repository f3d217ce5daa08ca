"""Small real models, with bans on their most frequent phrases."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase, set_seed

from antislop import AntiSlop

PROMPTS = {
    "stories260K": "Once upon a time",
    "stories3M": "Once upon a time",
    "tinystories-656k": "Once upon a time ",  # a token may be a phrase with its space
    "tinystories-chat-3m": "User: Tell me a story about a dog.\nBot:",
}


@pytest.fixture(scope="module", params=PROMPTS)
def subject(request: pytest.FixtureRequest, assets: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, Any]:
    folder = assets / "models" / request.param
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    encoded = tokenizer(PROMPTS[request.param], return_tensors="pt")
    return model, tokenizer, {name: encoded[name] for name in ("input_ids", "attention_mask")}


def test_frequent_phrases_are_never_written_and_logits_are_those_of_a_fresh_pass(
    subject: tuple[PreTrainedModel, PreTrainedTokenizerBase, Any],
) -> None:
    model, tokenizer, inputs = subject
    prompt = inputs["input_ids"].shape[1]
    settings = {**inputs, "max_new_tokens": 100, "do_sample": True, "top_k": 0}
    texts = []
    for seed in range(8):
        set_seed(seed)
        texts.append(tokenizer.decode(model.generate(**settings)[0, prompt:], skip_special_tokens=True))
    pairs = Counter(pair for text in texts for pair in zip(text.split(), text.split()[1:], strict=False))
    frequent_phrases = [" ".join(pair) for pair, _ in pairs.most_common(25) if all(map(str.isalpha, pair))]
    sampler = AntiSlop(tokenizer, frequent_phrases)
    rewinds = 0
    for seed in range(4):
        set_seed(seed)
        out = sampler.generate(model, **settings, return_dict_in_generate=True, output_logits=True)
        tokens = out.sequences[0, prompt:]
        assert not sampler.bans.find(tokenizer.decode(tokens, skip_special_tokens=True))
        assert out.report.tokens_fed == out.sequences.shape[1] + out.report.cut_tokens - 1
        fresh = model(out.sequences).logits[0, prompt - 1 : -1]
        assert torch.allclose(torch.cat(out.logits), fresh, atol=2e-3)
        rewinds += out.report.rewinds
    assert rewinds > 3

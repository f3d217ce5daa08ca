"""A cache holds what a model's modules put out in one clean forward pass, and the model is as it was before."""

from __future__ import annotations

import torch

from antislop.interpret import run_with_cache
from tests.support.models import build_model


def test_a_cache_holds_the_output_of_every_module() -> None:
    model = build_model()
    ids = torch.tensor([[3, 4, 5, 6]])
    logits, cache = run_with_cache(model, ids)
    plain = model(ids, use_cache=False, output_hidden_states=True)
    assert torch.equal(logits, plain.logits)
    assert torch.equal(cache["model.embed_tokens"], plain.hidden_states[0])
    assert torch.equal(cache["model.layers.0"], plain.hidden_states[1])
    assert torch.equal(cache["model.norm"], plain.hidden_states[2])
    assert torch.equal(cache["lm_head"], logits)

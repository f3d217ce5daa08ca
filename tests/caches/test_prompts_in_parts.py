"""A prompt that is read in several forward passes, by `prefill_chunk_size`, gives the same text."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import PreTrainedModel, set_seed

from antislop import AntiSlop, Ban
from tests.support.families import build, prepare
from tests.support.models import build_tokenizer

TOKENIZER = build_tokenizer()
PROMPTS = ((4, 8, 3, 30, 22, 9, 11, 2, 6, 13, 40, 7, 19, 5, 16, 3, 8), (21, 3, 8))
SETTINGS: dict[str, Any] = {
    "max_new_tokens": 20,
    "do_sample": True,
    "suppress_tokens": [0, 1],
    "prefill_chunk_size": 5,
    "return_dict_in_generate": True,
    "output_logits": True,
}
OFTEN = AntiSlop(TOKENIZER, [Ban(a + b, edges="anywhere") for a in "acegi" for b in "bdfhj"])
FAMILIES = ("llama", "mistral", "gemma3", "bloom", "gpt2", "llama4", "deepseek-v3", "lfm2", "falcon-h1")


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize(
    ("family", "kind"), [*((family, None) for family in FAMILIES), ("llama", "static"), ("deepseek-v3", "static")]
)
def test_without_bans_the_text_is_that_of_generate(family: str, rows: int, kind: str | None) -> None:
    model, inputs = build(family), prepare(family, *PROMPTS[:rows])
    settings = {**SETTINGS, "cache_implementation": kind}
    set_seed(0)
    theirs = model.generate(**inputs, **settings)
    set_seed(0)
    ours = AntiSlop(TOKENIZER, []).generate(model, **inputs, **settings)
    assert torch.equal(ours.sequences, theirs.sequences)
    assert all(map(torch.equal, ours.logits, theirs.logits))


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("family", FAMILIES)
def test_rewinds_leave_no_trace(family: str, rows: int) -> None:
    """The logits are those of `generate` when it is forced to write the same text."""
    model, inputs = build(family), prepare(family, *PROMPTS[:rows])
    set_seed(0)
    out = OFTEN.generate(model, **inputs, **SETTINGS)
    assert all(report.rewinds for report in out.reports)
    straight = force(model, inputs, out.sequences)
    assert torch.allclose(torch.stack(out.logits), torch.stack(straight.logits), atol=2e-4)


def force(model: PreTrainedModel, inputs: dict[str, torch.Tensor], texts: torch.Tensor) -> Any:
    return model.generate(
        **inputs,
        **{**SETTINGS, "suppress_tokens": None, "do_sample": False},
        prefix_allowed_tokens_fn=lambda row, ids: [int(texts[row, len(ids)])],
    )


def test_prompts_in_flight_are_read_in_parts_too() -> None:
    model, settings = build("llama"), {"max_new_tokens": 12, "do_sample": True, "suppress_tokens": [0, 1]}
    expected = [done.tokens for done in OFTEN.generate_many(model, PROMPTS, seed=1, batch_size=1, **settings)]
    parts = OFTEN.generate_many(model, PROMPTS, seed=1, batch_size=1, prefill_chunk_size=5, **settings)
    assert [done.tokens for done in parts] == expected

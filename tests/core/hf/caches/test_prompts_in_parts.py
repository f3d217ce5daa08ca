"""A prompt that is read in several forward passes, by `prefill_chunk_size`, gives the same text."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import PreTrainedModel, set_seed

from antislop import AntiSlop, Ban
from antislop.core.loop import engine as engine_module
from antislop.core.loop.sampling import seed_of
from antislop.core.loop.scheduler import Scheduler
from tests.support.depth import first_quick, quick_if
from tests.support.families import (
    ENCODER_DECODER,
    FAMILIES as ALL_FAMILIES,
    MULTIMODAL,
    RECURRENT,
    WINDOWED,
    build,
    prepare,
)
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
OFTEN = AntiSlop(TOKENIZER, [Ban(a + b, edges="anywhere", rewind="span") for a in "acegi" for b in "bdfhj"])
FAMILIES = ("llama", "mistral", "gemma3", "bloom", "gpt2", "llama4", "deepseek-v3", "lfm2", "falcon-h1")


@pytest.mark.parametrize("rows", first_quick([1, 2]))
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
@pytest.mark.parametrize("family", first_quick(FAMILIES, 3))
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


STEM = [4, 8, 3, 30, 22, 9, 11, 2, 6, 13, 40, 7, 19, 5, 16, 3, 8, 12, 33, 21]
IN_FLIGHT = [
    [*STEM, 17, 4],
    [9, 9, 2, 14, 25],
    STEM,
    [*STEM[:12], 20, 31, 18],
    STEM,
    [7, 3, 28],
    [*STEM, *STEM[::-1], 6],
    [*STEM, 17, 5, 2, 2, 8],
]


NOT_IN_FLOAT64 = {"deepseek-v2", "deepseek-v3", "mixtral", "qwen3-moe", "gpt-oss", "qwen3-next"}  # of the experts
NOT_IN_FLOAT64 |= {"bloom", "mpt"}  # NaN in transformers, too, where a prompt is padded
TOGETHER = [
    pytest.param(family, in_parts, marks=quick_if(family == "llama"))
    for family in ALL_FAMILIES
    for in_parts in (False, True)
    if family not in ENCODER_DECODER | MULTIMODAL and not (in_parts and "mamba" in family)  # which refuses parts
]


@pytest.mark.parametrize(("family", "in_parts"), TOGETHER)
def test_prompts_read_together_in_parts_and_once_give_the_texts_of_each_alone(
    family: str, in_parts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float64 if possible, for the order of sums changes no token then; some caches read each prompt alone."""
    dtype = torch.float32 if family in NOT_IN_FLOAT64 else torch.float64
    model, fed = build(family, dtype=dtype), list[tuple[int, ...]]()
    settings: dict[str, Any] = {"max_new_tokens": 12, "do_sample": True, "suppress_tokens": [0, 1]}
    alone = [
        next(OFTEN.generate_many(model, [prompt], seeds=[seed_of(4, number)], **settings)).tokens
        for number, prompt in enumerate(IN_FLIGHT)
    ]
    monkeypatch.setattr(engine_module, "SHORTEST_SHARED", 8)
    if in_parts:  # as with requests to a server, for whose texts others wait
        settings["prefill_chunk_size"] = 7
        monkeypatch.setattr(Scheduler, "reads_in_parts", Scheduler.is_writing)
    model.register_forward_pre_hook(
        lambda module, args, kwargs: fed.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    together = {done.number: done for done in OFTEN.generate_many(model, IN_FLIGHT, seed=4, batch_size=3, **settings)}
    assert [together[number].tokens for number in range(len(IN_FLIGHT))] == alone
    read = sum(rows * tokens for rows, tokens in fed if tokens > 1)
    if family in RECURRENT:
        assert max(rows for rows, tokens in fed if tokens > 1) == 1
    elif family not in WINDOWED:
        assert read < sum(map(len, IN_FLIGHT)) - 3 * 12, "beginnings are read once"
    if in_parts and family not in RECURRENT:
        assert max(tokens for _, tokens in fed) == 7

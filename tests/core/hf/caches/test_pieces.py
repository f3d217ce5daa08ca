"""Several tokens after those that a cache holds: recurrent states continue, whatever the model does with a piece.

The oracle is the text without a cache of the caller's and without parts. `generate` itself is wrong here.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import DynamicCache, PreTrainedModel, set_seed

from antislop import AntiSlop, Ban
from antislop.core.hf.model import Trial, is_true
from antislop.core.hf.private import cache_name
from antislop.core.loop.sampling import seed_of
from tests.support.depth import first_quick
from tests.support.families import SCANNING, build
from tests.support.models import build_tokenizer

TOKENIZER = build_tokenizer()
OFTEN = AntiSlop(TOKENIZER, [Ban(a + b, edges="anywhere", rewind="span") for a in "acegi" for b in "bdfhj"])
PROMPT = torch.tensor([[4, 8, 3, 30, 22, 9, 11, 2, 6, 13, 40, 7, 19, 5]])
HELD = 6
SETTINGS: dict[str, Any] = {"max_new_tokens": 12, "do_sample": True, "suppress_tokens": [0, 1]}
RETURNED = {**SETTINGS, "return_dict_in_generate": True, "output_logits": True}
FAMILIES = first_quick([*SCANNING, "mamba2", "qwen3-next", "lfm2", "falcon-h1", "bamba"], 4)
UNCOUNTED = ("mamba", "falcon-mamba", "mamba2")
"""Families whose caches can't tell how many tokens they hold."""


def begun(model: PreTrainedModel, *, rows: int) -> DynamicCache:
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(PROMPT[:, :HELD].repeat(rows, 1), use_cache=True, **{cache_name(model): cache})
    return cache


@pytest.mark.parametrize("rows", first_quick([1, 2]))
@pytest.mark.parametrize("more", [{}, {"prefill_chunk_size": 3}], ids=["whole", "in parts"])
@pytest.mark.parametrize("held", [0, HELD])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_in_pieces_gives_the_logits_of_one_pass(family: str, held: int, more: Any, rows: int) -> None:
    """After a cache that holds its beginning, in parts, and both; the ids are all tokens, or the new ones alone."""
    model, prompts = build(family), PROMPT.repeat(rows, 1)
    for start in {held, 0} if family not in UNCOUNTED else {held}:
        settings = {**RETURNED, **more, "attention_mask": torch.ones_like(prompts)}
        if held:
            settings[cache_name(model)] = begun(model, rows=rows)
        set_seed(0)
        out = OFTEN.generate(model, prompts[:, start:], **settings)
        assert all(report.rewinds for report in out.reports)
        for row, text in enumerate(out.sequences[:, prompts.shape[1] - start :]):
            with torch.no_grad():
                read = model(torch.cat([PROMPT[0], text])[None], use_cache=False).logits[0, PROMPT.shape[1] - 1 : -1]
            assert (torch.stack([step[row] for step in out.logits]) - read).abs().max() < 1e-3


@pytest.mark.parametrize("family", FAMILIES)
def test_prompts_in_flight_are_read_whole_in_spite_of_a_size_of_parts(family: str) -> None:
    model, prompts = build(family), [PROMPT[0, :length].tolist() for length in (14, 5, 9)]
    expected = [
        next(OFTEN.generate_many(model, [prompt], seeds=[seed_of(1, number)], **SETTINGS)).tokens
        for number, prompt in enumerate(prompts)
    ]
    done = OFTEN.generate_many(model, prompts, seed=1, batch_size=2, prefill_chunk_size=3, **SETTINGS)
    assert [text.tokens for text in sorted(done, key=lambda text: text.number)] == expected


@pytest.mark.parametrize("family", [family for family in UNCOUNTED if family in SCANNING])
def test_a_text_continues_from_the_cache_that_a_call_returned(family: str) -> None:
    model = build(family)
    set_seed(0)
    out = OFTEN.generate(model, PROMPT, **RETURNED)
    more = torch.cat([out.sequences, torch.tensor([[21, 3, 9]])], dim=1)
    name, mask = cache_name(model), torch.ones_like(more)
    kept = out.sequences.shape[1] - 1  # the last token of a text is never read
    set_seed(1)
    after = OFTEN.generate(model, more[:, kept:], attention_mask=mask, **{name: out.past_key_values}, **SETTINGS)
    set_seed(1)
    whole = OFTEN.generate(model, more, attention_mask=mask, **SETTINGS)
    assert torch.equal(after[:, more.shape[1] - kept :], whole[:, more.shape[1] :])


@pytest.mark.parametrize("family", UNCOUNTED)
def test_ids_that_a_cache_may_have_read_already_are_refused(family: str) -> None:
    """`generate` reads all of them, and so some of them twice."""
    model = build(family)
    for ids in (PROMPT, PROMPT[:, HELD:]):
        with pytest.raises(ValueError, match="don't tell how many of the prompt's tokens they have read: pass the"):
            OFTEN.generate(
                model, ids, attention_mask=torch.ones_like(ids), **{cache_name(model): begun(model, rows=1)}, **SETTINGS
            )


@pytest.mark.parametrize("family", FAMILIES)
def test_only_models_that_scan_from_zeros_read_token_by_token(family: str) -> None:
    assert is_true(Trial.try_piece, of=build(family)) == (family not in SCANNING)

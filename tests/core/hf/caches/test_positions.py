"""Rows that move: each model gives them the logits of the row alone, whether it takes positions or counts columns.

The oracle reads the text of each row alone, in one pass without a cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedModel, set_seed

from antislop import AntiSlop, Ban
from antislop.core.hf.model import TransformersModel
from antislop.core.loop.protocols import fill_left
from antislop.core.loop.sampling import seed_of
from tests.support.depth import first_quick
from tests.support.families import COUNTING, build
from tests.support.models import VOCABULARY, build_tokenizer, counted_calls

TOKENIZER = build_tokenizer()
OFTEN = AntiSlop(TOKENIZER, [Ban(a + b, edges="anywhere", rewind="span") for a in "acegi" for b in "bdfhj"])
PROMPTS = ((4, 8, 3, 30, 22, 9, 11, 2, 6), (21, 3, 8), (5, 9, 2, 12, 7, 3, 40, 7, 19, 33, 2, 17), (9, 9, 14, 25))
SETTINGS: dict[str, Any] = {"max_new_tokens": 16, "do_sample": True, "suppress_tokens": [0, 1]}
RETURNED = {**SETTINGS, "return_dict_in_generate": True, "output_logits": True}
FROM_MASKS = ("bloom", "mpt", "mamba")
"""Families that take no positions, and need none or count the tokens of the mask."""
TOLERANCE = 1e-3


class Deaf(LlamaForCausalLM):
    """A model whose forward pass takes positions and leaves them out."""

    def forward(self, input_ids: Tensor, position_ids: Tensor | None = None, **kwargs: Any) -> Any:
        return super().forward(input_ids, **kwargs)


class Wrapped(LlamaForCausalLM):
    """A model whose forward pass doesn't show what it takes."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return super().forward(*args, **kwargs)


def make(name: str) -> PreTrainedModel:
    if name not in ("deaf", "wrapped"):
        return build(name)
    model = build("llama")
    model.__class__ = {"deaf": Deaf, "wrapped": Wrapped}[name]
    return model


@torch.no_grad()
def logits_alone(model: PreTrainedModel, prompt: Sequence[int], text: Sequence[int]) -> Tensor:
    return model(input_ids=torch.tensor([[*prompt, *text]]), use_cache=False).logits[0, len(prompt) - 1 :]


NAMES = first_quick(
    list(dict.fromkeys(("roformer", "bart-decoder", "deaf", "bloom", *FROM_MASKS, "wrapped", *COUNTING))), 4
)


@pytest.mark.parametrize("kind", first_quick([None, "static"]))
@pytest.mark.parametrize("name", NAMES)
def test_rows_that_rewind_by_different_numbers_have_the_logits_of_each_row_alone(name: str, kind: str | None) -> None:
    model, prompts = make(name), torch.tensor(PROMPTS[:1] * 3)
    set_seed(0)
    settings = {**RETURNED, "cache_implementation": kind}
    out = OFTEN.generate(model, prompts, attention_mask=torch.ones_like(prompts), **settings)
    assert all(report.rewinds > 1 for report in out.reports)
    for row, text in enumerate(out.sequences[:, prompts.shape[1] :].tolist()):
        ours = torch.stack([step[row] for step in out.logits])
        assert (ours - logits_alone(model, PROMPTS[0], text)[:-1]).abs().max() < TOLERANCE


@pytest.mark.parametrize("name", NAMES)
def test_prompts_of_different_lengths_in_flight_give_the_texts_of_each_alone(name: str) -> None:
    model = make(name)
    alone = [
        next(OFTEN.generate_many(model, [prompt], seeds=[seed_of(1, number)], **SETTINGS)).tokens
        for number, prompt in enumerate(PROMPTS)
    ]
    for batch_size in (1, 3):  # a row is also taken by a shorter text
        done = OFTEN.generate_many(model, PROMPTS, seed=1, batch_size=batch_size, **SETTINGS)
        assert [text.tokens for text in sorted(done, key=lambda text: text.number)] == alone


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_prompts_that_are_read_together_have_the_logits_of_each_alone(name: str) -> None:
    model = make(name)
    language_model = TransformersModel(model)
    cache = language_model.new_cache(len(PROMPTS))
    read = language_model.forward(fill_left(PROMPTS), cache)
    text = [7, 3, 22]
    fed = [text[: 1 + row % 3] for row in range(len(PROMPTS))]  # and different numbers of tokens after them
    after = language_model.forward(fill_left(fed), cache)
    for row, prompt in enumerate(PROMPTS):
        expected = logits_alone(model, prompt, fed[row])
        assert (read[row, -1] - expected[0]).abs().max() < TOLERANCE
        assert (after[row, -1] - expected[-1]).abs().max() < TOLERANCE


@pytest.mark.parametrize("name", NAMES)
def test_padded_rows_have_the_logits_of_each_row_alone_or_are_refused_before_any_work(name: str) -> None:
    """Positions in a table are those of the padding, too, in `generate` itself; distances of tokens are not."""
    model, ids = make(name), fill_left(PROMPTS)
    padded = {"inputs": ids.clamp(min=0), "attention_mask": (ids >= 0).long()}
    if name.endswith("-decoder") or name == "trocr":
        with pytest.raises(ValueError, match=r"counts padding as tokens, in generate\(\) too"):
            OFTEN.generate(model, **padded, **SETTINGS)
        return
    set_seed(0)
    out = OFTEN.generate(model, **padded, **RETURNED)
    assert all(report.rewinds for report in out.reports)
    for row, prompt in enumerate(PROMPTS):
        ours = torch.stack([step[row] for step in out.logits])
        text = out.sequences[row, ids.shape[1] :].tolist()
        assert (ours - logits_alone(model, prompt, text)[:-1]).abs().max() < TOLERANCE


@pytest.mark.parametrize("name", ["llama", "bloom", "bart-decoder"])
def test_a_batch_without_matches_needs_the_passes_of_generate(name: str) -> None:
    """Nothing is tried before a row moves, and nothing ever for a model that is known to follow positions."""
    model, prompts = make(name), torch.tensor(PROMPTS[:1] * 3)
    with counted_calls(model) as theirs:
        set_seed(0)
        expected = model.generate(prompts, **SETTINGS)
    with counted_calls(model) as ours:
        set_seed(0)
        assert torch.equal(AntiSlop(TOKENIZER, ["zz"]).generate(model, prompts, **SETTINGS), expected)
    assert len(ours) == len(theirs)


def test_a_model_is_tried_once() -> None:
    model = make("bloom")
    with counted_calls(model) as calls:
        assert TransformersModel(model).moves_rows
        assert 0 < len(calls) <= 4
        tried = len(calls)
        assert TransformersModel(model).moves_rows
        assert len(calls) == tried


def test_dropout_answers_no_trial() -> None:
    """A model in training mode is taken for one that counts columns, and asked again afterwards."""
    model = make("mpt").train()
    assert not TransformersModel(model).moves_rows
    assert TransformersModel(model.eval()).moves_rows


def test_the_oracle_sees_a_position_that_is_off_by_one() -> None:
    model = make("bart-decoder")
    text = torch.randint(2, VOCABULARY, (12,), generator=torch.Generator().manual_seed(0)).tolist()
    shifted = logits_alone(model, (PROMPTS[0][0], *PROMPTS[0]), text)
    assert (shifted - logits_alone(model, PROMPTS[0], text)).abs().max() > 100 * TOLERANCE

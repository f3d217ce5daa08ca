"""Rows that move: each model gives them the logits of the row alone, whether it takes positions or counts columns.

The oracle reads the text of each row alone, in one pass without a cache.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, DynamicCache, LlamaForCausalLM, PreTrainedModel, set_seed
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from antislop import AntiSlop, Ban
from antislop.core.hf.caches.borrowed import choose_cache
from antislop.core.hf.model import TransformersModel
from antislop.core.hf.private import cache_name
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


SMALL: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "embedding_size", "word_embed_proj_dim"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "encoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "decoder_ffn_dim", "encoder_ffn_dim", "d_ff", "n_inner"), 48),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len", "max_target_positions"), 128),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "encoder_attention_heads"), 4),
    **dict.fromkeys(
        ("head_dim", "state_size", "mamba_d_state", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"), 8
    ),
    "vocab_size": VOCABULARY,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
    "decoder_start_token_id": 0,
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "is_decoder": True,
}
"""Settings by the names that configurations have for them."""


def build_type(model_type: str) -> PreTrainedModel | None:
    """A small model of a type, with random weights; None if these settings don't fit together."""
    kind = CONFIG_MAPPING[model_type]
    names = {*inspect.signature(kind.__init__).parameters, *getattr(kind, "attribute_map", {})}
    settings = {name: value for name, value in SMALL.items() if name in names}
    for left_out in ((), ("num_key_value_heads",), ("head_dim",), ("n_embd",)):
        try:
            config = kind(**{name: value for name, value in settings.items() if name not in left_out})
            with torch.device("meta"):
                size = AutoModelForCausalLM.from_config(config).num_parameters()
            if size > 5_000_000:
                return None
            torch.manual_seed(0)
            model: PreTrainedModel = AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)
        except Exception:  # noqa: BLE001 - a configuration may refuse a setting in any way
            continue
        for weight in model.parameters():
            if weight.ndim > 1:
                weight *= 8
        return model
    return None


NAMES = first_quick(
    list(dict.fromkeys(("roformer", "bart-decoder", "deaf", "bloom", *FROM_MASKS, "wrapped", *COUNTING))), 2
)


@pytest.mark.parametrize("kind", first_quick([None, "static"]))
@pytest.mark.parametrize("name", NAMES)
def test_rows_that_rewind_by_different_numbers_have_the_logits_of_each_row_alone(name: str, kind: str | None) -> None:
    model, prompts = make(name), torch.tensor(PROMPTS[:1] * 3)
    set_seed(3)
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


@pytest.mark.slow
@torch.no_grad()
def test_a_moved_row_is_as_if_alone_with_each_type_of_transformers_that_is_not_refused() -> None:
    """Also if nothing is tried, since the type takes positions."""
    tried, wrong = [], {}
    for model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        if (model := build_type(model_type)) is None:
            continue
        language_model = TransformersModel(model)
        try:
            cache = DynamicCache(config=model.config.get_text_config(decoder=True))
            choose_cache({cache_name(model): cache}, model=model)
            steps = [language_model.new_cache(rows) for rows in (1, 2)]
            language_model.forward(torch.tensor([PROMPTS[0][:4]]), steps[0])
            expected = language_model.forward(torch.tensor([PROMPTS[0][4:5]]), steps[0])[0, -1]
            language_model.forward(torch.tensor([PROMPTS[0][:8], PROMPTS[2][:8]]), steps[1])
            kept = steps[1].rewind(0, 4)
            moved = language_model.forward(fill_left([PROMPTS[0][kept:5], PROMPTS[2][8:9]]), steps[1])[0, -1]
        except Exception:  # noqa: BLE001 - refused, or it fails in a cached pass of its own
            continue
        tried.append(model_type)
        if not (error := float((moved - expected).abs().max())) < TOLERANCE * max(1, float(expected.abs().max())):
            wrong[model_type] = error
    assert wrong == {}
    assert len(tried) > 80


def test_the_oracle_sees_a_position_that_is_off_by_one() -> None:
    model = make("bart-decoder")
    text = torch.randint(2, VOCABULARY, (12,), generator=torch.Generator().manual_seed(0)).tolist()
    shifted = logits_alone(model, (PROMPTS[0][0], *PROMPTS[0]), text)
    assert (shifted - logits_alone(model, PROMPTS[0], text)).abs().max() > 100 * TOLERANCE

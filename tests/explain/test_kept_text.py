"""`generate` returns activations, hidden states and attentions of what it kept, and nothing of what it withdrew."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from antislop import AntiSlop, Ban, applied_to
from antislop.core.hf.private import cache_name
from antislop.explain import ActivationCache, run_with_cache
from tests.support import families
from tests.support.depth import DEPTH
from tests.support.models import WINDOW, build_tokenizer, counted_calls
from tests.support.refusals import refused

TOKENIZER = build_tokenizer()
FREE = AntiSlop(TOKENIZER, [])
PICKY = AntiSlop(TOKENIZER, [Ban(text, edges="anywhere") for text in "aceg"])
INPUTS = families.prepare("llama", [3, 4, 5], [6, 7, 8, 9])
PROMPT = 4
FEW = ("llama", "gpt2", "bloom", "mistral", "gemma3", "gpt-oss", "qwen3-next", "lfm2")
DECODERS = tuple(family for family in families.FAMILIES if family not in families.ENCODER_DECODER)
WITHOUT_ATTENTION = ("mamba", "mamba2")
SAMPLED: dict[str, Any] = {"do_sample": True, "max_new_tokens": 14, "return_dict_in_generate": True}
HIDDEN: dict[str, Any] = {**SAMPLED, "output_hidden_states": True}
STATES: dict[str, Any] = {**HIDDEN, "output_attentions": True}


def build(family: str, *, attention: str = "eager") -> PreTrainedModel:
    model = families.build(family)
    model.config._attn_implementation = attention  # Falcon can't be set by the method
    if not family.startswith("falcon-") and family != "falcon":
        model.set_attn_implementation(attention)
    return model


def mask_of(sequences: Tensor) -> Tensor:
    """Return 1 for the tokens of prompts and texts, 0 for padding before and behind them."""
    is_end = (sequences[:, PROMPT:] == 1).long()
    return torch.cat([INPUTS["attention_mask"][-len(sequences) :], (is_end.cumsum(dim=1) - is_end == 0).long()], dim=1)


def assert_equal(cache: ActivationCache, other: ActivationCache) -> None:
    assert list(cache) == list(other)
    assert all(torch.equal(cache[name], other[name]) for name in cache)


@pytest.mark.parametrize("family", FEW if DEPTH == 1 else DECODERS)
def test_a_returned_cache_is_bitwise_that_of_the_kept_text(family: str) -> None:
    """Also in a batch whose rows have padding before and behind them."""
    model = build(family)
    torch.manual_seed(0)
    out, cache = PICKY.generate(model, **INPUTS, **SAMPLED, return_cache=True)
    assert out.report.withdrawn
    _, clean = run_with_cache(model, out.sequences, attention_mask=mask_of(out.sequences))
    assert_equal(cache, clean)


def test_a_returned_cache_of_one_text_needs_no_mask() -> None:
    model = build("llama", attention="sdpa")
    ids, cache = PICKY.generate(model, INPUTS["input_ids"][1:], max_new_tokens=9, return_cache=True)
    assert_equal(cache, run_with_cache(model, ids)[1])


def test_a_filter_and_a_device_apply_to_the_returned_cache() -> None:
    model = build("llama")
    names = ["model.norm", "model.layers.1.self_attn.pattern"]
    ids, cache = PICKY.generate(model, "ab", max_new_tokens=9, return_cache=True, names_filter=names, device="meta")
    assert sorted(cache) == sorted(names)
    assert cache["model.norm"].shape == (*ids.shape, 32)
    assert {tensor.device.type for tensor in cache.values()} == {"meta"}


def test_logits_that_nobody_asked_for_are_not_computed_for_the_whole_text() -> None:
    model = build("llama")
    shapes: list[int] = []
    handle = model.lm_head.register_forward_hook(lambda _module, _inputs, output: shapes.append(output.shape[1]))
    ids, cache = PICKY.generate(model, **TEXT, **CACHE, names_filter=["model.norm"])
    FREE.generate(model, **TEXT, **HIDDEN)
    assert set(shapes) == {1}
    FREE.generate(model, **TEXT, **CACHE, names_filter=["lm_head"])
    assert shapes[-1] == ids.shape[1]
    handle.remove()
    assert torch.equal(cache["model.norm"], run_with_cache(model, ids)[1]["model.norm"])


def kept(step: int, mask: Tensor) -> Tensor:
    """Return which positions that a step of `generate` reads hold tokens, [rows, queries]."""
    return (mask[:, :PROMPT] if step == 0 else mask[:, PROMPT + step - 1 : PROMPT + step]).bool()


def assert_close(steps: Any, expected: Any, mask: Tensor, *, dim: int) -> None:
    """Compare states of all steps and layers, in which dimension `dim` counts tokens, except those of padding."""
    assert len(steps) == len(expected) == mask.shape[1] - PROMPT
    for step, (layers, expected_layers) in enumerate(zip(steps, expected, strict=True)):
        for layer, expected_layer in zip(layers, expected_layers, strict=True):
            assert layer.shape == expected_layer.shape
            difference = (layer - expected_layer).abs().transpose(1, dim).flatten(start_dim=2).amax(dim=2)
            assert float(difference.masked_fill(~kept(step, mask), 0).max()) < 1e-4


@pytest.mark.parametrize("family", (*FEW, "mamba") if DEPTH == 1 else DECODERS)
def test_states_are_those_of_generate_if_nothing_is_banned(family: str) -> None:
    """In the same nested shapes, also for layers with a window."""
    model = build(family)
    settings = HIDDEN if family in WITHOUT_ATTENTION else STATES
    inputs = INPUTS if family not in WITHOUT_ATTENTION else {name: value[1:] for name, value in INPUTS.items()}
    torch.manual_seed(0)
    expected = model.generate(**inputs, **settings)
    torch.manual_seed(0)
    out = FREE.generate(model, **inputs, **settings)
    assert torch.equal(out.sequences, expected.sequences)
    assert list(out.keys())[: len(expected)] == list(expected.keys())
    mask = mask_of(out.sequences)
    assert_close(out.hidden_states, expected.hidden_states, mask, dim=1)
    if settings is STATES:
        assert_close(out.attentions, expected.attentions, mask, dim=2)


def test_a_prompt_longer_than_a_window_is_attended_to_as_in_generate() -> None:
    model, prompt = build("mistral"), torch.arange(2, 2 + WINDOW + 5)[None]
    expected = model.generate(prompt, **{**STATES, "do_sample": False})
    out = FREE.generate(model, prompt, **{**STATES, "do_sample": False})
    for layers, expected_layers in zip(out.attentions, expected.attentions, strict=True):
        for layer, expected_layer in zip(layers, expected_layers, strict=True):
            torch.testing.assert_close(layer, expected_layer, atol=1e-4, rtol=0)


def test_hidden_states_after_rewinds_are_those_of_each_prefix_alone() -> None:
    model = build("mistral")
    torch.manual_seed(0)
    out = PICKY.generate(model, INPUTS["input_ids"][1:], **HIDDEN)
    assert out.report.rewinds > 0
    for step, layers in enumerate(out.hidden_states):
        prefix = out.sequences[:, : PROMPT + step]
        expected = model(prefix, use_cache=False, output_hidden_states=True).hidden_states
        for layer, expected_layer in zip(layers, expected, strict=True):
            torch.testing.assert_close(layer, expected_layer[:, -layer.shape[1] :], atol=1e-4, rtol=0)


def test_the_hook_returns_the_same_states() -> None:
    model = build("llama")
    torch.manual_seed(0)
    out = PICKY.generate(model, **INPUTS, **STATES)
    torch.manual_seed(0)
    hooked = model.generate(**INPUTS, **STATES, custom_generate=PICKY)
    assert torch.equal(out.sequences, hooked.sequences)
    for field in ("hidden_states", "attentions"):
        steps = zip(out[field], hooked[field], strict=True)
        assert all(torch.equal(*pair) for step in steps for pair in zip(*step, strict=True))


def test_all_of_it_costs_one_forward_pass() -> None:
    model = build("llama")
    counts = []
    for options in (SAMPLED, {**STATES, "return_cache": True}):
        torch.manual_seed(0)
        with counted_calls(model) as calls:
            PICKY.generate(model, **INPUTS, **options)
        counts.append(len(calls))
    assert counts[1] == counts[0] + 1


def test_selected_hidden_states() -> None:
    """From transformers 5.23 on, `generate` puts None in the place of the others."""
    model = build("llama")
    settings = {**HIDDEN, "output_hidden_states": [1], "do_sample": False}
    outs = FREE.generate(model, **INPUTS, **settings), model.generate(**INPUTS, **settings)
    out, expected = ([[layer is None for layer in layers] for layers in out.hidden_states] for out in outs)
    assert out == expected
    assert any(map(any, out)) or transformers.__version__ < "5.23"


@pytest.mark.filterwarnings("ignore")  # transformers' own, that the flags have no effect
def test_a_tensor_has_no_states() -> None:
    model = build("llama")
    options = {**STATES, "return_dict_in_generate": False, "output_hidden_states": True}
    with counted_calls(model) as calls:
        assert isinstance(FREE.generate(model, **INPUTS, **options), Tensor)
    assert len(calls) == 14


def test_a_cache_that_holds_part_of_the_prompt() -> None:
    """The first step of `generate` reads the rest of the prompt only."""
    model, prompt = build("llama"), INPUTS["input_ids"][1:]
    outs = []
    for write in (model.generate, partial(FREE.generate, model)):
        cache = DynamicCache()
        model(prompt[:, :2], **{cache_name(model): cache})
        outs.append(write(inputs=prompt, **{cache_name(model): cache}, **{**STATES, "do_sample": False}))
    for field in ("hidden_states", "attentions"):
        for layers, expected in zip(outs[1][field], outs[0][field], strict=True):
            for layer, expected_layer in zip(layers, expected, strict=True):
                torch.testing.assert_close(layer, expected_layer, atol=1e-4, rtol=0)


def test_a_streamer_and_an_applied_sampler() -> None:
    model = build("llama")
    torch.manual_seed(0)
    expected, cache = PICKY.generate(model, **INPUTS, max_new_tokens=9, do_sample=True, return_cache=True)
    torch.manual_seed(0)
    with applied_to(model, PICKY):
        ids, other = model.generate(**INPUTS, max_new_tokens=9, do_sample=True, return_cache=True)
    assert torch.equal(ids, expected)
    assert_equal(cache, other)


TEXT = {"input_ids": INPUTS["input_ids"][1:]}
EMBEDS = {"inputs_embeds": torch.zeros((1, 3, 32))}
CACHE = {"return_cache": True, "max_new_tokens": 3}


@pytest.mark.parametrize(
    ("family", "options", "match"),
    [
        (
            "llama",
            {"names_filter": "lm_head"},
            "names_filter is for the returned cache: pass return_cache=True too, or",
        ),
        (
            "llama",
            {"device": "cpu"},
            "device is for the returned cache: pass return_cache=True too, or leave device out",
        ),
        (
            "llama",
            {**CACHE, "names_filter": "lm_haed"},
            "the model has no module 'lm_haed'; near names are 'lm_head', ",
        ),
        ("llama", {**CACHE, "names_filter": "model.layers.0.self_attn.pattern"}, 'with attn_implementation="eager"$'),
        ("llama", STATES, "output_attentions is set, and attn_implementation='sdpa' computes no attention pattern"),
        ("mamba", STATES, "MambaForCausalLM has no attention: leave output_attentions out"),
    ],
)
def test_what_can_t_be_returned_is_refused_before_the_model_runs(
    family: str, options: dict[str, Any], match: str
) -> None:
    model = build(family, attention="sdpa") if family == "llama" else build(family)
    with counted_calls(model) as calls, pytest.raises(ValueError, match=match):
        FREE.generate(model, **TEXT, **options)
    assert not calls


@pytest.mark.parametrize("options", [CACHE, HIDDEN])
@pytest.mark.parametrize(
    ("family", "inputs", "match"),
    [
        ("llama", EMBEDS, r"run_with_cache\(model, None, inputs_embeds=…\) with the embeddings of the whole text$"),
        ("qwen2-vl", families.prepare("qwen2-vl", [3]), r"images or sounds are passed, too: .*\(model, sequences, …\)"),
        ("gpt2", {**TEXT, "token_type_ids": torch.zeros((1, PROMPT), dtype=torch.long)}, "token_type_ids is passed"),
        ("llama", {**TEXT, "position_ids": torch.arange(5, 5 + PROMPT)[None]}, "position_ids is passed, too: leave "),
        ("t5", TEXT, r"run_with_cache\(model, input_ids, decoder_input_ids=sequences\) with the generated sequences"),
    ],
)
def test_a_text_of_more_than_ids_is_refused_before_a_token_is_drawn(
    family: str, inputs: dict[str, Tensor], options: dict[str, Any], match: str
) -> None:
    model = families.build(family)
    name = "return_cache" if "return_cache" in options else "output_hidden_states"
    with counted_calls(model) as calls, pytest.raises(NotImplementedError, match=f"^{name} .*{match}"):
        FREE.generate(model, **inputs, **options)
    assert not calls


@pytest.mark.parametrize("options", [CACHE, HIDDEN, STATES])
@pytest.mark.parametrize(("family", "encoder"), [("t5", "encoder"), ("qwen2-vl", "model.visual")])
def test_no_encoder_runs_before_a_call_is_refused(family: str, encoder: str, options: dict[str, Any]) -> None:
    model = families.build(family)
    with counted_calls(model.get_submodule(encoder)) as calls, pytest.raises(NotImplementedError):
        FREE.generate(model, **families.prepare(family, [3, 4]), **options)
    assert not calls


def test_ids_that_only_a_cache_knows_are_refused() -> None:
    model, cache = build("llama"), DynamicCache()
    model(TEXT["input_ids"], **{cache_name(model): cache})
    mask = torch.ones((1, PROMPT + 2))
    with pytest.raises(NotImplementedError, match="those of the tokens in the cache are not passed"):
        FREE.generate(model, torch.tensor([[3, 4]]), attention_mask=mask, **{cache_name(model): cache}, **HIDDEN)


def test_methods_that_return_no_output_refuse_what_it_would_contain() -> None:
    model = build("llama")
    for call in (FREE.stream, FREE.events):
        refused("stream returns no scores, states or attentions: leave output_hidden", call, model, **TEXT, **HIDDEN)
        refused(r"only generate returns a cache: .* leave return_cache out", call, model, **TEXT, **CACHE)
    refused("only generate returns a cache", lambda: list(FREE.generate_many(model, ["ab"], **CACHE)))
    refused("can't return a cache for a custom_generate", model.generate, **TEXT, custom_generate=FREE, **CACHE)

"""Relevance is captum's, from one forward pass of the model as it is, which is left as it was."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel, set_seed

from antislop import AntiSlop, Ban
from antislop.errors import InputError
from antislop.explain import ForwardResult
from antislop.explain.relevance import attribute
from tests.support.families import build, prepare
from tests.support.models import VOCABULARY, build_model, build_tokenizer

attr = pytest.importorskip("captum.attr", reason="captum is not installed: relevance is not tested")

TOKENIZER = build_tokenizer()
TEXT = [5, 6, 7, 8, 21, 3, 9, 9, 14, 40, 12, 33, 2, 18]
METHODS: tuple[Any, ...] = ("input_x_gradient", "integrated_gradients")


@pytest.fixture(scope="module")
def llama() -> PreTrainedModel:
    return build_model("llama")


def run(model: PreTrainedModel, inputs: Tensor | None = None, **options: Any) -> ForwardResult:
    set_seed(0)
    sampler = AntiSlop(TOKENIZER, [Ban(letters, edges="anywhere") for letters in ("a", "be", "cc", "f")])
    inputs = torch.tensor([TEXT[:4]]) if inputs is None and "inputs_embeds" not in options else inputs
    asked = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": True, "temperature": 2.0, "pad_token_id": 0}
    return sampler.forward_pass(model, inputs, **{**asked, **options})


@contextmanager
def counted_passes(model: PreTrainedModel) -> Iterator[list[str]]:
    """Note the forward passes of a model, and the backward passes through its last module."""
    passes: list[str] = []
    hooks = [
        model.register_forward_pre_hook(lambda *_: passes.append("forward")),
        model.get_output_embeddings().register_full_backward_pre_hook(lambda *_: passes.append("backward")),
    ]
    try:
        yield passes
    finally:
        for hook in hooks:
            hook.remove()


def test_three_tokens_take_one_forward_pass_and_three_backward_passes(llama: PreTrainedModel) -> None:
    forward = run(llama)
    with counted_passes(llama) as passes:
        forward.relevance_pass()
        assert not passes
        forward.relevance_pass([0, 4, 9], relevance="input_x_gradient")
        assert passes == ["forward", *["backward"] * 3]
        passes.clear()
        forward.relevance_pass([9, 0, 9, -3], relevance="input_x_gradient")
        assert passes == ["forward", *["backward"] * 2]
        passes.clear()
        assert forward.relevance_pass([], relevance="input_x_gradient") == []
        assert not passes


def ask_captum(model: PreTrainedModel, tokens: list[int], place: int) -> Tensor:
    """Return what captum's own class for a layer attributes to each token before a place, [tokens]."""
    method = attr.LayerGradientXActivation(
        lambda ids: model(ids, use_cache=False).logits[:, place - 1], model.get_input_embeddings()
    )
    numbers: Tensor = method.attribute(torch.tensor([tokens]), target=tokens[place]).sum(dim=-1)[0, :place]
    return numbers


FAMILIES = ("llama", "gemma3", "gpt2", "opt", "bloom", "gpt-neox", "mixtral", "deepseek-v3", "mamba", "bamba")


@pytest.mark.parametrize("family", FAMILIES)
def test_it_equals_captum_on_the_same_ids(family: str) -> None:
    model = build(family).requires_grad_(True)
    numbers = attribute(model, TEXT, [1, 7, 13], method="input_x_gradient")
    for place, values in numbers.items():
        expected = ask_captum(model, TEXT, place)
        scale = float(expected.detach().abs().max())
        assert scale > 0
        assert torch.allclose(torch.tensor(values), expected, rtol=0, atol=1e-5 * scale)


def test_the_tokens_of_a_text_are_explained_as_captum_would(llama: PreTrainedModel) -> None:
    llama = build_model("llama").requires_grad_(True)
    forward = run(llama)
    sequence = forward.complete_sequence[0].tolist()
    for explanation in forward.relevance_pass([0, 4, 9], relevance="input_x_gradient"):
        assert explanation["relevance"] is not None
        place = 4 + explanation["token_index"]
        assert sequence[place] == explanation["token_id"]
        expected = ask_captum(llama, sequence, place)
        assert torch.allclose(torch.tensor(explanation["relevance"]), expected, rtol=0, atol=1e-5)


class Nothing(nn.Module):
    """In the place of a layer's MLP."""

    def forward(self, states: Tensor) -> Tensor:
        return torch.zeros_like(states)


def build_linear_model() -> PreTrainedModel:
    """A model whose logits are linear in its embeddings: attention with equal weights, neither norms nor MLPs."""
    torch.manual_seed(0)
    ids = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    config = GPT2Config(vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=2, n_positions=64, **ids)
    model = GPT2LMHeadModel(config).double().eval()
    for block in model.transformer.h:
        block.ln_1 = block.ln_2 = nn.Identity()
        block.mlp = Nothing()
        with torch.no_grad():
            block.attn.c_attn.weight[:, :32] = 0  # queries and keys
            block.attn.c_attn.weight[:, 32:] *= 20
    model.transformer.ln_f = nn.Identity()
    return model


def leave_out(model: PreTrainedModel, tokens: list[int], place: int) -> list[float]:
    """Return by how much a token's logit falls if the embedding of one earlier token is zero, for each of them."""

    def read(left_out: int | None) -> float:
        def erase(_module: nn.Module, _arguments: Any, output: Tensor) -> Tensor:
            output = output.clone()
            if left_out is not None:
                output[:, left_out] = 0
            return output

        with model.get_input_embeddings().register_forward_hook(erase), torch.no_grad():
            return float(model(torch.tensor([tokens]), use_cache=False).logits[0, place - 1, tokens[place]])

    return [read(None) - read(i) for i in range(place)]


@pytest.mark.parametrize("method", METHODS)
def test_in_a_linear_model_it_is_what_leaving_a_token_out_takes_away(method: Any) -> None:
    model = build_linear_model()
    forward = run(model)
    sequence = forward.complete_sequence[0].tolist()
    for explanation in forward.relevance_pass([0, 4, 9], relevance=method):
        expected = leave_out(model, sequence, 4 + explanation["token_index"])
        assert explanation["relevance"] == pytest.approx(expected, rel=1e-6 if "int" in method else 1e-10, abs=1e-12)
        assert max(map(abs, expected)) > 1e-4


def test_integrated_gradients_add_up_to_the_logit_less_that_of_no_embeddings() -> None:
    model = build_model("gpt2")
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight /= 8  # as smooth as a model is at the start of its training
    numbers = attribute(model, TEXT, [3, 13], method="integrated_gradients")
    for place, values in numbers.items():
        with torch.no_grad():
            full = model(torch.tensor([TEXT])).logits[0, place - 1, TEXT[place]]
            with model.get_input_embeddings().register_forward_hook(lambda *a: torch.zeros_like(a[2])):
                empty = model(torch.tensor([TEXT])).logits[0, place - 1, TEXT[place]]
        assert len(values) == place
        assert sum(values) == pytest.approx(float(full - empty), abs=1e-3)
        assert abs(float(full - empty)) > 0.02


@pytest.mark.parametrize("method", METHODS)
def test_the_model_is_left_as_it_was(method: Any) -> None:
    model = build_model("llama").requires_grad_(True).train()
    model.lm_head.eval()
    model.model.norm.weight.requires_grad_(False)
    model.model.embed_tokens.weight.grad = torch.ones_like(model.model.embed_tokens.weight)

    def describe() -> list[Any]:
        modules = [
            (module.training, len(module._forward_hooks), len(module._backward_hooks)) for module in model.modules()
        ]
        grads = [None if p.grad is None else float(p.grad.sum()) for p in model.parameters()]
        return [
            modules,
            grads,
            [p.requires_grad for p in model.parameters()],
            [float(p.detach().sum()) for p in model.parameters()],
        ]

    before = describe()
    values = attribute(model, TEXT, [3, 9], method=method)
    assert describe() == before
    with torch.inference_mode():
        assert attribute(model, TEXT, [3, 9], method=method) == values
    with torch.no_grad():
        assert attribute(model, TEXT, [3, 9], method=method) == values

    def fail(*_: Any) -> None:
        raise OSError("the layer is gone")

    with model.model.layers[1].register_forward_pre_hook(fail), pytest.raises(OSError, match="the layer is gone"):
        attribute(model, TEXT, [3], method=method)
    assert describe() == before


def test_a_model_that_was_loaded_without_gradients_is_refused() -> None:
    with torch.inference_mode():
        model = build_model("llama")
    with counted_passes(model) as passes, pytest.raises(InputError, match=r"loaded within torch\.inference_mode"):
        attribute(model, TEXT, [3], method="input_x_gradient")
    assert not passes


def test_half_precision_gives_numbers_of_the_same_size() -> None:
    model = build_model("llama")
    exact = attribute(model, TEXT, [9], method="input_x_gradient")[9]
    rounded = attribute(build_model("llama", dtype=torch.bfloat16), TEXT, [9], method="input_x_gradient")[9]
    assert torch.corrcoef(torch.tensor([exact, rounded]))[0, 1] > 0.95


def test_captum_is_named_if_it_is_missing(llama: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = run(llama)
    monkeypatch.setitem(sys.modules, "captum", None)
    with counted_passes(llama) as passes:
        with pytest.raises(InputError, match=r"pip install 'antislop-lm\[explain\]'"):
            forward.relevance_pass([0], relevance="input_x_gradient")
        assert len(forward.relevance_pass([0])) == 1
    assert not passes


@pytest.mark.parametrize("family", ["t5", "qwen2-vl"])
def test_texts_that_depend_on_more_than_their_ids_have_shares_and_no_relevance(family: str) -> None:
    model = build(family)
    inputs = prepare(family, TEXT[:4])
    forward = run(model, inputs.pop("input_ids"), **inputs)
    refuse_relevance(forward, model)


def test_texts_after_embeddings_have_shares_and_no_relevance(llama: PreTrainedModel) -> None:
    embeddings = llama.get_input_embeddings()(torch.tensor([TEXT[:4]]))
    forward = run(llama, inputs_embeds=embeddings, attention_mask=torch.ones(1, 4, dtype=torch.long))
    assert forward.complete_sequence.shape == forward.generated_token_ids.shape == (1, 12)
    refuse_relevance(forward, llama)


def refuse_relevance(forward: ForwardResult, model: PreTrainedModel) -> None:
    explanations = forward.relevance_pass()
    assert [e["token_id"] for e in explanations] == forward.generated_token_ids[0].tolist()
    with counted_passes(model) as passes:
        for method in METHODS:
            with pytest.raises(NotImplementedError, match=r"antislop\.explain\.run_with_cache\(model, "):
                forward.relevance_pass([0], relevance=method)
    assert not passes


def test_a_model_with_images_that_are_not_passed_has_relevance() -> None:
    forward = run(build("qwen2-vl"))
    assert len(forward.relevance_pass([3], relevance="input_x_gradient")[0]["relevance"] or []) == 7


def test_a_model_that_reads_ids_in_another_way_is_refused(
    llama: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llama, "get_input_embeddings", lambda: nn.Embedding(VOCABULARY, 32))
    with pytest.raises(NotImplementedError, match="does not read a text once through its input embeddings"):
        attribute(llama, TEXT, [3], method="input_x_gradient")


def test_only_the_logits_that_are_asked_for_are_computed(
    llama: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes: list[torch.Size] = []
    with llama.lm_head.register_forward_hook(lambda *a: shapes.append(a[2].shape)):
        numbers = attribute(llama, TEXT, [3, 9], method="input_x_gradient")
        attribute(llama, TEXT, [9], method="integrated_gradients")
        assert shapes == [(1, 2, VOCABULARY), (50, 1, VOCABULARY)]
        monkeypatch.setattr("antislop.explain.relevance.input_names", lambda _: {})
        assert attribute(llama, TEXT, [3, 9], method="input_x_gradient") == {
            place: pytest.approx(values, rel=1e-4, abs=1e-7) for place, values in numbers.items()
        }
        assert shapes[2:] == [(1, 9, VOCABULARY)]


def test_another_thread_reads_its_own_text_meanwhile(llama: PreTrainedModel) -> None:
    other, expected = torch.tensor([[9, 8, 7]]), attribute(llama, TEXT, [9], method="input_x_gradient")
    logits: list[Tensor] = []

    def read() -> None:
        with torch.no_grad():
            logits.append(llama(other, use_cache=False).logits)

    def read_in_a_thread(*_: Any) -> None:
        if not logits:
            logits.append(torch.empty(0))
            thread = Thread(target=read)
            thread.start()
            thread.join()

    with llama.model.layers[0].register_forward_pre_hook(read_in_a_thread):
        assert attribute(llama, TEXT, [9], method="input_x_gradient") == expected
    assert torch.equal(logits[1], llama(other, use_cache=False).logits)


def test_the_steps_of_a_long_text_are_read_in_several_passes(
    llama: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = attribute(llama, TEXT, [13], method="integrated_gradients")[13]
    monkeypatch.setattr("antislop.explain.relevance.PASS", 4 * 13)
    with counted_passes(llama) as passes:
        parts = attribute(llama, TEXT, [13], method="integrated_gradients")[13]
        assert passes == ["forward", "backward"] * 13
    assert parts == pytest.approx(whole, rel=1e-3, abs=1e-6)

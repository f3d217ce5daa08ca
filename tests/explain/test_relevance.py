"""Relevance is input × gradient, from one forward pass of the model as it is, which is left as it was."""

from __future__ import annotations

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
from antislop.explain.activations import attribute
from tests.support.families import build, prepare
from tests.support.models import VOCABULARY, build_model, build_tokenizer

TOKENIZER = build_tokenizer()
TEXT = [5, 6, 7, 8, 21, 3, 9, 9, 14, 40, 12, 33, 2, 18]


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


def grow_embeddings(model: PreTrainedModel, tokens: list[int], place: int) -> list[float]:
    """Return how fast the logit of the token at a place grows with the size of each earlier token's embedding."""
    sizes = torch.ones(len(tokens), requires_grad=True)
    with model.get_input_embeddings().register_forward_hook(lambda *a: a[2] * sizes[:, None]):
        logits = model(torch.tensor([tokens]), use_cache=False).logits
    (rates,) = torch.autograd.grad(logits[0, place - 1, tokens[place]], sizes)
    assert rates[:place].abs().max() > 0
    return rates[:place].tolist()


FAMILIES = ("llama", "gemma3", "gpt2", "opt", "bloom", "gpt-neox", "mixtral", "deepseek-v3", "mamba", "bamba")


@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_how_fast_the_logit_grows_with_each_embedding(family: str) -> None:
    model = build(family).requires_grad_(True)
    for place, values in attribute(model, TEXT, [1, 7, 13]).items():
        expected = grow_embeddings(model, TEXT, place)
        assert values == pytest.approx(expected, rel=0, abs=1e-5 * max(map(abs, expected)))


def test_the_tokens_of_a_text_are_explained_in_their_places() -> None:
    llama = build_model("llama").requires_grad_(True)
    forward = run(llama)
    sequence = forward.complete_sequence[0].tolist()
    for explanation in forward.relevance_pass([0, 4, 9], relevance="input_x_gradient"):
        place = 4 + explanation["token_index"]
        assert sequence[place] == explanation["token_id"]
        assert explanation["relevance"] == pytest.approx(grow_embeddings(llama, sequence, place), rel=0, abs=1e-5)


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


def test_in_a_linear_model_it_is_what_leaving_a_token_out_takes_away() -> None:
    model = build_linear_model()
    forward = run(model)
    sequence = forward.complete_sequence[0].tolist()
    for explanation in forward.relevance_pass([0, 4, 9], relevance="input_x_gradient"):
        expected = leave_out(model, sequence, 4 + explanation["token_index"])
        assert explanation["relevance"] == pytest.approx(expected, rel=1e-10, abs=1e-12)
        assert max(map(abs, expected)) > 1e-4


def test_the_model_is_left_as_it_was() -> None:
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
    values = attribute(model, TEXT, [3, 9])
    assert describe() == before
    with torch.inference_mode():
        assert attribute(model, TEXT, [3, 9]) == values
    with torch.no_grad():
        assert attribute(model, TEXT, [3, 9]) == values

    def fail(*_: Any) -> None:
        raise OSError("the layer is gone")

    with model.model.layers[1].register_forward_pre_hook(fail), pytest.raises(OSError, match="the layer is gone"):
        attribute(model, TEXT, [3])
    assert describe() == before


def test_a_model_that_was_loaded_without_gradients_is_refused() -> None:
    with torch.inference_mode():
        model = build_model("llama")
    with counted_passes(model) as passes, pytest.raises(InputError, match=r"loaded within torch\.inference_mode"):
        attribute(model, TEXT, [3])
    assert not passes


def test_half_precision_gives_numbers_of_the_same_size() -> None:
    model = build_model("llama")
    exact = attribute(model, TEXT, [9])[9]
    rounded = attribute(build_model("llama", dtype=torch.bfloat16), TEXT, [9])[9]
    assert torch.corrcoef(torch.tensor([exact, rounded]))[0, 1] > 0.95


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
    refused = pytest.raises(NotImplementedError, match=r"antislop\.explain\.run_with_cache\(model, ")
    with counted_passes(model) as passes, refused:
        forward.relevance_pass([0], relevance="input_x_gradient")
    assert not passes


def test_a_model_with_images_that_are_not_passed_has_relevance() -> None:
    forward = run(build("qwen2-vl"))
    assert len(forward.relevance_pass([3], relevance="input_x_gradient")[0]["relevance"] or []) == 7


def test_a_model_that_reads_ids_in_another_way_is_refused(
    llama: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llama, "get_input_embeddings", lambda: nn.Embedding(VOCABULARY, 32))
    with pytest.raises(NotImplementedError, match="does not read a text once through its input embeddings"):
        attribute(llama, TEXT, [3])


def test_only_the_logits_that_are_asked_for_are_computed(
    llama: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes: list[torch.Size] = []
    with llama.lm_head.register_forward_hook(lambda *a: shapes.append(a[2].shape)):
        numbers = attribute(llama, TEXT, [3, 9])
        assert shapes == [(1, 2, VOCABULARY)]
        monkeypatch.setattr("antislop.explain.activations.input_names", lambda _: {})
        assert attribute(llama, TEXT, [3, 9]) == {
            place: pytest.approx(values, rel=1e-4, abs=1e-7) for place, values in numbers.items()
        }
        assert shapes[1:] == [(1, 9, VOCABULARY)]


def test_another_thread_reads_its_own_text_meanwhile(llama: PreTrainedModel) -> None:
    other, expected = torch.tensor([[9, 8, 7]]), attribute(llama, TEXT, [9])
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
        assert attribute(llama, TEXT, [9]) == expected
    assert torch.equal(logits[1], llama(other, use_cache=False).logits)

"""A paged run borrows a model's tensors and nothing else: what is called beside it writes its own texts.

And what continuous batching can't compute is refused before the first text.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial, update_wrapper
from threading import Thread
from types import MethodType
from typing import Any

import pytest
import torch
from torch import nn
from transformers import ContinuousBatchingConfig, GenerationConfig, PreTrainedConfig, PreTrainedModel

from antislop import AntiSlop, applied_to
from antislop.core.hf.paged import private
from antislop.errors import InputError
from tests.support.batches import COMMON, NO_END, PROMPTS, pad
from tests.support.depth import DEPTH, first_quick
from tests.support.families import FAMILIES, NAMED, REFUSED, UNKNOWN_LAYERS, build, build_refused
from tests.support.models import build_model, build_tokenizer

SAMPLER = AntiSlop(build_tokenizer(), COMMON)
ASKED: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False, **NO_END}
CONFIG = ContinuousBatchingConfig(page_size=4, num_blocks=64, max_batch_tokens=64)


def list_fields(model: PreTrainedModel) -> dict[str, Any]:
    """Return all that a model and its modules hold: configurations by their fields, other objects by identity."""
    fields: dict[str, Any] = {}
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if name == "rope_deltas":  # which `generate` sets by itself
                continue
            plain = vars(value) if isinstance(value, (PreTrainedConfig, GenerationConfig)) else value
            if isinstance(plain, dict):
                fields |= {f"{path}.{name}.{key}": each for key, each in plain.items()}
            fields[f"{path}.{name}"] = [*plain] if isinstance(plain, dict) else plain
    return {
        name: value if isinstance(value, (bool, int, float, str, list, tuple)) else (id(value), str(value)[:200])
        for name, value in fields.items()
    }


def write_many(model: PreTrainedModel) -> Iterator[Any]:
    return SAMPLER.generate_many(model, [*PROMPTS] * 2, batch_size=2, engine="paged", **ASKED)


def write_batch(model: PreTrainedModel) -> list[list[int]]:
    config = GenerationConfig(max_new_tokens=8, do_sample=False, eos_token_id=1, suppress_tokens=[0, 1])
    with applied_to(model, SAMPLER):
        outputs = model.generate_batch(
            [*map(list, PROMPTS)], generation_config=config, continuous_batching_config=CONFIG
        )
    return [output.generated_tokens for output in outputs.values()]


def write_plain(model: PreTrainedModel) -> list[list[int]]:
    return model.generate(**pad(PROMPTS), **ASKED).tolist()  # type: ignore[no-any-return]


def write_banned(model: PreTrainedModel) -> list[list[int]]:
    return SAMPLER.generate(model, **pad(PROMPTS), **ASKED).tolist()  # type: ignore[no-any-return]


def run_all(model: PreTrainedModel) -> list[list[int]]:
    return [text.tokens for text in sorted(write_many(model), key=lambda text: text.number)]


BESIDE = {"plain": write_plain, "banned": write_banned, "paged": run_all, "batch": write_batch}


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_whatever_is_done_beside_open_runs_the_model_is_as_it_was(attention: str) -> None:
    """Runs are opened, stepped, closed, dropped and stopped by errors in any order, in between and in other threads."""
    model, rng = build_model(), random.Random(attention)
    model.set_attn_implementation(attention)
    expected = {name: write(model) for name, write in BESIDE.items()}
    fields = list_fields(model)
    opened: list[Any] = []

    def call(name: str) -> None:
        if BESIDE[name](model) != expected[name]:
            failed.append(name)

    for _ in range(12 * DEPTH):
        failed: list[str] = []
        action = rng.choice(["open", "open", "step", "close", "drop", "throw", "call", "thread"])
        name = rng.choice([*BESIDE])
        if action == "open" and len(opened) < 3:
            opened.append(write_many(model))
            next(opened[-1])
        elif action == "call":
            call(name)
        elif action == "thread":
            other = rng.choice(["banned", "paged"])  # inside `applied_to`, a plain call of any thread obeys
            threads = [Thread(target=call, args=(each,)) for each in (name, other)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        elif opened:
            run = opened.pop(rng.randrange(len(opened)))
            if action == "step" and next(run, None) is not None:
                opened.append(run)
            elif action == "close":
                run.close()
            elif action == "throw":
                with suppress(ZeroDivisionError):
                    run.throw(ZeroDivisionError)
            del run
        assert failed == []
        assert list_fields(model) == fields, action
    for run in opened:
        run.close()
    assert list_fields(model) == fields


@pytest.mark.parametrize("attention", first_quick(["sdpa", "eager"]))
@pytest.mark.parametrize("write", [run_all, write_batch])
def test_a_call_in_the_midst_of_a_pass_writes_its_own_text(
    attention: str, write: Callable[[PreTrainedModel], list[list[int]]]
) -> None:
    """The worst moment, each time: between two layers of a pass of the paged run."""
    model = build_model()
    model.set_attn_implementation(attention)
    beside = write_banned if write is write_batch else write_plain  # inside `applied_to`, a plain call obeys
    expected, paged, fields = beside(model), write(model), list_fields(model)
    texts: list[list[list[int]]] = []

    def interrupt(module: nn.Module, *_: object) -> None:
        if module is not model.model.layers[0] and len(texts) < 3:
            texts.append([])
            texts[-1] = write_plain(model)

    handle = model.model.layers[0].register_forward_hook(interrupt)
    try:
        assert write(model) == paged
    finally:
        handle.remove()
    assert texts == [expected] * 3
    assert list_fields(model) == fields


def test_a_kept_manager_takes_each_session_and_pause_from_the_model_as_it_is_then() -> None:
    """As when an adapter is chosen in a pause, or another one between two calls."""
    model, config = build_model(), GenerationConfig(max_new_tokens=4, do_sample=False, suppress_tokens=[0, 1])
    head, fields = model.lm_head, list_fields(model)
    other = nn.Linear(32, 48, bias=False)
    asked = {"continuous_batching_config": CONFIG, "persistent_manager": True}

    def draw_first() -> int:
        with model.continuous_batching_context_manager(config, **asked) as manager:
            manager.add_request([*PROMPTS[0]])
            return next(iter(manager)).generated_tokens[0]

    first = draw_first()  # which keeps a manager of the model itself
    with applied_to(model, AntiSlop(build_tokenizer(), ["zz zz"])):
        kept = draw_first()
        assert kept == first
        with model.continuous_batching_context_manager(config, **asked) as manager:
            with manager.pause():
                model.lm_head = other
            manager.add_request([*PROMPTS[0]])
            changed = next(iter(manager)).generated_tokens[0]
        assert changed == int(model(torch.tensor([PROMPTS[0]])).logits[0, -1, 2:].argmax()) + 2 != kept
    assert draw_first() == changed
    model.lm_head = head
    assert draw_first() == kept
    model.destroy_cached_continuous_batching_manager()
    assert list_fields(model) == fields


def patch(model: PreTrainedModel) -> None:
    """Replace methods of modules as other packages do: under another name, and by a partial function."""

    def forward_twice(self: nn.Module, states: torch.Tensor) -> torch.Tensor:
        return 2 * type(self).forward(self, states)

    def call(module: nn.Module, *args: Any) -> Any:
        return type(module).forward(module, *args)

    first, second = model.model.layers[0].mlp, model.model.layers[1].mlp
    first.forward = MethodType(forward_twice, first)
    second.forward = update_wrapper(partial(call, second), second.forward)


@pytest.mark.parametrize("family", first_quick([*FAMILIES], 4))
def test_a_twin_computes_the_same_with_the_same_tensors_and_shares_no_module(family: str) -> None:
    model, ids = build(family), torch.tensor([[25, 31, 28, 27]])
    inputs = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    if family == "llama":
        patch(model)
    twin = private.twin_of(model)
    with torch.no_grad():
        assert torch.equal(twin(ids, **inputs).logits, model(ids, **inputs).logits)
    tensors, others = ([*each.named_parameters(), *each.named_buffers()] for each in (model, twin))
    assert [name for name, _ in tensors] == [name for name, _ in others]
    assert all(one is other for (_, one), (_, other) in zip(tensors, others, strict=True))
    assert not {*map(id, model.modules())} & {*map(id, twin.modules())}
    configs = [{id(getattr(module, "config", module)) for module in each.modules()} for each in (model, twin)]
    assert not configs[0] & configs[1]
    if family == "llama":
        assert twin.model.layers[0].mlp.forward.__self__ is twin.model.layers[0].mlp
        assert twin.model.layers[1].mlp.forward.args == (twin.model.layers[1].mlp,)


def run_twin(twin: PreTrainedModel) -> Any:
    config = ContinuousBatchingConfig(num_blocks=8, max_batch_tokens=64, use_async_batching=False, use_cuda_graph=False)
    return private.ContinuousBatchingManager(twin, private.ENDLESS, config)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("family", first_quick(["llama", "gemma3", "mistral", "gpt2", "qwen3-moe", "gpt-oss"], 4))
def test_rounding_errors_are_not_taken_for_other_texts(family: str, dtype: torch.dtype) -> None:
    private.make_manager(build(family).to(dtype), run_twin)


def shift(twin: PreTrainedModel) -> None:
    rotary = twin.model.rotary_emb
    rotary.forward = lambda states, position_ids: type(rotary).forward(rotary, states, position_ids * 1.01)


def scale(twin: PreTrainedModel) -> None:
    twin.lm_head.weight = nn.Parameter(twin.lm_head.weight * 1.001)


def look_ahead(twin: PreTrainedModel) -> None:
    for layer in twin.model.layers:
        attend = layer.self_attn.forward
        layer.self_attn.forward = lambda *args, attention_mask, attend=attend, **kwargs: attend(
            *args, attention_mask=None, **kwargs
        )


def crash(twin: PreTrainedModel) -> None:
    twin.model.norm.forward = lambda: None


@pytest.mark.parametrize("change", [shift, scale, look_ahead, crash])
def test_other_probabilities_and_failing_passes_are_refused_before_a_text(
    change: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen are logits that are off by a thousandth, and positions by a hundredth."""
    model, read = build_model(), private._read

    def read_changed(twin: Any, *args: Any) -> Any:
        change(twin)
        return read(twin, *args)

    monkeypatch.setattr(private, "_read", read_changed)
    reason = "TypeError: .*" if change is crash else "ArithmeticError: its probabilities would be others"
    sentence = rf"can't run LlamaForCausalLM \({reason}\): call generate, or generate_many without an engine"
    for _ in range(2):  # a refused model is tried again
        with pytest.raises(InputError, match=sentence):
            private.make_manager(model, run_twin)


EVERY = [*FAMILIES, *NAMED, *REFUSED, *UNKNOWN_LAYERS]


@pytest.mark.parametrize("family", first_quick(EVERY, 3))
@pytest.mark.parametrize("write", [run_all, write_batch])
def test_each_family_writes_its_own_texts_or_is_refused(
    family: str, write: Callable[[PreTrainedModel], list[list[int]]]
) -> None:
    model = (build if family in (*FAMILIES, *NAMED) else build_refused)(family)
    fields = list_fields(model)
    try:
        texts = write(model)
    except InputError as error:
        assert "\n" not in str(error)  # noqa: PT017 - a family is refused or not
    else:
        own = SAMPLER.generate_many(model, [*PROMPTS], batch_size=2, **ASKED)
        expected = [text.tokens for text in sorted(own, key=lambda text: text.number)]
        assert texts == (expected * 2)[: len(texts)]
    assert list_fields(model) == fields

"""A cache of the caller is taken over at the first forward pass, and returned however a call ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache, LogitsProcessor, PreTrainedModel, StaticCache, set_seed
from transformers.generation.streamers import BaseStreamer

from antislop import AntiSlop, Ban, Exhausted
from antislop.core.hf.private import CACHE, cache_name
from antislop.core.trace.events import Rewound
from tests.support.depth import first_quick
from tests.support.families import build
from tests.support.models import build_tokenizer

TOKENIZER = build_tokenizer()
OFTEN = [Ban(a + b, edges="anywhere") for a in "acegi" for b in "bdfhj"]
SAMPLER = AntiSlop(TOKENIZER, OFTEN)
READ = torch.tensor([[4, 8, 3, 30, 22, 9, 11, 2, 6, 13, 40, 7, 19, 5, 16, 3, 8]])
PROMPT = torch.cat([READ, torch.tensor([[21, 3, 9]])], dim=1)
SETTINGS: dict[str, Any] = {"max_new_tokens": 30, "do_sample": True, "suppress_tokens": [0, 1]}
FAMILIES = ("llama", "mistral", "gemma3", "gpt-oss", "mamba", "qwen3-next", "falcon-h1", "lfm2")


def begun(model: PreTrainedModel, *, rows: int = 1, static: bool = False) -> Any:
    """Return a cache that contains the first tokens of the prompt."""
    cache = StaticCache(config=model.config, max_cache_len=80) if static else DynamicCache(config=model.config)
    with torch.no_grad():
        model(READ.repeat(rows, 1), use_cache=True, **{cache_name(model): cache})
    return cache


def states_of(cache: Any) -> list[Tensor]:
    """Return all tensors of a cache, layer by layer."""
    states: list[Any] = []
    for layer in cache.layers:
        states += [getattr(layer, "keys", None), getattr(layer, "values", None)]
        for by_name in (getattr(layer, "conv_states", {}), getattr(layer, "recurrent_states", {})):
            states += by_name.values()
        states.append(torch.tensor(int(layer.get_seq_length())) if hasattr(layer, "get_seq_length") else None)
    return [state for state in states if isinstance(state, Tensor)]


def is_as_it_was(cache: Any, before: Any) -> bool:
    return (
        [type(layer) for layer in cache.layers] == [type(layer) for layer in before.layers]
        and len(states_of(cache)) == len(states_of(before))
        and all(map(torch.equal, states_of(cache), states_of(before)))
    )


class Failing(LogitsProcessor):
    """A processor that raises at a text of `length` tokens, including its prompt."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if input_ids.shape[1] >= self.length:
            raise RuntimeError("no")
        return scores


class FailingStreamer(BaseStreamer):
    def put(self, value: Tensor) -> None:
        if value.numel() == 1:
            raise RuntimeError("no")

    def end(self) -> None:
        pass


def prompt_for(model: PreTrainedModel) -> Tensor:
    """Return the prompt, or what a cache of recurrent states alone, which can't tell its length, has not read."""
    return PROMPT[:, READ.shape[1] :] if model.config.model_type == "mamba" else PROMPT


def never_begin(model: PreTrainedModel, **kwargs: Any) -> None:
    SAMPLER.stream(model, prompt_for(model), **kwargs)
    SAMPLER.events(model, prompt_for(model), **kwargs)


def close_early(model: PreTrainedModel, **kwargs: Any) -> None:
    events = SAMPLER.events(model, prompt_for(model), **kwargs)
    assert any(isinstance(event, Rewound) for event in islice(events, 60))
    events.close()  # type: ignore[attr-defined]


def stop_reading(model: PreTrainedModel, **kwargs: Any) -> None:
    for _ in SAMPLER.stream(model, prompt_for(model), **kwargs):
        break


def fail_in_a_processor(model: PreTrainedModel, **kwargs: Any) -> None:
    with pytest.raises(RuntimeError, match="no"):
        SAMPLER.generate(model, prompt_for(model), logits_processor=[Failing(prompt_for(model).shape[1])], **kwargs)


def fail_in_the_streamer(model: PreTrainedModel, **kwargs: Any) -> None:
    with pytest.raises(RuntimeError, match="no"):
        SAMPLER.generate(model, prompt_for(model), streamer=FailingStreamer(), **kwargs)


def fail_in_a_forward(model: PreTrainedModel, **kwargs: Any) -> None:
    """Fail between layers, when only some of them have read the token."""
    last, calls = list(model.base_model.children())[-1], [12]

    def fail(*_: Any) -> None:
        calls[0] -= 1
        if not calls[0]:
            raise RuntimeError("no")

    handle = last.register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="no"):
        SAMPLER.generate(model, prompt_for(model), **kwargs)
    handle.remove()


def exhaust(model: PreTrainedModel, **kwargs: Any) -> None:
    everything = AntiSlop(TOKENIZER, [Ban.regex(r"[\s\S]")], on_exhausted="raise")
    with pytest.raises(Exhausted):
        everything.generate(model, prompt_for(model), **kwargs)


WAYS_OUT = (
    never_begin,
    close_early,
    stop_reading,
    fail_in_a_processor,
    fail_in_the_streamer,
    fail_in_a_forward,
    exhaust,
)


@pytest.mark.parametrize("way_out", WAYS_OUT)
@pytest.mark.parametrize("family", FAMILIES)
def test_an_interrupted_call_leaves_the_cache_as_it_was(family: str, way_out: Callable[..., None]) -> None:
    model = build(family)
    cache = begun(model)
    before = deepcopy(cache)
    set_seed(0)
    way_out(model, attention_mask=torch.ones_like(PROMPT), **SETTINGS, **{cache_name(model): cache})
    assert is_as_it_was(cache, before)


@pytest.mark.parametrize("way_out", WAYS_OUT)
def test_a_static_cache_can_be_used_after_an_interrupted_call(way_out: Callable[..., None]) -> None:
    model, mask = build("llama"), torch.ones_like(PROMPT)
    cache, other = begun(model, static=True), begun(model, static=True)
    way_out(model, attention_mask=mask, **{CACHE: cache}, **SETTINGS)
    texts = [
        model.generate(PROMPT, attention_mask=mask, **{CACHE: cache}, max_new_tokens=9) for cache in (cache, other)
    ]
    assert torch.equal(*texts)


@pytest.mark.parametrize("way_out", WAYS_OUT)
def test_the_states_of_an_encoder_are_dropped_after_their_call(way_out: Callable[..., None]) -> None:
    """Otherwise the next call would attend to the encoder input of another call."""
    model = build("t5")
    cache = EncoderDecoderCache(DynamicCache(config=model.config), DynamicCache(config=model.config))
    way_out(model, attention_mask=torch.ones_like(PROMPT), **{CACHE: cache}, **SETTINGS)
    expected = model.generate(READ[:, 3:], max_new_tokens=9)
    assert torch.equal(model.generate(READ[:, 3:], **{CACHE: cache}, max_new_tokens=9), expected)


@pytest.mark.parametrize("family", first_quick([*FAMILIES, "static llama"], 3))
def test_rows_that_diverged_leave_the_cache_as_it_was(family: str) -> None:
    """No cache of transformers can contain such rows."""
    model = build(family.removeprefix("static "))
    cache = begun(model, rows=2, static=family.startswith("static "))
    before, prompts = deepcopy(cache), PROMPT.repeat(2, 1)
    set_seed(0)
    settings = {**SETTINGS, cache_name(model): cache, "return_dict_in_generate": True}
    new = prompt_for(model).repeat(2, 1)
    out = SAMPLER.generate(model, new, attention_mask=torch.ones_like(prompts), **settings)
    assert out.report.rewinds
    assert out.past_key_values is None
    if isinstance(cache, StaticCache):
        before, cache = (model(prompts[:, -3:], **{CACHE: cache}) for cache in (before, cache))
        assert torch.equal(before.logits, cache.logits)
    else:
        assert is_as_it_was(cache, before)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_text_continues_from_a_cache_of_every_kind(family: str) -> None:
    """Recurrent states and windows in the caller's cache are used as well, by the prompt or by its unread end."""
    model = build(family)
    mask, settings = torch.ones_like(PROMPT), {**SETTINGS, "return_dict_in_generate": True, "output_logits": True}
    set_seed(0)
    begin = {} if family == "mamba" else {"attention_mask": mask, cache_name(model): begun(model)}  # it forgets: wrong
    theirs = model.generate(PROMPT, **begin, **settings)
    for prompt in (prompt_for(model), PROMPT[:, READ.shape[1] :]):
        set_seed(0)
        cache = begun(model)
        ours = AntiSlop(TOKENIZER, []).generate(
            model, prompt, attention_mask=mask, **{cache_name(model): cache}, **settings
        )
        assert torch.equal(ours.sequences[:, prompt.shape[1] :], theirs.sequences[:, PROMPT.shape[1] :])
        if family == "mamba":  # the pass over a prompt sums in another order
            assert all(torch.allclose(*pair, atol=1e-4) for pair in zip(ours.logits, theirs.logits, strict=True))
        else:
            assert all(map(torch.equal, ours.logits, theirs.logits))
            assert is_as_it_was(cache, theirs.past_key_values)


@pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated:FutureWarning")
def test_a_cache_can_be_passed_by_the_name_that_it_had_before_transformers_5_24() -> None:
    model, cache = build("llama"), begun(build("llama"))
    SAMPLER.generate(model, PROMPT, attention_mask=torch.ones_like(PROMPT), past_key_values=cache, **SETTINGS)
    assert cache.get_seq_length() == PROMPT.shape[1] + SETTINGS["max_new_tokens"] - 1


def test_one_cache_serves_one_text_at_a_time() -> None:
    model, cache = build("llama"), DynamicCache(config=build("llama").config)
    settings = {CACHE: cache, "attention_mask": torch.ones_like(PROMPT), **SETTINGS}
    first, second = SAMPLER.stream(model, PROMPT, **settings), SAMPLER.stream(model, PROMPT, **settings)
    next(first)
    with pytest.raises(ValueError, match="another text is being written with the cache"):
        next(second)
    rest = "".join(first)
    assert rest
    assert cache.get_seq_length() == PROMPT.shape[1] + SETTINGS["max_new_tokens"] - 1


def test_a_cache_that_grew_between_the_call_and_its_beginning_is_refused() -> None:
    model, cache = build("llama"), DynamicCache(config=build("llama").config)
    text: Iterator[str] = SAMPLER.stream(
        model, PROMPT, **{CACHE: cache}, attention_mask=torch.ones_like(PROMPT), **SETTINGS
    )
    with torch.no_grad():
        model(READ, **{CACHE: cache})
    with pytest.raises(ValueError, match="was 0 when the call was prepared, and is 17 now"):
        next(text)
    assert cache.get_seq_length() == READ.shape[1]


@pytest.mark.parametrize("name", ["past_key_values", "cache_params", "cache"])
def test_prompts_in_flight_take_no_cache(name: str) -> None:
    model = build("llama")
    cache = begun(model)
    before = deepcopy(cache)
    with pytest.raises(ValueError, match=f"{name} belongs to one prompt"):
        next(SAMPLER.generate_many(model, [[3, 4]], **{name: cache}, **SETTINGS))
    assert is_as_it_was(cache, before)

"""The private names of transformers' caches work as `antislop.core.hf.private` expects."""

from __future__ import annotations

import inspect

import pytest
import torch
import transformers
from packaging.version import Version
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import (
    Cache,
    DynamicLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionLayer,
)

from antislop.core.hf.caches.choice import choose_cache
from antislop.core.hf.private import (
    CACHE,
    STATES,
    cache_name,
    copy_states,
    join_layers,
    needs_mask_with_static_cache,
    placeholder_layer,
    set_layer_factory,
    supports_dynamic_cache,
)
from tests.support.families import build, build_refused, prepare
from tests.support.models import build_model


def states(*sizes: int) -> Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(0))


def recurrent() -> LinearAttentionLayer:
    layer = LinearAttentionLayer(number_of_states=1)
    layer.update_conv_state(states(2, 4, 3))
    layer.update_recurrent_state(states(2, 4, 5))
    return layer


@pytest.mark.parametrize("family", ["llama", "mamba", "mamba2", "falcon-h1", "bamba", "t5"])
def test_models_take_their_cache_by_its_name_and_return_it_by_that_of_outputs(family: str) -> None:
    model = build(family)
    assert cache_name(model) in inspect.signature(model.forward).parameters
    out = model.generate(
        **prepare(family, [3, 4]), **{cache_name(model): None}, max_new_tokens=2, return_dict_in_generate=True
    )
    assert isinstance(out[CACHE], Cache)


def test_a_release_that_passes_the_cache_by_another_name_is_refused() -> None:
    kwargs = {"use_cache": True, "of_another_name": DynamicCache()}
    with pytest.raises(ValueError, match=f"this release of transformers passes no {CACHE}: install one that antislop"):
        choose_cache(kwargs, model=build("llama"))
    with pytest.raises(ValueError, match=r"the model generates without a cache, .* pass use_cache=True"):
        choose_cache({"use_cache": False}, model=build("llama"))


def test_a_cache_without_a_configuration_makes_layers_when_it_is_updated() -> None:
    made: list[DynamicLayer] = []

    def make() -> DynamicLayer:
        made.append(DynamicLayer())
        return made[-1]

    cache = DynamicCache()
    set_layer_factory(cache, make)
    cache.update(states(1, 2, 3, 4), states(1, 2, 3, 4), 1)
    assert cache.layers == made
    assert len(made) == 2


def test_a_cache_with_a_configuration_makes_no_further_layers() -> None:
    cache = DynamicCache(config=build_model("llama").config)
    before = list(cache.layers)
    set_layer_factory(cache, DynamicLayer)
    assert cache.layers == before
    assert cache.layer_class_to_replicate is None


def test_recurrent_layers_keep_their_states_under_these_names_and_no_others() -> None:
    """Other attributes do not depend on the tokens."""
    names = vars(LinearAttentionLayer(number_of_states=1)).keys()
    assert names - set(STATES) == {"device", "dtype", "number_of_states", "record_past"}
    assert set(STATES) <= names
    assert all(list(vars(recurrent())[name]) == [0] for name in STATES)


def test_states_are_copied_and_not_shared() -> None:
    source, target = recurrent(), LinearAttentionLayer(number_of_states=1)
    copy_states(target, source)
    assert (target.device, target.dtype) == (source.device, source.dtype)
    for kept, read in ((target.conv_states, source.conv_states), (target.recurrent_states, source.recurrent_states)):
        assert torch.equal(kept[0], read[0])
        read[0].zero_()
        assert kept[0].any()


def test_a_hybrid_layer_is_made_of_its_two_halves() -> None:
    attention, half = DynamicLayer(), recurrent()
    attention.update(states(2, 2, 3, 4), states(2, 2, 3, 4))
    joined = join_layers(LinearAttentionAndFullAttentionLayer(1), states=half, attention=attention)
    assert type(joined) is LinearAttentionAndFullAttentionLayer
    assert torch.equal(joined.keys, attention.keys)
    assert joined.get_seq_length() == 3
    assert joined.conv_states is half.conv_states
    assert joined.recurrent_states is half.recurrent_states


def test_models_with_states_outside_of_their_cache_are_known() -> None:
    assert supports_dynamic_cache(build_model("llama"))
    assert supports_dynamic_cache(build("mamba"))
    assert not supports_dynamic_cache(build_refused("xlnet"))


def test_layers_without_a_cache_have_their_own_type_since_transformers_5_23() -> None:
    assert (placeholder_layer() is not None) == (Version(transformers.__version__) >= Version("5.23"))


def test_bloom_alone_may_need_a_mask_with_a_static_cache() -> None:
    """The tests of families show that it fails without a mask in these versions only."""
    assert not needs_mask_with_static_cache(build("falcon-alibi"))
    model, prompt = build("bloom"), torch.tensor([[4, 8, 3]])
    if needs_mask_with_static_cache(model):
        with pytest.raises(ValueError, match="too many values to unpack"):
            model.generate(prompt, max_new_tokens=2, cache_implementation="static")
    else:
        assert model.generate(prompt, max_new_tokens=2, cache_implementation="static").shape[1] > 3

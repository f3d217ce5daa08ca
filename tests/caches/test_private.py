"""What `antislop.caches.private` relies on in transformers' caches is so."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, LinearAttentionAndFullAttentionLayer, LinearAttentionLayer

from antislop.caches.private import STATES, copy_states, join_layers, set_layer_factory
from tests.support.models import build_model


def states(*sizes: int) -> Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(0))


def recurrent() -> LinearAttentionLayer:
    layer = LinearAttentionLayer(number_of_states=1)
    layer.update_conv_state(states(2, 4, 3))
    layer.update_recurrent_state(states(2, 4, 5))
    return layer


def test_a_cache_of_no_fixed_length_makes_its_layers_by_what_it_is_given() -> None:
    made: list[DynamicLayer] = []

    def make() -> DynamicLayer:
        made.append(DynamicLayer())
        return made[-1]

    cache = DynamicCache()
    set_layer_factory(cache, make)
    cache.update(states(1, 2, 3, 4), states(1, 2, 3, 4), 1)
    assert cache.layers == made
    assert len(made) == 2


def test_a_cache_that_knows_its_layers_makes_no_more() -> None:
    cache = DynamicCache(config=build_model("llama").config)
    before = list(cache.layers)
    set_layer_factory(cache, DynamicLayer)
    assert cache.layers == before
    assert cache.layer_class_to_replicate is None


def test_recurrent_layers_keep_their_states_under_these_names_and_no_others() -> None:
    """Beside what does not depend on what was read."""
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


def test_a_hybrid_layer_is_joined_of_its_two_halves() -> None:
    attention, half = DynamicLayer(), recurrent()
    attention.update(states(2, 2, 3, 4), states(2, 2, 3, 4))
    joined = join_layers(LinearAttentionAndFullAttentionLayer(1), states=half, attention=attention)
    assert type(joined) is LinearAttentionAndFullAttentionLayer
    assert torch.equal(joined.keys, attention.keys)
    assert joined.get_seq_length() == 3
    assert joined.conv_states is half.conv_states
    assert joined.recurrent_states is half.recurrent_states

"""The undocumented parts of transformers' caches that the package uses: a function for each, with the reason.

tests/core/hf/caches/test_private.py checks what each relies on, so that another version of transformers fails there.
"""

from __future__ import annotations

import antislop.core.hf.releases  # noqa: F401 - it checks transformers before names are imported

# isort: split
import sys
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel, cache_utils
from transformers.cache_utils import Cache, DynamicLayer, LinearAttentionCacheLayerMixin, LinearAttentionLayer
from transformers.generation import GenerateDecoderOnlyOutput

CACHE = "cache" if "cache" in {field.name for field in fields(GenerateDecoderOnlyOutput)} else "past_key_values"
"""The name of the cache in outputs: another one since transformers 5.24. That of the argument: `cache_name`."""

STATES = (
    "conv_states",
    "recurrent_states",
    "is_conv_states_initialized",
    "is_recurrent_states_initialized",
    "has_previous_state",
    "conv_kernel_size",
)
"""The attributes in which a recurrent layer keeps its states: dicts by the number of the state."""


def cache_name(model: PreTrainedModel) -> str:
    """Return the argument by which a model's forward pass takes its cache, and `generate` passes it on.

    Reason: before transformers 5.24, `generate` chose another one if the name of the model's class contained "mamba".
    """
    is_mamba = "mamba" in type(model).__name__.lower()
    return "cache_params" if is_mamba and CACHE == "past_key_values" else CACHE


def set_layer_factory(cache: Cache, make: Callable[[], Any]) -> None:
    """Have a cache whose number of layers is not fixed make its next layers by calling `make`.

    Reason: `DynamicCache()` appends a layer whenever a model first writes to that layer. It calls an attribute that the
    documentation describes as an argument of the constructor, and as a class.
    """
    if cache.layer_class_to_replicate is not None:
        cache.layer_class_to_replicate = make


def copy_states(target: LinearAttentionCacheLayerMixin, source: LinearAttentionCacheLayerMixin) -> None:
    """Give a recurrent layer copies of another layer's states.

    Reason: models write into these tensors, and no method of a layer copies them.
    """
    target.device, target.dtype = getattr(source, "device", None), getattr(source, "dtype", None)
    for name in STATES:
        states = vars(source)[name].items()
        copies = {number: state.clone() if isinstance(state, Tensor) else state for number, state in states}
        setattr(target, name, copies)


def join_layers(hybrid: Any, *, states: LinearAttentionLayer, attention: DynamicLayer) -> DynamicLayer:
    """Fill a hybrid layer of transformers with the states of a recurrent layer and the attention of another one.

    Reason: a hybrid layer is both at once, and can't be made of two layers that hold something already.
    """
    vars(hybrid).update(vars(attention))
    names = vars(LinearAttentionLayer(states.number_of_states)).keys()
    vars(hybrid).update({name: vars(states)[name] for name in names})
    joined: DynamicLayer = hybrid
    return joined


def supports_dynamic_cache(model: PreTrainedModel) -> bool:
    """Return whether a model keeps everything it has read in a cache that `generate` can prepare.

    Reason: models with states of their own are known by name only.
    """
    return bool(model._supports_default_dynamic_cache())


def placeholder_layer() -> type | None:
    """Return the type of the cache layer of a model layer that needs no cache; None before transformers 5.23."""
    return getattr(cache_utils, "DummyLayer", None)


def needs_mask_with_static_cache(model: PreTrainedModel) -> bool:
    """Return whether a model fails with a static cache unless the prompt is padded: BLOOM before transformers 5.23.

    Reason: the failure can't be predicted from anything public. The function that fixes it is new in 5.23.
    """
    module = sys.modules[type(model).__module__]
    return bool(model.config.model_type == "bloom") and not hasattr(module, "_get_alibi_slopes")

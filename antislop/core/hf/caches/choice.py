"""Which caches can be rewound exactly: refuse all others, with one sentence each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import DynamicCache, EncoderDecoderCache, PreTrainedModel, StaticCache
from transformers.cache_utils import (
    Cache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionAndStaticFullAttentionLayer,
    LinearAttentionCacheLayerMixin,
    LinearAttentionLayer,
    StaticLayer,
    StaticSlidingWindowLayer,
)

from antislop.core.hf.caches.borrowed import decoder_part, length_of
from antislop.core.hf.caches.cache import TransformersCache
from antislop.core.hf.caches.layers import GrowingLayer
from antislop.core.hf.private import (
    CACHE,
    cache_name,
    needs_mask_with_static_cache,
    placeholder_layer,
    supports_dynamic_cache,
)
from antislop.errors import InputError

# Measured, layer by layer: `is_croppable` is also true of sliding windows, which forget what a rewind needs.
_LAYERS = {
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionAndStaticFullAttentionLayer,
    StaticLayer,
    StaticSlidingWindowLayer,
    placeholder_layer(),
}


def choose_cache(model_kwargs: Mapping[str, Any], *, model: PreTrainedModel) -> Cache:
    """Return the cache that `generate` prepared, or a new one for a model that generates without by default.

    Raises `InputError` for a cache that can't be rewound exactly.
    """
    cache = model_kwargs.get(cache_name(model))
    if cache is None and model.generation_config.use_cache is False and not model.config.is_encoder_decoder:
        cache = DynamicCache(config=model.config.get_text_config(decoder=True))
    if cache is None and not supports_dynamic_cache(model):
        raise InputError(
            f"{type(model).__name__} keeps what it has read in states of its own, not in a cache that can be rewound: "
            "choose a model of a family in docs/families.md"
        )
    if cache is None and model_kwargs.get("use_cache"):
        raise InputError(
            f"this release of transformers passes no {cache_name(model)}: "
            "install one that antislop supports, as in docs/limits.md"
        )
    if cache is None:
        raise InputError(
            "the model generates without a cache, which a rewind needs: pass use_cache=True, or another one"
        )
    if getattr(model.config, "recurrent_kv_cache_mode", None) == "last_loop":  # Dory
        raise InputError(
            f"{type(model).__name__} with recurrent_kv_cache_mode='last_loop' computes other logits for tokens read "
            "together than one by one, which no rewind can repeat: set model.config.recurrent_kv_cache_mode='per_loop'"
        )
    _refuse_unknown(decoder_part(cache))
    if type(decoder_part(cache)) is StaticCache:
        _refuse_static(decoder_part(cache), model=model)
    return cache


def refuse_unread(cache: TransformersCache, *, model: PreTrainedModel) -> None:
    """Raise `InputError` if a model kept some of a prompt outside of its cache, where no rewind reaches it."""
    config = model.config.get_text_config(decoder=True)
    images = [cache.layers[number] for number in getattr(config, "cross_attention_layers", None) or ()]
    if any(layer.is_initialized for layer in images):
        raise InputError(
            f"{type(model).__name__} keeps an image in layers of its cache, which can be rewound by tokens only: "
            "pass text alone"
        )
    is_read = [layer in images or _holds(layer, cache.columns.end) for layer in cache.layers]
    if isinstance(cache.cache, EncoderDecoderCache):  # there is a layer for each of the encoder's, too
        while len(is_read) > 1 and not is_read[-1]:
            is_read.pop()
    if not all(is_read) or not is_read:
        raise InputError(
            f"{type(model).__name__} does not keep all that it has read in its cache, and nothing else can be rewound: "
            "choose a model of a family in docs/families.md"
        )


def _refuse_unknown(cache: Cache) -> None:
    if type(cache) not in (DynamicCache, StaticCache) or cache.offloading:
        name = type(cache).__name__ + (" with offloading" if cache.offloading else "")
        raise InputError(
            f"a {name} can't be rewound yet: "
            f"leave out {CACHE} and cache_implementation, or pass a DynamicCache or StaticCache"
        )
    unknown = {type(layer).__name__ for layer in cache.layers if type(layer) not in _LAYERS}
    if unknown:
        raise InputError(
            f"cache layers of type {', '.join(sorted(unknown))} can't be rewound yet: "
            "choose a model with full, sliding-window or recurrent layers"
        )


def _refuse_static(cache: Cache, *, model: PreTrainedModel) -> None:
    config = model.config.get_text_config(decoder=True)
    counts_from_the_end = "local" in (getattr(config, "attention_layers", None) or ())  # GPT-Neo: wrong
    if counts_from_the_end or getattr(config, "alibi", False):  # Falcon: fails in its first forward pass
        raise InputError(
            f"{type(model).__name__} takes the free columns of a static cache for tokens, in generate() too: "
            "leave out cache_implementation, or pass a DynamicCache"
        )
    if needs_mask_with_static_cache(model):
        raise InputError(
            f"{type(model).__name__} fails with a static cache in this version of transformers, in generate() too: "
            "leave out cache_implementation, pass a DynamicCache, or install transformers 5.23 or newer"
        )
    if any(isinstance(layer, StaticSlidingWindowLayer) for layer in cache.layers) and length_of(cache):
        raise InputError(
            "the StaticCache passed holds tokens in sliding windows, which forget what a rewind needs: pass a new one"
        )


def _holds(layer: Any, columns: int) -> bool:
    if isinstance(layer, LinearAttentionCacheLayerMixin):
        states = [*layer.conv_states.values(), *layer.recurrent_states.values()]
        if any(state is not None for state in states):
            return not isinstance(layer, GrowingLayer) or not layer.is_initialized or layer.reached == columns
    if isinstance(layer, GrowingLayer):
        return layer.is_initialized and layer.reached == columns
    if isinstance(layer, StaticLayer):
        return layer.is_initialized and int(layer.cumulative_length) == columns
    return not isinstance(layer, LinearAttentionCacheLayerMixin)

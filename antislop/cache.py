"""Choose a key-value cache whose latest tokens can be taken out without a trace.

Which layers can was measured, not read off `is_croppable`, which promises more than it holds: sliding windows forget
what a rewind needs, recurrent states can't be taken back at all.
"""

from __future__ import annotations

from typing import Any

from transformers import DynamicCache
from transformers.cache_utils import Cache, DynamicLayer, DynamicSlidingWindowLayer


def choose_cache(model_kwargs: dict[str, Any]) -> Cache:
    """Return a cache for `generate`'s model arguments: theirs, or one that keeps what sliding windows would drop.

    Raises `ValueError`, before anything is computed, where no exact cache is known.
    """
    cache = model_kwargs.get("past_key_values")
    if cache is None:
        raise ValueError(
            "the model generates without past_key_values (use_cache=False, or a recurrent model), so tokens can't be "
            "taken back: pass use_cache=True or choose a transformer with attention caches"
        )
    if type(cache) is not DynamicCache or cache.offloading:
        name = type(cache).__name__ + (" with offloading" if cache.offloading else "")
        raise ValueError(
            f"tokens can't be taken back from a {name} yet: "
            "leave out past_key_values and cache_implementation, or pass a DynamicCache"
        )
    unknown = {type(layer).__name__ for layer in cache.layers} - {"DynamicLayer", "DynamicSlidingWindowLayer"}
    if unknown:
        raise ValueError(
            f"tokens can't be taken back from cache layers of type {', '.join(sorted(unknown))} yet: "
            "choose a model with full or sliding-window attention in every layer"
        )
    if all(type(layer) is DynamicLayer for layer in cache.layers):
        return cache
    if getattr(cache, "_is_user_defined", False):
        raise ValueError(
            f"the past_key_values passed have {DynamicSlidingWindowLayer.__name__}s, which forget what a rewind needs: "
            "pass DynamicCache() without a config, or none"
        )
    return DynamicCache()


def take_out(cache: Cache, count: int) -> None:
    """Take the latest `count` tokens out of a cache; 0 is fine, more than it holds is an error."""
    if not 0 <= count <= cache.get_seq_length():
        raise ValueError(f"{count} tokens can't be taken out of a cache of {cache.get_seq_length()}")
    if count:  # crop(0) is not a no-op for every layer
        cache.crop(-count)

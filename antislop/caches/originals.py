"""The content of a cache of transformers before a call, so that an interrupted call leaves it unchanged.

Dynamic layers are replaced by our own while a text is written, and nothing is written to them: a shallow copy is
enough. Recurrent states and static layers are written in place. What one row holds of full attention is not kept twice:
it lies in the first columns of our own layers, which are cut there.
"""

from __future__ import annotations

from copy import copy
from typing import Any

from transformers import EncoderDecoderCache
from transformers.cache_utils import Cache, DynamicLayer, LinearAttentionCacheLayerMixin, StaticLayer

from antislop.caches.layers import GrowingLayer
from antislop.caches.private import copy_states


class Originals:
    """The present content of `cache`, for `rows` rows, before anything is read."""

    def __init__(self, cache: Cache, *, rows: int) -> None:
        decoder = decoder_part(cache)
        self._layers = [_remember(layer, is_single=rows == 1) for layer in decoder.layers]
        self._crossed: tuple[list[Any], dict[int, bool]] | None = None
        if isinstance(cache, EncoderDecoderCache):
            self._crossed = [copy(layer) for layer in cache.cross_attention_cache.layers], dict(cache.is_updated)

    def put_back(self, cache: Cache) -> None:
        """Put the layers back into the cache; ours hold as many columns as the original ones did."""
        decoder = decoder_part(cache)
        layers = zip(self._layers, decoder.layers[: len(self._layers)], strict=True)
        decoder.layers = [_restore(before, after) for before, after in layers]
        if self._crossed is not None:
            cache.cross_attention_cache.layers, cache.is_updated = self._crossed


def decoder_part(cache: Cache) -> Cache:
    """Return the part of a cache that a decoder writes to; of most models, all of it."""
    return cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache


def _remember(layer: Any, *, is_single: bool) -> Any:
    """Return a copy of a layer, or None if our own layer will contain its states anyway."""
    if type(layer) is DynamicLayer and is_single and layer.is_initialized:
        return None
    before = copy(layer)
    if isinstance(layer, LinearAttentionCacheLayerMixin):
        copy_states(before, layer)
    if isinstance(layer, StaticLayer):
        before.cumulative_length = layer.cumulative_length.clone()
        if layer.is_initialized and not is_single:
            before.keys, before.values = layer.keys.clone(), layer.values.clone()
    return before


def _restore(before: Any, after: Any) -> Any:
    if before is None:
        return after.as_standard() if isinstance(after, GrowingLayer) else after
    return before

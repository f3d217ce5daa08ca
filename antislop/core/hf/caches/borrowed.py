"""A transformers cache with layers of this package while a call runs, and checks which caches allow this.

The first forward pass replaces the layers, so a call that never begins changes nothing. Caches that can't be rewound
exactly are refused with an `InputError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any

import torch
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

from antislop.core.hf.caches.layers import (
    Columns,
    GrowingLayer,
    HybridLayer,
    HybridWindowLayer,
    StaticStore,
    WindowLayer,
)
from antislop.core.hf.private import (
    CACHE,
    cache_name,
    copy_states,
    needs_mask_with_static_cache,
    placeholder_layer,
    set_layer_factory,
    supports_dynamic_cache,
)
from antislop.core.hf.refusals import refusal

# Layers that were tested. `is_croppable` of transformers is no guide: sliding windows have it, and forget old tokens.
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


class BorrowedCache:
    """A transformers cache, which may hold tokens already, with this package's layers during a call.

    columns: the state that all layers of this package share.
    held: the number of tokens in the cache before the call.
    is_static: whether its memory can't grow; it is fed one query per row at a time: a compiled model sees one shape.
    """

    def __init__(self, cache: Cache, columns: Columns) -> None:
        self.cache = cache
        self.columns = columns
        decoder = decoder_part(cache)
        self.held = columns.end = length_of(decoder)
        self.is_static = any(isinstance(layer, StaticLayer) for layer in decoder.layers)
        # The former layers, which an interrupted call puts back; None unless this package's layers are in the cache.
        self._originals: list[Any] | None = None
        self._crossed: tuple[list[Any], dict[int, bool]] | None = None
        self._static: list[StaticStore] = []

    @property
    def layers(self) -> list[Any]:
        """The decoder's cache layers, which are this package's between `take_over` and `give_back`."""
        layers: list[Any] = decoder_part(self.cache).layers
        return layers

    @property
    def growing(self) -> list[GrowingLayer]:
        return [layer for layer in self.layers if isinstance(layer, GrowingLayer)]

    @property
    def stores(self) -> list[GrowingLayer | StaticStore]:
        return [*self._static, *self.growing]

    @property
    def is_recurrent(self) -> bool:
        """Whether some layers have a recurrent state, which can be copied and restored but not truncated."""
        return any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in self.layers)

    def take_over(self, *, rows: int) -> None:
        """Put this package's layers into the cache, unless they are. Raises `InputError` if the caller changed it."""
        if self._originals is not None:
            return
        decoder = decoder_part(self.cache)
        if self.growing:
            raise refusal("cache in use")
        if (length := length_of(decoder)) != self.columns.end:
            raise refusal("changed cache", before=self.columns.end, now=length)
        # Dynamic layers are replaced, not written to: a shallow copy is enough. Recurrent states and static layers are
        # written in place. For full attention of a single row no copy is needed: the new layer keeps all its columns.
        self._originals = [_remember(layer, is_single=rows == 1) for layer in decoder.layers]
        if isinstance(self.cache, EncoderDecoderCache):
            crossed = [copy(layer) for layer in self.cache.cross_attention_cache.layers]
            self._crossed = crossed, dict(self.cache.is_updated)
        static = [layer for layer in decoder.layers if isinstance(layer, StaticLayer)]
        if static:
            room = max(layer.max_cache_len for layer in static)
            if any(isinstance(layer, StaticSlidingWindowLayer) for layer in static):
                room = max(room, (self.columns.capacity or 0) - 1)  # a window layer has room for its window only
            for number, layer in enumerate(decoder.layers):
                if isinstance(layer, StaticSlidingWindowLayer):  # full attention instead: the mask has the window
                    decoder.layers[number] = StaticLayer(max_cache_len=room)
                    decoder.layers[number].cumulative_length = torch.zeros_like(layer.cumulative_length)
            self._static = [StaticStore(each, self.columns) for each in decoder.layers if isinstance(each, StaticLayer)]
            self.columns.capacity = room
        decoder.layers = [_make_layer(layer, self.columns) for layer in decoder.layers]
        set_layer_factory(decoder, lambda: GrowingLayer(self.columns))

    def take_layers(self, other: Cache) -> None:
        if self.is_static or self.held or type(other) is not DynamicCache:
            raise refusal("own cache of the model", name=CACHE)
        self.columns.end = length_of(other)
        decoder_part(self.cache).layers = [_make_layer(layer, self.columns) for layer in other.layers]

    def give_back(self, *, is_whole: bool) -> bool:
        """Put transformers' own layers back into the cache; return False if it had no layers of this package.

        is_whole: whether the layers put back hold the new texts; if not, they hold what they held before the call.
        """
        if self._originals is None:
            return False
        decoder = decoder_part(self.cache)
        if is_whole:
            self.set_lengths()
            decoder.layers = [_as_standard(layer) for layer in decoder.layers]
        else:
            self.columns.end = self.held
            layers = zip(self._originals, decoder.layers[: len(self._originals)], strict=True)
            decoder.layers = [_as_standard(after) if before is None else before for before, after in layers]
            if self._crossed is not None:
                self.cache.cross_attention_cache.layers, self.cache.is_updated = self._crossed
        set_layer_factory(decoder, DynamicLayer)
        self._originals = self._crossed = None
        return True

    def set_lengths(self, queries: int = 0) -> None:
        """Have static layers write the next `queries` tokens at `columns.end`."""
        for store in self._static:
            store.set_length(queries)


def decoder_part(cache: Cache) -> Cache:
    """Return the decoder's cache: the self-attention part of an encoder-decoder cache, or else the cache itself."""
    return cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache


def length_of(cache: Cache) -> int:
    """Return how many tokens a cache holds; 0 if all layers are recurrent, since these don't count tokens."""
    lengths = [int(layer.get_seq_length()) for layer in cache.layers if hasattr(layer, "get_seq_length")]
    return max(lengths, default=0)


def is_begun(cache: Cache) -> bool:
    """Return whether a cache has read any token; unlike `length_of`, this also works if all layers are recurrent."""
    recurrent = (layer for layer in cache.layers if isinstance(layer, LinearAttentionCacheLayerMixin))
    return length_of(cache) > 0 or any(any(layer.has_previous_state.values()) for layer in recurrent)


def _make_layer(layer: Any, columns: Columns) -> Any:
    kind = type(layer)
    if kind is DynamicLayer:
        new_layer = GrowingLayer(columns)
    elif kind is DynamicSlidingWindowLayer:
        new_layer = WindowLayer(columns, layer.sliding_window)
    elif kind is LinearAttentionAndFullAttentionLayer:
        new_layer = HybridLayer(columns, layer.number_of_states)
    elif kind is LinearAttentionAndSlidingWindowAttentionLayer:
        new_layer = HybridWindowLayer(columns, layer.sliding_window, layer.number_of_states)
    else:
        return layer  # recurrent and static layers stay as they are
    if isinstance(new_layer, LinearAttentionLayer):
        copy_states(new_layer, layer)
    if layer.is_initialized:
        new_layer.take_over(layer.keys, layer.values)
    return new_layer


def _remember(layer: Any, *, is_single: bool) -> Any:
    """Return a copy of a layer, to be put back later; None if the `GrowingLayer` that replaces it keeps its states."""
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


def _as_standard(layer: Any) -> Any:
    return layer.as_standard() if isinstance(layer, GrowingLayer) else layer


# -- which caches can be rewound ---------------------------------------------------------------------------------------


def choose_cache(model_kwargs: Mapping[str, Any], *, model: PreTrainedModel) -> Cache:
    """Return the cache that `generate` prepared, or a new cache if the model's default is use_cache=False.

    Raises `InputError` for a cache that can't be rewound exactly.
    """
    cache = model_kwargs.get(cache_name(model))
    if cache is None and model.generation_config.use_cache is False and not model.config.is_encoder_decoder:
        cache = DynamicCache(config=model.config.get_text_config(decoder=True))
    if cache is None and not supports_dynamic_cache(model):
        raise refusal("states beside a cache", model=model)
    if cache is None and model_kwargs.get("use_cache"):
        raise refusal("cache without its name", name=cache_name(model))
    if cache is None:
        raise refusal("no cache")
    if getattr(model.config, "recurrent_kv_cache_mode", None) == "last_loop":  # Dory
        raise refusal("last loop", model=model)
    own = decoder_part(cache)
    if type(own) not in (DynamicCache, StaticCache) or own.offloading:
        kind = type(own).__name__ + (" with offloading" if own.offloading else "")
        raise refusal("unknown cache", kind=kind, name=CACHE)
    if unknown := {type(layer).__name__ for layer in own.layers if type(layer) not in _LAYERS}:
        raise refusal("unknown layers", kinds=", ".join(sorted(unknown)))
    if type(own) is StaticCache:
        config = model.config.get_text_config(decoder=True)
        counts_from_the_end = "local" in (getattr(config, "attention_layers", None) or ())  # GPT-Neo: wrong logits
        if counts_from_the_end or getattr(config, "alibi", False):  # Falcon: fails in its first forward pass
            raise refusal("static cache by columns", model=model)
        if needs_mask_with_static_cache(model):
            raise refusal("static cache without a mask", model=model)
        if any(isinstance(layer, StaticSlidingWindowLayer) for layer in own.layers) and length_of(own):
            raise refusal("static cache with windows")
    return cache


def refuse_unread(cache: BorrowedCache, *, model: PreTrainedModel) -> None:
    """Raise `InputError` if a model has stored a part of the prompt outside of its cache, where it can't be rewound."""
    config = model.config.get_text_config(decoder=True)
    images = [cache.layers[number] for number in getattr(config, "cross_attention_layers", None) or ()]
    if any(layer.is_initialized for layer in images):
        raise refusal("image in a cache", model=model)
    is_read = [layer in images or _holds(layer, cache.columns.end) for layer in cache.layers]
    if isinstance(cache.cache, EncoderDecoderCache):  # unused layers follow if the encoder has more layers
        while len(is_read) > 1 and not is_read[-1]:
            is_read.pop()
    if not all(is_read) or not is_read:
        raise refusal("unread cache", model=model)


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

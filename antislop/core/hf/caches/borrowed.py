"""A cache of transformers whose layers are replaced by our own while texts are written.

They are replaced by the first forward pass, so that a call that never begins changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from copy import copy
from typing import Any

from transformers import DynamicCache, EncoderDecoderCache
from transformers.cache_utils import (
    Cache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
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
    without_window,
)
from antislop.core.hf.caches.recurrent_states import narrow_states
from antislop.core.hf.private import CACHE, copy_states, set_layer_factory
from antislop.errors import InputError


class BorrowedCache:
    """The layers of `cache`, which may hold tokens already.

    columns: shared by all of our layers.
    held: tokens in the cache when it was borrowed.
    is_static: whether its memory can't grow.
    """

    def __init__(self, cache: Cache, columns: Columns) -> None:
        self.cache = cache
        self.columns = columns
        decoder = decoder_part(cache)
        self.held = columns.end = length_of(decoder)
        self.is_static = any(isinstance(layer, StaticLayer) for layer in decoder.layers)
        self._originals: Originals | None = None  # while our own layers are in the cache
        self._static: list[StaticStore] = []

    @property
    def layers(self) -> list[Any]:
        """The decoder's layers: those of this package once the cache was taken over."""
        layers: list[Any] = decoder_part(self.cache).layers
        return layers

    @property
    def is_taken(self) -> bool:
        return self._originals is not None

    @property
    def growing(self) -> list[GrowingLayer]:
        return [layer for layer in self.layers if isinstance(layer, GrowingLayer)]

    @property
    def stores(self) -> list[GrowingLayer | StaticStore]:
        return [*self._static, *self.growing]

    @property
    def forgets(self) -> bool:
        """Whether layers with a window forget columns that no row can return to."""
        return any(isinstance(layer, WindowLayer) for layer in self.layers)

    @property
    def is_recurrent(self) -> bool:
        return any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in self.layers)

    def take_over(self, *, rows: int) -> None:
        """Put our own layers into the cache, once; raise `InputError` if it has changed since it was borrowed."""
        if self._originals is not None:
            return
        decoder = decoder_part(self.cache)
        _refuse_changed(decoder, held=self.columns.end)
        self._originals = Originals(self.cache, rows=rows)
        if self.is_static:
            self._take_static(decoder)
        decoder.layers = [_make_layer(layer, self.columns) for layer in decoder.layers]
        set_layer_factory(decoder, lambda: GrowingLayer(self.columns))

    def take_layers(self, other: Cache) -> None:
        if self.is_static or self.held or type(other) is not DynamicCache:
            raise InputError(
                f"the model read its prompt into a cache of its own: leave out {CACHE} and cache_implementation"
            )
        self.columns.end = length_of(other)
        decoder_part(self.cache).layers = [_make_layer(layer, self.columns) for layer in other.layers]

    def give_back(self, *, is_whole: bool) -> bool:
        """Put transformers' own layers back, if the cache has those of this package; return whether it had them.

        is_whole: whether they get the new texts, or their former content.
        """
        if self._originals is None:
            return False
        decoder = decoder_part(self.cache)
        if is_whole:
            self.set_lengths()
            decoder.layers = [_as_standard(layer) for layer in decoder.layers]
        else:
            self.columns.end = self.held
            self._originals.put_back(self.cache)
        set_layer_factory(decoder, DynamicLayer)
        self._originals = None
        return True

    def set_lengths(self, queries: int = 0) -> None:
        """Have static layers write the next queries at the columns' end."""
        for store in self._static:
            store.set_length(queries)

    @contextmanager
    def narrowed(self, row: int) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(narrow_states(self.layers, row))
            for store in self._static:
                store.set_length(1)
                stack.enter_context(store.narrowed(row))
            yield

    def _take_static(self, decoder: Cache) -> None:
        room = max(layer.max_cache_len for layer in decoder.layers if isinstance(layer, StaticLayer))
        if any(isinstance(layer, StaticSlidingWindowLayer) for layer in decoder.layers):
            room = max(room, (self.columns.capacity or 0) - 1)  # theirs end at the window
        decoder.layers = [
            without_window(layer, room) if isinstance(layer, StaticSlidingWindowLayer) else layer
            for layer in decoder.layers
        ]
        self._static = [StaticStore(layer, self.columns) for layer in decoder.layers if isinstance(layer, StaticLayer)]
        self.columns.capacity = room


class Originals:
    """The content of `cache`, for `rows` rows, to which an interrupted call returns.

    Dynamic layers are replaced, never written to, so a shallow copy is enough. Recurrent states and static layers are
    written in place. Full attention in a single row is not kept twice: our own layer holds its first columns.
    """

    def __init__(self, cache: Cache, *, rows: int) -> None:
        decoder = decoder_part(cache)
        self._layers = [_remember(layer, is_single=rows == 1) for layer in decoder.layers]
        self._crossed: tuple[list[Any], dict[int, bool]] | None = None
        if isinstance(cache, EncoderDecoderCache):
            self._crossed = [copy(layer) for layer in cache.cross_attention_cache.layers], dict(cache.is_updated)

    def put_back(self, cache: Cache) -> None:
        """Put the layers back; `columns.end` is their former length."""
        decoder = decoder_part(cache)
        layers = zip(self._layers, decoder.layers[: len(self._layers)], strict=True)
        decoder.layers = [_as_standard(after) if before is None else before for before, after in layers]
        if self._crossed is not None:
            cache.cross_attention_cache.layers, cache.is_updated = self._crossed


def decoder_part(cache: Cache) -> Cache:
    """Return the cache that a decoder writes to."""
    return cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache


def length_of(cache: Cache) -> int:
    """Return how many tokens a cache holds; 0 if all layers are recurrent, which don't count them."""
    lengths = [int(layer.get_seq_length()) for layer in cache.layers if hasattr(layer, "get_seq_length")]
    return max(lengths, default=0)


def is_begun(cache: Cache) -> bool:
    """Return whether a cache holds tokens, also if all layers are recurrent."""
    recurrent = (layer for layer in cache.layers if isinstance(layer, LinearAttentionCacheLayerMixin))
    return length_of(cache) > 0 or any(any(layer.has_previous_state.values()) for layer in recurrent)


def _refuse_changed(decoder: Cache, *, held: int) -> None:
    if any(isinstance(layer, GrowingLayer) for layer in decoder.layers):
        raise InputError(
            "another text is being written with the cache that was passed: finish or close that one first, "
            "or pass another cache"
        )
    if (length := length_of(decoder)) != held:
        raise InputError(
            f"the length of the cache that was passed was {held} when the call was prepared, and is {length} now: "
            "call again with all tokens, those that it holds now too"
        )


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
    """Return a copy of a layer; None if our own layer will contain its states."""
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

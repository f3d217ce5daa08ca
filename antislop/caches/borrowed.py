"""A cache of transformers whose layers are replaced by our own while texts are written.

Which layers can be rewound was measured: `is_croppable` is also true of sliding windows, which forget columns that a
rewind needs, and recurrent states can only be stored at some lengths. The layers are replaced by the first
forward pass, so that a call that never begins changes nothing, and put back when the texts are finished or the call
breaks off.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from transformers import DynamicCache
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

from antislop.caches.layers import Columns, GrowingLayer, HybridLayer, HybridWindowLayer, WindowLayer
from antislop.caches.originals import Originals, decoder_part
from antislop.caches.private import copy_states, set_layer_factory
from antislop.caches.recurrent_states import narrow_states
from antislop.caches.static_layers import StaticStore, without_window


class BorrowedCache:
    """The layers of `cache`, which may hold tokens already.

    columns: shared by all of our layers. is_static: whether its memory can't grow; queries then come one at a time, so
    that a compiled model sees one shape. held: the number of tokens in it when it was borrowed.
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
        """The layers of the decoder: ours once they are taken over."""
        layers: list[Any] = decoder_part(self.cache).layers
        return layers

    @property
    def is_taken(self) -> bool:
        """Whether our own layers are in the cache."""
        return self._originals is not None

    @property
    def growing(self) -> list[GrowingLayer]:
        """Our own layers."""
        return [layer for layer in self.layers if isinstance(layer, GrowingLayer)]

    @property
    def stores(self) -> list[GrowingLayer | StaticStore]:
        """The memory of keys and values."""
        return [*self._static, *self.growing]

    @property
    def forgets(self) -> bool:
        """Whether some layers forget columns that no row can return to."""
        return any(isinstance(layer, WindowLayer) for layer in self.layers)

    @property
    def is_recurrent(self) -> bool:
        """Whether some layers have a state that can be stored, but not cut."""
        return any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in self.layers)

    def take_over(self, *, rows: int) -> None:
        """Put our own layers into the cache, unless they are there.

        Raises `ValueError` for a cache that changed since it was borrowed.
        """
        if self._originals is not None:
            return
        decoder = decoder_part(self.cache)
        _refuse_changed(decoder, held=self.columns.end)
        self._originals = Originals(self.cache, rows=rows)
        if self.is_static:
            self._take_static(decoder)
        decoder.layers = [_make_layer(layer, self.columns) for layer in decoder.layers]
        set_layer_factory(decoder, lambda: GrowingLayer(self.columns))

    def replace_layers(self, layers: list[GrowingLayer]) -> None:
        """Put other layers of ours into the cache."""
        decoder_part(self.cache).layers = layers

    def take_layers(self, other: Cache) -> None:
        """Take over the layers of a cache that a model made by itself, because it read a prompt from the start."""
        if self.is_static or self.held or type(other) is not DynamicCache:
            raise ValueError(
                "the model read its prompt into a cache of its own: leave out past_key_values and cache_implementation"
            )
        self.columns.end = length_of(other)
        decoder_part(self.cache).layers = [_make_layer(layer, self.columns) for layer in other.layers]

    def give_back(self, *, is_whole: bool) -> bool:
        """Put transformers' own layers back; return whether ours were there.

        is_whole: whether the layers keep the new texts; if not, they get their former content back.
        """
        if self._originals is None:
            return False
        decoder = decoder_part(self.cache)
        if is_whole:
            self.set_lengths()
            decoder.layers = [
                layer.as_standard() if isinstance(layer, GrowingLayer) else layer for layer in decoder.layers
            ]
        else:
            self.columns.end = self.held
            self._originals.put_back(self.cache)
        set_layer_factory(decoder, DynamicLayer)
        self._originals = None
        return True

    def set_lengths(self) -> None:
        """Have static layers write the next query at the columns' end."""
        for store in self._static:
            store.set_length()

    @contextmanager
    def narrowed(self, row: int) -> Iterator[None]:
        """Reduce the layers to one row inside; they keep the states that are written to it."""
        with ExitStack() as stack:
            stack.enter_context(narrow_states(self.layers, row))
            for store in self._static:
                store.set_length()
                stack.enter_context(store.narrowed(row))
            yield

    def _take_static(self, decoder: Cache) -> None:
        """Take over a static cache, without its windows; its memory can't grow."""
        room = max(layer.max_cache_len for layer in decoder.layers if isinstance(layer, StaticLayer))
        if any(isinstance(layer, StaticSlidingWindowLayer) for layer in decoder.layers):
            room = max(room, (self.columns.capacity or 0) - 1)  # theirs end at the window
        decoder.layers = [
            without_window(layer, room) if isinstance(layer, StaticSlidingWindowLayer) else layer
            for layer in decoder.layers
        ]
        self._static = [StaticStore(layer, self.columns) for layer in decoder.layers if isinstance(layer, StaticLayer)]
        self.columns.capacity = room


def length_of(cache: Cache) -> int:
    """Return how many tokens a cache holds; 0 for one whose layers are all recurrent, which can't tell."""
    lengths = [int(layer.get_seq_length()) for layer in cache.layers if hasattr(layer, "get_seq_length")]
    return max(lengths, default=0)


def _refuse_changed(decoder: Cache, *, held: int) -> None:
    """Raise `ValueError` for a cache that is in use, or that changed after the call was prepared."""
    if any(isinstance(layer, GrowingLayer) for layer in decoder.layers):
        raise ValueError(
            "another text is being written with the cache that was passed: finish or close that one first, "
            "or pass another cache"
        )
    if (length := length_of(decoder)) != held:
        raise ValueError(
            f"the cache that was passed held {held} tokens when the call was prepared, and holds {length} now: "
            "call again with all tokens, those that it holds now too"
        )


def _make_layer(layer: Any, columns: Columns) -> Any:
    """Return our layer for one of transformers, with the same states; recurrent and static layers stay as they are."""
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
        return layer
    if isinstance(new_layer, LinearAttentionLayer):
        copy_states(new_layer, layer)
    if layer.is_initialized:
        new_layer.take_over(layer.keys, layer.values)
    return new_layer

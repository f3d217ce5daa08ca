"""A transformers cache whose rows go back apart, and leave no trace of what was taken out.

Which layers can be taken back was measured, not read off `is_croppable`, which promises more than it holds: sliding
windows forget what a rewind needs, and a recurrent state has to be remembered at points to go back to. So the layers of
the cache that `generate` prepared are replaced by our own while we run: from the first forward pass on, so that a call
that never begins changes nothing, until the text is finished or the call breaks off.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache, PreTrainedModel, StaticCache, cache_utils
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

from antislop.caches.layers import AHEAD, Columns, GrowingLayer, HybridLayer, HybridWindowLayer, WindowLayer
from antislop.caches.originals import Originals, copy_states, decoders_of
from antislop.caches.recurrent_states import SNAPSHOT_EVERY, Snapshots, clear_row, narrowed, put_row, repeat_rows
from antislop.caches.static_layers import FixedLayer, without_window
from antislop.decoding.protocols import KVStates, RewindableCache, send

TRIM = 64
"""Free columns on the left of all rows that are worth dropping: it copies everything, and leaves less to attend to."""


class TransformersCache:
    """Rows of tokens in a transformers cache; a row takes up the columns from its start to the common end.

    Tokens count from the first column of the prompt, padding included. A rewind is an assignment; where rows went back
    by different numbers, those that went further are moved right before the next forward.

    cache: transformers' own, as the model is given it; it may hold tokens already. is_fixed: whether its memory can't
    grow, and queries come one at a time so that a compiled model sees one shape. attention_mask: [rows, columns] of
    them and the prompt, or None where nothing is masked. most: the columns that the run will need, if known. prompt:
    what else the first forward is given.
    """

    def __init__(
        self,
        cache: Cache,
        *,
        rows: int,
        attention_mask: Tensor | None = None,
        most: int | None = None,
        prompt: dict[str, Any] | None = None,
        snapshot_every: int = SNAPSHOT_EVERY,
    ) -> None:
        self.cache = cache
        self.prompt = prompt or {}
        self._emptied: set[int] = set()
        self._is_aligned = False  # whether all rows end in the columns' end
        self.offsets: Tensor | None = None  # [rows] or [axes, rows]: a token's position minus its place in the row
        self._types: dict[str, Tensor] = {}  # token types of what is generated, [rows, 1]
        self._first_offset = 0
        self._steps: Tensor | None = None
        self.is_new = True
        own = decoders_of(cache)
        held = _length_of(own)
        self.is_fixed = any(isinstance(layer, StaticLayer) for layer in own.layers)
        self._originals: Originals | None = None  # while our own layers are in the cache
        self.columns, self._held = Columns(end=held, most=most), held
        self._starts, self._lengths, self._settled = [0] * rows, [held] * rows, [0] * rows
        self._prompt_masks = list(attention_mask) if attention_mask is not None else [None] * rows
        self._mask: Tensor | None = None  # [rows, columns and more]; what is to come is 1 already
        self._snapshots = Snapshots(rows, every=snapshot_every)
        self._fixed: list[FixedLayer] = []

    def _take_over(self) -> None:
        """Put our own layers into the cache, if they are not there; `give_back` takes them out again."""
        if self._originals is not None:
            return
        own = decoders_of(self.cache)
        _refuse_changed(own, held=self.columns.end)
        self._originals = Originals(self.cache, rows=self.rows)
        if self.is_fixed:
            self._take_fixed(own)
        own.layers = [_own_layer(layer, self.columns) for layer in own.layers]
        if own.layer_class_to_replicate is not None:
            own.layer_class_to_replicate = lambda: GrowingLayer(self.columns)

    def _take_fixed(self, own: Cache) -> None:
        """Take over a static cache, without its windows; its memory is all there is."""
        room = max(layer.max_cache_len for layer in own.layers if isinstance(layer, StaticLayer))
        if any(isinstance(layer, StaticSlidingWindowLayer) for layer in own.layers):
            room = max(room, (self.columns.most or 0) - 1)  # theirs end at the window
        own.layers = [
            without_window(layer, room) if isinstance(layer, StaticSlidingWindowLayer) else layer
            for layer in own.layers
        ]
        self._fixed = [FixedLayer(layer, self.columns) for layer in own.layers if isinstance(layer, StaticLayer)]
        self.columns.most = room

    def start(self, position_ids: Tensor | None, token_types: dict[str, Tensor]) -> None:
        """Take note of how a prompt ends: its positions, [rows, tokens] or [axes, rows, tokens], and token types."""
        if position_ids is not None:
            self._set_offsets(position_ids[..., -1] + 1 - position_ids.shape[-1])
        self._types = {
            name: torch.zeros_like(types[:, -1:]) if name.startswith("mm_") else types[:, -1:]
            for name, types in token_types.items()
            if types is not None
        }

    def _set_offsets(self, offsets: Tensor, *, row: int | None = None) -> None:
        """Take over offsets for all rows, or those of one row, [1] or [axes, 1]."""
        if row is None or self.rows == 1:
            self.offsets = offsets
        else:
            known = offsets if self.offsets is None else self.offsets
            self.offsets = known.expand(*known.shape[:-1], self.rows).clone()
            self.offsets[..., row] = offsets[..., 0]
        self._first_offset = int(self.offsets.flatten()[0])

    def mask_prompts(self, attention_mask: Tensor) -> None:
        """Leave out of attention what is 0 in attention_mask [rows, columns], the columns of a prompt."""
        self._prompt_masks = list(attention_mask)

    @property
    def layers(self) -> list[Any]:
        """The layers, ours; those of the decoder where there is an encoder."""
        layers: list[Any] = decoders_of(self.cache).layers
        return layers

    @property
    def _stores(self) -> list[GrowingLayer | FixedLayer]:
        """What holds keys and values."""
        return [*self._fixed, *self._growing]

    @property
    def _growing(self) -> list[GrowingLayer]:
        """Our own layers."""
        return [layer for layer in self.layers if isinstance(layer, GrowingLayer)]

    @property
    def _forgets(self) -> bool:
        """Whether some layers forget what no row can go back to."""
        return any(isinstance(layer, WindowLayer) for layer in self.layers)

    @property
    def is_ragged(self) -> bool:
        """Whether rows are not in the columns any more in which `generate` would have them."""
        return any(self._starts) or min(self._lengths) < max(self._lengths)

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return len(self._lengths)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens in each row."""
        return tuple(self._lengths)

    @property
    def is_recurrent(self) -> bool:
        """Whether some layers keep a state that can only be remembered, not cut."""
        return any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in self.layers)

    def get_num_tokens(self) -> int:
        """Return how many tokens the longest row holds."""
        return max(self._lengths)

    def get_kv_states(self) -> KVStates:
        """Return keys and values per attention layer, [rows, heads, tokens, head_dim]; an empty list for a new cache.

        Shorter rows are filled on the left; layers with a window give what they still hold.
        """
        self._take_over()
        self._align([0] * self.rows)
        states = [(store.keys, store.values) for store in self._stores]
        return [(keys, values) for keys, values in states if keys is not None and values is not None]

    def update(self, kv_states: KVStates) -> None:
        """Hold these states and no others, all of their tokens in every row."""
        sizes = {(states.shape[0], states.shape[2]) for pair in kv_states for states in pair}
        if len(sizes) > 1 or any(rows != self.rows for rows, _ in sizes):
            raise ValueError(f"states of {self.rows} rows and equally many tokens are expected, not {sorted(sizes)}")
        self._take_over()
        if any(type(layer) is not GrowingLayer for layer in self.layers):
            raise ValueError("only a cache of full attention in every layer can be given other states")
        if self.layers and kv_states and len(self.layers) != len(kv_states):
            raise ValueError(f"states of {len(self.layers)} layers are expected, not of {len(kv_states)}")
        self.columns = Columns(end=next(iter(sizes))[1] if sizes else 0, most=self.columns.most)
        layers = [GrowingLayer(self.columns) for _ in kv_states or self.layers]
        for layer, (keys, values) in zip(layers, kv_states, strict=False):
            layer.take_over(keys, values)
        decoders_of(self.cache).layers = layers
        self._starts, self._lengths = [0] * self.rows, [self.columns.end] * self.rows
        self._settled, self._prompt_masks, self._mask = [0] * self.rows, [None] * self.rows, None
        self.is_new, self.offsets, self._is_aligned = self.columns.end == 0, None, False

    def crop(self, num_tokens: int) -> None:
        """Take the latest `num_tokens` tokens out of every row."""
        if not 0 <= num_tokens <= min(self._lengths):
            raise ValueError(f"{num_tokens} tokens can't be taken out of a cache of {min(self._lengths)}")
        for row, length in enumerate(self._lengths):
            if self.rewind(row, length - num_tokens) != length - num_tokens:
                raise ValueError("the states of recurrent layers can't be cropped to any length; use rewind")

    def rewind(self, row: int, length: int) -> int:
        """Keep the first `length` tokens of one row, or fewer: return how many. Nothing is copied before a forward."""
        held = self._lengths[row]
        if not 0 <= length <= held:
            raise ValueError(f"row {row} of the cache holds {held} tokens, so it can't be rewound to {length}")
        if 0 < length < self._settled[row]:
            raise ValueError(
                f"row {row} was settled at {self._settled[row]} tokens, so it can't be rewound to {length}"
            )
        if 0 < length < held and self.is_recurrent:
            length = self._snapshots.go_back(row, length, self.layers)
        self._lengths[row], self._is_aligned = length, False
        if length == 0:
            self._empty(row)
        return length

    def _empty(self, row: int) -> None:
        """Forget all about a row, so that another text can begin in it."""
        self._prompt_masks[row], self._settled[row], self._starts[row] = None, 0, 0
        self._write_mask(row)
        clear_row(self.layers, row)
        self._snapshots.forget(row)
        if self.offsets is not None and row not in self._emptied:
            self._set_offsets(torch.zeros_like(self.offsets[..., :1]), row=row)
        self._emptied.add(row)

    def settle(self, row: int, length: int) -> None:
        """Take note that no rewind but one to 0 will go below `length` tokens in a row."""
        self._settled[row] = max(self._settled[row], length)
        self._snapshots.settle(row, length)

    def adopt(self, row: int, other: RewindableCache) -> None:
        """Put the one row of another cache of the same model in the place of a row."""
        if not isinstance(other, TransformersCache) or other.rows != 1:
            raise ValueError("a cache of one row and of the same kind is expected")
        if self.is_fixed:
            raise ValueError("a row of a static cache can't be replaced: use a dynamic one")
        if isinstance(self.cache, EncoderDecoderCache):
            raise ValueError("a row of an encoder-decoder model can't be replaced: its encoder's states stay behind")
        self._take_over()
        length = other.columns.end
        if self.columns.end < length:
            self._shift_all(length - self.columns.end)
        for own, new in zip(self.layers, other.layers, strict=True):
            if isinstance(own, GrowingLayer):
                own.adopt(row, new, length, rows=self.rows)
        put_row(self.layers, row, other.layers, rows=self.rows)
        self.is_new = False
        self._snapshots.adopt(row, other._snapshots)
        self._starts[row], self._lengths[row] = self.columns.end - length, length
        self._settled[row], self._is_aligned = other._settled[0], False
        self._emptied.discard(row)
        self._prompt_masks[row] = other._prompt_masks[0]
        self._write_mask(row)
        if other.offsets is not None:
            self._set_offsets(other.offsets, row=row)

    def forget(self, row: int) -> None:
        """Take out the token that a row was fed only so that others could be fed theirs."""
        self._lengths[row], self._is_aligned = self._lengths[row] - 1, False

    def repeat(self, times: int) -> None:
        """Repeat what the layers hold of each row: prompts that stand in several rows are read once."""
        for layer in self.layers:
            if isinstance(layer, GrowingLayer):
                layer.repeat(times)
        repeat_rows(self.layers, times)

    @contextmanager
    def feeding(self, counts: Sequence[int]) -> Iterator[None]:
        """Let a forward of max(counts) queries run inside; each row feeds the last `counts[row]` of them."""
        self._take_over()
        self._align(counts)
        most, end = max(counts), self.columns.end
        self.columns.counts = None if min(counts) == most else list(counts)
        for fixed in self._fixed:
            fixed.set_length()
        if self._forgets:
            self.columns.settled = self._settled_columns()
        yield
        self.columns.counts = None
        self.columns.end = end + most
        self._lengths = [length + count for length, count in zip(self._lengths, counts, strict=True)]
        self._is_aligned, self.is_new = True, False
        if self.is_recurrent:
            self._snapshots.take(self._lengths, self.layers)

    @contextmanager
    def feeding_alone(self, row: int) -> Iterator[None]:
        """Let a forward of one query run inside, for one row only."""
        if self.is_fixed and self._starts[row] + self._lengths[row] == self.columns.most:
            self._move(row, -self._starts[row])
        end, self.columns.end = self.columns.end, self._starts[row] + self._lengths[row]
        self.columns.row = row
        with ExitStack() as stack:
            stack.enter_context(narrowed(self.layers, row))
            for fixed in self._fixed:
                fixed.set_length()
                stack.enter_context(fixed.narrowed(row))
            yield
        self.columns.row, self.columns.end = None, end
        self._lengths[row], self._is_aligned = self._lengths[row] + 1, False

    def attention_mask(self, queries: int, *, row: int | None = None) -> Tensor | None:
        """Return which columns hold tokens, those of the coming queries too: int64 [rows, columns], or None for all."""
        if not any(self._starts) and all(mask is None for mask in self._prompt_masks):
            return None
        columns = self.columns.end + queries
        if self._mask is None or self._mask.shape[1] < columns:
            self._mask = torch.ones((self.rows, self.columns.room(columns)), dtype=torch.int64, device=self.device)
            for number in range(self.rows):
                self._write_mask(number)
        mask = self._mask[:, :columns]
        return mask if row is None else mask[row : row + 1]

    def positions(self, queries: int, *, row: int | None = None) -> Tensor | None:
        """Return the positions of the coming queries, [rows, queries] or [axes, rows, queries]; None without any.

        Where a row feeds fewer, those of its own stand on the right, and what stands left of them means nothing.
        """
        if self.offsets is None:
            return None
        offsets, counts = self.offsets, self.columns.counts or [queries] * self.rows
        firsts = [length + count - queries for length, count in zip(self._lengths, counts, strict=True)]
        if row is not None:
            offsets, firsts = offsets[..., min(row, offsets.shape[-1] - 1)][..., None], [self._lengths[row]]
        if self.offsets.shape == (1,) and min(firsts) == max(firsts):
            first = firsts[0] + self._first_offset
            return self._steps_up_to(first + queries)[None, first : first + queries]
        steps = self._steps_up_to(queries)[:queries]
        starts = firsts[0] if min(firsts) == max(firsts) else send(torch.tensor(firsts), steps.device)
        return ((offsets + starts)[..., None] + steps).clamp_(min=0)

    def _steps_up_to(self, count: int) -> Tensor:
        """Return the numbers from 0 to at least `count`."""
        if self._steps is None or self._steps.shape[0] < count:
            self._steps = torch.arange(self.columns.room(count) + AHEAD, device=self.device)
        return self._steps

    def token_types(self, queries: int, *, row: int | None = None) -> dict[str, Tensor]:
        """Return the token types of the coming queries, [rows, queries], by name."""
        types = {name: last.expand(-1, queries) for name, last in self._types.items()}
        return types if row is None else {name: own[row : row + 1] for name, own in types.items()}

    @property
    def device(self) -> torch.device:
        """Where the first layer's states are."""
        found = (layer.device for layer in self.layers if getattr(layer, "device", None) is not None)
        return next(found, torch.device("cpu"))

    def take_layers(self, other: Cache) -> None:
        """Hold what a model put into a cache of its own, because it read a prompt from the start."""
        if self.is_fixed or self._held or type(other) is not DynamicCache:
            raise ValueError(
                "the model read its prompt into a cache of its own: leave out past_key_values and cache_implementation"
            )
        self.columns.end = _length_of(other)
        decoders_of(self.cache).layers = [_own_layer(layer, self.columns) for layer in other.layers]

    def refuse_unread(self, model: PreTrainedModel) -> None:
        """Raise `ValueError` where layers hold nothing after a prompt, or other states than those of its tokens.

        What the model then remembers is elsewhere, where a rewind does not reach it.
        """
        config = model.config.get_text_config(decoder=True)
        images = [self.layers[number] for number in getattr(config, "cross_attention_layers", None) or ()]
        if any(layer.is_initialized for layer in images):
            raise ValueError(
                f"{type(model).__name__} keeps an image in layers of its cache, where only tokens can be taken back: "
                "pass text alone"
            )
        is_read = [layer in images or _holds(layer, self.columns.end) for layer in self.layers]
        if isinstance(self.cache, EncoderDecoderCache):  # there is a layer for each of the encoder's, too
            while len(is_read) > 1 and not is_read[-1]:
                is_read.pop()
        if not all(is_read) or not is_read:
            raise ValueError(
                f"{type(model).__name__} does not keep all that it has read in its cache, the only place where tokens "
                "can be taken back: choose a model of a family in docs/families.md"
            )

    @contextmanager
    def following(self, model: PreTrainedModel) -> Iterator[None]:
        """Let a prompt be read in several forwards inside: each writes behind the one before it."""
        if self.is_fixed:  # its layers count for themselves
            yield
            return

        def move_on(*_: object) -> None:
            self.columns.end = max((layer.reached for layer in self._growing), default=self.columns.end)

        handle = model.register_forward_hook(move_on)
        try:
            yield
        finally:
            handle.remove()

    def give_back(self, *, is_whole: bool) -> bool:
        """Give the cache transformers' own layers back; return whether it holds the texts of the rows.

        It does if the call came to its end (`is_whole`) with all rows in the same columns, which are then their tokens.
        Otherwise the cache is as it was before: too short is safe, and nobody knows what else it would hold.
        """
        if self._originals is None:
            return False
        is_whole = is_whole and not self.is_ragged
        own = decoders_of(self.cache)
        if is_whole:
            self._align([0] * self.rows)
            for fixed in self._fixed:
                fixed.set_length()
            own.layers = [layer.as_standard() if isinstance(layer, GrowingLayer) else layer for layer in own.layers]
        else:
            self.columns.end = self._held
            self._originals.put_back(self.cache)
        if own.layer_class_to_replicate is not None:
            own.layer_class_to_replicate = DynamicLayer
        self._originals = None
        return is_whole

    def _align(self, counts: Sequence[int]) -> None:
        """Have all rows end in the same column once they have fed `counts` tokens."""
        queries = max(counts)
        if self._is_aligned and min(counts) == queries and not any(self._starts):
            return
        self._trim(max(self._ends(counts)))
        ends = self._ends(counts)
        target = max(ends)
        is_full = self.is_fixed and self.columns.most is not None and target > self.columns.most
        if min(ends) == target and not is_full:
            self.columns.end = target - queries
            return
        if is_full:
            target = max(length + count for length, count in zip(self._lengths, counts, strict=True))
        self.columns.end = target - queries
        self.columns.settled = self._settled_columns()
        for store in self._stores:
            store.reserve(target)
        for row, end in enumerate(ends):
            if end != target:
                self._move(row, target - end)

    def _ends(self, counts: Sequence[int]) -> list[int]:
        """Return the columns in which the rows will end."""
        return [sum(row) for row in zip(self._starts, self._lengths, counts, strict=True)]

    def _settled_columns(self) -> int:
        """Return the columns below which no row goes back; rows that hold nothing don't count."""
        rows = zip(self._starts, self._settled, self._lengths, strict=True)
        return min((start + settled for start, settled, length in rows if length), default=0)

    def _trim(self, target: int) -> None:
        """Drop columns that all rows have left on their left, if there are enough or no others are to be had."""
        if self.is_fixed:
            return
        spare = min((start for start, length in zip(self._starts, self._lengths, strict=True) if length), default=0)
        is_needed = self.columns.most is not None and target > self.columns.most
        if spare >= TRIM or (spare and is_needed):
            self._shift_all(-spare)
        if not any(self._lengths):
            for store in self._stores:
                store.begin()

    def _shift_all(self, by: int) -> None:
        """Move all rows by as many columns."""
        self.columns.end += by
        for store in self._stores:
            store.drop(-by) if by < 0 else store.insert(by)
        self._starts = [max(start + by, 0) for start in self._starts]
        self._mask = None

    def _move(self, row: int, by: int) -> None:
        """Move a row's tokens to the right, or in a static cache to the left if `by` is negative."""
        start, stop = self._starts[row], self._starts[row] + self._lengths[row]
        for store in self._stores if stop > start else ():
            store.move(row, start, stop, by)
        self._starts[row] += by
        self._write_mask(row)

    def _write_mask(self, row: int) -> None:
        """Bring a row of the mask up to date with where the row starts."""
        if self._mask is None:
            return
        mask, start, prompt = self._mask[row], self._starts[row], self._prompt_masks[row]
        mask[:start] = 0
        mask[start:] = 1
        if prompt is not None:
            mask[start : start + len(prompt)] = prompt[: len(mask) - start]


def choose_cache(cache: Cache | None, *, model: PreTrainedModel) -> Cache:
    """Return the cache to run on: the one that `generate` prepared, or one for a model that has it turned off.

    Raises `ValueError`, before anything is computed, where no exact way back is known.
    """
    if cache is None and model.generation_config.use_cache is False and not model.config.is_encoder_decoder:
        cache = DynamicCache(config=model.config.get_text_config(decoder=True))
    if cache is None and not model._supports_default_dynamic_cache():
        raise ValueError(
            f"{type(model).__name__} keeps what it has read in states of its own, not in a cache that tokens can be "
            "taken back from: choose a model of a family in docs/families.md"
        )
    if cache is None:
        raise ValueError("the model generates without a cache, so tokens can't be taken back: pass use_cache=True")
    own = decoders_of(cache)
    if type(own) not in (DynamicCache, StaticCache) or own.offloading:
        name = type(own).__name__ + (" with offloading" if own.offloading else "")
        raise ValueError(
            f"tokens can't be taken back from a {name} yet: "
            "leave out past_key_values and cache_implementation, or pass a DynamicCache or StaticCache"
        )
    unknown = {type(layer).__name__ for layer in own.layers if type(layer) not in _LAYERS}
    if unknown:
        raise ValueError(
            f"tokens can't be taken back from cache layers of type {', '.join(sorted(unknown))} yet: "
            "choose a model with full, sliding-window or recurrent layers"
        )
    if type(own) is StaticCache:
        _refuse_static(model)
    if any(isinstance(layer, StaticSlidingWindowLayer) for layer in own.layers) and _length_of(own):
        raise ValueError(
            "the StaticCache passed holds tokens in sliding windows, which forget what a rewind needs: pass a new one"
        )
    return cache


def _refuse_static(model: PreTrainedModel) -> None:
    """Raise `ValueError` for models that transformers' own static cache misleads, `generate` included."""
    config = model.config.get_text_config(decoder=True)
    counts_from_the_end = "local" in (getattr(config, "attention_layers", None) or ())  # GPT-Neo, wrong in silence
    if counts_from_the_end or getattr(config, "alibi", False):  # Falcon, which fails in its first forward
        raise ValueError(
            f"{type(model).__name__} takes the free columns of a static cache for tokens, in generate() too: "
            "leave out cache_implementation, or pass a DynamicCache"
        )


def _holds(layer: Any, columns: int) -> bool:
    """Tell whether a layer holds the states of so many columns."""
    if isinstance(layer, LinearAttentionCacheLayerMixin):
        states = [*layer.conv_states.values(), *layer.recurrent_states.values()]
        if any(state is not None for state in states):
            return not isinstance(layer, GrowingLayer) or not layer.is_initialized or layer.reached == columns
    if isinstance(layer, GrowingLayer):
        return layer.is_initialized and layer.reached == columns
    if isinstance(layer, StaticLayer):
        return layer.is_initialized and int(layer.cumulative_length) == columns
    return not isinstance(layer, LinearAttentionCacheLayerMixin)


def _length_of(cache: Cache) -> int:
    lengths = [int(layer.get_seq_length()) for layer in cache.layers if hasattr(layer, "get_seq_length")]
    return max(lengths, default=0)


def _refuse_changed(own: Cache, *, held: int) -> None:
    """Raise `ValueError` for a cache that is not any more what it was when the call was prepared."""
    if any(isinstance(layer, GrowingLayer) for layer in own.layers):
        raise ValueError(
            "another text is being written with the cache that was passed: finish or close that one first, "
            "or pass another cache"
        )
    if (now := _length_of(own)) != held:
        raise ValueError(
            f"the cache that was passed held {held} tokens when the call was prepared, and holds {now} now: "
            "call again with all tokens, those that it holds now too"
        )


def _own_layer(layer: Any, columns: Columns) -> Any:
    """Return our layer for one of transformers' own, with what that holds."""
    kind = type(layer)
    if kind is DynamicLayer:
        own = GrowingLayer(columns)
    elif kind is DynamicSlidingWindowLayer:
        own = WindowLayer(columns, layer.sliding_window)
    elif kind is LinearAttentionAndFullAttentionLayer:
        own = HybridLayer(columns, layer.number_of_states)
    elif kind is LinearAttentionAndSlidingWindowAttentionLayer:
        own = HybridWindowLayer(columns, layer.sliding_window, layer.number_of_states)
    else:
        return layer
    if isinstance(own, LinearAttentionLayer):
        copy_states(own, layer)
    if layer.is_initialized:
        own.take_over(layer.keys, layer.values)
    return own


_LAYERS = {
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionAndStaticFullAttentionLayer,
    StaticLayer,
    StaticSlidingWindowLayer,
    getattr(cache_utils, "DummyLayer", None),  # new in transformers 5.23
}

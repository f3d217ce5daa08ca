"""A transformers model as a `LanguageModel`, which makes the arguments of forward passes from tokens and a cache."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from copy import copy
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import DynamicCache, GenerationConfig, GenerationMixin, PreTrainedModel

from antislop.core.hf.caches.borrowed import refuse_unread
from antislop.core.hf.caches.cache import TransformersCache
from antislop.core.hf.private import (
    CACHE,
    PREFILL_INPUTS,
    attention_of,
    cache_name,
    compiled_if_possible,
    mask_length_of,
    optimized_for_decoding,
    prefill,
)
from antislop.core.loop.protocols import PAD, RewindableCache, count_queries, fill_left, send
from antislop.errors import InputError

_TYPES = ("token_type_ids", "mm_token_type_ids", "moe_mm_token_type_ids")
PROMPT_ONLY = {*PREFILL_INPUTS, *_TYPES, "position_ids", "inputs_embeds"}
"""Arguments of the forward pass that reads a prompt; the prompt's attention mask is another, by `mask_name`."""


class TransformersModel:
    """A transformers model and the arguments that all of its forward passes share.

    Shorter rows of a batch are moved right in the cache. Models that take no positions, but count the columns of the
    cache (BART's decoder, RoFormer), don't allow that: their rows are read one by one if the lengths differ.

    model_kwargs: what `generate` prepared, without the cache and the arguments of one prompt.
    copies: how often each prompt occurs in a batch, in successive rows; the model reads each prompt once.
    decodes: whether to use transformers' kernels for decoding, which differ for experts on a GPU, in all forward passes
        but those that read prompts, for which they would take more memory and give other bits.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        generation_config: GenerationConfig | None = None,
        model_kwargs: dict[str, Any] | None = None,
        copies: int = 1,
        decodes: bool = False,
    ) -> None:
        self._model = model
        self._decodes = decodes
        self._decode_mode: ExitStack | None = None  # the entered context of the decoding kernels, if any
        self._config = generation_config or model.generation_config
        self._kwargs = model_kwargs or {"use_cache": True}
        self._copies = copies
        self._cache_name = cache_name(model)
        self._device = device_of(model)  # stored, since `model.device` looks through all parameters
        prepares = type(model).prepare_inputs_for_generation is GenerationMixin.prepare_inputs_for_generation
        self._is_plain = prepares and not model.config.is_encoder_decoder and not model.is_remote_code()
        self._takes_positions = "position_ids" in inspect.signature(model.forward).parameters
        # transformers' own models use the positions that they are passed: caches/test_positions.py checks each type.
        follows = self._takes_positions and type(model).__module__.startswith("transformers.")
        self._is_known = follows or model.config.is_encoder_decoder  # with an encoder, a batch has one row
        # If all layers attend to all tokens with torch's own attention, the mask is passed ready-made, which saves
        # transformers from making it in each step.
        config = model.config.get_text_config(decoder=True)
        kinds = {*(getattr(config, "layer_types", None) or ()), *(getattr(config, "attention_layers", None) or ())}
        limits = [getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size", "alibi")]
        attends_to_all = attention_of(config) == "sdpa" and not any(limits) and kinds <= {"full_attention", "global"}
        self._takes_ready_masks = self._is_plain and self._takes_positions and attends_to_all
        self._mask_name = mask_name(model)
        self._positions_name = self._mask_name.replace("attention_mask", "position_ids")
        self._compiled: Callable[..., Any] | None = None  # the compiled model, for static caches

    @property
    def eos_token_id(self) -> frozenset[int]:
        """The tokens that end a text."""
        ids = self._config.eos_token_id
        return frozenset(ids if isinstance(ids, list) else [] if ids is None else [ids])

    def new_cache(self, rows: int) -> TransformersCache:
        """Return an empty cache of `rows` rows for this model."""
        cache = DynamicCache(config=self._model.config.get_text_config(decoder=True))
        return TransformersCache(cache, rows=rows, is_fixed=not self.moves_rows)

    @property
    def moves_rows(self) -> bool:
        """Whether moving a row in the cache leaves its logits unchanged."""
        return self._is_known or is_true(Trial.try_move, of=self._model)

    def forward(self, query_token_ids: Tensor, kv_cache: RewindableCache) -> Tensor:
        """Read tokens and return logits [rows, queries, vocab]; for prompts only the last, [rows, 1, vocab]."""
        if not isinstance(kv_cache, TransformersCache):
            raise InputError(f"a TransformersCache is expected, made by new_cache; this is a {type(kv_cache).__name__}")
        if kv_cache.is_new or kv_cache.reads_prompts:
            self.leave_decode_mode()
        elif self._decodes and self._decode_mode is None:
            self._decode_mode = ExitStack()
            self._decode_mode.enter_context(optimized_for_decoding(self._model))
        if kv_cache.is_new:
            return self._prefill(query_token_ids, kv_cache)
        counts = count_queries(query_token_ids)
        ids = send(query_token_ids, self._device)
        is_alone = not (self._is_known or kv_cache.is_even(counts) or self.moves_rows)
        kv_cache.is_fixed = kv_cache.is_fixed or is_alone
        if is_alone or (max(counts) > 1 and kv_cache.is_recurrent):
            return self._feed_one_by_one(ids, kv_cache, counts)
        if max(counts) > 1 and kv_cache.is_static:
            return self._feed_in_step(ids, kv_cache)
        with kv_cache.feeding(counts):
            return self._run(ids if len(set(counts)) == 1 else ids.clamp(min=0), kv_cache)

    def leave_decode_mode(self) -> None:
        """Undo the switch to decoding kernels that `forward` made in the model, if it made one."""
        if self._decode_mode is not None:
            mode, self._decode_mode = self._decode_mode, None
            mode.close()

    def _prefill(self, ids: Tensor, cache: TransformersCache) -> Tensor:
        counts = [] if cache.prompt else count_queries(ids)
        is_padded = len(set(counts)) > 1
        if is_padded and cache.is_fixed:
            logits = []
            for row, count in enumerate(counts):
                own = self.new_cache(1)
                logits.append(self.forward(ids[row : row + 1, -count:], own)[:, -1:])
                cache.copy(row, own, source=0, length=count)
            return torch.cat(logits)
        prompt = cache.prompt
        if not prompt:
            is_token = ids != PAD
            prompt = {self._mask_name: is_token.long().to(self._device) if is_padded else None}
            if self._takes_positions:
                prompt[self._positions_name] = (is_token.cumsum(dim=-1) - 1).clamp(min=0).to(self._device)
        if is_padded:
            cache.mask_prompts(prompt[self._mask_name])
        ids = ids.clamp(min=0).to(self._device)
        token_types = {name: prompt[name] for name in _TYPES if name in prompt}
        cache.positions.start(prompt.get(self._positions_name), token_types)
        # Of n copies of a prompt, the model reads the first: every n-th row of a tensor, unless it has just one row.
        few = {
            name: value[:: self._copies] if self._copies > 1 and isinstance(value, Tensor) and len(value) > 1 else value
            for name, value in prompt.items()
        }
        embeds = prompt.get("inputs_embeds")
        length = ids.shape[1] if embeds is None else embeds.shape[1]
        kwargs = {**self._kwargs, **few, self._cache_name: cache.cache}
        # As in transformers, ids as long as the mask are all tokens; shorter ids follow the tokens in the cache.
        config, mask = self._config, prompt.get(self._mask_name)
        columns = mask_length_of(config) if mask is None else mask.shape[1]
        is_whole = embeds is not None or columns in (0, length)
        unread = length - cache.get_num_tokens() if is_whole else length
        is_split = cache.is_begun or unread > (config.prefill_chunk_size or unread)
        if cache.is_recurrent and is_split and unread > 1:
            continues_states = is_true(Trial.try_piece, of=self._model)
            if cache.is_begun and not continues_states:
                if embeds is not None:
                    raise InputError(f"{type(self._model).__name__} continues a cache by ids only: pass input_ids")
                logits_in_step = self._feed_in_step(ids[:, length - unread :], cache)
                cache.store_states()
                return logits_in_step[:, -1:]
            if not (continues_states and any(hasattr(layer, "get_seq_length") for layer in cache.layers)):
                config = copy(config)
                config.prefill_chunk_size = None  # with recurrent layers only, nothing tells where a part begins
        in_parts = cache.following(self._model) if config.prefill_chunk_size else nullcontext()
        with cache.feeding([unread] * cache.rows), in_parts:
            outputs = prefill(self._model, ids[:: self._copies], config, kwargs)
            held = outputs.get(CACHE)
            if held is not None and held is not cache.cache:
                cache.take_layers(held)
            if self._copies > 1:
                cache.select_states([row for row in range(cache.rows // self._copies) for _ in range(self._copies)])
        refuse_unread(cache, model=self._model)
        if is_padded and not cache.is_recurrent:
            cache.drop_padding(counts)
        last: Tensor = outputs.logits[:, -1:]
        return last if self._copies == 1 else last.repeat_interleave(self._copies, dim=0)

    def _feed_one_by_one(self, ids: Tensor, cache: TransformersCache, counts: list[int]) -> Tensor:
        """Read queries one at a time, since a recurrent model's states might differ if one pass reads several.

        The last queries of all rows are read in one pass, unless the rows may not be moved to a common column.
        """
        queries, alone = ids.shape[1], {}
        for row, count in enumerate(counts):
            for column in range(queries - count, queries if cache.is_fixed else queries - 1):
                with cache.feeding_alone(row):
                    alone[row, column] = self._run(ids[row : row + 1, column : column + 1], cache, row=row)[0, 0]
        if cache.is_fixed:
            last = torch.stack([alone[row, queries - 1] for row in range(cache.rows)])[:, None]
        else:
            with cache.feeding([1] * cache.rows):
                last = self._run(ids[:, -1:], cache)
        logits = last.new_zeros((cache.rows, queries, last.shape[-1]))
        logits[:, -1:] = last
        for (row, column), row_logits in alone.items():
            logits[row, column] = row_logits
        return logits

    def _feed_in_step(self, ids: Tensor, cache: TransformersCache) -> Tensor:
        """Read queries one column at a time; a row without a token there is fed padding, which is then removed."""
        logits = []
        for column in range(ids.shape[1]):
            with cache.feeding([1] * cache.rows):
                # A compiled model may write the next logits into the same memory.
                logits.append(self._run(ids[:, column : column + 1].clamp(min=0).contiguous(), cache).clone())
            for row in (ids[:, column] == PAD).nonzero()[:, 0].tolist():
                cache.forget(row)
        return torch.cat(logits, dim=1)

    def _run(self, ids: Tensor, cache: TransformersCache, *, row: int | None = None) -> Tensor:
        queries = ids.shape[1]
        if cache.positions.offsets is None and self._takes_positions:  # after `update`, positions count from 0
            cache.positions.start(ids.new_zeros((1, 1)), {})
        is_ready = queries == 1 and self._takes_ready_masks and (row is None or not cache.is_static)
        if is_ready and cache.is_static:
            mask: Tensor | None = cache.static_mask()
        elif (mask := cache.attention_mask(queries, row=row)) is not None and is_ready:
            mask = mask.bool()[:, None, None]  # [rows, heads, queries, columns]
        kwargs = {
            **self._kwargs,
            **cache.positions.token_types(queries, row=row),
            self._cache_name: cache.cache,
            self._mask_name: mask,
        }
        if (positions := cache.positions.of(cache.lengths, queries, row=row)) is not None:
            kwargs[self._positions_name] = positions
        if "logits_to_keep" in kwargs:
            kwargs["logits_to_keep"] = 1 if cache.reads_prompts else queries
        if self._is_plain and (is_ready or not cache.is_static):  # the method below would add nothing
            kwargs = {"input_ids": ids, **kwargs}
        else:
            kwargs = self._model.prepare_inputs_for_generation(ids, next_sequence_length=queries, **kwargs)
        if cache.is_static and self._compiled is None:  # asked once: the check takes as long as a small layer
            self._compiled = compiled_if_possible(self._model, cache.cache, self._config)
        model = self._compiled if cache.is_static and self._compiled is not None else self._model
        logits: Tensor = model(**kwargs, return_dict=True).logits
        return logits


class Trial(TransformersModel):
    """Run a model on a few tokens to find out properties that none of its attributes tells."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model, generation_config=GenerationConfig())
        self._is_known = True  # so that `forward` moves rows, which is to be tried
        size = model.config.get_text_config(decoder=True).vocab_size
        self._ids = torch.arange(1, 19).view(2, 9) * max(size // 19, 1) % size

    def try_move(self) -> bool:
        """Return whether a row that was moved in the cache has the same logits as the row alone."""
        alone, moved = self.new_cache(1), self.new_cache(2)
        self.forward(self._ids[:1, :4], alone)
        self.forward(self._ids[:, :8], moved)
        kept = moved.rewind(0, 4)
        ids = fill_left([self._ids[0, kept:5].tolist(), self._ids[1, 8:].tolist()])
        return self._agree(self.forward(self._ids[:1, 4:5], alone), self.forward(ids, moved))

    def try_padding(self) -> bool:
        """Return whether a row with padding on its left has the same logits as the row alone."""
        rows = fill_left([self._ids[0, :4].tolist(), self._ids[1].tolist()])
        return self._agree(self.forward(self._ids[:1, :4], self.new_cache(1)), self.forward(rows, self.new_cache(2)))

    def try_piece(self) -> bool:
        """Return whether tokens that continue a text have the same logits read in one pass and one by one."""
        steps, piece = self.new_cache(1), self.new_cache(1)
        for cache in (steps, piece):
            self.forward(self._ids[:1, :4], cache)
        with piece.feeding([5]):
            logits = self._run(self._ids[:1, 4:].to(self._device), piece)
        return self._agree(self.forward(self._ids[:1, 4:], steps), logits)

    def _agree(self, expected: Tensor, logits: Tensor) -> bool:
        """Return whether the logits after the first row's last token agree in half of the digits of the dtype."""
        expected, logits = expected[0, -1].float(), logits[0, -1].float()
        tolerance = torch.finfo(self._model.dtype).eps ** 0.5 * float(expected.abs().max())
        return bool((logits - expected).abs().max() <= tolerance)


_TRIED: WeakKeyDictionary[PreTrainedModel, dict[Callable[[Trial], bool], bool]] = WeakKeyDictionary()


@torch.no_grad()
def is_true(question: Callable[[Trial], bool], *, of: PreTrainedModel) -> bool:
    """Return the result of a trial, which runs once per model; False in training mode if it has not run before."""
    answers = _TRIED.setdefault(of, {})
    if question not in answers and not of.training:
        answers[question] = question(Trial(of))
    return answers.get(question, False)


def device_of(model: PreTrainedModel) -> torch.device:
    """Return the device to which a model's input ids belong, also if its first parameters are offloaded."""
    device: torch.device = model.device
    if device.type == "meta":
        devices = getattr(model, "hf_device_map", {}).values()
        # The choice that accelerate makes.
        device = torch.device(next((name for name in devices if name not in ("cpu", "disk")), "cpu"))
    return device


def count_positions(mask: Tensor) -> Tensor:
    """Return the positions that `generate` counts from an attention mask [rows, tokens]; 0 for padding."""
    return (mask.long().cumsum(dim=-1) - 1).masked_fill(mask == 0, 0)


def are_counted(positions: Tensor | None, mask: Tensor | None) -> bool:
    if positions is None or positions.ndim != 2:
        return True
    mask = torch.ones_like(positions) if mask is None else mask.to(positions.device)
    return torch.equal(positions, count_positions(mask))


def mask_name(model: PreTrainedModel) -> str:
    """Return the name of the argument for the mask of the text that the model continues, not of an encoder's input."""
    return "decoder_attention_mask" if model.config.is_encoder_decoder else "attention_mask"

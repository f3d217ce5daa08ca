"""Drafters that propose the tokens that transformers would: by an assistant, early layers, or prompt lookup."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import LogitsProcessorList, PreTrainedModel, PreTrainedTokenizerBase
from transformers.cache_utils import DynamicLayer
from transformers.generation.candidate_generator import CandidateGenerator

from antislop.core.hf.caches.cache import TransformersCache
from antislop.core.hf.callbacks.processors import COUNTING, BatchCallbacks, is_stateless
from antislop.core.hf.calls import Call
from antislop.core.hf.model import TransformersModel
from antislop.core.hf.private import (
    cache_of,
    draft_length_of,
    is_confident,
    make_candidate_generator,
    supports_dynamic_cache,
    writes_drafts,
)
from antislop.core.hf.refusals import refusal
from antislop.core.loop.drafts import ModelDrafter
from antislop.core.loop.protocols import RewindableCache, count_shared
from antislop.core.loop.row import NO_DRAFT, Draft, Drafter, Row
from antislop.errors import InputError


def make_assistant_drafter(call: Call, tokenizer: PreTrainedTokenizerBase) -> Drafter | None:
    """Return the drafter for `assistant_model`, `prompt_lookup_num_tokens` or `assistant_early_exit`; None without.

    Raises `InputError` for encoder-decoder models, and for an assistant with another vocabulary.
    """
    model, assistant, config = call.model, call.assistant, copy(call.config)
    if assistant.model is None and (config.assistant_early_exit, config.prompt_lookup_num_tokens) == (None, None):
        return None
    config.num_return_sequences = 1
    if model.config.is_encoder_decoder:
        raise InputError("drafts are for decoder-only models so far: leave out the assistant or prompt lookup")
    if assistant.model is not None and assistant.tokenizer is None:
        size, expected = (m.config.get_text_config(decoder=True).vocab_size for m in (assistant.model, model))
        if size != expected:
            raise refusal("vocabulary of the assistant", size=size, expected=expected)
    processors = LogitsProcessorList(p for p in call.logits_processor if _is_for_drafts(p, rows=call.rows))
    tokenizers = None if assistant.tokenizer is None else (tokenizer, assistant.tokenizer)

    def make(ids: Tensor, number: int) -> CandidateGenerator:
        # Without a mask, an assistant would take pad tokens in the text for padding.
        row_mask = torch.ones_like(ids)
        if (mask := call.mask_of(number)) is not None:
            row_mask[:, : len(mask)] = mask
        return make_candidate_generator(
            model,
            ids,
            config=config,
            logits_processor=processors,
            model_kwargs={"attention_mask": row_mask},
            assistant_model=assistant.model,
            tokenizers=tokenizers,
        )

    def make_for(row: Row) -> CandidateGenerator:
        return make(row.ids, row.root)

    drafting = assistant.model if config.assistant_early_exit is None else model
    if drafting is None or not supports_dynamic_cache(drafting) or not writes_drafts(make(call.input_ids[:1], 0)):
        return CandidateDrafter(make_for, do_sample=config.do_sample)
    kwargs: dict[str, Any] = {"use_cache": True}
    if "logits_to_keep" in inspect.signature(drafting.forward).parameters:
        kwargs["logits_to_keep"] = 1
    if config.assistant_early_exit is None:
        reader = TransformersModel(drafting, generation_config=config, model_kwargs=kwargs)
    else:
        reader = _FirstLayers(drafting, config.assistant_early_exit, generation_config=config, model_kwargs=kwargs)
    return AssistantDrafter(reader, call, make_for)


def _is_for_drafts(processor: Callable[..., Any], *, rows: int) -> bool:
    if not is_stateless(processor):
        return False  # a draft would show the processor tokens that may be rejected
    if rows == 1 or type(processor).__name__ not in COUNTING:
        return True  # processors in COUNTING depend on the index of a row in the batch
    prompt_lengths = getattr(processor, "prompt_ignore_length", torch.empty(0))
    return not isinstance(prompt_lengths, Tensor)


class AssistantDrafter(ModelDrafter):
    """Draft with an assistant or early layers, for all rows together: one forward pass for each token of a draft.

    call: the call whose settings all rows share; if it pads prompts, they are read from the call without padding.
    make: a function that returns the candidate generator of a row, which decides how long the row's drafts are.
    """

    def __init__(self, model: TransformersModel, call: Call, make: Callable[[Row], CandidateGenerator]) -> None:
        super().__init__(model)
        self._call = call
        self._is_padded = call.mask is not None and not bool(call.mask.all())
        self._make = make
        self._generators: WeakKeyDictionary[Row, CandidateGenerator] = WeakKeyDictionary()

    def learn(self, row: Row, *, proposed: int, accepted: int) -> None:
        _adapt(self._generators[row], row, proposed=proposed, accepted=accepted)

    def limit(self, row: Row) -> int:
        if row not in self._generators:
            self._generators[row] = self._make(row)
        return min(draft_length_of(self._generators[row]), row.max_new_tokens - len(row.tokens) - 1)

    def generator_of(self, row: Row) -> torch.Generator | None:
        seed = _draw_seed(row)
        return None if seed is None else torch.Generator(row.ids.device).manual_seed(seed)

    def prompt_of(self, row: Row) -> list[int]:
        return self._call.tokens_of(row.root) if self._is_padded else super().prompt_of(row)

    def score(self, rows: Sequence[Row], lengths: Sequence[int], logits: Tensor) -> Tensor:
        callbacks = [cast(BatchCallbacks, row.spec.callbacks) for row in rows]
        if all(each is callbacks[0] for each in callbacks):
            return callbacks[0].process_drafts(rows, lengths, logits)
        parts = zip(callbacks, rows, lengths, logits, strict=True)
        return torch.cat([each.process_drafts([row], [length], own[None]) for each, row, length, own in parts])

    def is_sure(self, row: Row, probability: float) -> bool:
        return is_confident(self._generators[row], probability)


class _FirstLayers(TransformersModel):
    """A model of which each forward pass computes only the first `layers` layers."""

    def __init__(self, model: PreTrainedModel, layers: int, **kwargs: Any) -> None:
        super().__init__(model, **kwargs)
        self._layers = layers

    def new_cache(self, rows: int) -> TransformersCache:
        cache = super().new_cache(rows)
        del cache.layers[self._layers :]
        return cache

    def forward(self, query_token_ids: Tensor, kv_cache: RewindableCache) -> Tensor:
        config = self._model.base_model.config
        layers, config.num_hidden_layers = config.num_hidden_layers, self._layers
        try:
            return super().forward(query_token_ids, kv_cache)
        finally:
            config.num_hidden_layers = layers


class CandidateDrafter:
    """Draft with transformers' own candidate generators, one generator for each row."""

    def __init__(self, make: Callable[[Row], CandidateGenerator], *, do_sample: bool) -> None:
        self._make = make
        self._do_sample = do_sample
        self._sources: WeakKeyDictionary[Row, _DraftSource] = WeakKeyDictionary()

    def propose(self, rows: Sequence[Row]) -> list[Draft]:
        return [self._draft(row) for row in rows]

    def _draft(self, row: Row) -> Draft:
        ids = row.ids
        source = self._follow(row, ids[0].tolist())
        with _own_random_numbers(row):
            candidates, logits = source.generator.get_candidates(ids)
        source.read = candidates[0].tolist()
        tokens = source.read[ids.shape[1] :]
        if not tokens:
            return NO_DRAFT
        if logits is None or not self._do_sample:
            return Draft(tokens)
        return Draft(tokens, torch.softmax(logits[0].float(), dim=-1).to(ids.device))

    def learn(self, row: Row, *, proposed: int, accepted: int) -> None:
        """Have the generator adapt the length of its drafts; drop the generator of a finished row."""
        if row.is_finished:
            self._sources.pop(row, None)
            return
        _adapt(self._sources[row].generator, row, proposed=proposed, accepted=accepted)

    def _follow(self, row: Row, ids: list[int]) -> _DraftSource:
        """Return the row's generator, with its cache cropped to the tokens that it has in common with the ids."""
        # A generator compares lengths alone: after a rewind, its cache could hold other tokens of the same length.
        source = self._sources.get(row)
        if source is None:
            return self._begin(row)
        cache = cache_of(source.generator)
        shared = min(count_shared(source.read, ids), len(ids) - 1)
        if cache is None or cache.get_seq_length() <= shared:
            return source
        if any(type(layer) is not DynamicLayer for layer in cache.layers):
            return self._begin(row)  # other layers can't be cropped twice
        cache.crop(shared - cache.get_seq_length())
        return source

    def _begin(self, row: Row) -> _DraftSource:
        source = self._sources[row] = _DraftSource(self._make(row))
        return source


@dataclass
class _DraftSource:
    generator: CandidateGenerator
    read: list[int] = field(default_factory=list)  # the latest ids and draft, which the generator's cache may hold


def _adapt(generator: CandidateGenerator, row: Row, *, proposed: int, accepted: int) -> None:
    """Tell a generator how many draft tokens were accepted, so that it adapts the length of its drafts."""
    scores = torch.empty(1, proposed + 1, 0)  # only the number of scores is used
    generator.update_candidate_strategy(row.ids, scores, accepted)


def _draw_seed(row: Row) -> int | None:
    """Draw a seed for a draft from the row's random generator; return None without one, or if nothing is sampled."""
    generator = row.spec.generator
    if generator is None or not row.spec.policy.do_sample:
        return None
    return int(torch.randint(2**31, (), generator=generator, device=generator.device))


@contextmanager
def _own_random_numbers(row: Row) -> Iterator[None]:
    """Seed torch's random numbers from the row's own generator, if it has one, for a draft drawn in the block."""
    if (seed := _draw_seed(row)) is None:
        yield
        return
    kind = row.ids.device.type
    devices = () if kind == "cpu" else range(torch.get_device_module(kind).device_count())
    with torch.random.fork_rng(devices=devices, device_type=kind):
        torch.manual_seed(seed)
        yield

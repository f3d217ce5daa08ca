"""Drafts as transformers makes them: by an assistant model, by early layers, or by prompt lookup."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import LogitsProcessorList, PreTrainedModel, PreTrainedTokenizerBase
from transformers.cache_utils import DynamicLayer
from transformers.generation.candidate_generator import CandidateGenerator

from antislop.decoding.drafts import count_shared
from antislop.decoding.row import NO_DRAFT, Draft, Row
from antislop.errors import InputError
from antislop.hf.calls import Call
from antislop.hf.private import cache_of, make_candidate_generator
from antislop.processors.memory import is_of_transformers
from antislop.processors.processors import COUNTING


def make_assistant_drafters(call: Call, index: int, tokenizer: PreTrainedTokenizerBase) -> list[CandidateDrafter]:
    """Return a row's drafter by `assistant_model`, `prompt_lookup_num_tokens` or `assistant_early_exit`, or none.

    Raises `InputError` for encoder-decoder models, and for an assistant with another vocabulary.
    """
    model, assistant = call.model, call.assistant
    config = copy(call.config)
    config.num_return_sequences = 1
    by_model = assistant.model is not None or config.assistant_early_exit is not None
    if not by_model and config.prompt_lookup_num_tokens is None:
        return []
    if model.config.is_encoder_decoder:
        raise InputError("drafts are for decoder-only models so far: leave out the assistant or prompt lookup")
    if assistant.model is not None and assistant.tokenizer is None:
        _refuse_other_vocabulary(model, assistant.model)
    processors = LogitsProcessorList(p for p in call.logits_processor if _is_for_drafts(p, rows=call.rows))
    tokenizers = None if assistant.tokenizer is None else (tokenizer, assistant.tokenizer)
    mask = call.mask_of(index)

    def make(row: Row) -> CandidateGenerator:
        # Without a mask, an assistant would take pad tokens in the text for padding.
        row_mask = torch.ones_like(row.ids)
        if mask is not None:
            row_mask[:, : len(mask)] = mask
        return make_candidate_generator(
            model,
            row.ids,
            config=config,
            logits_processor=processors,
            model_kwargs={"attention_mask": row_mask},
            assistant_model=assistant.model,
            tokenizers=tokenizers,
        )

    return [CandidateDrafter(make, do_sample=config.do_sample)]


def _refuse_other_vocabulary(model: PreTrainedModel, assistant: PreTrainedModel) -> None:
    size, expected = (m.config.get_text_config(decoder=True).vocab_size for m in (assistant, model))
    if size != expected:
        raise InputError(
            f"the assistant has a vocabulary of {size:,} tokens, and the model one of {expected:,}: pass its tokenizer "
            "as assistant_tokenizer, or an assistant with the same vocabulary"
        )


def _is_for_drafts(processor: Callable[..., Any], *, rows: int) -> bool:
    if not is_of_transformers(processor):
        return False  # a draft would show it tokens that are never written
    if rows == 1 or type(processor).__name__ not in COUNTING:
        return True  # COUNTING: those that depend on the index of a row in the batch
    prompt_lengths = getattr(processor, "prompt_ignore_length", torch.empty(0))
    return not isinstance(prompt_lengths, Tensor)


class CandidateDrafter:
    """Drafts by transformers' candidate generators, one for each row."""

    def __init__(self, make: Callable[[Row], CandidateGenerator], *, do_sample: bool) -> None:
        self._make = make
        self._do_sample = do_sample
        self._sources: WeakKeyDictionary[Row, _DraftSource] = WeakKeyDictionary()

    def propose(self, row: Row) -> Draft:
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
        scores = torch.empty(1, proposed + 1, 0)  # only its length is used
        self._sources[row].generator.update_candidate_strategy(row.ids, scores, accepted)

    def _follow(self, row: Row, ids: list[int]) -> _DraftSource:
        """Return the row's generator, its cache truncated to what it shares with the ids."""
        # A generator crops by lengths alone: after a rewind, its cache could hold another path of the same length.
        source = self._sources.get(row)
        if source is None:
            return self._begin(row)
        cache = cache_of(source.generator)
        shared = min(count_shared(source.read, ids), len(ids) - 1)
        if cache is None or cache.get_seq_length() <= shared:
            return source
        if any(type(layer) is not DynamicLayer for layer in cache.layers):
            return self._begin(row)  # others can't be cropped twice
        cache.crop(shared - cache.get_seq_length())
        return source

    def _begin(self, row: Row) -> _DraftSource:
        source = self._sources[row] = _DraftSource(self._make(row))
        return source


@dataclass
class _DraftSource:
    generator: CandidateGenerator
    read: list[int] = field(default_factory=list)  # ids of the latest candidates, which its cache may hold


@contextmanager
def _own_random_numbers(row: Row) -> Iterator[None]:
    """Have transformers draw a draft by the row's own generator, if it has one."""
    if row.spec.generator is None or not row.spec.policy.do_sample:
        yield
        return
    generator = row.spec.generator
    seed = int(torch.randint(2**31, (), generator=generator, device=generator.device))
    kind = row.ids.device.type
    devices = () if kind == "cpu" else range(torch.get_device_module(kind).device_count())
    with torch.random.fork_rng(devices=devices, device_type=kind):
        torch.manual_seed(seed)
        yield

"""Drafts as transformers makes them: by an assistant model, by early layers, or by prompt lookup."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel, PreTrainedTokenizerBase
from transformers.cache_utils import DynamicLayer
from transformers.generation.candidate_generator import CandidateGenerator

from antislop.callbacks.memory import is_of_transformers
from antislop.decoding.row import NO_DRAFT, Draft, Row
from antislop.hf.private import cache_of, make_candidate_generator


class Assistant(NamedTuple):
    """A model that drafts, and its tokenizer if that is another one."""

    model: PreTrainedModel | None = None
    tokenizer: PreTrainedTokenizerBase | None = None


def speculate(
    model: PreTrainedModel,
    input_ids: Tensor,
    *,
    assistant: Assistant | None,
    tokenizer: PreTrainedTokenizerBase,
    logits_processor: LogitsProcessorList,
    generation_config: GenerationConfig,
    model_kwargs: Mapping[str, Any],
) -> list[CandidateDrafter]:
    """Return the drafter of `assistant_model`, `prompt_lookup_num_tokens` or `assistant_early_exit`, or none.

    Raises `ValueError` for encoder-decoder models, and for a batch with an assistant.
    """
    config, helper = generation_config, assistant or Assistant()
    by_model = helper.model is not None or config.assistant_early_exit is not None
    if not by_model and config.prompt_lookup_num_tokens is None:
        return []
    if model.config.is_encoder_decoder:
        raise ValueError("drafts are for decoder-only models so far: leave out the assistant or prompt lookup")
    if by_model and input_ids.shape[0] > 1:
        raise ValueError(f"an assistant drafts for one text, not for {input_ids.shape[0]}: pass one prompt at a time")
    # Not the user's processors: a draft would show them tokens that are never written.
    processors = LogitsProcessorList(p for p in logits_processor if is_of_transformers(p))
    tokenizers = None if helper.tokenizer is None else (tokenizer, helper.tokenizer)
    mask = model_kwargs.get("attention_mask")

    def make(row: Row) -> CandidateGenerator:
        # Without a mask, an assistant would take pad tokens of the text for padding.
        row_mask = torch.ones_like(row.ids)
        if mask is not None:
            row_mask[:, : mask.shape[1]] = mask[row.place]
        return make_candidate_generator(
            model,
            row.ids,
            config=config,
            logits_processor=processors,
            model_kwargs={"attention_mask": row_mask},
            assistant_model=helper.model,
            tokenizers=tokenizers,
        )

    return [CandidateDrafter(make, do_sample=config.do_sample)]


class CandidateDrafter:
    """Drafts by transformers' candidate generators, one for each row, since they remember its text.

    make: returns a new generator for a row. do_sample: whether the generators sample, and return their distributions.
    """

    def __init__(self, make: Callable[[Row], CandidateGenerator], *, do_sample: bool) -> None:
        self._make = make
        self._do_sample = do_sample
        self._generators: dict[int, CandidateGenerator] = {}
        self._read: dict[int, list[int]] = {}  # the ids that a generator's cache may hold: its latest candidates

    def propose(self, row: Row) -> Draft:
        """Return a generator's candidates."""
        ids = row.ids
        generator = self._follow(row, ids[0].tolist())
        candidates, logits = generator.get_candidates(ids)
        self._read[row.place] = candidates[0].tolist()
        tokens = self._read[row.place][ids.shape[1] :]
        if not tokens:
            return NO_DRAFT
        if logits is None or not self._do_sample:
            return Draft(tokens)
        return Draft(tokens, torch.softmax(logits[0].float(), dim=-1).to(ids.device))

    def learn(self, row: Row, *, proposed: int, accepted: int) -> None:
        """Let the generator choose how many tokens to draft from now on."""
        scores = torch.empty(1, proposed + 1, 0)  # only its length is used
        self._generators[row.place].update_candidate_strategy(row.ids, scores, accepted)

    def _follow(self, row: Row, ids: list[int]) -> CandidateGenerator:
        """Return the row's generator, its cache cut back to what it shares with the ids.

        A generator crops by lengths alone: after a rewind its cache could hold another path of the same length, and
        nearly every draft would be wrong. A cache that can't be cropped twice is replaced.
        """
        generator = self._generators.get(row.place)
        if generator is None:
            return self._begin(row)
        cache = cache_of(generator)
        read = self._read.get(row.place, [])
        shared = next((i for i, (a, b) in enumerate(zip(read, ids, strict=False)) if a != b), min(len(read), len(ids)))
        if cache is None or cache.get_seq_length() <= min(shared, len(ids) - 1):
            return generator
        if any(type(layer) is not DynamicLayer for layer in cache.layers):
            return self._begin(row)
        cache.crop(min(shared, len(ids) - 1) - cache.get_seq_length())
        return generator

    def _begin(self, row: Row) -> CandidateGenerator:
        generator = self._generators[row.place] = self._make(row)
        return generator

"""Run a transformers model for the loop: one forward pass at a time, over a cache that follows the rewinds.

What a forward pass needs beside the tokens (positions, attention mask, token types) follows from the length of the text
alone, so a rewind has nothing to put back here but the cache. Knows neither bans nor text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList, MaxLengthCriteria, PreTrainedModel, StoppingCriteriaList
from transformers.generation import EosTokenCriteria
from transformers.utils import ModelOutput

from antislop.cache import take_out
from antislop.decoding import Pass, Row
from antislop.support import memory_of, refuse_memory

_GROWING = ("position_ids", "attention_mask", "token_type_ids", "mm_token_type_ids")
_AHEAD = 64  # tokens for which these are prepared at once


class Engine:
    """One row on one model. `model_kwargs` are what `generate` prepared, with a cache that can be taken back."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        model_kwargs: dict[str, Any],
    ) -> None:
        self._model = model
        self._config = generation_config
        self._processor = logits_processor
        self._strangers = [p for p in logits_processor if not type(p).__module__.startswith("transformers.")]
        self._memories: list[dict[str, tuple[int, int]]] = []
        self._kwargs = model_kwargs
        self.cache = model_kwargs["past_key_values"]
        self._fed: list[int] | None = None  # generated tokens in the cache; None before the prompt is
        self._prompt_in_cache = 0
        self._prompt_sizes = {n: model_kwargs[n].shape[-1] for n in _GROWING if model_kwargs.get(n) is not None}
        self._covered = 0  # generated tokens that the growing arguments reach to
        eos = [criterion for criterion in stopping_criteria if type(criterion) is EosTokenCriteria]
        self.eos_token_ids = frozenset(int(i) for criterion in eos for i in criterion.eos_token_id.flatten())
        # The two criteria that every run has are a look at an int; only others are worth their tensors.
        self._max_length = stopping_criteria.max_length
        self._other_criteria = StoppingCriteriaList(
            c for c in stopping_criteria if type(c) not in (EosTokenCriteria, MaxLengthCriteria)
        )

    @torch.no_grad()
    def forward(self, rows: Sequence[Row]) -> list[Pass]:
        """Return the logits after the row's tokens; the cache is cut back to what it shares with them."""
        (row,) = rows
        if self._fed is None:
            return [self._prefill(row)]
        cut = self._cut_back(row)
        fed = len(row.tokens) - len(self._fed)
        return [Pass(_last_logits(self._feed(row, len(row.tokens)), row.ids), fed, cut)]

    @torch.no_grad()
    def process(self, ids: Tensor, logits: Tensor) -> Tensor:
        """Apply the logits processors to logits [1, vocab] after ids [1, tokens]."""
        scores: Tensor = self._processor(ids, logits)
        if self._strangers:
            self._check_strangers()
        return scores

    def _check_strangers(self) -> None:
        """Compare each processor of the user's with itself, after the first and the second call."""
        if self._memories:
            for processor, before in zip(self._strangers, self._memories, strict=True):
                refuse_memory(processor, before=before)
            self._strangers = []
        self._memories = [memory_of(processor) for processor in self._strangers]

    def is_done(self, row: Row) -> bool:
        """Tell whether the text is at its end: an end token, the length limit or any other criterion."""
        length = row.ids.shape[1]
        if row.tokens[-1] in self.eos_token_ids or (self._max_length is not None and length >= self._max_length):
            return True
        if not self._other_criteria:
            return False
        scores = None if row.kept is None else tuple(scores for _, scores in row.kept)
        return bool(self._other_criteria(row.ids, scores).all())

    @torch.no_grad()
    def finish(self, row: Row) -> tuple[int, int]:
        """Leave in the cache all tokens of the row but the last, as `generate` does; return tokens fed and cut."""
        cut, fed = self._cut_back(row), 0
        if self._fed is not None and len(self._fed) < len(row.tokens) - 1:
            fed = len(row.tokens) - 1 - len(self._fed)
            self._feed(row, len(row.tokens) - 1)
        return fed, cut

    def _prefill(self, row: Row) -> Pass:
        before = self.cache.get_seq_length()
        outputs = self._model._prefill(row.ids, self._config, self._kwargs)
        self._fed, self._prompt_in_cache = [], self.cache.get_seq_length()
        return Pass(_last_logits(outputs, row.ids), self._prompt_in_cache - before, 0)

    def _feed(self, row: Row, length: int) -> Any:
        """Run the model over those of the first `length` tokens that are not in the cache."""
        assert self._fed is not None, "the prompt comes first"
        missing = row.tokens[len(self._fed) : length]
        model_inputs = self._model.prepare_inputs_for_generation(
            row.ids_up_to(length), next_sequence_length=len(missing), **self._kwargs_at(length)
        )
        self._fed.extend(missing)
        return self._model(**model_inputs, return_dict=True)

    def _cut_back(self, row: Row) -> int:
        """Take out of the cache what is not in the text, and always the last token; return how many tokens that was."""
        assert self._fed is not None, "the prompt comes first"
        most = max(0, min(len(self._fed), len(row.tokens) - 1))
        shared = min(row.unchanged, most)
        while shared < most and self._fed[shared] == row.tokens[shared]:
            shared += 1
        in_cache = self._prompt_in_cache + len(self._fed)
        # A cache that is too long would attend to withdrawn tokens, and nothing else would show it.
        assert self.cache.get_seq_length() == in_cache, (
            f"{self.cache.get_seq_length()} tokens in the cache, not {in_cache}"
        )
        cut = len(self._fed) - shared
        take_out(self.cache, cut)
        del self._fed[shared:]
        return cut

    def _kwargs_at(self, length: int) -> dict[str, Any]:
        """Return the model's arguments for a text of `length` generated tokens."""
        while self._covered < length:
            # Token types are continued by repeating as many as are asked for, so one at a time.
            more = 1 if "token_type_ids" in self._prompt_sizes else _AHEAD
            self._kwargs = self._model._update_model_kwargs_for_generation(
                ModelOutput(past_key_values=self.cache), self._kwargs, num_new_tokens=more
            )
            self._covered += more
        fitting = {name: self._kwargs[name][..., : size + length] for name, size in self._prompt_sizes.items()}
        return {**self._kwargs, **fitting}


def _last_logits(outputs: Any, ids: Tensor) -> Tensor:
    """Return the logits of the last position, [1, vocab] in float32, in memory of their own."""
    logits: Tensor = outputs.logits[:, -1].to(copy=True, dtype=torch.float32, device=ids.device)
    return logits

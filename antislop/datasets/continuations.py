"""Continue withdrawn text to the end of its sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import StoppingCriteria, StoppingCriteriaList

from antislop.hf.vocabulary import Vocabulary
from antislop.metrics.segmentation import find_sentence_ends

MAX_TOKENS = 64
"""Limit of tokens of a continuation; a sentence has about twenty."""
TAIL = 24
"""Number of latest tokens in which the end of a sentence is searched."""


class SentenceEnd(StoppingCriteria):  # type: ignore[misc]  # transformers has no type for it
    """Stop a text when its latest token shows that a sentence ended before it. Stateless."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def __call__(self, input_ids: Tensor, scores: object, **_: Any) -> Tensor:  # noqa: ARG002
        """Return whether each row of ids [rows, tokens] is to end."""
        return torch.tensor([self._has_ended(ids) for ids in input_ids[:, -TAIL:].tolist()], device=input_ids.device)

    def rewind(self, row: int, length: int) -> None:
        """Do nothing: there is no state to rewind."""

    def _has_ended(self, ids: list[int]) -> bool:
        earlier_text, text = (self._vocabulary.join(part).decode(errors="replace") for part in (ids[:-1], ids))
        return _find_last_end(text) > _find_last_end(earlier_text)


def _find_last_end(text: str) -> int:
    """Return the end of the last sentence that is surely complete; 0 if there is none."""
    return max(find_sentence_ends(text, is_complete=False), default=0)


def settings_for_continuations(settings: Mapping[str, Any], vocabulary: Vocabulary) -> dict[str, Any]:
    """Return the settings of a text, changed so that it ends with its sentence.

    Stop strings stay in force; minimum lengths are removed.
    """
    other_settings = {name: value for name, value in settings.items() if name not in ("min_new_tokens", "min_length")}
    criteria = [*(settings.get("stopping_criteria") or []), SentenceEnd(vocabulary)]
    return {**other_settings, "max_new_tokens": MAX_TOKENS, "stopping_criteria": StoppingCriteriaList(criteria)}

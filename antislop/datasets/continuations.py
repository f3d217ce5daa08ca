"""Continue texts up to the end of a sentence: what a model would have written after what was withdrawn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import StoppingCriteria, StoppingCriteriaList

from antislop.hf.vocabulary import Vocabulary
from antislop.metrics.segmentation import find_sentence_ends

MAX_TOKENS = 64
"""Tokens that a continuation may have; a sentence has about twenty."""
TAIL = 24
"""Tokens in which the end of a sentence is looked for, the newest ones."""


class SentenceEnd(StoppingCriteria):  # type: ignore[misc]  # transformers has no type for it
    """Stop a text when its newest token shows that a sentence has ended before it. Remembers nothing."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def __call__(self, input_ids: Tensor, scores: object, **_: Any) -> Tensor:  # noqa: ARG002
        """Return whether each row of ids [rows, tokens] is to end."""
        return torch.tensor([self._has_ended(ids) for ids in input_ids[:, -TAIL:].tolist()], device=input_ids.device)

    def rewind(self, row: int, length: int) -> None:
        """Undo nothing: the answer depends on the ids alone."""

    def _has_ended(self, ids: list[int]) -> bool:
        before, now = (self._vocabulary.join(part).decode(errors="replace") for part in (ids[:-1], ids))
        return _find_last_end(now) > _find_last_end(before)


def _find_last_end(text: str) -> int:
    """Return where the last sentence ends that has certainly ended; 0 if none has."""
    return max(find_sentence_ends(text, is_complete=False), default=0)


def settings_for_continuations(settings: Mapping[str, Any], vocabulary: Vocabulary) -> dict[str, Any]:
    """Return the settings of a text, changed so that it ends with its sentence.

    Stop strings hold as before; the shortest length that was asked for does not.
    """
    kept = {name: value for name, value in settings.items() if name not in ("min_new_tokens", "min_length")}
    criteria = [*(settings.get("stopping_criteria") or []), SentenceEnd(vocabulary)]
    return {**kept, "max_new_tokens": MAX_TOKENS, "stopping_criteria": StoppingCriteriaList(criteria)}

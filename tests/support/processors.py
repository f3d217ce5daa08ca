"""Texts of a tiny model with many rewinds, for tests of logits processors; a criterion."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, StoppingCriteria, set_seed

from antislop import AntiSlop
from tests.support.ban_cases import anywhere
from tests.support.models import build_tokenizer

TOKENIZER = build_tokenizer()
PROMPTS = torch.tensor([[0, 5, 9, 2], [0, 7, 3, 4], [0, 2, 2, 6]])
BANS = [anywhere(piece) for piece in ("b", "da", "ec", "ii", "f.", ". ", "gc", "h,", "acc", "eea", "jea")]
END = 1


def sample(model: PreTrainedModel, processor: Any, *, rows: int = 1, seed: int = 0, bans: Any = None, **kw: Any) -> Any:
    """Draw texts with `generate`, or with bans by the sampler."""
    prompts = PROMPTS[:rows]
    settings = {"max_new_tokens": 24, "do_sample": True, "attention_mask": torch.ones_like(prompts)}
    settings |= {"pad_token_id": END, "logits_processor": [processor], "return_dict_in_generate": True, **kw}
    set_seed(seed)
    if bans is None:
        return model.generate(prompts, **settings)
    return AntiSlop(TOKENIZER, bans).generate(model, prompts, **settings)


class Never(StoppingCriteria):
    """Ends no text."""

    def __call__(self, input_ids: Tensor, scores: object, **_: object) -> Tensor:
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)

"""Batches of a tiny model, as `generate` and the sampler write them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel, set_seed

from antislop import AntiSlop, Ban
from antislop.core.loop.protocols import fill_left
from tests.support.ban_cases import anywhere
from tests.support.models import build_tokenizer

TOKENIZER = build_tokenizer()
PROMPTS = ((5, 9, 2, 12, 7, 3), (11,), (4, 8, 3, 30, 22, 9, 11, 2, 6, 13, 40, 7, 21), (21, 3, 8))
PAD_ID = 0
EOS = 1
NEVER = ["zz"]
COMMON = [anywhere(phrase) for phrase in ("a", "b", "dd", "fe", "ea")]
LIKELY_TO_END: dict[str, Any] = {"sequence_bias": [[[EOS], 2.5]], "pad_token_id": PAD_ID}
NO_END: dict[str, Any] = {"suppress_tokens": [PAD_ID, EOS], "pad_token_id": PAD_ID}


def pad(prompts: Sequence[Sequence[int]]) -> dict[str, Tensor]:
    ids = fill_left(prompts)
    return {"inputs": ids.masked_fill(ids < 0, PAD_ID), "attention_mask": (ids >= 0).long()}


def generate(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]] = PROMPTS, *, seed: int = 0, **kwargs: Any
) -> Any:
    set_seed(seed)
    return model.generate(**{"max_new_tokens": 24, **pad(prompts), **kwargs})


def sample(
    bans: Sequence[str | Ban],
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]] = PROMPTS,
    *,
    seed: int = 0,
    **kwargs: Any,
) -> Any:
    settings = {"return_dict_in_generate": True, "output_logits": True, **kwargs}
    return generate(model, prompts, seed=seed, custom_generate=AntiSlop(TOKENIZER, bans), **settings)


@contextmanager
def counting(model: PreTrainedModel) -> Iterator[list[int]]:
    """Collect the number of tokens, in all rows together, of each forward pass in the block."""
    fed: list[int] = []
    handle = model.register_forward_pre_hook(
        lambda module, args, kwargs: fed.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    try:
        yield fed
    finally:
        handle.remove()


def texts_of(sequences: Tensor, prompts: Sequence[Sequence[int]] = PROMPTS) -> list[list[int]]:
    """Return the generated tokens of each row, up to its end."""
    rows = sequences[:, max(map(len, prompts)) :].tolist()
    return [row[: row.index(EOS) + 1] if EOS in row else row for row in rows]

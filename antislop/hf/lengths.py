"""How long the texts of a call may become: refuse lengths at which a model fails or changes its positions.

Positions count from 0, and the last token of a text is never read: a text of n tokens takes n - 1 positions.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn
from transformers import GenerationConfig, PreTrainedModel

from antislop.caches.borrowed import decoder_part
from antislop.hf.private import mask_length_of


class PromptLengths(NamedTuple):
    """Tokens of each prompt of a call, without padding, and how many of them a cache holds already."""

    tokens: tuple[int, ...]
    held: int = 0


def measure_prompts(
    input_ids: Tensor, mask: Tensor | None, config: GenerationConfig, model_kwargs: Mapping[str, Any]
) -> PromptLengths:
    """Return the lengths of prompts [rows, tokens], or of their embeddings; a mask includes the tokens in a cache."""
    embeds = model_kwargs.get("inputs_embeds")
    tokens = input_ids.shape[1] if embeds is None else max(embeds.shape[1], input_ids.shape[1])
    cache = model_kwargs.get("past_key_values", model_kwargs.get("cache_params"))
    held = 0 if cache is None else _count_held(cache)
    if mask is not None and mask.ndim == 2 and mask.shape[1] >= tokens:
        counts: list[int] = mask.sum(dim=1).tolist()
    else:
        counts = [max(tokens, mask_length_of(config))]
    return PromptLengths(tuple(counts * (input_ids.shape[0] // len(counts))), held)


def refuse_lengths(model: PreTrainedModel, prompts: PromptLengths, *, new: int, in_flight: bool = False) -> None:
    """Raise `ValueError` if texts with up to `new` more tokens can't be written, or not with one kind of positions.

    in_flight: whether texts of any other length may share a batch with these.
    """
    longest, limit = max(prompts.tokens), count_positions(model)
    needed = longest + new - 1
    if limit is not None and needed > limit and has_position_table(model, positions=limit):
        fitting = limit + 1 - longest
        advice = f"ask for at most {fitting} new tokens" if fitting > 0 else "pass a shorter prompt"
        raise ValueError(
            f"{type(model).__name__} has {limit} positions, and a prompt of {longest} tokens with {new} new "
            f"ones takes {needed}: {advice}"
        )
    boundary = _find_boundary(model)
    is_short = boundary is None or needed <= boundary
    is_long = boundary is not None and min(prompts.tokens) > boundary and not 0 < prompts.held <= boundary
    if is_short or (is_long and not in_flight):
        return
    raise ValueError(
        f"{type(model).__name__} reads all tokens by other positions once a text has more than {boundary} "
        f"(rope_type='longrope'), and texts of this call may lie on both sides: pass prompts of more than {boundary} "
        f"tokens to generate, without a cache of shorter ones, or ask for at most {boundary} in all"
    )


def has_position_table(model: PreTrainedModel, *, positions: int) -> bool:
    """Return whether a model looks its positions up in a table of that size, by the names and sizes of its tensors.

    Tables of images and sounds, and those of an encoder, don't count.
    """
    if model.config.model_type == "mpt":  # its slopes are computed for this number of positions in each forward
        return True
    for name, module in model.get_decoder().named_modules():
        name = name.rpartition(".")[2]
        is_named = isinstance(module, nn.Embedding) and ("pos" in name or name == "wpe")
        if is_named and module.num_embeddings - getattr(module, "offset", 0) == positions:
            return True
        tensors = {**vars(module), **dict(module.named_buffers(recurse=False))}
        if any(_is_table(value, positions) for key, value in tensors.items() if "pos" in key):
            return True
    return False


def warn_if_too_long(model: PreTrainedModel, length: int) -> None:
    """Warn of a text of `length` tokens, its prompt included, that exceeds the positions that a model was made for."""
    limit = count_positions(model)
    if limit is not None and length - 1 > limit:
        warnings.warn(
            f"a text exceeded the {limit} positions that {type(model).__name__} was made for, so its end may be worse: "
            "ask for fewer new tokens",
            stacklevel=2,
        )


def count_positions(model: PreTrainedModel) -> int | None:
    """Return the number of positions that a model was made for, by its configuration; None if it names none."""
    config = model.config.get_text_config(decoder=True)
    positions = getattr(config, "max_position_embeddings", getattr(config, "max_seq_len", None))
    return positions if isinstance(positions, int) else None


def _is_table(value: object, positions: int) -> bool:
    return isinstance(value, Tensor) and value.ndim == 2 and value.shape[0] == positions


def _find_boundary(model: PreTrainedModel) -> int | None:
    """Return the number of tokens above which `longrope` has other frequencies, for all tokens of the text."""
    config = model.config.get_text_config(decoder=True)
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = [rope, *(part for part in rope.values() if isinstance(part, dict))]
    named = [part.get("original_max_position_embeddings") for part in kinds if part.get("rope_type") == "longrope"]
    boundaries = [boundary for boundary in named if boundary] or (
        [getattr(config, "original_max_position_embeddings", None)] if named else []
    )
    return min((boundary for boundary in boundaries if boundary), default=None)


def _count_held(cache: Any) -> int:
    layers = [layer for layer in decoder_part(cache).layers if hasattr(layer, "get_seq_length")]
    return max((int(layer.get_seq_length()) for layer in layers), default=0)

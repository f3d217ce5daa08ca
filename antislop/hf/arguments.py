"""Prompts as callers pass them; anything else is refused, with one sentence each, before any work is done."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import NoneType
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor
from transformers import BatchEncoding, PreTrainedTokenizerBase
from transformers.cache_utils import Cache

from antislop.lists.ban_list import BanList
from antislop.matching.bans import Ban

PromptInput: TypeAlias = str | Sequence[int] | Tensor
"""A text, or its ids [tokens]."""

T = TypeVar("T")
Value = TypeVar("Value")

_PROMPTS = ("inputs", "input_ids")
_PER_PROMPT = ("attention_mask", "position_ids", "inputs_embeds", "past_key_values", *_PROMPTS)


def read_inputs(
    inputs: str | Tensor | None, arguments: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase, device: torch.device
) -> tuple[Tensor | None, dict[str, Any]]:
    """Return the inputs and the other arguments of `generate`; a text becomes ids [1, tokens] and their mask.

    Raises `ValueError` for inputs that are neither a text nor a tensor, and for a text beside other inputs.
    """
    given = {name: value for name, value in {"inputs": inputs, **arguments}.items() if value is not None}
    for name in _PROMPTS:
        value = given.get(name)
        if not isinstance(value, (Tensor, type(None))) and (name != "inputs" or not isinstance(value, str)):
            raise ValueError(f"{name} is a {type(value).__name__}: {_advise(value)}")
        if isinstance(value, Tensor) and value.ndim < 2:
            raise ValueError(f"{name} has the shape {tuple(value.shape)}, not [rows, tokens]: pass {name}[None]")
    if not isinstance(inputs, str):
        return inputs, dict(arguments)
    if beside := [name for name in _PER_PROMPT if name in arguments and name in given]:
        raise ValueError(f"a text and {beside[0]} are passed: leave {beside[0]} out, or pass ids instead of the text")
    ids = encode(inputs, tokenizer, device)[None]
    return ids, {**arguments, "attention_mask": torch.ones_like(ids)}


def _advise(inputs: object) -> str:
    if isinstance(inputs, (Mapping, BatchEncoding)):
        return "pass its parts, generate(model, **inputs)"
    if isinstance(inputs, Sequence) and any(isinstance(part, str) for part in inputs):
        return "pass one text, or several texts to generate_many"
    return "pass a text, or ids as a tensor [rows, tokens]"


def encode(prompt: PromptInput, tokenizer: PreTrainedTokenizerBase, device: torch.device) -> Tensor:
    """Return the ids of a prompt [tokens]; a text gets the tokenizer's special tokens.

    Raises `ValueError` for anything else than a text or ids, and for an empty prompt.
    """
    ids = tokenizer(prompt)["input_ids"] if isinstance(prompt, str) else prompt
    try:
        tensor = torch.as_tensor(ids, device=device)
    except (TypeError, ValueError, RuntimeError):
        tensor = torch.zeros((), device=device)
    if tensor.ndim == 1 and len(tensor) == 0:
        raise ValueError("an empty prompt was passed: pass at least one token, the bos token for instance")
    if tensor.ndim != 1 or tensor.is_floating_point():
        shape = f" of shape {tuple(ids.shape)}" if isinstance(ids, Tensor) else ""
        raise ValueError(f"a prompt is a text or ids [tokens], not a {type(ids).__name__}{shape}")
    return tensor


def check_prompts(prompts: Iterable[PromptInput]) -> None:
    """Raise `ValueError` for one prompt in the place of several, and for a mapping, whose keys would be the prompts."""
    if isinstance(prompts, (str, bytes)):
        raise ValueError(f"prompts is {prompts[:40]!r}, one text, and each letter would be a prompt: write [text]")
    if isinstance(prompts, (Mapping, BatchEncoding)) or not isinstance(prompts, Iterable):
        raise ValueError(f"prompts is a {type(prompts).__name__}: pass a list of texts or of ids")


def refuse_per_prompt(arguments: Mapping[str, Any]) -> None:
    """Raise `ValueError` for arguments of `generate` that belong to one prompt if many are passed."""
    if arguments.get("streamer") is not None:
        raise ValueError(
            "a streamer shows one text, and generate_many writes several at a time: leave streamer out and read the "
            "texts as they are yielded, or call sampler.stream for each prompt"
        )
    if arguments.get("record") is not None:
        raise ValueError(
            "record is for generate, forward_pass and events: leave it out, each Completion has its events in `report`"
        )
    if arguments.get("controller") is not None:
        raise ValueError("a controller moves the rows of one call: use generate, for each prompt or a batch of them")
    if arguments.get("return_dict_in_generate"):
        raise ValueError("return_dict_in_generate has no effect here: leave it out, each Completion has all fields")
    for name, value in arguments.items():
        if isinstance(value, (Tensor, Cache)) or (name in _PER_PROMPT and value is not None):
            raise ValueError(
                f"{name} belongs to one prompt, and generate_many prepares each by itself: leave it out, pass ids "
                "without padding as prompts, or use generate"
            )


def pair(prompts: Iterable[T], values: Iterable[Value], *, name: str = "seeds") -> Iterator[tuple[T, Value]]:
    """Yield each prompt with its value, which is read after it. Raises `ValueError` where there is none."""
    rest = iter(values)
    for prompt in prompts:
        try:
            value = next(rest)
        except StopIteration:
            instead = "a single seed" if name == "seeds" else "leave them out"
            raise ValueError(f"there are fewer {name} than prompts: pass one for each prompt, or {instead}") from None
        yield prompt, value


def refuse_one_list(bans: object) -> None:
    """Raise `ValueError` for one list of bans in the place of a list for each prompt."""
    if isinstance(bans, (str, Ban, BanList, Mapping)) or not isinstance(bans, Iterable | NoneType):
        raise ValueError(
            f"bans is a {type(bans).__name__}: pass a list of bans for each prompt, bans=[list, list, …], or one list "
            "for all texts to AntiSlop"
        )

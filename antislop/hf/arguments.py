"""Prompts as callers pass them; anything else is refused, with one sentence each, before any work is done."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import NoneType
from typing import Any, TypeAlias, TypeGuard, TypeVar

import torch
from torch import Tensor
from transformers import BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase
from transformers.cache_utils import Cache

from antislop.errors import InputError
from antislop.lists.ban_list import BanList
from antislop.matching.bans import Ban
from antislop.records.chats import render_chat

CallInput: TypeAlias = str | Tensor | Sequence[Mapping[str, Any]]
"""A text, ids [rows, tokens], or the messages of a chat."""
PromptInput: TypeAlias = str | Sequence[int] | Tensor | Sequence[Mapping[str, Any]]
"""A text, its ids [tokens], or the messages of a chat."""

T = TypeVar("T")
Value = TypeVar("Value")

_PROMPTS = ("inputs", "input_ids")
_PER_PROMPT = ("attention_mask", "position_ids", "inputs_embeds", "past_key_values", *_PROMPTS)


class PromptError(InputError):
    """Raised for one prompt that can't be used; the texts of other prompts can be written."""


def read_inputs(
    inputs: CallInput | None, arguments: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase, device: torch.device
) -> tuple[Tensor | None, dict[str, Any]]:
    """Return the inputs and the other arguments of `generate`; a text or chat becomes ids [1, tokens] and their mask.

    Raises `ValueError` for inputs that are none of these and no tensor, and for a text or chat beside other inputs.
    """
    given = {name: value for name, value in {"inputs": inputs, **arguments}.items() if value is not None}
    for name in _PROMPTS:
        value = given.get(name)
        is_prompt = name == "inputs" and (isinstance(value, str) or is_chat(value))
        if not (isinstance(value, Tensor | NoneType) or is_prompt):
            raise ValueError(f"{name} is a {type(value).__name__}: {_advise(value)}")
        if isinstance(value, Tensor) and value.ndim < 2:
            raise ValueError(f"{name} has the shape {tuple(value.shape)}, not [rows, tokens]: pass {name}[None]")
    if inputs is None or isinstance(inputs, Tensor):
        return inputs, dict(arguments)
    if beside := [name for name in _PER_PROMPT if name in arguments and name in given]:
        what = "text" if isinstance(inputs, str) else "chat"
        raise ValueError(
            f"a {what} and {beside[0]} are passed: leave {beside[0]} out, or pass ids instead of the {what}"
        )
    ids = encode(inputs, tokenizer, device)[None]
    return ids, {**arguments, "attention_mask": torch.ones_like(ids)}


def _advise(inputs: object) -> str:
    if isinstance(inputs, (Mapping, BatchEncoding)):
        return "pass its parts, generate(model, **inputs)"
    if isinstance(inputs, Sequence) and any(isinstance(part, str) or is_chat(part) for part in inputs):
        return "pass one text or chat, or several to generate_many"
    return "pass a text, the messages of a chat, or ids as a tensor [rows, tokens]"


def is_chat(value: object) -> TypeGuard[Sequence[Mapping[str, Any]]]:
    """Report whether a value is a list of messages."""
    return isinstance(value, Sequence) and len(value) > 0 and all(isinstance(part, Mapping) for part in value)


def encode(prompt: PromptInput, tokenizer: PreTrainedTokenizerBase, device: torch.device) -> Tensor:
    """Return the ids of a prompt [tokens]; a text gets the tokenizer's special tokens, a chat those of its template.

    Raises `PromptError` for an empty prompt, `InputError` for a chat that has no template or does not fit it, and
    `ValueError` for anything else.
    """
    if isinstance(prompt, str):
        ids = tokenizer(prompt)["input_ids"]
    elif is_chat(prompt):
        ids = tokenizer(render_chat(prompt, tokenizer), add_special_tokens=False)["input_ids"]
    else:
        ids = prompt
    try:
        tensor = torch.as_tensor(ids, device=device)
    except (TypeError, ValueError, RuntimeError):
        tensor = torch.zeros((), device=device)
    if tensor.ndim == 1 and len(tensor) == 0:
        raise PromptError("an empty prompt was passed: pass at least one token, the bos token for instance")
    if tensor.ndim != 1 or tensor.is_floating_point():
        shape = f" of shape {tuple(ids.shape)}" if isinstance(ids, Tensor) else ""
        raise ValueError(f"a prompt is a text, ids [tokens] or a chat, not a {type(ids).__name__}{shape}")
    return tensor


def refuse_ids(ids: Tensor, model: PreTrainedModel) -> None:
    """Raise `PromptError` for ids [rows, tokens] beyond the model's vocabulary, which its embeddings could not read.

    The places of pictures and sounds may have ids beyond it, which the model's configuration names.
    """
    embeddings = model.get_input_embeddings()
    if not isinstance(embeddings, torch.nn.Embedding):
        return
    named = [value for name, value in vars(model.config).items() if name.endswith(("_token_id", "_token_index"))]
    for row, token in ((ids < 0) | (ids >= embeddings.num_embeddings)).nonzero().tolist():
        if (wrong := int(ids[row, token])) not in named:
            where = f"row {row} of the prompt" if len(ids) > 1 else "the prompt"
            raise PromptError(
                f"{where} contains the id {wrong:,}, and {type(model).__name__} has {embeddings.num_embeddings:,} "
                "tokens: encode it with the model's own tokenizer"
            )


def check_prompts(prompts: Iterable[PromptInput]) -> None:
    """Raise `ValueError` for one prompt in the place of several, and for a mapping, whose keys would be the prompts."""
    if isinstance(prompts, (str, bytes)):
        raise ValueError(f"prompts is {prompts[:40]!r}, one text, and each letter would be a prompt: write [text]")
    if is_chat(prompts):
        raise ValueError("prompts is one chat, and each message would be a prompt: write [messages]")
    if isinstance(prompts, (Mapping, BatchEncoding)) or not isinstance(prompts, Iterable):
        raise ValueError(f"prompts is a {type(prompts).__name__}: pass a list of texts, of ids or of chats")


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

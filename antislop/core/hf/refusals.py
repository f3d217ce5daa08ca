"""Checks that raise `InputError`, before the model runs, for arguments, settings, tokenizers, ids and text lengths.

They refuse what can't be done exactly; `refusals.yaml` lists settings, arguments and facts of a call that are refused.
The last token of a text is never read, so n tokens take n - 1 positions.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from torch import Tensor, nn
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel, PreTrainedTokenizerBase
from transformers.cache_utils import Cache

from antislop.display import describe_count
from antislop.errors import InputError

_CACHES = ("past_key_values", "cache_params", "cache")  # the former and present names of the cache argument
PER_PROMPT = ("attention_mask", "position_ids", "inputs_embeds", *_CACHES, "inputs", "input_ids")
"""Arguments of `generate` that belong to one prompt."""

_REMEMBERING = ("UnbatchedClassifierFreeGuidanceLogitsProcessor", "SynthIDTextWatermarkLogitsProcessor")
"""Names of transformers' processors that remember more than the ids passed to them, and can't be rewound."""

_TABLES = yaml.safe_load(Path(__file__).with_name("refusals.yaml").read_text(encoding="utf-8"))


class PromptError(InputError):
    """Raised for a single prompt that can't be used; `generate_many` continues with the other prompts."""


def refusal(case: str, /, *, error: type[InputError] = InputError, **words: object) -> InputError:
    """Return an error with a sentence of `refusals.yaml`. words: values in it; a model stands for its class's name."""
    named = {word: type(value).__name__ if isinstance(value, nn.Module) else value for word, value in words.items()}
    return error(_TABLES["sentences"][case].format(**named))


# -- arguments ---------------------------------------------------------------------------------------------------------


def check_model(model: object) -> None:
    if not hasattr(model, "generate"):
        raise InputError(f"a model was expected first, not a {type(model).__name__}: write generate(model, text)")


def refuse_at(door: str, arguments: Mapping[str, Any]) -> None:
    """Raise `InputError` for arguments that `door`, a method of a sampler or "custom_generate", doesn't support."""
    for names, sentence in _TABLES["arguments"][door].items():
        if passed := [name for name in names.split() if arguments.get(name)]:
            raise InputError(sentence.format(name=passed[0]))


def refuse_conflicts(door: str, facts: Collection[str], **words: object) -> None:
    """Raise `InputError` if the method `door` refuses `facts` together. words: values in the sentence."""
    for conflict, sentence in _TABLES["conflicts"][door].items():
        if set(conflict.split()) <= set(facts):
            raise InputError(sentence.format(**words))


def refuse_arguments(arguments: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise `InputError` for arguments that `generate` doesn't pass on, or that would make a cache without rewinds."""
    if arguments.get("cache_implementation") == "paged":
        raise InputError("cache_implementation='paged' never asks a sampler, and nothing would be banned: leave it out")
    # Refused here already: an offloaded cache can't even be made on a machine without a GPU.
    config = arguments.get("generation_config")
    _refuse_cache(arguments.get("cache_implementation") or getattr(config, "cache_implementation", None))
    healing = arguments.get("token_healing") or getattr(config, "token_healing", None)
    refuse_at("generate", {**arguments, "token_healing": healing})  # token healing would need a tokenizer argument
    other = arguments.get("tokenizer")
    if other is not None and other is not tokenizer and other.get_vocab() != tokenizer.get_vocab():
        raise InputError("tokenizer is not the sampler's, which is used for stop strings too: leave it out")


def _refuse_cache(implementation: str | None) -> None:
    if implementation not in (None, "dynamic", "static"):
        raise refusal("cache implementation", name=implementation)


def refuse_per_prompt(arguments: Mapping[str, Any]) -> None:
    """Raise `InputError` for arguments that `generate_many` doesn't support, such as tensors for a single prompt."""
    refuse_at("generate_many", arguments)
    for name, value in arguments.items():
        if isinstance(value, (Tensor, Cache)) or (name in PER_PROMPT and value is not None):
            raise refusal("argument of one prompt", name=name)


# -- models, settings and tokenizers -----------------------------------------------------------------------------------


def refuse_settings(model: PreTrainedModel, config: GenerationConfig, processors: LogitsProcessorList) -> None:
    _refuse_cache(config.cache_implementation)
    if model.training and any(getattr(module, "gradient_checkpointing", False) for module in model.modules()):
        raise refusal("gradient checkpointing", model=model)
    for name, rule in _TABLES["settings"].items():
        value = getattr(config, name, None)
        if value not in rule["allowed"]:
            raise InputError(f"{name}={value!r} is not supported: {rule['advice']}")
    for processor in processors:
        if type(processor).__name__ in _REMEMBERING:
            raise refusal("remembering processor", name=type(processor).__name__)
    if any(rope.get("rope_type") == "dynamic" for rope in _list_ropes(model)):
        raise refusal("dynamic positions")


def refuse_tokenizer(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise `InputError` if the sizes show that the tokenizer belongs to another model: no ban would be found."""
    embeddings = model.get_input_embeddings()
    if not isinstance(embeddings, nn.Embedding):
        return
    # A model's vocabulary may be padded, and tokens that the model never writes may have been added to a tokenizer.
    size, tokens, base = embeddings.num_embeddings, len(tokenizer), tokenizer.vocab_size
    if base > size or size >= 2 * tokens:
        raise refusal("tokenizer of another model", tokens=max(base, tokens), model=model, size=size)


# -- prompts and lengths -----------------------------------------------------------------------------------------------


class PromptLengths(NamedTuple):
    """The lengths of a call's prompts, without padding, and the number of their tokens that a cache holds already."""

    tokens: tuple[int, ...]
    held: int = 0


def refuse_ids(ids: Tensor, model: PreTrainedModel) -> None:
    """Raise `PromptError` for ids [rows, tokens] that are outside of the model's embeddings."""
    embeddings = model.get_input_embeddings()
    if not isinstance(embeddings, nn.Embedding):
        return
    # The ids of placeholders for pictures and sounds may lie beyond the vocabulary.
    named = [value for name, value in vars(model.config).items() if name.endswith(("_token_id", "_token_index"))]
    for row, token in ((ids < 0) | (ids >= embeddings.num_embeddings)).nonzero().tolist():
        if (wrong := int(ids[row, token])) not in named:
            where = f"row {row} of the prompt" if len(ids) > 1 else "the prompt"
            raise PromptError(
                f"{where} contains the id {wrong:,}, and {type(model).__name__} has {embeddings.num_embeddings:,} "
                "tokens: encode it with the model's own tokenizer"
            )


def refuse_lengths(
    model: PreTrainedModel, prompts: Sequence[int], *, held: int = 0, new: int, in_flight: bool = False
) -> None:
    """Raise `InputError` if a model has too few positions, or if texts may pass the length where `longrope` changes.

    prompts, held: the fields of `PromptLengths`. new: the maximum number of new tokens.
    in_flight: whether texts of other lengths may share a batch with these.
    """
    longest, limit = max(prompts), max_positions(model)
    needed = longest + new - 1
    if limit is not None and needed > limit and _has_position_table(model, positions=limit):
        fitting = limit + 1 - longest
        advice = f"ask for at most {describe_count(fitting, 'new token')}" if fitting > 0 else "pass a shorter prompt"
        raise InputError(
            f"{type(model).__name__} has {limit} positions, and a prompt of {describe_count(longest, 'token')} with "
            f"{describe_count(new, 'new one')} takes {needed}: {advice}"
        )
    ropes = [rope for rope in _list_ropes(model) if rope.get("rope_type") == "longrope"]
    named = [length for rope in ropes if (length := rope.get("original_max_position_embeddings"))]
    of_config = getattr(model.config.get_text_config(decoder=True), "original_max_position_embeddings", None)
    boundary = min(named, default=of_config) if ropes else None  # a longer text has other frequencies
    is_short = not boundary or needed <= boundary
    is_long = boundary and min(prompts) > boundary and not 0 < held <= boundary
    if is_short or (is_long and not in_flight):
        return
    raise refusal("long positions", model=model, boundary=boundary)


def _has_position_table(model: PreTrainedModel, *, positions: int) -> bool:
    """Return whether the decoder has a table of `positions` positions, judged by names and sizes of its tensors."""
    if model.config.model_type == "mpt":  # each forward pass computes slopes for this number of positions
        return True
    for name, module in model.get_decoder().named_modules():
        name = name.rpartition(".")[2]
        is_named = isinstance(module, nn.Embedding) and ("pos" in name or name == "wpe")
        if is_named and module.num_embeddings - getattr(module, "offset", 0) == positions:
            return True
        tensors = {**vars(module), **dict(module.named_buffers(recurse=False))}
        tables = [value for key, value in tensors.items() if "pos" in key and isinstance(value, Tensor)]
        if any(table.ndim == 2 and table.shape[0] == positions for table in tables):
            return True
    return False


def warn_if_too_long(model: PreTrainedModel, length: int) -> None:
    """Warn if a text of `length` tokens, its prompt included, exceeds the positions that a model was made for."""
    limit = max_positions(model)
    if limit is not None and length - 1 > limit:
        warnings.warn(
            f"a text exceeded the {limit} positions that {type(model).__name__} was made for, so its end may be worse: "
            "ask for fewer new tokens",
            stacklevel=2,
        )


def max_positions(model: PreTrainedModel) -> int | None:
    config = model.config.get_text_config(decoder=True)
    positions = getattr(config, "max_position_embeddings", getattr(config, "max_seq_len", None))
    return positions if isinstance(positions, int) else None


def _list_ropes(model: PreTrainedModel) -> list[dict[str, Any]]:
    ropes = getattr(model.config.get_text_config(decoder=True), "rope_parameters", None) or {}
    return [ropes, *(part for part in ropes.values() if isinstance(part, dict))]

"""Refuse arguments and settings that are not supported, with one sentence each, before any work is done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel, PreTrainedTokenizerBase

# Processors that remember more than the ids that they are given, and can't be rewound.
_REMEMBERING = ("UnbatchedClassifierFreeGuidanceLogitsProcessor", "SynthIDTextWatermarkLogitsProcessor")


def refuse_arguments(
    arguments: Mapping[str, Any], *, hook: bool = False, tokenizer: PreTrainedTokenizerBase | None = None
) -> None:
    """Raise `ValueError` for arguments of `generate` that never reach the loop, or that it prepares a cache by."""
    if hook and arguments.get("assistant_model") is not None:
        raise ValueError(
            "generate() does not hand its assistant_model to a custom_generate: "
            "call sampler.generate(model, …, assistant_model=assistant) instead"
        )
    if hook and arguments.get("streamer") is not None:
        raise ValueError(
            "generate() does not hand its streamer to a custom_generate: "
            "call sampler.generate(model, …, streamer=streamer) or sampler.stream(model, …) instead"
        )
    if arguments.get("cache_implementation") == "paged":
        raise ValueError("cache_implementation='paged' never asks a sampler, and nothing would be banned: leave it out")
    config = arguments.get("generation_config")
    # Refused here already: an offloaded cache can't even be made on a machine without a GPU.
    _refuse_cache(arguments.get("cache_implementation") or getattr(config, "cache_implementation", None))
    if not hook and arguments.get("streamer") is not None:
        raise ValueError("only generate takes a streamer: call sampler.generate(model, …, streamer=streamer)")
    _refuse_other_tokenizer(arguments.get("tokenizer"), tokenizer)
    for name in ("return_cache", "names_filter"):
        if arguments.get(name):
            raise ValueError(f"only generate returns a cache: call sampler.generate, or leave {name} out")
    if arguments.get("synced_gpus"):
        raise ValueError("synced_gpus is not supported yet: leave it out, and run the model on one device")
    if arguments.get("custom_generate") is not None:
        raise ValueError("custom_generate can't be passed to a sampler, which takes that place itself: leave it out")


def refuse_settings(model: PreTrainedModel, config: GenerationConfig, processors: LogitsProcessorList) -> None:
    """Raise `ValueError` for a model or settings with which the sampler would be inexact or ignore a request."""
    _refuse_cache(config.cache_implementation)
    _refuse_checkpointing(model)
    for name, allowed, advice in _SETTINGS:
        value = getattr(config, name, None)
        if value not in allowed:
            raise ValueError(f"{name}={value!r} is not supported: {advice}")
    for processor in processors:
        if type(processor).__name__ in _REMEMBERING:
            raise ValueError(
                f"{type(processor).__name__} remembers tokens that a rewind would withdraw and is not supported yet: "
                "leave out guidance_scale or watermarking_config"
            )
    rope = getattr(model.config.get_text_config(decoder=True), "rope_parameters", None) or {}
    kinds = {rope.get("rope_type")} | {part.get("rope_type") for part in rope.values() if isinstance(part, dict)}
    if "dynamic" in kinds:
        raise ValueError(
            "rope_type='dynamic' keeps the longest length it has seen, which a rewind can't undo: "
            "load the model with another rope_type, 'yarn' or 'linear' for instance"
        )


def _refuse_checkpointing(model: PreTrainedModel) -> None:
    """Raise `ValueError` for a model whose layers drop their cache, as they do to save memory in training."""
    if model.training and any(getattr(module, "gradient_checkpointing", False) for module in model.modules()):
        raise ValueError(
            f"{type(model).__name__} is in training mode with gradient checkpointing, which keeps no cache to rewind: "
            "call model.eval() first"
        )


def _refuse_other_tokenizer(other: PreTrainedTokenizerBase | None, tokenizer: PreTrainedTokenizerBase | None) -> None:
    """Raise `ValueError` for a tokenizer with other tokens; the same one may have been loaded twice."""
    if other is None or other is tokenizer:
        return
    if tokenizer is None or other.get_vocab() != tokenizer.get_vocab():
        raise ValueError("tokenizer is not the sampler's, which is used for stop strings too: leave it out")


def _refuse_cache(implementation: str | None) -> None:
    if implementation not in (None, "dynamic", "static"):
        raise ValueError(
            f"cache_implementation={implementation!r} is not supported: only dynamic and static caches can be rewound: "
            "leave it out"
        )


def refuse_tokenizer(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise `ValueError` for a tokenizer that can't be the model's: no ban would be found in the model's texts.

    A model may have more ids than its tokenizer, since vocabularies are padded, and a tokenizer may have been given
    tokens that the model never writes. A tokenizer of another model with equally many tokens is not detected.
    """
    embeddings = model.get_input_embeddings()
    if not isinstance(embeddings, torch.nn.Embedding):
        return
    size, tokens, base = embeddings.num_embeddings, len(tokenizer), tokenizer.vocab_size
    if base > size or size >= 2 * tokens:
        raise ValueError(
            f"the sampler's tokenizer has {max(base, tokens):,} tokens and {type(model).__name__} {size:,}: it belongs "
            "to another model, and no ban would be found; make the sampler with this model's tokenizer"
        )


_NO = (None, False)
_SETTINGS = (
    ("num_beams", (None, 1), "beams can't be rewound one by one; use num_beams=1"),
    ("assistant_ensemble_weight", (None,), "it changes the distribution by design; leave it out"),
    ("use_mtp", _NO, "drafts of multi-token heads need the model's hidden states; leave it out"),
    ("speculation_type", (None,), "it drafts with the model's hidden states; leave it out"),
    ("penalty_alpha", (None,), "contrastive search is another loop; leave it out"),
    ("dola_layers", (None,), "DoLa is another loop; leave it out"),
    ("constraints", (None,), "constrained beam search is another loop; leave it out"),
    ("force_words_ids", (None,), "constrained beam search is another loop; leave it out"),
    ("guidance_scale", (None, 1, 1.0), "guidance keeps a second cache that a rewind would not cut; leave it out"),
    ("token_healing", _NO, "it rewrites the prompt; leave it out"),
)

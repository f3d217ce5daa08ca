"""The facts of a call that its trace keeps, as plain data."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.generation import StopStringCriteria

from antislop.core.hf.callbacks.criteria import StopStrings
from antislop.core.hf.calls import Call
from antislop.core.hf.compiled_bans import CompiledBans
from antislop.core.hf.model import are_counted
from antislop.core.hf.pretrained import BUNDLED, TINY, ModelSpec
from antislop.core.hf.private import attention_of, belongs_to_caller, cache_name, revision_of
from antislop.core.hf.vocabulary import fingerprint_tokenizer
from antislop.core.loop.branches import Control
from antislop.core.trace.trace import Recording
from antislop.display import list_versions

PLAIN_INPUTS = frozenset({"attention_mask", "cache_position", "logits_to_keep", "position_ids", "use_cache"})
"""Arguments of the model that follow from ids, mask and settings; so does a cache that `generate` made."""


def describe_call(
    call: Call,
    bans: CompiledBans,
    *,
    options: Mapping[str, Any],
    recording: Recording,
    control: Control | None,
) -> Callable[[], dict[str, Any]]:
    """Return a function that lists the facts of a call that has not begun.

    The function does the slow part, only if a trace is looked at, and holds neither the model nor the inputs.
    """
    model, config = _describe_model(call.model), call.config
    assistant = None if call.assistant.model is None else _describe_model(call.assistant.model)
    controller = None if control is None else type(control.controller).__name__
    processors = [type(processor).__name__ for processor in call.logits_processor]
    criteria = [type(criterion).__name__ for criterion in call.stopping_criteria]
    stops = [each for each in call.stopping_criteria if isinstance(each, (StopStrings, StopStringCriteria))]
    stop_strings = [text for criterion in stops for text in criterion.stop_strings]
    mask, positions, cache = call.mask, call.model_kwargs.get("position_ids"), cache_name(call.model)
    made = set() if belongs_to_caller(call.model_kwargs.get(cache)) else {cache}  # by `generate`: no input of the text
    inputs = sorted(call.model_kwargs.keys() - PLAIN_INPUTS - made)
    seed = torch.initial_seed()

    def describe() -> dict[str, Any]:
        tokenizer = bans.tokenizer
        return {
            "model": model,
            "assistant": assistant,
            "tokenizer": {
                "name": _public_name(tokenizer.name_or_path),
                "fingerprint": fingerprint_tokenizer(tokenizer),
                "drops_space": bans.vocabulary.drops_space,
            },
            "sampler": dict(options),
            "settings": _list_settings(config),
            "stop_strings": stop_strings,
            "controller": controller,
            "processors": processors,
            "criteria": criteria,
            "inputs": inputs if are_counted(positions, mask) else [*inputs, "position_ids"],
            "record": recording.level,
            "record_top_k": recording.top_k,
            "seed": seed,
            "versions": list_versions(("transformers", "torch")),
        }

    return describe


def _list_settings(config: GenerationConfig) -> dict[str, Any]:
    """Return the settings that differ from the defaults; {"repr": text} for one without a form in JSON."""
    settings = {name: value for name, value in config.to_diff_dict().items() if not name.startswith("_")}
    settings.pop("transformers_version", None)
    if isinstance(settings.get("sequence_bias"), Mapping):  # its keys are tuples, and lists of pairs mean the same
        settings["sequence_bias"] = list(settings["sequence_bias"].items())
    plain: dict[str, Any] = json.loads(json.dumps(settings, default=lambda value: {"repr": repr(value)}))
    return plain


def _describe_model(model: Any) -> dict[str, str]:
    facts = {
        "name": _public_name(model.name_or_path),
        "type": type(model).__name__,
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": str(model.device),
        "attention": attention_of(model.config),
        "revision": revision_of(model.config),
    }
    return {name: value for name, value in facts.items() if value is not None}


def _public_name(name_or_path: str) -> str:
    # The folders of the bundled model and of converted ones differ by installation.
    return BUNDLED if name_or_path == str(TINY) else ModelSpec(name_or_path).public_name

"""The facts of a call that a trace keeps, as plain data: enough to repeat it, and to see what was different."""

from __future__ import annotations

import base64
import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig
from transformers.generation import StopStringCriteria

from antislop.callbacks.memory import is_of_transformers
from antislop.decoding.recording import Recording
from antislop.decoding.row import Row
from antislop.hf.calls import Call
from antislop.hf.compiled_bans import CompiledBans
from antislop.hf.vocabulary import fingerprint_tokenizer
from antislop.trace.recording import Trace
from antislop.trace.report import Report
from antislop.trace.traced_row import TracedRow

PLAIN_INPUTS = frozenset(
    {"attention_mask", "cache_position", "logits_to_keep", "past_key_values", "position_ids", "use_cache"}
)
"""Arguments of the model that follow from ids, mask and settings."""


@dataclass(frozen=True)
class CallFacts:
    """The facts of a call, held as they are until they are asked for.

    options: of the sampler. inputs: names of the model's other inputs, such as an encoder's output or an image.
    """

    model: Mapping[str, str]
    config: GenerationConfig
    options: Mapping[str, Any]
    recording: Recording
    processors: tuple[str, ...]
    criteria: tuple[str, ...]
    stop_strings: tuple[str, ...]
    inputs: tuple[str, ...]
    seed: int
    mask: Tensor | None

    @classmethod
    def of(cls, call: Call, *, options: Mapping[str, Any], recording: Recording) -> CallFacts:
        """Return the facts of a call that has not begun."""
        stops = [criterion for criterion in call.stopping_criteria if isinstance(criterion, StopStringCriteria)]
        return cls(
            model=_describe_model(call.model),
            config=call.config,
            options=options,
            recording=recording,
            processors=tuple(type(p).__name__ for p in call.logits_processor if not is_of_transformers(p)),
            criteria=tuple(type(c).__name__ for c in call.stopping_criteria if not is_of_transformers(c)),
            stop_strings=tuple(text for stop in stops for text in stop.stop_strings),
            inputs=tuple(sorted(call.model_kwargs.keys() - PLAIN_INPUTS)),
            seed=torch.initial_seed(),
            mask=call.mask,
        )

    def describe(self, bans: CompiledBans, random_state: bytes) -> dict[str, Any]:
        """Return the facts as plain data."""
        return {
            "model": dict(self.model),
            "tokenizer": {
                "name": bans.tokenizer.name_or_path,
                "fingerprint": fingerprint_tokenizer(bans.tokenizer),
                "drops_space": bans.vocabulary.drops_space,
            },
            "sampler": dict(self.options),
            "settings": _list_settings(self.config),
            "stop_strings": list(self.stop_strings),
            "processors": list(self.processors),
            "criteria": list(self.criteria),
            "inputs": list(self.inputs),
            "record": self.recording.level,
            "record_top_k": self.recording.top_k,
            "seed": self.seed,
            "random_state": base64.b64encode(random_state).decode(),
            "versions": list_versions(),
        }


def make_trace(facts: CallFacts, bans: CompiledBans, rows: list[Row], reports: list[Report], state: bytes) -> Trace:
    """Return the trace of a call: the rows' events so far, with the facts. state: of the random numbers before it."""
    masks = _list_masks(facts.mask, rows)
    traced = tuple(
        TracedRow(tuple(row.ids_up_to(0)[0].tolist()), tuple(report.events), mask)
        for row, report, mask in zip(rows, reports, masks, strict=True)
    )
    return Trace(traced, bans.bans, bans.vocabulary, partial(facts.describe, bans, state))


def read_random_state(device: torch.device) -> bytes:
    """Return the state of torch's global generator for a device."""
    module = torch.random if device.type == "cpu" else torch.get_device_module(device)
    return bytes(module.get_rng_state().numpy())


def list_versions() -> dict[str, str]:
    """Return the versions of everything that a repetition depends on."""
    packages = {name: version(name) for name in ("antislop", "transformers", "torch")}
    return {**packages, "python": platform.python_version()}


def _list_settings(config: GenerationConfig) -> dict[str, Any]:
    """Return the settings that differ from the defaults; those that JSON has no form for become text."""
    settings = {name: value for name, value in config.to_diff_dict().items() if not name.startswith("_")}
    settings.pop("transformers_version", None)
    plain: dict[str, Any] = json.loads(json.dumps(settings, default=repr))
    return plain


def _describe_model(model: Any) -> dict[str, str]:
    facts = {
        "name": model.name_or_path,
        "type": type(model).__name__,
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": str(model.device),
    }
    revision = getattr(model.config, "_commit_hash", None)
    return facts if revision is None else {**facts, "revision": revision}


def _list_masks(mask: Tensor | None, rows: list[Row]) -> list[tuple[int, ...] | None]:
    """Return the mask of each prompt; None for a prompt without padding, or if the mask is for other inputs."""
    if mask is None or mask.ndim != 2 or mask.shape[1] != rows[0].prompt_length or bool(mask.all()):
        return [None] * len(rows)
    lists = mask.expand(len(rows), -1).tolist() if mask.shape[0] == 1 else mask.tolist()
    return [tuple(int(value) for value in values) for values in lists]

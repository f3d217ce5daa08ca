"""The facts of a call that a trace keeps, as plain data: enough to repeat it, and to see what was different."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig
from transformers.generation import StopStringCriteria

from antislop.control.branches import Control
from antislop.decoding.row import Row
from antislop.display import list_versions
from antislop.hf.calls import Call
from antislop.hf.compiled_bans import CompiledBans
from antislop.hf.pretrained import BUNDLED, ModelSpec
from antislop.hf.private import attention_of, belongs_to_caller, revision_of
from antislop.hf.vocabulary import fingerprint_tokenizer
from antislop.trace.recording import Recording
from antislop.trace.report import Report
from antislop.trace.trace import Trace
from antislop.trace.traced_row import TracedRow

PLAIN_INPUTS = frozenset(
    {"attention_mask", "cache_position", "logits_to_keep", "past_key_values", "position_ids", "use_cache"}
)
"""Arguments of the model that follow from ids, mask and settings."""


@dataclass(frozen=True)
class CallFacts:
    """The facts of a call, held as they are until they are asked for.

    options: of the sampler. controller: the name of its type, if there is one. assistant: the model that drafts, if
    there is one. processors, criteria: the names of all types, those that `generate` makes from its settings included.
    inputs: the names of the model's other inputs, such as an encoder's output, an image, or a cache that was filled
    before. positions: of the prompts' tokens.
    """

    model: Mapping[str, str]
    assistant: Mapping[str, str] | None
    config: GenerationConfig
    options: Mapping[str, Any]
    recording: Recording
    controller: str | None
    processors: tuple[str, ...]
    criteria: tuple[str, ...]
    stop_strings: tuple[str, ...]
    inputs: tuple[str, ...]
    seed: int
    mask: Tensor | None
    positions: Tensor | None

    @classmethod
    def of(
        cls, call: Call, *, options: Mapping[str, Any], recording: Recording, control: Control | None = None
    ) -> CallFacts:
        """Return the facts of a call that has not begun."""
        stops = [criterion for criterion in call.stopping_criteria if isinstance(criterion, StopStringCriteria)]
        assistant = call.assistant.model
        return cls(
            model=_describe_model(call.model),
            assistant=None if assistant is None else _describe_model(assistant),
            config=call.config,
            options=options,
            recording=recording,
            controller=None if control is None else type(control.controller).__name__,
            processors=tuple(type(processor).__name__ for processor in call.logits_processor),
            criteria=tuple(type(criterion).__name__ for criterion in call.stopping_criteria),
            stop_strings=tuple(text for stop in stops for text in stop.stop_strings),
            inputs=_list_inputs(call),
            seed=torch.initial_seed(),
            mask=call.mask,
            positions=call.model_kwargs.get("position_ids"),
        )

    def describe(self, bans: CompiledBans, random_state: Mapping[str, bytes]) -> dict[str, Any]:
        """Return the facts as plain data."""
        return {
            "model": dict(self.model),
            "assistant": None if self.assistant is None else dict(self.assistant),
            "tokenizer": {
                "name": _name(bans.tokenizer.name_or_path),
                "fingerprint": fingerprint_tokenizer(bans.tokenizer),
                "drops_space": bans.vocabulary.drops_space,
            },
            "sampler": dict(self.options),
            "settings": _list_settings(self.config),
            "stop_strings": list(self.stop_strings),
            "controller": self.controller,
            "processors": list(self.processors),
            "criteria": list(self.criteria),
            "inputs": [*self.inputs, *([] if _follow_from(self.mask, self.positions) else ["position_ids"])],
            "record": self.recording.level,
            "record_top_k": self.recording.top_k,
            "seed": self.seed,
            "random_state": {kind: base64.b64encode(state).decode() for kind, state in random_state.items()},
            "versions": list_versions(("antislop", "transformers", "torch")),
        }


def make_trace(
    facts: CallFacts, bans: CompiledBans, rows: list[Row], reports: list[Report], state: Mapping[str, bytes]
) -> Trace:
    """Return the trace of a call: the rows' events so far, with the facts. state: of the random numbers before it."""
    masks = _list_masks(facts.mask, rows)
    traced = tuple(
        TracedRow(tuple(row.ids_up_to(0)[0].tolist()), tuple(report.events), mask)
        for row, report, mask in zip(rows, reports, masks, strict=True)
    )
    return Trace(traced, bans.bans, bans.vocabulary, partial(facts.describe, bans, state))


def read_random_state(device: torch.device) -> dict[str, bytes]:
    """Return the states of torch's global generators: the CPU's, which decides about weights, and a device's."""
    return {kind: bytes(read().numpy()) for kind, (read, _) in _find_generators(device).items()}


@contextmanager
def random_state(device: torch.device, state: Mapping[str, bytes]) -> Iterator[None]:
    """Draw random numbers from a state of `read_random_state` inside the block, and continue with one's own after it.

    Raises `RuntimeError` for a state that isn't one, `KeyError` for that of another kind of device.
    """
    generators = _find_generators(device)
    before = {kind: read() for kind, (read, _) in generators.items()}
    try:
        for kind, (_, write) in generators.items():
            write(torch.frombuffer(bytearray(state[kind]), dtype=torch.uint8))
        yield
    finally:
        for kind, (_, write) in generators.items():
            write(before[kind])


def _find_generators(device: torch.device) -> dict[str, tuple[Callable[[], Tensor], Callable[[Tensor], None]]]:
    """Return the functions that read and set the states of the global generators, by the kind of device."""
    generators: dict[str, Any] = {"cpu": (torch.random.get_rng_state, torch.random.set_rng_state)}
    if device.type == "mps":
        generators["mps"] = torch.mps.get_rng_state, torch.mps.set_rng_state
    elif device.type != "cpu":
        module = torch.get_device_module(device)
        generators[device.type] = partial(module.get_rng_state, device), partial(module.set_rng_state, device=device)
    return generators


def _list_settings(config: GenerationConfig) -> dict[str, Any]:
    """Return the settings that differ from the defaults; {"repr": text} for one without a form in JSON."""
    settings = {name: value for name, value in config.to_diff_dict().items() if not name.startswith("_")}
    settings.pop("transformers_version", None)
    if isinstance(settings.get("sequence_bias"), Mapping):  # its keys are tuples, and lists of pairs mean the same
        settings["sequence_bias"] = list(settings["sequence_bias"].items())
    plain: dict[str, Any] = json.loads(json.dumps(settings, default=lambda value: {"repr": repr(value)}))
    return plain


def _list_inputs(call: Call) -> tuple[str, ...]:
    """Return the names of the inputs that don't follow from ids, mask and settings."""
    names = call.model_kwargs.keys() - PLAIN_INPUTS
    if belongs_to_caller(call.model_kwargs.get("past_key_values")):
        names |= {"past_key_values"}
    return tuple(sorted(names))


def _follow_from(mask: Tensor | None, positions: Tensor | None) -> bool:
    """Return whether positions are those that `generate` counts from a mask."""
    if positions is None:
        return True
    counted = torch.arange(positions.shape[-1], device=positions.device).expand_as(positions)
    if mask is not None:
        counted = (mask.long().cumsum(-1) - 1).masked_fill(mask == 0, 0).to(positions.device)
    return torch.equal(positions, counted)


def _describe_model(model: Any) -> dict[str, str]:
    facts = {
        "name": _name(model.name_or_path),
        "type": type(model).__name__,
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": str(model.device),
        "attention": attention_of(model.config),
        "revision": revision_of(model.config),
    }
    return {name: value for name, value in facts.items() if value is not None}


def _name(name_or_path: str) -> str:
    """Return the name by which others can load a model: the folder of the bundled one is another one for them."""
    return BUNDLED if name_or_path == str(ModelSpec().source) else name_or_path


def _list_masks(mask: Tensor | None, rows: list[Row]) -> list[tuple[int, ...] | None]:
    """Return the mask of each prompt; None for a prompt without padding, or if the mask is for other inputs."""
    if mask is None or mask.ndim != 2 or mask.shape[1] != rows[0].prompt_length or bool(mask.all()):
        return [None] * len(rows)
    lists = [tuple(int(value) for value in values) for values in mask.tolist()]
    return [lists[min(row.root, len(lists) - 1)] for row in rows]

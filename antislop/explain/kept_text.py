"""Activations, hidden states and attentions of the kept text, from one more forward pass over the finished text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache
from transformers.generation.streamers import BaseStreamer

from antislop.core.hf import PREFILL_INPUTS, Call, CallOutput, Generation, uncompiled
from antislop.errors import CapabilityError, InputError
from antislop.explain import activations
from antislop.explain.activations import sentence

_PREPARED = {"attention_mask", "position_ids"}
"""Names of the tensors that `generate` prepares in each call of a decoder-only model for text."""


@dataclass(frozen=True)
class CacheRequest:
    model: PreTrainedModel  # the model to whose modules the names refer
    selection: activations.Selection
    device: torch.device | str | None  # the device of the copies; None: that of each output


def request_cache(
    model: PreTrainedModel,
    arguments: Mapping[str, Any],
    *,
    return_cache: bool,
    names_filter: activations.NamesFilter,
    device: torch.device | str | None,
) -> CacheRequest | None:
    """Return the request for an `ActivationCache` in the arguments of `generate`; None without return_cache=True.

    Raises `InputError` or `NotImplementedError` if the cache, or requested hidden states or attentions, can't be had.
    """
    # Refused here already, since `generate` runs an encoder of texts or images before its decoding loop.
    states = ("output_hidden_states", "output_attentions") if arguments.get("return_dict_in_generate") else ()
    for name in ("return_cache",) if return_cache else filter(arguments.get, states):
        if obstacle := _find_encoded(model, arguments, name):
            raise NotImplementedError(obstacle)
    if not return_cache:
        for name, value in {"names_filter": names_filter, "device": device}.items():
            if value is not None:
                raise InputError(f"{name} is for the returned cache: pass return_cache=True too, or leave {name} out")
        return None
    model = uncompiled(model) or model
    activations.check_device(device)
    return CacheRequest(model, activations.select_outputs(model, names_filter), device)


def complete_and_read(
    generation: Generation, streamer: BaseStreamer | None = None, request: CacheRequest | None = None
) -> tuple[CallOutput, activations.ActivationCache | None]:
    """Generate to the end, then read the kept text once more for the requested activations, states or attentions.

    Raises `InputError`, `NotImplementedError` or `CapabilityError`, before generating, if they can't be had.
    """
    call, options = generation.call, generation.call.requested_states
    if obstacle := find_obstacle(call, "return_cache" if request is not None else next(iter(options))):
        raise NotImplementedError(obstacle)
    if options.get("output_attentions"):
        activations.require_patterns(call.model)
    controller = generation.rows[0].spec.controller
    if controller is not None and controller.needs.has_forks:
        raise CapabilityError(sentence("states of forks"))
    output = generation.complete(streamer)
    sequences = output if isinstance(output, Tensor) else output.sequences
    model = call.model if request is None else request.model
    prompt = torch.ones_like(call.input_ids) if call.mask is None else call.mask
    lengths = torch.tensor([len(row.tokens) for row in generation.rows], device=sequences.device)
    columns = torch.arange(sequences.shape[1] - prompt.shape[1], device=sequences.device)
    mask = torch.cat([prompt, (columns < lengths[:, None]).to(prompt.dtype)], dim=1)  # 0 for padding behind a text
    inputs = activations.prepare_inputs(model, sequences, mask)
    decoder = model.get_decoder()
    inside = set() if decoder is model else set(decoder.modules())
    modules = () if request is None else request.selection.modules.values()
    # Only the last logits, if no others are asked for: with a large vocabulary, all logits take a lot of memory.
    if "logits_to_keep" in activations.input_names(model) and all(module in inside for module in modules):
        inputs["logits_to_keep"] = 1
    cache: activations.ActivationCache | None = None
    if request is None:
        clean = activations.read(model, inputs, **options)
    else:
        with activations.stored_outputs(request.selection, device=request.device) as outputs:
            clean = activations.read(model, inputs, **options)
        cache = activations.make_cache(outputs, request.selection)
    if options and not isinstance(output, Tensor):
        output = replace(output, **_split_steps(clean, generation, sequences.shape[1]))
    return output, cache


def find_obstacle(call: Call, name: str) -> str | None:
    """Return a sentence that says why ids and mask alone don't suffice to read a text again; None if they do.

    name: the argument for which the text would be read again; the sentence names it and says what to do instead.
    """
    if encoded := _find_encoded(call.model, call.model_kwargs, name):
        return encoded
    tensors = {key: value for key, value in call.model_kwargs.items() if isinstance(value, Tensor)}
    others = sorted(tensors.keys() - _PREPARED) or ([] if call.counts_positions else ["position_ids"])
    if others:
        return sentence("tensor beside the ids", name=name, tensor=others[0])
    if call.columns > call.input_ids.shape[1]:
        return sentence("ids in the cache", name=name)
    return None


def _find_encoded(model: PreTrainedModel, arguments: Mapping[str, Any], name: str) -> str | None:
    if model.config.is_encoder_decoder:
        return sentence("encoder", name=name)
    empty: tuple[Any, ...] = (None, {})  # {}: a model for images has it if no images were passed
    given = {key for key, value in arguments.items() if isinstance(value, Tensor) or value not in empty}
    if "inputs_embeds" in given:
        return sentence("embeddings beside the ids", name=name)
    return sentence("images beside the ids", name=name) if given & PREFILL_INPUTS else None


def _split_steps(clean: Any, generation: Generation, length: int) -> dict[str, Any]:
    """Return hidden states and attentions in the nesting of `generate`: by step, then layer, [rows, …, tokens, …]."""
    # The first step reads the prompt, and each later step one token; the last token is never read.
    call = generation.call
    prompt = call.input_ids.shape[1]
    spans = [(min(generation.prompts.held, prompt - 1), prompt), *((end - 1, end) for end in range(prompt + 1, length))]
    fields: dict[str, Any] = {}
    options = call.requested_states
    if "output_hidden_states" in options:
        fields["hidden_states"] = tuple(
            tuple(None if layer is None else layer[:, start:end] for layer in clean.hidden_states)
            for start, end in spans
        )
    if "output_attentions" in options:
        # A sliding-window layer attends to the tokens in its window only; None: a layer that attends to all.
        caches = DynamicCache(config=call.model.config.get_text_config(decoder=True)).layers
        windows: Sequence[int | None] = [getattr(cache, "sliding_window", None) for cache in caches]
        if len(windows) != len(clean.attentions):
            windows = [None] * len(clean.attentions)
        fields["attentions"] = tuple(
            tuple(
                layer[:, :, start:end, 0 if window is None or end <= prompt else max(0, end - window) : end]
                for layer, window in zip(clean.attentions, windows, strict=True)
            )
            for start, end in spans
        )
    return fields

"""One forward pass over whole texts, without a cache and without dropout, as `generate` would read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from inspect import Parameter, signature
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from antislop.core.hf import PREFILL_INPUTS, count_positions, device_of
from antislop.errors import InputError


def prepare_inputs(
    model: PreTrainedModel,
    input_ids: Tensor | None,
    attention_mask: Tensor | None = None,
    model_kwargs: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the arguments of a pass over ids [rows, tokens], with positions counted by the mask, as in `generate`."""
    device = device_of(model)
    inputs = {
        key: value.to(device) if isinstance(value, Tensor) else value for key, value in (model_kwargs or {}).items()
    }
    if input_ids is None and inputs.get("inputs_embeds") is None:
        raise InputError("neither input_ids nor inputs_embeds is passed: pass one of them")
    if input_ids is not None:
        inputs["input_ids"] = _check_ids(input_ids).to(device)
    if attention_mask is None:
        return inputs
    mask = attention_mask.to(device)
    text = inputs.get("inputs_embeds") if input_ids is None else input_ids
    if text is not None and mask.shape != text.shape[:2]:
        raise InputError(
            f"attention_mask has the shape {tuple(mask.shape)} and the text {tuple(text.shape)}: pass 1 for each "
            "token and 0 for padding, [rows, tokens]"
        )
    if bool((mask == 1).all()) and not model.config.is_encoder_decoder:
        return inputs
    inputs["attention_mask"] = mask
    # Beside images and sounds, positions are left to the model.
    is_counted = "position_ids" in input_names(model) and not (PREFILL_INPUTS | {"position_ids"}) & inputs.keys()
    return {**inputs, "position_ids": count_positions(mask)} if is_counted else inputs


def input_names(model: PreTrainedModel) -> Mapping[str, Parameter]:
    """Return the parameters of a model's forward, or of the model inside a `PeftModel`."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return signature(inner.forward).parameters


def _check_ids(input_ids: object) -> Tensor:
    if not isinstance(input_ids, Tensor):
        raise InputError(f"input_ids is a {type(input_ids).__name__}: pass ids as a tensor [rows, tokens]")
    if input_ids.ndim != 2 or input_ids.is_floating_point():
        raise InputError(
            f"input_ids has the shape {tuple(input_ids.shape)} and the type {input_ids.dtype}: pass ids [rows, tokens]"
        )
    return input_ids


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """Set modules in training mode to evaluation inside."""
    training = [module for module in model.modules() if module.training]
    try:
        for module in training:
            module.training = False
        yield
    finally:
        for module in training:
            module.training = True


@torch.no_grad()
def read(model: PreTrainedModel, inputs: Mapping[str, Any], **options: Any) -> Any:
    """Return the output of one forward pass without a cache."""
    with without_dropout(model):
        output = model(**inputs, **options, use_cache=False, return_dict=True)
    if getattr(output, "logits", None) is None:
        raise InputError(f"{type(model).__name__} returns no logits: pass a model with a language modeling head")
    return output

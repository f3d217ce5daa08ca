"""Activations: the outputs of a model's modules in one forward pass over whole texts. And relevance, from such a pass.

The relevance of an earlier token for a token is input × gradient: the product of the earlier token's embedding and the
gradient of the token's logit with respect to that embedding, summed over the width.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from inspect import Parameter, signature
from threading import get_ident
from typing import Any, NoReturn, TypeAlias

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from antislop.core.hf import PREFILL_INPUTS, attention_of, count_positions, device_of, uncompiled
from antislop.errors import InputError, first_line, sentences_of

NamesFilter: TypeAlias = str | Collection[str] | Callable[[str], bool] | None
"""Which outputs to store: None for all, a name, several names, or a function that is called with each name."""

PATTERN = ".pattern"
sentence = sentences_of(__file__)


class ActivationCache(dict[str, Tensor]):
    """The outputs of a model's modules in one forward pass, by the paths of `model.named_modules()`.

    path: the first tensor that the module returns, unchanged in shape: mostly [rows, tokens, …].
    path@2, path@3: the first tensor that the second and third call of the module in the same pass return.
    path.pattern: attention weights [rows, heads, queries, keys] of an attention module, with eager attention.

    A module with several paths has only the first of them. All tensors are copies without gradients.
    """

    def __missing__(self, name: object) -> NoReturn:
        near = get_close_matches(str(name), self, n=3, cutoff=0.0)
        raise KeyError(f"{name!r} is not stored; near names are {', '.join(map(repr, near))}")

    def __repr__(self) -> str:
        return f"<ActivationCache: {len(self):,} outputs, {self.nbytes:,} bytes>"

    @property
    def nbytes(self) -> int:
        """The number of bytes of all tensors together."""
        return sum(tensor.nbytes for tensor in self.values())

    def to(self, device: torch.device | str) -> ActivationCache:
        """Return a new cache with all tensors moved to a device."""
        return ActivationCache({name: tensor.to(device) for name, tensor in self.items()})


def run_with_cache(
    model: PreTrainedModel,
    input_ids: Tensor | None,
    *,
    attention_mask: Tensor | None = None,
    names_filter: NamesFilter = None,
    device: torch.device | str | None = None,
    **model_kwargs: Any,
) -> tuple[Tensor, ActivationCache]:
    """Read texts in one forward pass; return the logits [rows, tokens, vocab] and the outputs of the modules.

    input_ids: ids [rows, tokens].
    attention_mask: [rows, tokens], 1 for tokens, 0 for padding; positions are counted from it, as in `generate`.
    names_filter: the outputs to store: a name, several names, or a function that is called with each name and returns
        whether to store it; None stores all. A name stands for all calls of its module.
    device: the device of the stored copies; None: the device of each output. The model is not moved.
    model_kwargs: other arguments of the forward pass, such as images, `decoder_input_ids`, or `inputs_embeds` in place
        of ids. With images, the model itself counts positions unless `position_ids` is passed.

    The pass has no cache, no gradients and no dropout. For Llama 3 8B in bfloat16, all outputs take 4.8 MiB per token,
    an output of the hidden size 8 KiB; an attention pattern takes heads x tokens numbers per token.

    Raises `InputError`: before the model runs, for a filter that selects nothing and for a pattern that the model's
    attention does not compute; after it ran, for a named module that was not called or returned no tensor.
    """
    model = uncompiled(model) or model
    if not isinstance(model, nn.Module):
        raise InputError(f"model is a {type(model).__name__}: write run_with_cache(model, input_ids)")
    check_device(device)
    selection = select_outputs(model, names_filter)
    inputs = prepare_inputs(model, input_ids, attention_mask, model_kwargs)
    with stored_outputs(selection, device=device) as outputs:
        logits: Tensor = read(model, inputs).logits
    return logits, make_cache(outputs, selection)


def make_cache(outputs: Mapping[str, Tensor], selection: Selection) -> ActivationCache:
    if not outputs:
        raise InputError("no module that names_filter selects was called in this forward pass: select others")
    if missing := sorted(selection.required - outputs.keys()):
        raise InputError(sentence("uncalled module", name=missing[0]))
    return ActivationCache(outputs)


# -- choosing modules by name ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Selection:
    """The names of the outputs and patterns to store; `required` are the names that the filter lists one by one."""

    modules: Mapping[str, nn.Module]  # the modules to hook, by their paths
    names: frozenset[str]
    required: frozenset[str] = frozenset()


def select_outputs(model: PreTrainedModel, names_filter: NamesFilter) -> Selection:
    # Modules without a `forward`, such as a `ModuleList`, are left out.
    modules = {path: m for path, m in model.named_modules() if path and type(m).forward is not nn.Module.forward}
    patterns = {path + PATTERN for path in _find_attention(modules)}
    selected, required = _apply_filter(names_filter, sorted(modules.keys() | patterns))
    if (attention := attention_of(model.config.get_text_config(decoder=True))) != "eager":
        # If a function accepts both the name of a module and that of its pattern, the pattern is just left out.
        chosen = selected & patterns
        if asked := {n for n in chosen if n in required or n.removesuffix(PATTERN) not in selected}:
            raise InputError(sentence("no pattern to select", name=min(asked), attention=attention))
        selected -= patterns
    return Selection(
        {path: module for path, module in modules.items() if {path, path + PATTERN} & selected},
        frozenset(selected),
        frozenset(required),
    )


def require_patterns(model: PreTrainedModel) -> None:
    if (attention := attention_of(model.config.get_text_config(decoder=True))) != "eager":
        raise InputError(sentence("no pattern to return", attention=attention))
    if not _find_attention(dict(model.named_modules())):
        raise InputError(f"{type(model).__name__} has no attention: leave output_attentions out")


def _apply_filter(names_filter: NamesFilter, names: Collection[str]) -> tuple[set[str], set[str]]:
    """Return the set of names that a filter selects, and the set of names that it lists one by one."""
    if names_filter is None:
        return set(names), set()
    if callable(names_filter):
        selected = {name for name in names if names_filter(name)}
        if not selected:
            raise InputError(f"names_filter accepts none of the model's {len(names):,} names: {_join_names(names)}")
        return selected, set()
    if not isinstance(names_filter, Iterable):
        raise InputError(f"names_filter is a {type(names_filter).__name__}: pass a name, a list of names or a function")
    required = {names_filter} if isinstance(names_filter, str) else {str(name) for name in names_filter}
    if not required:
        raise InputError("names_filter is empty and selects nothing: leave it out for all outputs")
    for name in required - set(names):
        near = get_close_matches(name, names, n=3, cutoff=0.0)
        raise InputError(f"names_filter: the model has no module {name!r}; near names are {_join_names(near)}")
    return set(required), required


def _join_names(names: Collection[str]) -> str:
    return ", ".join(map(repr, list(names)[:3])) + (", …" if len(names) > 3 else "")


def _find_attention(modules: Mapping[str, nn.Module]) -> set[str]:
    """Return the paths of the innermost attention modules, which are recognized by the names of their classes."""
    found = {path for path, module in modules.items() if re.search("Attention|MLA$", type(module).__name__)}
    return {path for path in found if not any(other.startswith(f"{path}.") for other in found)}


# -- storing their outputs ---------------------------------------------------------------------------------------------


def check_device(device: torch.device | str | None) -> None:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:  # a wrong name, or torch was built without the device
        raise InputError(f"device={device!r} can't be used: {first_line(error)}") from error


@contextmanager
def stored_outputs(selection: Selection, *, device: torch.device | str | None) -> Iterator[dict[str, Tensor]]:
    """Yield a dict that receives copies of the selected outputs of all forward passes in the block."""
    outputs: dict[str, Tensor] = {}
    thread = get_ident()

    def store(path: str, _module: nn.Module, _arguments: Any, output: Any) -> None:
        if get_ident() != thread:  # another call of the same model
            return
        for name, find in ((path, _first_tensor), (path + PATTERN, _find_pattern)):
            if name in selection.names and (tensor := find(output)) is not None:
                key, call = name, 1
                while key in outputs:  # the module was called before in this pass
                    call += 1
                    key = f"{name}@{call}"
                outputs[key] = tensor.detach().to(device or tensor.device, copy=True)

    with ExitStack() as hooks:
        for path, module in selection.modules.items():
            hooks.callback(module.register_forward_hook(partial(store, path)).remove)
        yield outputs


def _first_tensor(output: Any) -> Tensor | None:
    if isinstance(output, Tensor):
        return output
    parts = output.values() if isinstance(output, Mapping) else output if isinstance(output, (tuple, list)) else ()
    return next((tensor for tensor in map(_first_tensor, parts) if tensor is not None), None)


def _find_pattern(output: Any) -> Tensor | None:
    # Attention weights [rows, heads, queries, keys] follow the first output. T5 returns a position bias of the same
    # shape before them; unlike the bias, weights are never negative, and not all 0.
    parts = output[1:] if isinstance(output, tuple) else ()
    tensors = (part for part in parts if isinstance(part, Tensor) and part.ndim == 4)
    return next((tensor for tensor in tensors if bool((tensor >= 0).all() & tensor.any())), None)


# -- one clean pass ----------------------------------------------------------------------------------------------------


def prepare_inputs(
    model: PreTrainedModel,
    input_ids: Tensor | None,
    attention_mask: Tensor | None = None,
    model_kwargs: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return arguments for a pass over ids [rows, tokens]; positions are counted by the mask, as in `generate`."""
    device = device_of(model)
    inputs = {
        key: value.to(device) if isinstance(value, Tensor) else value for key, value in (model_kwargs or {}).items()
    }
    if input_ids is None and inputs.get("inputs_embeds") is None:
        raise InputError("neither input_ids nor inputs_embeds is passed: pass one of them")
    if input_ids is not None:
        if not isinstance(input_ids, Tensor):
            raise InputError(f"input_ids is a {type(input_ids).__name__}: pass ids as a tensor [rows, tokens]")
        if input_ids.ndim != 2 or input_ids.is_floating_point():
            shape, kind = tuple(input_ids.shape), input_ids.dtype
            raise InputError(f"input_ids has the shape {shape} and the type {kind}: pass ids [rows, tokens]")
        inputs["input_ids"] = input_ids.to(device)
    if attention_mask is None:
        return inputs
    mask = attention_mask.to(device)
    text = inputs.get("inputs_embeds") if input_ids is None else input_ids
    if text is not None and mask.shape != text.shape[:2]:
        raise InputError(sentence("mask of another shape", mask=tuple(mask.shape), text=tuple(text.shape)))
    if bool((mask == 1).all()) and not model.config.is_encoder_decoder:
        return inputs
    inputs["attention_mask"] = mask
    # With images or sounds, the model itself counts positions.
    is_counted = "position_ids" in input_names(model) and not (PREFILL_INPUTS | {"position_ids"}) & inputs.keys()
    return {**inputs, "position_ids": count_positions(mask)} if is_counted else inputs


def input_names(model: PreTrainedModel) -> Mapping[str, Parameter]:
    """Return the parameters of a model's `forward`; for a `PeftModel`, those of the model inside it."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return signature(inner.forward).parameters


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """Set all modules of a model to evaluation mode in the block; afterwards restore the training mode of each."""
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


# -- relevance ---------------------------------------------------------------------------------------------------------


def attribute(model: PreTrainedModel, tokens: Sequence[int], indices: Iterable[int]) -> dict[int, list[float]]:
    """Return, for each index, the relevance of all earlier tokens for the token at that index of an unpadded text.

    indices: at least 1. The relevance explains the token's own logit, before logits processors.

    Raises `InputError` for a model that was loaded within `torch.inference_mode`, and `NotImplementedError` for one
    that does not read ids through its input embeddings.
    """
    if any(parameter.is_inference() for parameter in model.parameters()):
        raise InputError("the model was loaded within torch.inference_mode, which allows no gradients: load it outside")
    distinct = sorted(set(indices))
    if not distinct:
        return {}
    numbers: dict[int, list[float]] = {}
    with torch.inference_mode(False), torch.enable_grad(), without_dropout(model):
        ids = torch.tensor([tokens[: distinct[-1]]], device=device_of(model))
        embeddings: Tensor = model.get_input_embeddings()(ids).detach().clone().requires_grad_()  # [1, tokens, width]
        logits = _read_embeddings(model, ids, embeddings, before=distinct)
        dtype = torch.promote_types(embeddings.dtype, torch.float32)
        for column, index in enumerate(distinct):
            # `grad`, unlike `backward`, leaves the gradients of the model's parameters alone.
            (gradient,) = torch.autograd.grad(logits[0, column, tokens[index]], embeddings, retain_graph=True)
            numbers[index] = (embeddings * gradient)[0, :index].sum(dim=-1, dtype=dtype).tolist()
    return numbers


def _read_embeddings(model: PreTrainedModel, ids: Tensor, embeddings: Tensor, *, before: Sequence[int]) -> Tensor:
    """Return the logits that predict the tokens at the indices `before`, [1, indices, vocabulary]."""
    # All other logits are left out: they would take most of the memory, and of a backward pass's time.
    positions = torch.tensor(before, device=ids.device) - 1
    option = input_names(model).get("logits_to_keep")
    has_option = option is not None and "Tensor" in str(option.annotation)
    inputs = prepare_inputs(model, ids) | ({"logits_to_keep": positions} if has_option else {})
    reads, thread = list[bool](), get_ident()

    def replace(_module: nn.Module, _arguments: object, output: Tensor) -> Tensor | None:
        if get_ident() != thread:  # another call of the same model
            return None
        reads.append(output.shape == embeddings.shape)
        return embeddings.clone()  # a clone, since some models change their embeddings in place

    # By a hook rather than `inputs_embeds`, since models also scale embeddings, for instance, as in `generate`.
    with model.get_input_embeddings().register_forward_hook(replace):
        logits: Tensor = model(**inputs, use_cache=False, return_dict=True).logits
    if reads != [True]:
        raise NotImplementedError(sentence("embeddings read otherwise", model=type(model).__name__))
    return logits if has_option else logits[:, positions]

"""Activations of a text: what the modules of a model put out in one clean forward pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from antislop.errors import InputError
from antislop.hf.private import uncompiled
from antislop.interpret.clean_pass import prepare_inputs, read
from antislop.interpret.module_outputs import NamesFilter, Selection, check_device, select_outputs, stored_outputs


class ActivationCache(Mapping[str, Tensor]):
    """The outputs of a model's modules in one forward pass, by the paths of `model.named_modules()`.

    A module's output is its first tensor if it returns several, in the shape that the module returns: mostly [rows,
    tokens, …]. The second call of a module in the same pass is stored as `path@2`, the third as `path@3`. With eager
    attention, `path.pattern` holds the attention weights [rows, heads, queries, keys] of an attention module. Shared
    modules have the first of their paths. All tensors are copies without gradients.
    """

    def __init__(self, outputs: Mapping[str, Tensor]) -> None:
        self._outputs = dict(outputs)

    def __getitem__(self, name: str) -> Tensor:
        try:
            return self._outputs[name]
        except KeyError:
            near = get_close_matches(str(name), self._outputs, n=3, cutoff=0.0)
            raise KeyError(f"{name!r} is not stored; near names are {', '.join(map(repr, near))}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._outputs)

    def __len__(self) -> int:
        return len(self._outputs)

    def __contains__(self, name: object) -> bool:
        return name in self._outputs

    def __repr__(self) -> str:
        return f"<ActivationCache: {len(self):,} outputs, {self.nbytes:,} bytes>"

    @property
    def nbytes(self) -> int:
        """The memory of all tensors, in bytes."""
        return sum(tensor.nbytes for tensor in self._outputs.values())

    def to(self, device: torch.device | str) -> ActivationCache:
        """Return a cache with all tensors on a device; those that are there already are not copied."""
        return ActivationCache({name: tensor.to(device) for name, tensor in self._outputs.items()})


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

    input_ids: ids [rows, tokens]. attention_mask: 1 for tokens, 0 for padding, [rows, tokens]; None for no padding.
        Positions are counted by it, as in `generate`.
    names_filter: a name, several, or a function that is called with each name and returns whether to store it; None
        stores all. A name stands for all calls of its module. A function that accepts a module together with its
        pattern gets the pattern only if it is computed.
    device: where the copies go, "cpu" for instance; None leaves them where the outputs are. The model stays on its own.
    model_kwargs: other arguments of the model's forward pass, such as images, `decoder_input_ids`, or `inputs_embeds`
        in the place of ids; beside images, positions are the model's own unless `position_ids` is passed.

    The pass has no cache, no gradients and no dropout. Afterwards, also if it raises an error, the hooks are removed,
    and each module is in training or evaluation mode as before.

    Memory: an output takes tokens x width x bytes per number. All outputs of a Llama layer together are 8 of the hidden
    size, 3 of the MLP's and 2 of the keys': for Llama 3 8B in bfloat16 152 KiB per token and layer, 4.8 MiB per token.
    With `names_filter` one of the hidden size takes 8 KiB per token; a pattern takes heads x tokens numbers per token.

    Raises `InputError`, before the model runs, for a filter that selects nothing and for a pattern that the model's
    attention does not compute; after it, for a named module that was not called or returned no tensor.
    """
    model = uncompiled(model) or model
    check_device(device)
    selection = select_outputs(model, names_filter)
    inputs = prepare_inputs(model, input_ids, attention_mask, model_kwargs)
    with stored_outputs(selection, device=device) as outputs:
        logits: Tensor = read(model, inputs).logits
    return logits, make_cache(outputs, selection)


def make_cache(outputs: Mapping[str, Tensor], selection: Selection) -> ActivationCache:
    """Return a cache of stored outputs. Raises `InputError` if one is missing that was asked for by its name."""
    if not outputs:
        raise InputError("no module that names_filter selects was called in this forward pass: select others")
    if missing := sorted(selection.required - outputs.keys()):
        raise InputError(
            f"names_filter names {missing[0]!r}, which was not called in this forward pass or returned no tensor: "
            "leave it out"
        )
    return ActivationCache(outputs)

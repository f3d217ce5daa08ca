"""How much each earlier token contributed to the logit of a token: input × gradient, from one forward pass.

The number of a token is the product of its embedding and the gradient of the logit there, summed over the width. A hook
on the token embeddings gives the model the embeddings by which torch differentiates, so that models that scale them, or
add positions to them, are read as in `generate`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from threading import get_ident

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from antislop.core.hf import device_of
from antislop.errors import InputError
from antislop.explain.activations import input_names, prepare_inputs, without_dropout


def attribute(model: PreTrainedModel, tokens: Sequence[int], indices: Iterable[int]) -> dict[int, list[float]]:
    """Return the relevance of all earlier tokens for each token of an unpadded text at `indices`, from 1.

    The attributed number is the token's own logit, without processors.

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
    """Return the logits from which the tokens at `before` are drawn, [1, indices, vocabulary]."""
    # The other logits would take most of the memory, and most of the time of a backward pass.
    positions = torch.tensor(before, device=ids.device) - 1
    option = input_names(model).get("logits_to_keep")
    has_option = option is not None and "Tensor" in str(option.annotation)
    inputs = prepare_inputs(model, ids) | ({"logits_to_keep": positions} if has_option else {})
    reads, thread = list[bool](), get_ident()

    def replace(_module: nn.Module, _arguments: object, output: Tensor) -> Tensor | None:
        if get_ident() != thread:  # another call of the same model
            return None
        reads.append(output.shape == embeddings.shape)
        return embeddings.clone()  # some models change it in place

    with model.get_input_embeddings().register_forward_hook(replace):
        logits: Tensor = model(**inputs, use_cache=False, return_dict=True).logits
    if reads != [True]:
        raise NotImplementedError(
            f"{type(model).__name__} does not read a text once through its input embeddings: leave relevance out; "
            "antislop.explain.run_with_cache returns the model's activations"
        )
    return logits if has_option else logits[:, positions]

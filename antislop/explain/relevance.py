"""How much each earlier token contributed to the logit of a token: gradients of one forward pass, by captum.

A hook on the token embeddings gives the model the embeddings by which captum differentiates, so that models that scale
them, or add positions to them, are read as in `generate`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import get_ident
from types import ModuleType
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from antislop.core.hf.model import device_of
from antislop.errors import DISTRIBUTION, InputError, first_line
from antislop.explain.clean_pass import input_names, prepare_inputs, without_dropout

RelevanceMethod = Literal["input_x_gradient", "integrated_gradients"]
"""The gradient at the text, or its mean on the way from embeddings of zero to the text."""

STEPS = 50
"""Number of points between zero and the text at which `integrated_gradients` differentiates; captum's default."""
PASS = 2048
"""Maximum number of tokens in one forward pass over several such points, each of which is a row."""


def check_method(method: str) -> None:
    if method not in get_args(RelevanceMethod):
        raise InputError(f"relevance is {method!r}; it is None, {' or '.join(map(repr, get_args(RelevanceMethod)))}")
    _import_captum()


def attribute(
    model: PreTrainedModel, tokens: Sequence[int], indices: Iterable[int], *, method: RelevanceMethod
) -> dict[int, list[float]]:
    """Return the relevance of all earlier tokens for each token of an unpadded text at `indices`, from 1.

    The attributed number is the token's own logit, without processors; the numbers of one embedding are added up.
    "integrated_gradients" add up to the difference between the logit and the logit for embeddings of zero, but for the
    error of a sum of `STEPS` terms.

    Raises `InputError` for a model that was loaded within `torch.inference_mode`, and `NotImplementedError` for one
    that does not read ids through its input embeddings.
    """
    check_method(method)
    if any(parameter.is_inference() for parameter in model.parameters()):
        raise InputError("the model was loaded within torch.inference_mode, which allows no gradients: load it outside")
    distinct = sorted(set(indices))
    if not distinct:
        return {}
    with torch.inference_mode(False), torch.no_grad(), without_dropout(model):
        if method == "input_x_gradient":
            return _multiply_gradients(model, tokens, distinct)
        return {index: _integrate_gradients(model, tokens, index) for index in distinct}


def _multiply_gradients(
    model: PreTrainedModel, tokens: Sequence[int], indices: Sequence[int]
) -> dict[int, list[float]]:
    reader = _EmbeddedText(model, tokens[: max(indices)])
    embeddings = reader.embeddings.requires_grad_()
    targets = [tokens[index] for index in indices]
    with torch.enable_grad():
        logits = reader.read(embeddings, before=indices)[:, range(len(indices)), targets]  # [1, indices]
    method = _import_captum().InputXGradient(lambda _: logits)
    method.gradient_func = _differentiate
    return {index: _add_up(method.attribute(embeddings, target=i)[:, :index]) for i, index in enumerate(indices)}


def _differentiate(
    forward: Callable[..., Tensor], inputs: tuple[Tensor, ...], target_ind: Any, _arguments: object = None
) -> tuple[Tensor, ...]:
    """Replace captum's gradient function: keep the graph for other targets."""
    with torch.enable_grad():
        return torch.autograd.grad(forward(*inputs)[0, target_ind], inputs, retain_graph=True)


def _integrate_gradients(model: PreTrainedModel, tokens: Sequence[int], index: int) -> list[float]:
    reader = _EmbeddedText(model, tokens[:index])

    def read(embeddings: Tensor) -> Tensor:
        return reader.read(embeddings, before=[index])[:, 0, tokens[index]]

    method = _import_captum().IntegratedGradients(read)
    rows = max(1, PASS // index)
    return _add_up(method.attribute(reader.embeddings, n_steps=STEPS, internal_batch_size=rows))


def _add_up(attributions: Tensor) -> list[float]:
    dtype = torch.promote_types(attributions.dtype, torch.float32)
    numbers: list[float] = attributions[0].sum(dim=-1, dtype=dtype).tolist()
    return numbers


class _EmbeddedText:
    """A text that a model reads by given embeddings instead of its own, [1, tokens, width]."""

    def __init__(self, model: PreTrainedModel, tokens: Sequence[int]) -> None:
        self._model = model
        self._ids = torch.tensor([list(tokens)], device=device_of(model))
        self._module: nn.Module = model.get_input_embeddings()
        self.embeddings: Tensor = self._module(self._ids).detach().clone()

    def read(self, embeddings: Tensor, *, before: Sequence[int]) -> Tensor:
        """Return the logits from which the tokens at `before` are drawn, [rows, indices, vocabulary].

        embeddings: [rows, tokens, width].
        """
        # The other logits would take most of the memory, and most of the time of a backward pass.
        positions = torch.tensor(before, device=self._ids.device) - 1
        option = input_names(self._model).get("logits_to_keep")
        has_option = option is not None and "Tensor" in str(option.annotation)
        inputs = prepare_inputs(self._model, self._ids.expand(len(embeddings), -1))
        inputs |= {"logits_to_keep": positions} if has_option else {}
        with self._replaced(embeddings):
            logits: Tensor = self._model(**inputs, use_cache=False, return_dict=True).logits
        return logits if has_option else logits[:, positions]

    @contextmanager
    def _replaced(self, embeddings: Tensor) -> Iterator[None]:
        reads, thread = list[bool](), get_ident()

        def replace(_module: nn.Module, _arguments: object, output: Tensor) -> Tensor | None:
            if get_ident() != thread:  # another call of the same model
                return None
            reads.append(output.shape == embeddings.shape)
            return embeddings.clone()  # some models change it in place

        hook = self._module.register_forward_hook(replace)
        try:
            yield
        finally:
            hook.remove()
        if reads != [True]:
            raise NotImplementedError(
                f"{type(self._model).__name__} does not read a text once through its input embeddings: leave relevance "
                "out; antislop.explain.run_with_cache returns the model's activations"
            )


def _import_captum() -> ModuleType:
    try:
        from captum import attr
    except ImportError as error:
        advice = f"pip install '{DISTRIBUTION}[explain]'"
        raise InputError(f"captum can't be imported ({first_line(error)}): {advice}") from error
    module: ModuleType = attr
    return module

"""A call of `generate`: the arguments of the caller, and what `generate` makes of them before the model runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from operator import is_
from types import NoneType
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    GenerationMixin,
    LogitsProcessorList,
    MaxLengthCriteria,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteriaList,
)

from antislop.core.hf.callbacks.criteria import StopStrings
from antislop.core.hf.compiled_bans import CompiledBans
from antislop.core.hf.model import are_counted, device_of, mask_name
from antislop.core.hf.private import mask_length_of, pad_token_of, prepare_again
from antislop.core.hf.refusals import PER_PROMPT, check_model, refusal, refuse_arguments
from antislop.core.hf.vocabulary import Vocabulary
from antislop.errors import InputError, suggest
from antislop.files.chats import check_variables, is_chat, read_messages, render_chat

CallInput: TypeAlias = str | Tensor | Sequence[Mapping[str, Any]]
"""A text, ids [rows, tokens], or the messages of a chat."""
PromptInput: TypeAlias = str | Sequence[int] | Tensor | Sequence[Mapping[str, Any]]
"""A text, its ids [tokens], or the messages of a chat."""

STATES = ("output_hidden_states", "output_attentions")
"""Settings of `generate` that ask for the outputs of each layer."""


class Assistant(NamedTuple):
    """The assistant model that drafts tokens, and its tokenizer if that differs from the main model's."""

    model: PreTrainedModel | None = None
    tokenizer: PreTrainedTokenizerBase | None = None


NO_ASSISTANT = Assistant()


@dataclass(frozen=True)
class Call:
    """The arguments that `generate` passes to a `custom_generate`, and the assistant, which it does not pass."""

    model: PreTrainedModel
    input_ids: Tensor  # [rows, tokens]
    logits_processor: LogitsProcessorList
    stopping_criteria: StoppingCriteriaList
    config: GenerationConfig
    model_kwargs: dict[str, Any]  # arguments of all forward passes
    assistant: Assistant

    @classmethod
    def from_generate(
        cls,
        model: PreTrainedModel,
        input_ids: Tensor,
        *,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        assistant: Assistant = NO_ASSISTANT,
        **model_kwargs: Any,
    ) -> Call:
        prepare, length = model.prepare_inputs_for_generation, input_ids.shape[1]
        if getattr(prepare, "__func__", None) is not type(model).prepare_inputs_for_generation:
            raise refusal("prepared inputs", method=prepare.__qualname__, model=model)
        # Processors of `antislop.steer`: some change the list of the others, some count from the end of the prompt.
        for change in [each.change_others for each in logits_processor if hasattr(each, "change_others")]:
            logits_processor = change(logits_processor)
        processors = LogitsProcessorList(
            each.after_prompt(length) if hasattr(each, "after_prompt") else each for each in logits_processor
        )
        return cls(model, input_ids, processors, stopping_criteria, generation_config, model_kwargs, assistant)

    def again(
        self,
        input_ids: Tensor,
        *,
        max_new_tokens: int,
        logits_processor: Sequence[Any] = (),
        stopping_criteria: Sequence[Any] = (),
        settings: Mapping[str, Any],
    ) -> Call:
        """Return the call that `generate` would make of another prompt [1, tokens], without its work of 2 ms.

        settings: of the generation config, in place of this call's. Stop strings, which are no longer there, stay.
        """
        stops = [criterion for criterion in self.stopping_criteria if isinstance(criterion, StopStrings)]
        prepared = prepare_again(
            self.model,
            input_ids,
            self.config,
            settings={**settings, "max_length": input_ids.shape[1] + max_new_tokens},
            logits_processor=logits_processor,
            stopping_criteria=[*stops, *stopping_criteria],
        )
        return Call.from_generate(self.model, input_ids, assistant=self.assistant, **prepared)

    @property
    def rows(self) -> int:
        return int(self.input_ids.shape[0])

    @property
    def max_new_tokens(self) -> int:
        """The maximum number of generated tokens, set by the configuration or by the caller's criterion."""
        limits = (c.max_length for c in self.stopping_criteria if type(c) is MaxLengthCriteria)
        return max(1, int(min(limits, default=self.config.max_length) - self.input_ids.shape[1]))

    @property
    def pad(self) -> int | None:
        """The token that fills finished rows up; None if the configuration has none."""
        return pad_token_of(self.config)

    @property
    def mask(self) -> Tensor | None:
        """The attention mask of the prompts, on the device of their ids; None if none was passed."""
        mask: Tensor | None = self.model_kwargs.get(mask_name(self.model))
        return None if mask is None else mask.to(self.input_ids.device)

    @property
    def columns(self) -> int:
        """The length of the prompts, including tokens that are only in the caller's cache; 0 if it is unknown."""
        mask = self.mask
        return mask_length_of(self.config) if mask is None else int(mask.shape[1])

    @property
    def counts_positions(self) -> bool:
        """Whether the caller passes no position ids, or passes those that `generate` would count by the mask."""
        positions = self.model_kwargs.get("position_ids")
        return are_counted(positions if isinstance(positions, Tensor) else None, self.mask)

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of forward passes; if the prompt is on another device, they are moved to the model's."""
        embeds, device = self.model_kwargs.get("inputs_embeds"), device_of(self.model)
        prompt = self.input_ids if embeds is None else embeds
        return self.model_kwargs if prompt.device == device else _move(self.model_kwargs, device)

    def mask_of(self, row: int) -> Tensor | None:
        """Return the mask of one prompt, [tokens]; None if there is no mask, or none with the shape of the ids."""
        mask = self.mask
        if mask is None or mask.ndim != 2 or mask.shape[1] != self.input_ids.shape[1]:
            return None
        return mask[min(row, mask.shape[0] - 1)]

    def tokens_of(self, row: int) -> list[int]:
        ids, mask = self.input_ids[row], self.mask_of(row)
        tokens: list[int] = (ids if mask is None else ids[mask != 0]).tolist()
        return tokens

    @property
    def requested_states(self) -> dict[str, Any]:
        """The settings in `STATES` that the call sets, with their values."""
        names = STATES if self.config.return_dict_in_generate else ()
        return {name: value for name in names if (value := getattr(self.config, name, None)) not in (None, False)}


def _move(value: Any, device: torch.device) -> Any:
    """Return a copy of a tensor, or of a dict with tensors, on a device; return any other value unchanged."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return type(value)({name: _move(part, device) for name, part in value.items()})
    return value


@dataclass
class CallInterceptor:
    """A `custom_generate` that returns `use(call)`; inside `applied_to`, too, it is called unchanged."""

    use: Callable[[Call], Any]
    assistant: Assistant
    was_called: bool = False

    def __call__(self, model: PreTrainedModel, input_ids: Tensor, **prepared: Any) -> Any:
        self.was_called = True
        return self.use(Call.from_generate(model, input_ids, assistant=self.assistant, **prepared))


def call_generate(
    model: PreTrainedModel,
    inputs: CallInput | None,
    arguments: Mapping[str, Any],
    use: Callable[[Call], Any],
    *,
    bans: CompiledBans,
) -> Any:
    """Call the model's `generate` with `use(call)` as its decoding loop.

    Raises `InputError` for arguments that `generate` doesn't pass on, and for a model that never calls the loop.
    """
    check_model(model)
    refuse_arguments(arguments, bans.tokenizer)
    inputs, kwargs = read_inputs(inputs, arguments, bans.tokenizer, device_of(model))
    assistant = Assistant(kwargs.pop("assistant_model", None), kwargs.pop("assistant_tokenizer", None))
    interceptor = CallInterceptor(use, assistant)
    # Inputs go by position, if there are any; without, a model's own `generate` may get its first parameter by name.
    positional = () if inputs is None else (inputs,)
    kwargs = _move_stop_strings(model, kwargs, bans.vocabulary)
    try:
        out = model.generate(*positional, custom_generate=interceptor, **kwargs)
    except ValueError as error:
        unused = [name for name in kwargs if repr(name) in str(error)]
        if "not used by the model" not in str(error) or not unused:
            raise
        aliases = {"n": "num_return_sequences", "stop": "stop_strings"}
        advice = suggest(unused[0], vars(GenerationConfig()), advice="leave it out", aliases=aliases)
        raise InputError(f"generate has no argument {unused[0]}: {advice}") from error
    if not interceptor.was_called:
        raise refusal("sampler not called", model=model)
    return out


def prepare_call(
    model: PreTrainedModel, inputs: CallInput | None, arguments: Mapping[str, Any], *, bans: CompiledBans
) -> Call:
    """Return the call as `generate` prepares it, without running a decoding loop.

    Raises `InputError` as `call_generate` does, and for a model whose `generate` changes the loop's return value.
    """
    kept: list[tuple[Call, list[Any]]] = []

    def keep(call: Call) -> Call:
        kept.append((call, [] if is_plain else _list_parts(call.model)))
        return call

    is_plain = has_plain_generate(model)
    cause: Exception | None = None
    try:
        out = call_generate(model, inputs, arguments, keep, bans=bans)
    except Exception as error:
        if not kept:
            raise
        out, cause = None, error
    if not isinstance(out, Call):
        raise refusal("own generate", model=model) from cause
    parts = [] if is_plain else _list_parts(out.model)
    if len(kept[-1][1]) != len(parts) or not all(map(is_, kept[-1][1], parts)):
        raise refusal("changed model", model=model, part=out.model)
    return out


def has_plain_generate(model: PreTrainedModel) -> bool:
    """Return whether a model has the `generate` of transformers itself."""
    return getattr(getattr(model, "generate", None), "__func__", None) is GenerationMixin.generate


def _list_parts(model: PreTrainedModel) -> list[Any]:
    """Return the objects that forward passes depend on: all modules' attributes, parameters, buffers and hooks."""
    parts: list[Any] = [torch.is_autocast_enabled(device_of(model).type)]
    for module in model.modules():
        for value in vars(module).values():
            parts += value.values() if isinstance(value, dict) else (value,)
    return parts


def read_inputs(
    inputs: CallInput | None, arguments: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase, device: torch.device
) -> tuple[Tensor | None, dict[str, Any]]:
    """Return inputs and keyword arguments for `generate`, with ids [1, tokens] and a mask made of a text or chat."""
    arguments = dict(arguments)
    variables = arguments.pop("chat_template_kwargs", None)
    given = {name: value for name, value in {"inputs": inputs, **arguments}.items() if value is not None}
    for name in ("inputs", "input_ids"):
        value = given.get(name)
        is_tensor = isinstance(value, Tensor | NoneType)
        if not (is_tensor or (name == "inputs" and (isinstance(value, str) or is_chat(value)))):
            advice = "pass a text, the messages of a chat, or ids as a tensor [rows, tokens]"
            if isinstance(value, Mapping):
                advice = "pass its parts, generate(model, **inputs)"
            elif isinstance(value, Sequence) and any(isinstance(part, str) or is_chat(part) for part in value):
                advice = "pass one text or chat, or several to generate_many"
            raise InputError(f"{name} is a {type(value).__name__}: {advice}")
        if isinstance(value, Tensor) and value.ndim < 2:
            raise InputError(f"{name} has the shape {tuple(value.shape)}, not [rows, tokens]: pass {name}[None]")
    _refuse_variables(variables, inputs)
    if inputs is None or isinstance(inputs, Tensor):
        return inputs, arguments
    if beside := [name for name in PER_PROMPT if name in arguments and name in given]:
        what = "text" if isinstance(inputs, str) else "chat"
        raise refusal("text and argument", what=what, name=beside[0])
    ids = torch.tensor([encode(inputs, tokenizer, variables=variables)], dtype=torch.long, device=device)
    return ids, {**arguments, "attention_mask": torch.ones_like(ids)}


def _refuse_variables(variables: object, prompt: object) -> None:
    if variables and not is_chat(prompt):
        raise InputError("chat_template_kwargs are for chats: pass messages, or leave them out")


def encode(
    prompt: PromptInput,
    tokenizer: PreTrainedTokenizerBase,
    *,
    variables: Mapping[str, Any] | None = None,
    special_tokens: bool = True,
) -> list[int]:
    """Return the ids of a prompt; the list may be empty.

    A chat gets the special tokens of its template, and a text those of its tokenizer. If a text already begins with the
    tokenizer's first special tokens, as a rendered chat may do, they are not added again.

    variables: the values of the chat template's variables.
    special_tokens: whether the tokenizer adds special tokens to a text.
    """
    _refuse_variables(variables, prompt)
    if isinstance(prompt, str):
        ids: list[int] = tokenizer(prompt, add_special_tokens=special_tokens)["input_ids"]
        around, alone = tokenizer(".")["input_ids"], tokenizer(".", add_special_tokens=False)["input_ids"]
        first = around[: around.index(alone[0])] if special_tokens and alone else []  # mostly [], or [bos]
        return ids[len(first) :] if first and ids[len(first) : 2 * len(first)] == first else ids
    if is_chat(prompt):
        messages = read_messages(prompt, template=tokenizer.chat_template)
        text = render_chat(messages, tokenizer, variables=check_variables(variables or {}, tokenizer))
        return encode(text, tokenizer, special_tokens=False)
    try:
        tensor = torch.as_tensor(prompt)
    except (TypeError, ValueError, RuntimeError):
        tensor = torch.zeros(())
    if tensor.ndim != 1 or (tensor.is_floating_point() and len(tensor)):
        shape = f" of shape {tuple(prompt.shape)}" if isinstance(prompt, Tensor) else ""
        raise InputError(f"a prompt is a text, ids [tokens] or a chat, not a {type(prompt).__name__}{shape}")
    return [int(token) for token in tensor]


def _move_stop_strings(model: PreTrainedModel, kwargs: dict[str, Any], vocabulary: Vocabulary) -> dict[str, Any]:
    """Replace stop strings by a `StopStrings` criterion: `generate` would make a table of the vocabulary for them."""
    config = kwargs.get("generation_config")
    stop_strings = kwargs.pop("stop_strings", None)
    if not stop_strings and stop_strings != "":
        stop_strings = (config or model.generation_config).stop_strings
    if not stop_strings and stop_strings != "":
        return kwargs
    criterion = StopStrings.read(stop_strings, vocabulary.spell)
    kwargs["stopping_criteria"] = StoppingCriteriaList([*(kwargs.get("stopping_criteria") or []), criterion])
    if config is None:
        return {**kwargs, "stop_strings": None}
    config = copy(config)
    config.stop_strings = None
    return {**kwargs, "generation_config": config}

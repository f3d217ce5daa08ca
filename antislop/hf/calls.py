"""The inputs, processors, criteria and settings that `generate` prepares for a call, before the first forward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    MaxLengthCriteria,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteriaList,
)
from transformers.generation import StopStringCriteria

from antislop.hf.arguments import CallInput, read_inputs
from antislop.hf.assisted import Assistant
from antislop.hf.model import device_of, prompt_mask
from antislop.hf.private import pad_token_of
from antislop.hf.refusals import refuse_arguments

_OWN_GENERATE = (
    "{name} has a generate() of its own, which changes the output and returns it only as a whole: "
    "call sampler.generate(model, …) instead"
)


@dataclass(frozen=True)
class Call:
    """The arguments that `generate` passes to a callable, and the assistant, which it does not pass.

    input_ids: [rows, tokens]. model_kwargs: arguments of the model's forward passes.
    """

    model: PreTrainedModel
    input_ids: Tensor
    logits_processor: LogitsProcessorList
    stopping_criteria: StoppingCriteriaList
    config: GenerationConfig
    model_kwargs: dict[str, Any] = field(default_factory=dict)
    assistant: Assistant = field(default_factory=Assistant)

    @property
    def rows(self) -> int:
        """The number of texts."""
        return int(self.input_ids.shape[0])

    @property
    def capacity(self) -> int:
        """The maximum number of generated tokens. A caller's own limit takes the place of the configuration's."""
        limits = (c.max_length for c in self.stopping_criteria if type(c) is MaxLengthCriteria)
        return max(1, int(min(limits, default=self.config.max_length) - self.input_ids.shape[1]))

    @property
    def pad(self) -> int | None:
        """The token that finished rows are filled with, if there is one."""
        return pad_token_of(self.config)

    @property
    def mask(self) -> Tensor | None:
        """The attention mask of the prompts, if there is one."""
        return prompt_mask(self.model, self.model_kwargs)


@dataclass(frozen=True)
class CallCatcher:
    """A `custom_generate` that returns `use(call)`.

    A type of its own, by which `applied_to` knows a sampler's own calls of `generate`.
    """

    use: Callable[[Call], Any]
    assistant: Assistant
    calls: list[Call] = field(default_factory=list)

    def __call__(
        self,
        model: PreTrainedModel,
        input_ids: Tensor,
        *,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **model_kwargs: Any,
    ) -> Any:
        """Make a call of what `generate` hands over, and use it."""
        call = Call(
            model, input_ids, logits_processor, stopping_criteria, generation_config, model_kwargs, self.assistant
        )
        self.calls.append(call)
        return self.use(call)


def enter(
    model: PreTrainedModel,
    inputs: CallInput | None,
    arguments: Mapping[str, Any],
    use: Callable[[Call], Any],
    *,
    tokenizer: PreTrainedTokenizerBase,
) -> Any:
    """Have `generate` prepare a call from its arguments, and return what it makes of `use(call)`."""
    refuse_arguments(arguments, tokenizer=tokenizer)
    inputs, kwargs = read_inputs(inputs, arguments, tokenizer, device_of(model))
    assistant = Assistant(kwargs.pop("assistant_model", None), kwargs.pop("assistant_tokenizer", None))
    catcher = CallCatcher(use, assistant)
    # By position only if they are there: the first parameter of a model's own `generate` may be passed by its name.
    positional = () if inputs is None else (inputs,)
    out = model.generate(*positional, custom_generate=catcher, **_move_stop_strings(model, kwargs, tokenizer))
    if not catcher.calls:
        raise ValueError(
            f"{type(model).__name__}.generate() wrote the text by itself and never called the sampler: "
            "leave out what makes it do so, or take another model"
        )
    return out


def catch_call(
    model: PreTrainedModel,
    inputs: CallInput | None,
    arguments: Mapping[str, Any],
    *,
    tokenizer: PreTrainedTokenizerBase,
) -> Call:
    """Have `generate` prepare a call and return it before the first forward pass."""
    calls: list[Call] = []

    def keep(call: Call) -> Call:
        calls.append(call)
        return call

    try:
        out = enter(model, inputs, arguments, keep, tokenizer=tokenizer)
    except Exception as error:
        if not calls:
            raise
        raise ValueError(_OWN_GENERATE.format(name=type(model).__name__)) from error
    if not isinstance(out, Call):
        raise ValueError(_OWN_GENERATE.format(name=type(model).__name__))
    return out


def add_stop_strings(
    criteria: Iterable[Any], stop_strings: str | list[str], tokenizer: PreTrainedTokenizerBase
) -> StoppingCriteriaList:
    """Return the criteria and one more, which ends a text at a stop string."""
    return StoppingCriteriaList([*criteria, StopStringCriteria(tokenizer=tokenizer, stop_strings=stop_strings)])


def _move_stop_strings(
    model: PreTrainedModel, kwargs: dict[str, Any], tokenizer: PreTrainedTokenizerBase
) -> dict[str, Any]:
    """Make stop strings a criterion: `generate` would need the tokenizer, which it never hands to a callable."""
    config = kwargs.get("generation_config")
    stop_strings = kwargs.pop("stop_strings", None) or (config or model.generation_config).stop_strings
    if not stop_strings:
        return kwargs
    kwargs["stopping_criteria"] = add_stop_strings(kwargs.get("stopping_criteria") or [], stop_strings, tokenizer)
    if config is None:
        return {**kwargs, "stop_strings": None}
    config = copy(config)
    config.stop_strings = None
    return {**kwargs, "generation_config": config}

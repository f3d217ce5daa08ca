"""A function for each private or undocumented part of transformers that is used, of models, caches and `generate`.

Each docstring gives the reason for using it. tests/core/hf/test_private.py checks the behavior that these functions
rely on, and so fails with a version of transformers that has changed it.
"""

from __future__ import annotations

import antislop.core.hf.releases  # noqa: F401 - it checks transformers before names are imported

# isort: split
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import fields
from typing import Any

import regex
import torch
from jinja2 import meta
from torch import Tensor, nn
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteriaList,
    cache_utils,
)
from transformers.cache_utils import Cache, DynamicLayer, LinearAttentionCacheLayerMixin, LinearAttentionLayer
from transformers.generation import GenerateDecoderOnlyOutput
from transformers.generation.candidate_generator import (
    AssistedCandidateGenerator,
    CandidateGenerator,
    EarlyExitCandidateGenerator,
)
from transformers.generation.utils import MULTIMODAL_INPUTS_TO_DROP_OUTSIDE_PREFILL
from transformers.utils.chat_parsing import ResponseParser
from transformers.utils.chat_parsing.response_templates import ResponseTemplate, load_response_template
from transformers.utils.chat_template_utils import _compile_jinja_template

CACHE = "cache" if "cache" in {field.name for field in fields(GenerateDecoderOnlyOutput)} else "past_key_values"
"""The field of outputs that has the cache; transformers 5.24 renamed it. `cache_name` is the argument's name."""

STATES = (
    "conv_states",
    "recurrent_states",
    "is_conv_states_initialized",
    "is_recurrent_states_initialized",
    "has_previous_state",
    "conv_kernel_size",
)
"""The attributes of a recurrent layer that hold its states: dicts from the number of a state to its value."""


def cache_name(model: PreTrainedModel) -> str:
    """Return the name of the argument by which `generate` passes the cache to a model's forward pass.

    Reason: before transformers 5.24, the name was "cache_params" if that of the model's class contained "mamba".
    """
    is_mamba = "mamba" in type(model).__name__.lower()
    return "cache_params" if is_mamba and CACHE == "past_key_values" else CACHE


def set_layer_factory(cache: Cache, make: Callable[[], Any]) -> None:
    """Have a cache that appends layers when a model first writes to them make these layers by calling `make`.

    Reason: `DynamicCache()` calls its attribute `layer_class_to_replicate` for it, which the documentation describes
    only as an argument of the constructor, and as a class.
    """
    if cache.layer_class_to_replicate is not None:
        cache.layer_class_to_replicate = make


def copy_states(target: LinearAttentionCacheLayerMixin, source: LinearAttentionCacheLayerMixin) -> None:
    """Replace the states of the recurrent layer `target` by copies of those of `source`.

    Reason: models write into these tensors, and no method of a layer copies them.
    """
    target.device, target.dtype = getattr(source, "device", None), getattr(source, "dtype", None)
    for name in STATES:
        states = vars(source)[name].items()
        copies = {number: state.clone() if isinstance(state, Tensor) else state for number, state in states}
        setattr(target, name, copies)


def join_layers(hybrid: Any, *, states: LinearAttentionLayer, attention: DynamicLayer) -> DynamicLayer:
    """Fill an empty hybrid layer with the states of a recurrent layer and the keys and values of `attention`.

    Reason: a hybrid layer is recurrent and has attention, and its constructor takes no layers with content.
    """
    vars(hybrid).update(vars(attention))
    names = vars(LinearAttentionLayer(states.number_of_states)).keys()
    vars(hybrid).update({name: vars(states)[name] for name in names})
    joined: DynamicLayer = hybrid
    return joined


def has_argument_hooks(model: nn.Module) -> bool:
    """Return whether a module of a model has hooks that may change its keyword arguments, as PEFT adds for aLoRA.

    Reason: torch does not list the hooks of a module.
    """
    return any(module._forward_pre_hooks_with_kwargs for module in model.modules())


def supports_dynamic_cache(model: PreTrainedModel) -> bool:
    """Return whether a model keeps everything it has read in a cache that `generate` can prepare.

    Reason: transformers has a list of the names of models that keep states outside a cache, and no public attribute.
    """
    return bool(model._supports_default_dynamic_cache())


def placeholder_layer() -> type | None:
    """Return the class of empty cache layers, for model layers without a cache; None before transformers 5.23."""
    return getattr(cache_utils, "DummyLayer", None)


def needs_mask_with_static_cache(model: PreTrainedModel) -> bool:
    """Return whether a model fails with a static cache unless the prompt is padded: BLOOM before transformers 5.23.

    Reason: nothing public predicts the failure. The private function that fixed it is missing in older versions.
    """
    module = sys.modules[type(model).__module__]
    return bool(model.config.model_type == "bloom") and not hasattr(module, "_get_alibi_slopes")


# isort: split


PREFILL_INPUTS: frozenset[str] = frozenset(MULTIMODAL_INPUTS_TO_DROP_OUTSIDE_PREFILL)
"""The arguments that `generate` passes to the first forward pass only: images, sounds and the like."""


def prepare_again(
    model: PreTrainedModel,
    ids: Tensor,
    config: GenerationConfig,
    *,
    settings: Mapping[str, Any],
    logits_processor: Sequence[Any],
    stopping_criteria: Sequence[Any],
) -> dict[str, Any]:
    """Return the arguments that `generate` would pass to its loop for another prompt [1, tokens] without padding.

    config: the configuration that an earlier call of `generate` prepared; settings: values that replace some in it.

    Reason: only a whole call of `generate` makes processors and criteria, and it also reads signatures and prepares a
    cache, which takes two thirds of the time in which a server prepares a text.
    """
    config = copy(config)
    vars(config).update(settings)
    mask, given = {"attention_mask": torch.ones_like(ids)}, LogitsProcessorList(logits_processor)
    return {
        "generation_config": config,
        "logits_processor": model._get_logits_processor(
            config, ids.shape[1], ids, None, given, device=ids.device, model_kwargs=mask
        ),
        "stopping_criteria": model._get_stopping_criteria(config, StoppingCriteriaList(stopping_criteria)),
        **mask,
    }


def prefill(model: PreTrainedModel, ids: Tensor, config: GenerationConfig, model_kwargs: dict[str, Any]) -> Any:
    """Read a prompt as `generate` does, in parts if the configuration says so; return the model's output.

    Reason: which tokens the cache already holds, and which arguments images need, differs by model and version.
    """
    return model._prefill(ids, config, model_kwargs)


def optimized_for_decoding(model: PreTrainedModel) -> AbstractContextManager[None]:
    """Run the forward passes inside the block with the kernels that `generate` uses for decoding.

    Reason: on a GPU, a mixture of experts decodes with other kernels than it reads prompts with; last bits differ.
    """
    context: AbstractContextManager[None] = model._optimize_model_for_decode()
    return context


def compiled_if_possible(model: PreTrainedModel, cache: Cache, config: GenerationConfig) -> Callable[..., Any]:
    """Return a function that runs the model: compiled if `generate` would compile the model for this cache.

    Reason: whether it would depends on device, cache and quantization, and the model keeps the compiled function.
    """
    call: Callable[..., Any] = model
    if model._valid_auto_compile_criteria({CACHE: cache}, config):
        call = model.get_compiled_call(config.compile_config)
    return call


def make_candidate_generator(
    model: PreTrainedModel,
    ids: Tensor,
    *,
    config: GenerationConfig,
    logits_processor: LogitsProcessorList,
    model_kwargs: dict[str, Any],
    assistant_model: PreTrainedModel | None = None,
    tokenizers: tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase] | None = None,
) -> CandidateGenerator:
    """Return the candidate generator that the configuration asks for: an assistant, early layers or prompt lookup.

    tokenizers: the model's and the assistant's, if they differ. Reason: the class of the generator and the arguments of
    its constructor differ by version.
    """
    target, assistant = tokenizers or (None, None)
    return model._get_candidate_generator(
        generation_config=config,
        input_ids=ids,
        inputs_tensor=None,
        logits_processor=logits_processor,
        model_kwargs=model_kwargs,
        assistant_model=assistant_model,
        target_tokenizer=target,
        assistant_tokenizer=assistant,
    )


def writes_drafts(generator: CandidateGenerator) -> bool:
    """Return whether a generator's drafts are only the next tokens that a model, or its first layers, would write.

    Reason: subclasses, some of which translate tokens or read other states, have the same public attributes.
    """
    if type(generator) not in (AssistedCandidateGenerator, EarlyExitCandidateGenerator):
        return False
    return not generator.assistant_model.config.is_encoder_decoder


def draft_length_of(generator: CandidateGenerator) -> int:
    """Return the current length of an assistant's drafts, which grows the more of its tokens were accepted.

    Reason: the generator passes the length only to the assistant's own `generate`.
    """
    return int(generator.num_assistant_tokens)


def is_confident(generator: CandidateGenerator, probability: float) -> bool:
    """Return whether an assistant continues its draft after a token of this probability, and record the probability.

    Reason: the generator passes its threshold only to the assistant's own `generate`. It adapts the threshold to the
    recorded probabilities if scikit-learn is installed.
    """
    if hasattr(generator, "probs"):
        generator.probs.append(probability)
    threshold = generator.generation_config.assistant_confidence_threshold
    return not threshold or probability >= threshold


def cache_of(generator: CandidateGenerator) -> Cache | None:
    """Return the cache of a generator's assistant; None without an assistant, or if it has read nothing yet.

    Reason: the generator crops this cache to a length, though after a rewind it may hold other tokens of that length.
    """
    arguments: Mapping[str, Any] = getattr(generator, "assistant_kwargs", {})
    return arguments.get(CACHE)


def pad_token_of(config: GenerationConfig) -> int | None:
    """Return the token with which `generate` fills finished rows; None if it has none.

    Reason: `generate` chooses it by configuration, model and end tokens, and stores it in a private attribute.
    """
    pad = config._pad_token_tensor
    return None if pad is None else int(pad)


def mask_length_of(config: GenerationConfig) -> int:
    """Return the number of columns of an all-ones attention mask that `generate` dropped; 0 if that is unknown.

    Reason: if a cache holds tokens, the ids may be the new tokens alone; then only the mask had a column for each.
    """
    return int(getattr(config, "_mask_length", 0))


def belongs_to_caller(cache: object) -> bool:
    """Return whether the caller of `generate` passed this cache, and can therefore read it afterwards.

    Reason: if the caller passes no cache, `generate` makes a cache of the same type and passes it by the same name.
    """
    return bool(getattr(cache, "_is_user_defined", False))


def attention_of(config: Any) -> str | None:
    """Return the attention implementation of a model's (text) configuration, such as "sdpa"; None if none was chosen.

    Reason: a configuration has no public attribute for it.
    """
    name: str | None = config._attn_implementation
    return name


def revision_of(config: Any) -> str | None:
    """Return the Hugging Face Hub commit from which a configuration was loaded; None for one loaded from a folder.

    Reason: a configuration has no public attribute for it.
    """
    revision: str | None = getattr(config, "_commit_hash", None)
    return revision


def uncompiled(model: Any) -> Any | None:
    """Return the model inside a wrapper of `torch.compile`; None if `model` is no such wrapper."""
    return getattr(model, "_modules", {}).get("_orig_mod")


def arguments_of_generate(*names: str) -> dict[str, Any]:
    """Return the named arguments of the `generate` that called the caller of this function; {} if it was not called so.

    Reason: `generate` silently withholds some arguments from a `custom_generate`. Only its stack frame shows that a
    streamer was passed, which would wait forever, or an assistant, which would be ignored.
    """
    frame = sys._getframe(2)
    if frame.f_code.co_name != "generate":
        return {}
    return {name: frame.f_locals.get(name) for name in names}


def variables_of(template: str) -> set[str]:
    """Return the variables that a chat template reads and does not set itself. Raises `jinja2.TemplateError`.

    Reason: only the Jinja environment that transformers makes for chat templates knows the tags used in them.
    """
    environment = _compile_jinja_template(template).environment
    return meta.find_undeclared_variables(environment.parse(template))


def response_template_for(model_type: str) -> dict[str, Any] | None:
    """Return transformers' response template for models of a type whose tokenizers have none; None if it has none.

    Reason: only the code of `transformers serve` contains these templates.
    """
    try:
        from transformers.cli.serving.utils import _RESPONSE_TEMPLATE_FALLBACKS
    except ImportError:  # `transformers serve` needs packages that transformers itself does not need
        return None
    return next((template for types, template in _RESPONSE_TEMPLATE_FALLBACKS.items() if model_type in types), None)


def compile_response_template(template: dict[str, Any]) -> ResponseTemplate:
    r"""Return a response template for the parser, with two changes. Raises `ValueError` for one that is not valid.

    All fields become optional: the parser drops a message that lacks a field, and a text may end anywhere. A delimiter
    that begins with `\s*` is tried only at the first of n spaces: tried at each of them, it would take n² steps.
    """
    compiled = load_response_template(template)
    for field in compiled.fields.values():
        field.optional = True
        for name in ("open_re", "close_re"):
            delimiter = getattr(field, name)
            if delimiter is not None and delimiter.pattern.startswith(r"\s*"):
                # "(?!)" never matches; without it, a search would look from each space for what follows the spaces.
                searched_once = rf"(?:\G|(?<!\s))(?:{delimiter.pattern}|(?!))"
                setattr(field, name, regex.compile(searched_once, delimiter.flags))
    return compiled


class RegionParser(ResponseParser):  # type: ignore[misc]
    """A parser of responses that continues after a region that can't be parsed, and tells where each region is.

    prefilled: the number of characters of the message that are in the prompt already.

    Each event "region_chunk" and "region_close" has a `start`, in characters from the start of the message. The latter
    also has the `raw` text of the region and `is_complete`; "region_failed" replaces it for a region that can't be
    parsed. Reason: the parser would raise an error, and tells neither positions nor delimiters.
    """

    def __init__(self, template: dict[str, Any], prefix: str, *, tools: list[Any]) -> None:
        self._opening = self._spaces = 0  # `_spaces`: the number of spaces at the end of the text
        self._held = ""
        compiled = compile_response_template(template)
        self.fields: dict[str, Any] = compiled.fields
        super().__init__(compiled, prefix, tools=tools)
        self.prefilled = len(self._buffer)

    @property
    def region(self) -> str | None:
        """The name of the field to which the next text belongs; None if there is no such field."""
        name: str | None = self._current
        return name

    def feed(self, text: str) -> list[dict[str, Any]]:
        """See `ResponseParser.feed`. After a long run of spaces, further spaces are parsed only once there are many.

        Reason: where spaces may begin a delimiter, each call of the parser searches the whole run again.
        """
        self._held += text
        if self._held.isspace() and len(self._held) < self._spaces // 8:
            return []
        text, self._held = self._held, ""
        self._spaces = len(text) - len(text.rstrip()) + (self._spaces if text.isspace() else 0)
        events: list[dict[str, Any]] = super().feed(text)
        return events

    def finalize(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        held = super().feed(self._held)
        message, events = super().finalize()
        return message, [*held, *events]

    def _accumulate(self, events: list[dict[str, Any]], text: str) -> None:
        if not self._opened:
            self._opening = self._pos
        count = len(events)
        super()._accumulate(events, text)
        if len(events) > count:
            events[-1]["start"] = self._pos

    def _open_explicit(self, events: list[dict[str, Any]], field: Any, m: Any) -> None:
        self._opening = m.start()
        super()._open_explicit(events, field, m)

    def _close_current(self, events: list[dict[str, Any]]) -> None:
        name, count = self._current, len(events)
        raw = self._body if name == self._implicit_name else self._buffer[self._opening : self._pos]
        try:
            super()._close_current(events)
        except Exception:  # noqa: BLE001 - a model may write anything, and a template read it in any way
            events.append({"type": "region_failed", "field": name})
            self._reset_to_implicit()
        if len(events) > count:
            close = self._spec.fields[name].close_re
            is_complete = close is None or close.search(raw) is not None
            events[-1] |= {"raw": raw, "start": self._opening, "is_complete": is_complete}

"""The private and undocumented parts of transformers' models, caches and `generate` that are used: a function for each.

Each docstring says why it is needed. tests/core/hf/test_private.py checks what each relies on, so that a version of
transformers in which one is different fails there.
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
"""The name that outputs have for the cache, which transformers 5.24 changed; `cache_name` is that of the argument."""

STATES = (
    "conv_states",
    "recurrent_states",
    "is_conv_states_initialized",
    "is_recurrent_states_initialized",
    "has_previous_state",
    "conv_kernel_size",
)
"""The attributes in which a recurrent layer keeps its states: dicts by the number of the state."""


def cache_name(model: PreTrainedModel) -> str:
    """Return the argument by which a model's forward pass takes its cache, and `generate` passes it on.

    Reason: before transformers 5.24, `generate` chose another one if the name of the model's class contained "mamba".
    """
    is_mamba = "mamba" in type(model).__name__.lower()
    return "cache_params" if is_mamba and CACHE == "past_key_values" else CACHE


def set_layer_factory(cache: Cache, make: Callable[[], Any]) -> None:
    """Have a cache whose number of layers is not fixed make its next layers by calling `make`.

    Reason: `DynamicCache()` appends a layer whenever a model first writes to that layer. It calls an attribute that the
    documentation describes as an argument of the constructor, and as a class.
    """
    if cache.layer_class_to_replicate is not None:
        cache.layer_class_to_replicate = make


def copy_states(target: LinearAttentionCacheLayerMixin, source: LinearAttentionCacheLayerMixin) -> None:
    """Give a recurrent layer copies of another layer's states.

    Reason: models write into these tensors, and no method of a layer copies them.
    """
    target.device, target.dtype = getattr(source, "device", None), getattr(source, "dtype", None)
    for name in STATES:
        states = vars(source)[name].items()
        copies = {number: state.clone() if isinstance(state, Tensor) else state for number, state in states}
        setattr(target, name, copies)


def join_layers(hybrid: Any, *, states: LinearAttentionLayer, attention: DynamicLayer) -> DynamicLayer:
    """Fill a hybrid layer of transformers with the states of a recurrent layer and the keys and values of `attention`.

    Reason: a hybrid layer is both at once, and can't be made of two layers that hold something already.
    """
    vars(hybrid).update(vars(attention))
    names = vars(LinearAttentionLayer(states.number_of_states)).keys()
    vars(hybrid).update({name: vars(states)[name] for name in names})
    joined: DynamicLayer = hybrid
    return joined


def has_argument_hooks(model: nn.Module) -> bool:
    """Return whether hooks may change the arguments by name of a model's modules, as PEFT's do in some generations.

    Reason: torch does not list the hooks of a module.
    """
    return any(module._forward_pre_hooks_with_kwargs for module in model.modules())


def supports_dynamic_cache(model: PreTrainedModel) -> bool:
    """Return whether a model keeps everything it has read in a cache that `generate` can prepare.

    Reason: models with states of their own are known by name only.
    """
    return bool(model._supports_default_dynamic_cache())


def placeholder_layer() -> type | None:
    """Return the type of the cache layer of a model layer that needs no cache; None before transformers 5.23."""
    return getattr(cache_utils, "DummyLayer", None)


def needs_mask_with_static_cache(model: PreTrainedModel) -> bool:
    """Return whether a model fails with a static cache unless the prompt is padded: BLOOM before transformers 5.23.

    Reason: the failure can't be predicted from anything public. The function that fixes it is new in 5.23.
    """
    module = sys.modules[type(model).__module__]
    return bool(model.config.model_type == "bloom") and not hasattr(module, "_get_alibi_slopes")


# isort: split


PREFILL_INPUTS: frozenset[str] = frozenset(MULTIMODAL_INPUTS_TO_DROP_OUTSIDE_PREFILL)
"""Images, sounds and the like: arguments that `generate` passes to the first forward pass only."""


def prepare_again(
    model: PreTrainedModel,
    ids: Tensor,
    config: GenerationConfig,
    *,
    settings: Mapping[str, Any],
    logits_processor: Sequence[Any],
    stopping_criteria: Sequence[Any],
) -> dict[str, Any]:
    """Return what `generate` would pass to its loop for another prompt [1, tokens] without padding.

    config: as an earlier call of `generate` prepared it; settings: in place of its own.

    Reason: `generate` makes processors and criteria in a call alone, which also reads signatures and prepares a cache:
    two thirds of the time that a server takes to prepare a text.
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

    Reason: which tokens to leave out because the cache holds them, and what images need, differ by model and version.
    """
    return model._prefill(ids, config, model_kwargs)


def optimized_for_decoding(model: PreTrainedModel) -> AbstractContextManager[None]:
    """Run the forward passes inside with the kernels that `generate` decodes with.

    Reason: on a GPU, the experts of a mixture are computed by other kernels than for a prompt, with other bits.
    """
    context: AbstractContextManager[None] = model._optimize_model_for_decode()
    return context


def compiled_if_possible(model: PreTrainedModel, cache: Cache, config: GenerationConfig) -> Callable[..., Any]:
    """Return the model, compiled if `generate` would compile it for this cache.

    Reason: the conditions depend on device, cache and quantization, and the compiled model is kept by the model.
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
    """Return the generator of drafts that the configuration asks for: an assistant, early layers or prompt lookup.

    tokenizers: the model's and the assistant's if they differ. Reason: which generator is made, and from which parts,
    differs by version.
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
    """Return whether a generator only has a model, or its first layers, write the next tokens of the text.

    Reason: its subclasses, some of which translate or read other states, look alike from outside.
    """
    if type(generator) not in (AssistedCandidateGenerator, EarlyExitCandidateGenerator):
        return False
    return not generator.assistant_model.config.is_encoder_decoder


def draft_length_of(generator: CandidateGenerator) -> int:
    """Return how long an assistant's drafts are now; the more tokens were accepted, the longer.

    Reason: it is told only to the assistant's own `generate`.
    """
    return int(generator.num_assistant_tokens)


def is_confident(generator: CandidateGenerator, probability: float) -> bool:
    """Return whether an assistant goes on after a token of this probability; its generator learns from each.

    Reason: the threshold is told only to the assistant's own `generate`, and adapted to the probabilities of its drafts
    if scikit-learn is installed.
    """
    if hasattr(generator, "probs"):
        generator.probs.append(probability)
    threshold = generator.generation_config.assistant_confidence_threshold
    return not threshold or probability >= threshold


def cache_of(generator: CandidateGenerator) -> Cache | None:
    """Return the cache of an assistant; None if a generator has no cache, or its assistant has read nothing yet.

    Reason: a candidate generator crops its cache by lengths alone, which is wrong after a rewind.
    """
    arguments: Mapping[str, Any] = getattr(generator, "assistant_kwargs", {})
    return arguments.get(CACHE)


def pad_token_of(config: GenerationConfig) -> int | None:
    """Return the token that `generate` fills finished rows with, if it has one.

    Reason: it is chosen from the configuration, the model and the end tokens before a custom loop is called.
    """
    pad = config._pad_token_tensor
    return None if pad is None else int(pad)


def mask_length_of(config: GenerationConfig) -> int:
    """Return the columns of an attention mask that `generate` left out because it masked nothing; 0 if unknown.

    Reason: with a cache that holds tokens, the ids may be the new ones alone, and only the mask counted all.
    """
    return int(getattr(config, "_mask_length", 0))


def belongs_to_caller(cache: object) -> bool:
    """Return whether the caller of `generate` passed this cache, and will see what it holds afterwards.

    Reason: `generate` prepares a cache of the same type if none was passed, under the same name.
    """
    return bool(getattr(cache, "_is_user_defined", False))


def attention_of(config: Any) -> str | None:
    """Return the name of the attention implementation that was chosen for a model's (text) configuration.

    Reason: a configuration has no public attribute for it.
    """
    name: str | None = config._attn_implementation
    return name


def revision_of(config: Any) -> str | None:
    """Return the commit of the hub from which a configuration was loaded, None for a folder.

    Reason: a configuration has no public attribute for it.
    """
    revision: str | None = getattr(config, "_commit_hash", None)
    return revision


def uncompiled(model: Any) -> Any | None:
    """Return the model that `torch.compile` wrapped; None if the model is not wrapped by it."""
    return getattr(model, "_modules", {}).get("_orig_mod")


def arguments_of_generate(*names: str) -> dict[str, Any]:
    """Return arguments of the `generate` that called the caller of this function; empty if none did.

    Reason: `generate` never passes these to a `custom_generate`, and does not say so. Its frame is the only place to
    see that a streamer would wait forever, or that an assistant would be ignored.
    """
    frame = sys._getframe(2)
    if frame.f_code.co_name != "generate":
        return {}
    return {name: frame.f_locals.get(name) for name in names}


def variables_of(template: str) -> set[str]:
    """Return the names that a chat template reads and does not set itself. Raises `jinja2.TemplateError`.

    Reason: only the environment that transformers makes for chat templates knows their tags.
    """
    environment = _compile_jinja_template(template).environment
    return meta.find_undeclared_variables(environment.parse(template))


def response_template_for(model_type: str) -> dict[str, Any] | None:
    """Return the response template of a family of models whose tokenizers have none, if transformers has one.

    Reason: these templates are in the code of `transformers serve` only.
    """
    try:
        from transformers.cli.serving.utils import _RESPONSE_TEMPLATE_FALLBACKS
    except ImportError:  # it needs packages that transformers itself does not
        return None
    return next((template for types, template in _RESPONSE_TEMPLATE_FALLBACKS.items() if model_type in types), None)


def compile_response_template(template: dict[str, Any]) -> ResponseTemplate:
    r"""Return a checked response template. Raises `ValueError`.

    Its fields are optional, since a text may end anywhere. For a delimiter that begins with `\s*`, only the first
    space of a run is tried. Reason: the parser loses a message that lacks a field, and n spaces take it n² steps.
    """
    compiled = load_response_template(template)
    for field in compiled.fields.values():
        field.optional = True
        for name in ("open_re", "close_re"):
            delimiter = getattr(field, name)
            if delimiter is not None and delimiter.pattern.startswith(r"\s*"):
                # "(?!)" is never found; without it, a search first looks for what follows the spaces, from each one.
                searched_once = rf"(?:\G|(?<!\s))(?:{delimiter.pattern}|(?!))"
                setattr(field, name, regex.compile(searched_once, delimiter.flags))
    return compiled


class RegionParser(ResponseParser):  # type: ignore[misc]
    """A parser of responses that reads on after a region that it can't read.

    prefilled: the characters of the message that the prompt has.

    An event "region_chunk" has a `start`, counted from the beginning of the message, and so have "region_close" and
    "region_failed", which comes in its place, with the `raw` text of the region and whether it `is_complete`. Reason:
    the parser raises an error instead, and tells neither where a text was nor which delimiters it had.
    """

    def __init__(self, template: dict[str, Any], prefix: str, *, tools: list[Any]) -> None:
        self._opening = self._spaces = 0  # which the text ends with
        self._held = ""
        compiled = compile_response_template(template)
        self.fields: dict[str, Any] = compiled.fields
        super().__init__(compiled, prefix, tools=tools)
        self.prefilled = len(self._buffer)

    @property
    def region(self) -> str | None:
        """The field that is being written."""
        name: str | None = self._current
        return name

    def feed(self, text: str) -> list[dict[str, Any]]:
        """See `ResponseParser.feed`. The more spaces the text ends with, the more of them are held until they are read.

        Reason: where spaces may begin a delimiter, each call searches all of them again.
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

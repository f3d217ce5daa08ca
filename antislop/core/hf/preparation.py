"""Prepare the rows of a call: refuse what can't be done exactly, and make a specification of each row."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel
from transformers.generation import StopStringCriteria

from antislop.core.hf.assisted import AssistantDrafter, make_assistant_drafter
from antislop.core.hf.caches.borrowed import choose_cache, decoder_part, is_begun, length_of
from antislop.core.hf.caches.cache import TransformersCache
from antislop.core.hf.callbacks.criteria import StopStrings
from antislop.core.hf.callbacks.memory import Recognizer
from antislop.core.hf.callbacks.processors import BatchCallbacks, is_stateless
from antislop.core.hf.calls import Call, CallInput, prepare_call
from antislop.core.hf.compiled_bans import CompiledBans
from antislop.core.hf.model import PROMPT_ONLY, TransformersModel, Trial, are_counted, is_true, mask_name
from antislop.core.hf.private import attention_of, belongs_to_caller, cache_name, mask_length_of, revision_of
from antislop.core.hf.refusals import (
    PromptError,
    PromptLengths,
    refuse_ids,
    refuse_lengths,
    refuse_settings,
    refuse_tokenizer,
)
from antislop.core.hf.run import Run
from antislop.core.hf.vocabulary import fingerprint_tokenizer
from antislop.core.loop.branches import Control
from antislop.core.loop.row import Drafter, RowSpec, begin_rows
from antislop.core.loop.sampling import Policy
from antislop.core.trace.events import Conceded
from antislop.core.trace.trace import Recording
from antislop.display import list_versions
from antislop.errors import CapabilityError, InputError
from antislop.files.models import BUNDLED, TINY, ModelSpec

GRAMMARS = ("xgrammar.", "outlines.", "builtins.LLMatcher")
"""How the names of the classes begin that `antislop.steer` may know how to rewind."""
PLAIN_INPUTS = frozenset({"attention_mask", "cache_position", "logits_to_keep", "position_ids", "use_cache"})
"""Arguments of the model that follow from ids, mask and settings; so does a cache that `generate` made."""


def prepare_run(
    call: Call,
    bans: CompiledBans,
    *,
    policy: Policy,
    warn: Callable[[Conceded], None],
    options: Mapping[str, Any],
    recording: Recording,
    control: Control | None,
) -> Run:
    """Return a run that is ready to begin. Raises `InputError` for what is not supported.

    options: of the sampler, for the trace.
    """
    lengths = _check_call(call, bans)
    facts: Callable[[], Mapping[str, Any]] = dict
    if recording.level != "none":
        facts = describe_call(call, bans, options=options, recording=recording, control=control)
    specs = _make_specs(call, bans, policy=policy)
    if recording.has_choices:
        specs = [replace(spec, alternatives=recording.alternatives) for spec in specs]
    language_model, cache = split_arguments(call, rows=call.rows)
    if control is not None:
        _refuse_control(control, specs, cache)
        controllers = control.begin([call.tokens_of(place) for place in range(call.rows)])
        specs = [
            replace(spec, controller=controller, max_forks=control.max_forks)
            for spec, controller in zip(specs, controllers, strict=True)
        ]
    rows = begin_rows(specs)
    return Run(call, language_model, cache, rows, lengths, bans, warn, recording, facts)


def prepare_text(
    model: PreTrainedModel,
    inputs: CallInput,
    arguments: Mapping[str, Any],
    bans: CompiledBans,
    *,
    seed: int,
    policy: Policy,
    shared: Collection[str] = (),
) -> tuple[Call, RowSpec]:
    """Return a call of `generate`, and its only row, with its own random numbers, to be written beside those of others.

    shared: which of "logits_processor" and "stopping_criteria" the other calls use, too.
    """
    call = prepare_call(model, inputs, arguments, bans=bans)
    lengths = _check_call(call, bans)
    if call.rows > 1:
        raise InputError("num_return_sequences is 1 here: pass a prompt as often as texts are wanted from it")
    spec = _make_specs(call, bans, policy=policy, shared=shared)[0]
    if spec.keep_scores:
        raise InputError("generate_many keeps no scores: leave output_scores and output_logits out, or use generate")
    refuse_lengths(call.model, lengths.tokens, held=lengths.held, new=call.max_new_tokens, in_flight=True)
    return call, replace(spec, generator=torch.Generator().manual_seed(seed))


def refuse_model(
    model: PreTrainedModel, config: GenerationConfig, processors: LogitsProcessorList, bans: CompiledBans
) -> None:
    """Refuse a model whose texts can't be written under these bans, whatever the prompt."""
    refuse_tokenizer(model, bans.tokenizer)
    bans.vocabulary.refuse_changes(bans.tokenizer)
    refuse_settings(model, config, processors)


def _check_call(call: Call, bans: CompiledBans) -> PromptLengths:
    refuse_model(call.model, call.config, call.logits_processor, bans)
    if call.rows > 1 and call.model.config.is_encoder_decoder:
        raise InputError(
            f"{type(call.model).__name__} has an encoder, and such a model writes one text at a time, not {call.rows}: "
            "pass one prompt, and num_return_sequences=1"
        )
    mask, embeds = call.mask, call.model_kwargs.get("inputs_embeds")
    if call.input_ids.shape[1] == 0 and embeds is None:
        raise PromptError("an empty prompt was passed: pass at least one token, the bos token for instance")
    refuse_ids(call.input_ids, call.model)
    tokens = call.input_ids.shape[1] if embeds is None else max(embeds.shape[1], call.input_ids.shape[1])
    cache = call.model_kwargs.get(cache_name(call.model))
    held = 0 if cache is None else length_of(decoder_part(cache))
    columns = mask_length_of(call.config) if mask is None else mask.shape[-1]
    if cache is not None and not held and is_begun(decoder_part(cache)) and columns <= tokens:
        raise InputError(
            "the cache passed has recurrent states alone, which don't tell how many of the prompt's tokens they have "
            "read: pass the tokens after these, with an attention_mask of all tokens, or leave the cache out"
        )
    if mask is not None and mask.ndim == 2 and mask.shape[1] >= tokens:  # it covers tokens in a cache, too
        counts: list[int] = mask.sum(dim=1).tolist()
    else:
        counts = [max(tokens, mask_length_of(call.config))]
    lengths = PromptLengths(tuple(counts * (call.rows // len(counts))), held)
    refuse_lengths(call.model, lengths.tokens, held=lengths.held, new=call.max_new_tokens)
    return lengths


def _make_specs(call: Call, bans: CompiledBans, *, policy: Policy, shared: Collection[str] = ()) -> list[RowSpec]:
    drafter = make_assistant_drafter(call, bans.tokenizer) if call.asks_for_drafts else None
    processors = [each if is_stateless(each) else _adapt(each) for each in call.logits_processor]
    callbacks = BatchCallbacks(
        logits_processor=LogitsProcessorList(processors),
        stopping_criteria=call.stopping_criteria,
        rows=call.rows,
        pad=call.pad,
        is_drafted=drafter is not None,
        shares_processors="logits_processor" in shared,
        shares_criteria="stopping_criteria" in shared,
    )
    keeps = call.config.return_dict_in_generate and (call.config.output_scores or call.config.output_logits)
    has_grammar = any(isinstance(each, Recognizer) for each in processors)
    forced = {} if has_grammar else bans.forced  # which a grammar may not allow: then the text stops
    if forced and keeps:
        raise InputError("a ban has then='force', and forced tokens have no scores: leave output_scores and logits out")
    if forced and callbacks.is_lockstep and call.rows > 1:
        raise InputError(
            "the stopping criteria or processors see the rows of the batch in step, and then='force' moves each by "
            "itself: pass one prompt at a time, or choose then='stop'"
        )
    policy = replace(policy, do_sample=call.config.do_sample)
    rows = (
        bans.make_row(
            call.tokens_of(place),
            prompt=call.input_ids[place : place + 1],
            policy=policy,
            callbacks=callbacks,
            max_new_tokens=call.max_new_tokens,
        )
        for place in range(call.rows)
    )
    return [replace(row, drafter=drafter, keep_scores=bool(keeps), forced=forced) for row in rows]


def _adapt(processor: Any) -> Any:
    """Return a grammar of another library as one that rewinds; any other processor as it is."""
    if not f"{type(processor).__module__}.{type(processor).__qualname__}".startswith(GRAMMARS):
        return processor
    from antislop.steer.grammar.grammar import adapt_processor  # a call without a grammar opens no door

    return adapt_processor(processor)


def _refuse_control(control: Control, specs: Sequence[RowSpec], cache: TransformersCache) -> None:
    spec, needs = specs[0], control.controller.needs
    if spec.policy.method != "exact":
        raise InputError(f"a controller needs method='exact', and the sampler has method={spec.policy.method!r}")
    if spec.drafter is not None:
        raise InputError("a controller decides each step, so nothing is drafted: leave out assistants")
    if spec.forced:
        raise InputError("a controller decides each step, and a ban has then='force': choose then='stop' instead")
    if spec.keep_scores:
        raise InputError("forced tokens have no scores: leave out output_scores and output_logits with a controller")
    if isinstance(spec.callbacks, BatchCallbacks) and spec.callbacks.is_lockstep:
        raise InputError(
            "the stopping criteria or processors see the rows of the batch in step, and a controller moves each by "
            "itself: pass one prompt at a time, or leave them out"
        )
    if needs.has_forks and control.max_forks > 1 and not cache.can_select:
        raise CapabilityError(f"the controller forks, and this {type(cache).__name__} can't copy rows: set max_forks=1")


def split_arguments(call: Call, *, rows: int) -> tuple[TransformersModel, TransformersCache]:
    """Split what `generate` prepared into a model, with the arguments of all passes, and a cache, with the prompt's.

    The model's owner calls `leave_decode_mode` in the end. Raises `InputError`, before the model runs, for a cache that
    can't be rewound exactly.
    """
    model, config, model_kwargs = call.model, call.config, call.arguments
    chosen = choose_cache(model_kwargs, model=model)
    name, mask = cache_name(model), mask_name(model)
    prompt = {key: value for key, value in model_kwargs.items() if key in PROMPT_ONLY or key == mask}
    shared = {key: value for key, value in model_kwargs.items() if key not in prompt and key != name}
    cache = TransformersCache(
        chosen, rows=rows, attention_mask=prompt.get(mask), capacity=config.max_length, prompt={mask: None, **prompt}
    )
    # A prompt that occurs several times in the batch is read once, unless that might give other logits.
    given = {name for name, value in prompt.items() if value is not None}
    is_plain = given <= {"attention_mask", "position_ids", "token_type_ids"} and not (cache.is_begun or cache.is_static)
    language_model = TransformersModel(
        model,
        generation_config=config,
        model_kwargs={**shared, "use_cache": True},
        copies=(config.num_return_sequences or 1) if is_plain else 1,
        decodes=True,
    )
    is_padded = prompt.get(mask) is not None and not language_model.moves_rows and not bool(prompt[mask].all())
    if is_padded and not is_true(Trial.try_padding, of=model):
        raise InputError(
            f"{type(model).__name__} takes no positions and counts padding as tokens, in generate() too: "
            "pass prompts of one length, one prompt at a time, or all of them to generate_many"
        )
    return language_model, cache


def share_callbacks(specs: Iterable[RowSpec]) -> Iterator[RowSpec]:
    """Have rows share the first one's callbacks if these fit any prompt, and an assistant: they then go together."""
    shared: BatchCallbacks | None = None
    drafter: Drafter | None = None
    for spec in specs:
        shared = shared or (spec.callbacks if isinstance(spec.callbacks, BatchCallbacks) else None)
        # Two that belong to assistants differ at most in their prompts, which they learn from each row.
        is_alike = type(drafter) is type(spec.drafter) is AssistantDrafter
        drafter = drafter if is_alike else spec.drafter
        callbacks = shared if shared is not None and shared.fits_any_prompt else spec.callbacks
        yield replace(spec, drafter=drafter, callbacks=callbacks)


def describe_call(
    call: Call, bans: CompiledBans, *, options: Mapping[str, Any], recording: Recording, control: Control | None
) -> Callable[[], dict[str, Any]]:
    """Return a function that lists the facts of a call that has not begun.

    The function does the slow part, only if a trace is looked at, and holds neither the model nor the inputs.
    """
    model, config = _describe_model(call.model), call.config
    assistant = None if call.assistant.model is None else _describe_model(call.assistant.model)
    controller = None if control is None else type(control.controller).__name__
    processors = [type(processor).__name__ for processor in call.logits_processor]
    criteria = [type(criterion).__name__ for criterion in call.stopping_criteria]
    stops = [each for each in call.stopping_criteria if isinstance(each, (StopStrings, StopStringCriteria))]
    stop_strings = [text for criterion in stops for text in criterion.stop_strings]
    mask, positions, cache = call.mask, call.model_kwargs.get("position_ids"), cache_name(call.model)
    made = set() if belongs_to_caller(call.model_kwargs.get(cache)) else {cache}  # by `generate`: no input of the text
    inputs = sorted(call.model_kwargs.keys() - PLAIN_INPUTS - made)
    seed = torch.initial_seed()

    def describe() -> dict[str, Any]:
        tokenizer = bans.tokenizer
        return {
            "model": model,
            "assistant": assistant,
            "tokenizer": {
                "name": _public_name(tokenizer.name_or_path),
                "fingerprint": fingerprint_tokenizer(tokenizer),
                "drops_space": bans.vocabulary.drops_space,
            },
            "sampler": dict(options),
            "settings": _list_settings(config),
            "stop_strings": stop_strings,
            "controller": controller,
            "processors": processors,
            "criteria": criteria,
            "inputs": inputs if are_counted(positions, mask) else [*inputs, "position_ids"],
            "record": recording.level,
            "record_top_k": recording.top_k,
            "seed": seed,
            "versions": list_versions(("transformers", "torch")),
        }

    return describe


def _list_settings(config: GenerationConfig) -> dict[str, Any]:
    """Return the settings that differ from the defaults; {"repr": text} for one without a form in JSON."""
    settings = {name: value for name, value in config.to_diff_dict().items() if not name.startswith("_")}
    settings.pop("transformers_version", None)
    if isinstance(settings.get("sequence_bias"), Mapping):  # its keys are tuples, and lists of pairs mean the same
        settings["sequence_bias"] = list(settings["sequence_bias"].items())
    plain: dict[str, Any] = json.loads(json.dumps(settings, default=lambda value: {"repr": repr(value)}))
    return plain


def _describe_model(model: Any) -> dict[str, str]:
    facts = {
        "name": _public_name(model.name_or_path),
        "type": type(model).__name__,
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": str(model.device),
        "attention": attention_of(model.config),
        "revision": revision_of(model.config),
    }
    return {name: value for name, value in facts.items() if value is not None}


def _public_name(name_or_path: str) -> str:
    # The folders of the bundled model and of converted ones differ by installation.
    return BUNDLED if name_or_path == str(TINY) else ModelSpec(name_or_path).public_name

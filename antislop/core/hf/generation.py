"""One call of `generate` under bans, from the prepared call to the output with its reports and its trace."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig, GenerationMixin, LogitsProcessorList, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.generation import GenerateDecoderOnlyOutput, GenerateEncoderDecoderOutput, StopStringCriteria
from transformers.generation.streamers import BaseStreamer

from antislop.core.hf.assisted import make_assistant_drafter
from antislop.core.hf.caches.borrowed import choose_cache, decoder_part, is_begun, length_of
from antislop.core.hf.caches.cache import TransformersCache
from antislop.core.hf.callbacks.criteria import StopStrings
from antislop.core.hf.callbacks.memory import Recognizer
from antislop.core.hf.callbacks.processors import BatchCallbacks, is_stateless
from antislop.core.hf.calls import Call
from antislop.core.hf.compiled_bans import CompiledBans, Terms
from antislop.core.hf.model import PROMPT_ONLY, TransformersModel, Trial, are_counted, is_true, mask_name
from antislop.core.hf.private import CACHE, attention_of, belongs_to_caller, cache_name, mask_length_of, revision_of
from antislop.core.hf.refusals import (
    PromptError,
    PromptLengths,
    refusal,
    refuse_conflicts,
    refuse_ids,
    refuse_lengths,
    refuse_settings,
    refuse_tokenizer,
    warn_if_too_long,
)
from antislop.core.hf.vocabulary import fingerprint_tokenizer
from antislop.core.loop.branches import Control
from antislop.core.loop.engine import BatchEngine
from antislop.core.loop.row import Row, RowSpec, begin_rows
from antislop.core.loop.sampling import Policy
from antislop.core.loop.scheduler import Scheduler
from antislop.core.loop.step import decode_in_steps
from antislop.core.trace.events import Conceded, Drawn, Event, Finished, Forked, Forwarded, Report, Settled
from antislop.core.trace.trace import Recording, Trace, TracedRow
from antislop.display import list_versions, shorten
from antislop.errors import CapabilityError, ConcededWarning, InputError
from antislop.files.models import BUNDLED, TINY, ModelSpec

GRAMMARS = ("xgrammar.", "outlines.", "builtins.LLMatcher")
"""Prefixes of the class names of grammar processors that `antislop.steer` can try to make rewindable."""
PLAIN_INPUTS = frozenset({"attention_mask", "cache_position", "logits_to_keep", "position_ids", "use_cache"})
"""Arguments of the model that `generate` derives from ids, mask and settings: no further inputs of a text."""


@dataclass(repr=False)
class _Reported:
    report: Report = None  # type: ignore[assignment]  # fields of an output have None as their default
    reports: list[Report] = None  # type: ignore[assignment]
    trace: Trace | Any = None  # `Any`: only with record="none" it is None, which users need not rule out
    texts: list[str] = None  # type: ignore[assignment]

    @property
    def text(self) -> str:
        """The generated text of an output with one text. Raises `InputError` for an output with several texts."""
        if len(self.texts) != 1:
            raise InputError(f"the output has {len(self.texts)} texts, and text is for a single one: use texts")
        return self.texts[0]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} with {', '.join(self.keys())}: {shorten(repr(self.texts), 60)}>"  # type: ignore[attr-defined]

    def _repr_html_(self) -> str:
        """Return HTML: the trace, which shows withdrawn text too, or the report if no trace was recorded."""
        return self.report._repr_html_() if self.trace is None else self.trace._repr_html_()


@dataclass(repr=False)
class DecoderOnlyOutput(_Reported, GenerateDecoderOnlyOutput):  # type: ignore[misc]  # mypy does not read its base
    """What `generate` returns for decoder-only models, with four more fields.

    report: the counts of all rows together.
    reports: a report for each row.
    trace: the recorded events of all rows; None with record="none".
    texts: the generated text of each row, without special tokens. If there is a single text, `text` returns it.
    """


@dataclass(repr=False)
class EncoderDecoderOutput(_Reported, GenerateEncoderDecoderOutput):  # type: ignore[misc]
    """What `generate` returns for encoder-decoder models, with the four additional fields of `DecoderOnlyOutput`."""


ReportedOutput: TypeAlias = DecoderOnlyOutput | EncoderDecoderOutput
"""What `generate` returns with return_dict_in_generate=True."""
CallOutput: TypeAlias = Tensor | ReportedOutput
"""What `generate` returns: ids [rows, tokens], or an output with more fields if return_dict_in_generate=True."""


class EventStream(Iterator[Event]):
    """An iterator over the events of one text: each `next` generates until another event happens."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation
        self._events = generation.events()

    def __next__(self) -> Event:
        return next(self._events)

    def close(self) -> None:
        """Stop generating: no more events follow."""
        self._events.close()

    @property
    def trace(self) -> Trace | None:
        """The trace of the events so far; None with record="none"."""
        return self._generation.trace


class Generation:
    """One call of `generate`: the constructor prepares it, and `complete` or `events` runs it once.

    output: what `complete` returned. The constructor raises `InputError` for a call that can't be done exactly.
    """

    output: CallOutput

    def __init__(self, call: Call, terms: Terms, *, recording: Recording, control: Control | None = None) -> None:
        self.call = call
        self.recording = recording
        self.bans = terms.bans
        self.prompts = refuse_call(call, terms.bans)
        self._warn = terms.warn
        self._facts: Callable[[], Mapping[str, Any]] = dict
        if recording.level != "none":
            self._facts = describe_call(call, terms, recording=recording, control=control)
        specs = specify(call, terms.bans, policy=terms.policy)
        self._model, self.cache = split_arguments(call, rows=call.rows)
        if recording.has_choices:
            specs = [replace(spec, alternatives=recording.alternatives) for spec in specs]
        if control is not None:
            refuse_conflicts("controller", list_facts(call, specs[0]), method=terms.policy.method)
            if control.controller.needs.has_forks and control.max_forks > 1 and not self.cache.can_select:
                kind = type(self.cache).__name__
                raise CapabilityError(f"the controller forks, and this {kind} can't copy rows: set max_forks=1")
            controllers = control.begin([call.tokens_of(place) for place in range(call.rows)])
            specs = [
                replace(spec, controller=controller, max_forks=control.max_forks)
                for spec, controller in zip(specs, controllers, strict=True)
            ]
        self.rows = begin_rows(specs)
        self._past: Cache | None = None  # the cache that is returned with the sequences
        self._reports = [Report(surfaces=self.bans.vocabulary) for _ in self.rows]
        self._excess: dict[int, int] = {}  # row number to the number of withdrawn tokens in its cache
        self._pad = call.pad or 0
        self._engine = BatchEngine(self._model, self.cache, filler=self._pad)

    def events(self) -> Generator[Event, None, None]:
        """Yield the events of the only row. Events after the row's last token are added to `trace` only."""
        if len(self.rows) > 1:
            raise refusal("stream of several texts", count=len(self.rows))
        with self._borrowed_model(), closing(self._decode()) as steps:
            for row, events in steps:
                for event in events:
                    self._note(row, [event])
                    _refuse_fork(event)
                    yield event
            self._finish()

    def complete(self, streamer: BaseStreamer | None = None) -> CallOutput:
        """Generate to the end and return the output; pass settled tokens to the streamer on the way."""
        config = self.call.config
        if streamer is not None:
            streamer.put(torch.cat([row.ids for row in self.rows]).cpu())
        with self._borrowed_model():
            for row, events in self._decode():
                self._note(row, events)
                if streamer is not None:
                    for event in events:
                        _refuse_fork(event)
                        for token in event.tokens if isinstance(event, Settled) else ():
                            streamer.put(torch.tensor([token]))
            self._finish()
        if streamer is not None:
            streamer.end()
        sequences = pad_sequence([row.ids[0] for row in self.rows], batch_first=True, padding_value=self._pad)
        self.output = self._output(sequences) if config.return_dict_in_generate else sequences
        return self.output

    @property
    def trace(self) -> Trace | None:
        if self.recording.level == "none":
            return None
        mask = self.call.mask
        masks: list[tuple[int, ...] | None] = [None] * len(self.rows)  # None: no padding, or for other inputs
        if mask is not None and mask.ndim == 2 and mask.shape[1] == self.rows[0].prompt_length and not mask.all():
            lists = [tuple(int(value) for value in values) for values in mask.tolist()]
            masks = [lists[min(row.root, len(lists) - 1)] for row in self.rows]
        rows = tuple(
            TracedRow(tuple(row.ids_up_to(0)[0].tolist()), tuple(report.events), mask)
            for row, report, mask in zip(self.rows, self._reports, masks, strict=True)
        )
        return Trace(rows, self.bans.bans, self.bans.vocabulary, self._facts)

    def _finish(self) -> None:
        """Feed a single row's tokens but the last to a cache that the caller will see; record tokens fed and cut."""
        is_seen = belongs_to_caller(self.cache.cache) or self.call.config.return_dict_in_generate
        if len(self.rows) > 1:
            for row in self.rows:
                self._note(row, [Forwarded(0, self._excess[row.number])])
        elif is_seen:
            fed, cut = self._engine.finish(self.rows[0])
            if fed or cut:
                self._note(self.rows[0], [Forwarded(fed, cut)])

    def _decode(self) -> Generator[tuple[Row, list[Event]], None, None]:
        for step in decode_in_steps(Scheduler(rows=self.rows), self._engine):
            yield from step

    def _note(self, row: Row, events: Sequence[Event]) -> None:
        for event in events:
            if type(event) in _USUAL:
                continue
            if isinstance(event, Forked):
                self.rows.append(row)
                parent, surfaces = self._reports[event.parent], self.bans.vocabulary
                report = Report(surfaces=surfaces, events=[*parent.events], let_through=[*parent.let_through])
                report.conceded, report.admitted = parent.conceded, parent.admitted
                self._reports.append(report)
            elif isinstance(event, Conceded):
                self._warn(event)
            elif isinstance(event, Finished):
                self._excess[row.number] = self._engine.excess(row)  # before another text takes the row
                warn_if_too_long(self.call.model, self.prompts.tokens[row.root] + len(row.tokens))
        self._reports[row.number].extend(events, keep=self.recording.level != "none")

    def _output(self, sequences: Tensor) -> ReportedOutput:
        model, config = self.call.model, self.call.config
        fields: dict[str, Any] = {
            "sequences": sequences,
            "scores": self._steps(1) if config.output_scores else None,
            "logits": self._steps(0) if config.output_logits else None,
            CACHE: self._past,
        }
        if type(model).generate is not GenerationMixin.generate:
            # A model's own `generate` may expect a tensor in every field; `with_reports` adds the reports later.
            is_encoder_decoder = model.config.is_encoder_decoder
            plain: Any = GenerateEncoderDecoderOutput if is_encoder_decoder else GenerateDecoderOnlyOutput
            return cast(ReportedOutput, plain(**fields))
        return self._report(fields)

    def with_reports(self, output: CallOutput) -> CallOutput:
        """Return the output with reports. It has none yet if the model's class overrides `generate`."""
        if isinstance(output, (Tensor, DecoderOnlyOutput, EncoderDecoderOutput)):
            return output
        return self._report(output)

    def _report(self, fields: Mapping[str, Any]) -> ReportedOutput:
        report = self._reports[0] if len(self._reports) == 1 else Report.total(self._reports)
        kind = EncoderDecoderOutput if self.call.model.config.is_encoder_decoder else DecoderOnlyOutput
        decode = self.bans.vocabulary.decode
        texts = [decode(row.tokens, after=row.ids_up_to(0)[0].tolist()) for row in self.rows]
        return kind(**fields, report=report, reports=self._reports, trace=self.trace, texts=texts)

    @contextmanager
    def _borrowed_model(self) -> Iterator[None]:
        """Run the block, then restore the model's kernels and put transformers' own layers back into the cache.

        The caller's cache then holds the texts; after an error, or if rows differ in length, its former content.
        """
        is_complete = False
        try:
            yield
            is_complete = True
        finally:
            self._model.leave_decode_mode()
            if self.cache.give_back(is_whole=is_complete):
                self._past = self.cache.cache

    def _steps(self, index: int) -> tuple[Tensor, ...]:
        """Return the logits (index 0) or the scores (index 1) of each step, [rows, vocab].

        As in `generate`, a row that has ended is fed pad tokens, and has their logits; zeros if its end was rewound.
        """
        kept = [[step[index] for step in row.kept or []] for row in self.rows]
        empty = next((torch.zeros_like(step) for own in kept for step in own), None)  # None if no text has a token
        steps = max(map(len, kept))
        for row, own in zip(self.rows, kept, strict=True):
            is_other = self._engine.is_ragged or row.follower is not None or self._excess.get(row.number)
            for logits in () if is_other else row.after_end[: steps - len(own)]:
                own.append(row.spec.callbacks.process([row], [len(own)], logits) if index else logits)
            own += [] if empty is None else [empty] * (steps - len(own))
        return tuple(map(torch.cat, zip(*kept, strict=True)))


_USUAL = {Forwarded, Drawn, Settled}  # the events of most steps, for which `_note` has nothing to do but count


def _refuse_fork(event: Event) -> None:
    if isinstance(event, Forked):
        raise CapabilityError("the controller forks the text, and one text can be streamed at a time: use generate")


class ConcessionWarner:
    """Warn of a sampler's first concession only; the warning names the line that called the library."""

    def __init__(self) -> None:
        self._has_warned = False

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()  # a copy warns once more: it may be in another process

    def __call__(self, event: Conceded) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        violation = event.violation
        spent = "its tries were used up" if violation.ban.then else "nothing else was left to write"
        cause = f"{event.constrained_by} rules out all else" if event.constrained_by else spent
        frame, level = sys._getframe(), 1  # of the code that called the library, as `warnings.warn` counts
        while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in _LIBRARIES:
            frame, level = frame.f_back, level + 1
        warnings.warn(
            f"the banned {violation.ban.text!r} was let through at token {violation.start}, since {cause}: "
            "report.conceded and Completion.conceded count such places, of which this is the sampler's "
            "first; on_exhausted='stop' or 'raise' lets none through",
            ConcededWarning,
            stacklevel=level,
        )


_LIBRARIES = {"antislop", "contextlib", "torch", "transformers"}


# -- from a call to its rows, its model and its cache -----------------------------------------------------------------


def refuse_model(
    model: PreTrainedModel, config: GenerationConfig, processors: LogitsProcessorList, bans: CompiledBans
) -> None:
    """Raise `InputError` for a model, settings or processors that can't be used with these bans for any prompt."""
    refuse_tokenizer(model, bans.tokenizer)
    bans.vocabulary.refuse_changes(bans.tokenizer)
    refuse_settings(model, config, processors)


def refuse_call(call: Call, bans: CompiledBans) -> PromptLengths:
    """Return the lengths of the prompts. Raises `InputError` for a call that can't be done exactly."""
    refuse_model(call.model, call.config, call.logits_processor, bans)
    if call.rows > 1 and call.model.config.is_encoder_decoder:
        raise refusal("several texts with an encoder", model=call.model, count=call.rows)
    mask, embeds = call.mask, call.model_kwargs.get("inputs_embeds")
    if call.input_ids.shape[1] == 0 and embeds is None:
        raise PromptError("an empty prompt was passed: pass at least one token, the bos token for instance")
    refuse_ids(call.input_ids, call.model)
    tokens = call.input_ids.shape[1] if embeds is None else max(embeds.shape[1], call.input_ids.shape[1])
    cache = call.model_kwargs.get(cache_name(call.model))
    held = 0 if cache is None else length_of(decoder_part(cache))
    columns = mask_length_of(call.config) if mask is None else mask.shape[-1]
    if cache is not None and not held and is_begun(decoder_part(cache)) and columns <= tokens:
        raise refusal("recurrent cache of unknown length")
    if mask is not None and mask.ndim == 2 and mask.shape[1] >= tokens:  # it covers tokens in a cache, too
        counts: list[int] = mask.sum(dim=1).tolist()
    else:
        counts = [max(tokens, mask_length_of(call.config))]
    lengths = PromptLengths(tuple(counts * (call.rows // len(counts))), held)
    refuse_lengths(call.model, lengths.tokens, held=lengths.held, new=call.max_new_tokens)
    return lengths


def specify(call: Call, bans: CompiledBans, *, policy: Policy, shared: Collection[str] = ()) -> list[RowSpec]:
    """Return the specification of each row of a call.

    shared: the names among "logits_processor" and "stopping_criteria" whose objects other calls use, too.

    Raises `InputError` for settings of the call that exclude each other.
    """
    drafter = make_assistant_drafter(call, bans.tokenizer)
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
    specs = [
        RowSpec(
            prompt=call.input_ids[place : place + 1],
            matcher=bans.matcher,
            state=bans.read_prompt(call.tokens_of(place)),
            policy=replace(policy, do_sample=call.config.do_sample),
            callbacks=callbacks,
            max_new_tokens=call.max_new_tokens,
            drafter=drafter,
            keep_scores=bool(keeps),
            forced={} if has_grammar else bans.forced,  # a grammar may forbid forced tokens: the text stops instead
        )
        for place in range(call.rows)
    ]
    refuse_conflicts("generate", list_facts(call, specs[0]))
    return specs


def list_facts(call: Call, spec: RowSpec) -> set[str]:
    """Return the facts of a call that some method of the sampler refuses, in the words of `refusals.yaml`."""
    facts = {
        "rows": call.rows > 1,
        "drafts": spec.drafter is not None,
        "forced": bool(spec.forced),
        "scores": spec.keep_scores,
        "lockstep": isinstance(spec.callbacks, BatchCallbacks) and spec.callbacks.is_lockstep,
        "method": spec.policy.method != "exact",
        "training": call.model.training,
        "cache": call.config.cache_implementation is not None,
        "parts": call.config.prefill_chunk_size is not None,
    }
    return {name for name, is_so in facts.items() if is_so}


def _adapt(processor: Any) -> Any:
    """Return a rewindable processor in place of another library's grammar, and any other processor unchanged."""
    if not f"{type(processor).__module__}.{type(processor).__qualname__}".startswith(GRAMMARS):
        return processor
    from antislop.steer.grammar.grammar import adapt_processor  # a call without a grammar doesn't import it

    return adapt_processor(processor)


def split_arguments(call: Call, *, rows: int) -> tuple[TransformersModel, TransformersCache]:
    """Return the model, with the arguments of all forward passes, and the cache, with those of the first pass only.

    The caller must call the model's `leave_decode_mode` in the end. Raises `InputError`, before the model runs, for a
    cache that can't be rewound exactly.
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
        raise refusal("padding as tokens", model=model)
    return language_model, cache


def describe_call(
    call: Call, terms: Terms, *, recording: Recording, control: Control | None
) -> Callable[[], dict[str, Any]]:
    """Return a function that lists the facts of a call (model, settings, versions, seed) for `Trace.about`.

    The slow part is left to that function, which runs only if a trace is read. It refers to no model and no inputs.
    """
    model, config = _describe_model(call.model), call.config
    assistant = None if call.assistant.model is None else _describe_model(call.assistant.model)
    controller = None if control is None else type(control.controller).__name__
    processors = [type(processor).__name__ for processor in call.logits_processor]
    criteria = [type(criterion).__name__ for criterion in call.stopping_criteria]
    stops = [each for each in call.stopping_criteria if isinstance(each, (StopStrings, StopStringCriteria))]
    stop_strings = [text for criterion in stops for text in criterion.stop_strings]
    mask, positions, cache = call.mask, call.model_kwargs.get("position_ids"), cache_name(call.model)
    made = set() if belongs_to_caller(call.model_kwargs.get(cache)) else {cache}  # a cache of `generate` is no input
    inputs = sorted(call.model_kwargs.keys() - PLAIN_INPUTS - made)
    seed = torch.initial_seed()

    def describe() -> dict[str, Any]:
        tokenizer = terms.bans.tokenizer
        return {
            "model": model,
            "assistant": assistant,
            "tokenizer": {
                "name": _public_name(tokenizer.name_or_path),
                "fingerprint": fingerprint_tokenizer(tokenizer),
                "drops_space": terms.bans.vocabulary.drops_space,
            },
            "sampler": dict(terms.options),
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
    """Return the settings that differ from their defaults; a value that JSON can't hold becomes {"repr": text}."""
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
    # The folders of the bundled model and of converted models differ by installation.
    return BUNDLED if name_or_path == str(TINY) else ModelSpec(name_or_path).public_name

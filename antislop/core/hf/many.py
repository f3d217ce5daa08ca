"""Texts for many prompts: a new text takes a finished text's row in the batch while the other rows continue."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import chain, count, islice, repeat
from operator import index
from types import NoneType
from typing import Any, NamedTuple, TypeAlias

import torch
from transformers import GenerationConfig, PreTrainedModel

from antislop.core.bans.ban_list import BanList, Bans
from antislop.core.bans.bans import Ban
from antislop.core.hf.assisted import AssistantDrafter
from antislop.core.hf.callbacks.processors import BatchCallbacks
from antislop.core.hf.calls import Call, PromptInput, encode, has_plain_generate, prepare_call
from antislop.core.hf.compiled_bans import CompiledBans, Terms
from antislop.core.hf.generation import list_facts, refuse_call, specify, split_arguments
from antislop.core.hf.model import device_of
from antislop.core.hf.refusals import PromptError, refuse_at, refuse_conflicts, refuse_lengths, warn_if_too_long
from antislop.core.hf.vocabulary import Vocabulary
from antislop.core.loop.engine import PART, BatchEngine
from antislop.core.loop.row import Drafter, Row, RowSpec
from antislop.core.loop.sampling import Policy, seed_of
from antislop.core.loop.scheduler import Scheduler
from antislop.core.loop.step import StepEvents, decode_in_steps
from antislop.core.loop.tables import find_dense
from antislop.core.trace.events import Completion, Conceded, Event, Finished, Forwarded, Report
from antislop.display import describe_count
from antislop.errors import InputError
from antislop.files.chats import is_chat

LISTS_KEPT = 64
"""Maximum number of compiled ban lists that are kept for later texts."""

WriteTexts: TypeAlias = Callable[..., Iterator[Completion]]
"""Generates the texts of row specifications with the model and settings of the first call; yields completions."""


class TextRequest(NamedTuple):
    """A text to generate: its prompt, the seed of its random numbers, and its bans."""

    prompt: PromptInput
    seed: int
    bans: CompiledBans


def complete_many(
    model: PreTrainedModel,
    requests: Iterable[TextRequest],
    terms: Terms,
    *,
    max_rows: int,
    write: WriteTexts,
    arguments: Mapping[str, Any],
) -> Iterator[Completion]:
    """Yield each text when it is finished; for a prompt that can't be used, yield a completion with an error."""
    variables = arguments.get("chat_template_kwargs")
    callbacks = ("logits_processor", "stopping_criteria")
    shared = [name for name in callbacks if isinstance(arguments.get(name), list)]  # functions make new lists
    makers = {name: make for name in callbacks if name not in shared and (make := arguments.get(name))}
    settings = {name: value for name, value in arguments.items() if name not in {"chat_template_kwargs", *makers}}
    numbers: dict[int, int] = {}  # row number to prompt number
    rows, refused = count(), list[Completion]()
    # Most calls ask for settings alone: then `generate` is called for the first prompt, and the others are like it.
    given = {name: arguments[name] for name in shared}
    alone = {*vars(GenerationConfig()), "generation_config", "stop_strings", *shared}
    is_plain = has_plain_generate(model) and settings.keys() <= alone

    def prepare() -> Iterator[tuple[Call, RowSpec]]:
        like: Call | None = None
        for number, (prompt, seed, compiled) in enumerate(requests):
            try:
                ids = encode(prompt, compiled.tokenizer, variables=variables)
                inputs = torch.tensor([ids], dtype=torch.long, device=device_of(model))
                made = {name: make() for name, make in makers.items()}
                if like is None:
                    asked = {**settings, **made, "attention_mask": torch.ones_like(inputs)}
                    call = prepare_call(model, inputs, asked, bans=compiled)
                else:
                    call = like.again(inputs, max_new_tokens=like.config.max_new_tokens, settings={}, **given, **made)
                spec = prepare_text(call, compiled, policy=terms.policy, seed=seed, shared=shared)
                refuse_at("generate_many", call.requested_states)
            except PromptError as error:
                error = PromptError(f"prompt {number}: {error}")
                refused.append(Completion(number, "", [], Report(), error=error))
            else:
                numbers[next(rows)] = number
                if is_plain and call.config.max_new_tokens and not call.config.min_new_tokens:
                    like = like or call
                yield call, spec

    texts = prepare()
    if first := list(islice(texts, max_rows)):
        specs = share_callbacks(spec for _, spec in chain(first, texts))
        for completion in write(first[0][0], specs, max_rows=len(first), terms=terms):
            yield from refused
            refused.clear()
            yield replace(completion, number=numbers.pop(completion.number))
    yield from refused


def read_requests(
    prompts: Iterable[PromptInput],
    own: CompiledBans,
    *,
    bans: Iterable[Bans | None] | None,
    batch_size: int,
    seed: int | None,
    seeds: Iterable[int] | None,
) -> Iterator[TextRequest]:
    """Check the arguments of `generate_many` now, and return an iterator that reads the requests one by one.

    own: the sampler's bans, which apply to a text whose own list is None.
    """
    if isinstance(prompts, (str, bytes)):
        raise InputError(f"prompts is {prompts[:40]!r}, one text, and each letter would be a prompt: write [text]")
    if is_chat(prompts):
        raise InputError("prompts is one chat, and each message would be a prompt: write [messages]")
    if isinstance(prompts, Mapping) or not isinstance(prompts, Iterable):
        raise InputError(f"prompts is a {type(prompts).__name__}: pass a list of texts, of ids or of chats")
    if isinstance(bans, (str, Ban, BanList, Mapping)) or not isinstance(bans, Iterable | NoneType):
        raise InputError(
            f"bans is a {type(bans).__name__}: pass a list of bans for each prompt, bans=[list, list, …], or one list "
            "for all texts to AntiSlop"
        )
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise InputError(f"batch_size is {batch_size!r}; a whole number, at least 1, is expected")
    if isinstance(seeds, str) or not isinstance(seeds, Iterable | NoneType):
        raise InputError(f"seeds is {seeds!r}: pass a whole number for each prompt, or a single one as seed")
    if seed is not None and seeds is not None:
        raise InputError("both seed and seeds are given: pass one seed for all prompts, or one for each")
    first = int(torch.randint(2**31, ())) if seed is None and seeds is None else _read_seed(0 if seed is None else seed)
    each = map(partial(seed_of, first), count()) if seeds is None else map(_read_seed, seeds)
    lists = repeat(None) if bans is None else iter(bans)
    compiled: dict[int, tuple[Bans | None, CompiledBans]] = {}  # by id(list); keeping the list keeps its id unique

    def read() -> Iterator[TextRequest]:
        for prompt in prompts:
            values: list[Any] = []
            for name, rest, instead in (("seeds", each, "a single seed"), ("bans", lists, "leave them out")):
                try:
                    values.append(next(rest))
                except StopIteration:
                    advice = f"pass one for each prompt, or {instead}"
                    raise InputError(f"there are fewer {name} than prompts: {advice}") from None
            text_seed, text_bans = values
            if id(text_bans) not in compiled:
                if len(compiled) >= LISTS_KEPT:
                    del compiled[next(iter(compiled))]
                compiled[id(text_bans)] = text_bans, own if text_bans is None else own.with_bans(text_bans)
            yield TextRequest(prompt, text_seed, compiled[id(text_bans)][1])

    return read()


def _read_seed(value: Any) -> int:
    with suppress(TypeError):
        if -(2**63) <= (number := index(value)) < 2**64:  # an int of Python, NumPy or torch, in torch's range
            return number
    raise InputError(f"a seed is {value!r:.60}: pass whole numbers of up to 64 bits, one for each prompt as seeds")


def prepare_text(call: Call, bans: CompiledBans, *, policy: Policy, seed: int, shared: Collection[str] = ()) -> RowSpec:
    """Return the specification of a call's only row, which can share a batch with rows of other calls.

    seed: of the row's own random generator.
    shared: the names among "logits_processor" and "stopping_criteria" whose objects the other calls use, too.
    Raises `InputError` for a call that is not supported, and `PromptError` for a prompt that can't be used.
    """
    lengths = refuse_call(call, bans)
    spec = specify(call, bans, policy=policy, shared=shared)[0]
    refuse_conflicts("generate_many", list_facts(call, spec))
    refuse_lengths(call.model, lengths.tokens, held=lengths.held, new=call.max_new_tokens, in_flight=True)
    return replace(spec, generator=torch.Generator().manual_seed(seed))


def share_callbacks(specs: Iterable[RowSpec]) -> Iterator[RowSpec]:
    """Give all rows the first row's callbacks, if these fit any prompt, and its assistant, to process rows together."""
    shared: BatchCallbacks | None = None
    drafter: Drafter | None = None
    for spec in specs:
        shared = shared or (spec.callbacks if isinstance(spec.callbacks, BatchCallbacks) else None)
        # Drafters of two texts with an assistant differ at most in their prompts, and take the prompt from the row.
        is_alike = type(drafter) is type(spec.drafter) is AssistantDrafter
        drafter = drafter if is_alike else spec.drafter
        callbacks = shared if shared is not None and shared.fits_any_prompt else spec.callbacks
        yield replace(spec, drafter=drafter, callbacks=callbacks)


def write_in_flight(call: Call, specs: Iterable[RowSpec], *, max_rows: int, terms: Terms) -> Iterator[Completion]:
    """Generate texts in this package's own batch (engine="own"); yield each completion when its text is finished."""
    vocabulary = terms.bans.vocabulary
    reports: dict[int, Report] = defaultdict(partial(Report, surfaces=vocabulary))
    with open_engine(call, max_rows=max_rows) as engine:
        for row, events in chain.from_iterable(decode_in_steps(Scheduler(specs, max_rows=max_rows), engine)):
            reports[row.number].extend(events)
            for event in events:
                if isinstance(event, Conceded):
                    terms.warn(event)
                elif isinstance(event, Finished):
                    report = reports.pop(row.number)
                    report.add(Forwarded(0, engine.excess(row)))
                    yield make_completion(call.model, row, report, vocabulary)


class InFlight(Scheduler):
    """A queue of texts for one model: any thread may submit and cancel texts; one thread generates them in a batch.

    max_length: maximum number of tokens of a prompt and its text together.

    The constructor prepares one call of `generate` for all texts; it raises `InputError` if bans and model don't fit.
    """

    def __init__(self, model: PreTrainedModel, bans: CompiledBans, *, max_rows: int, max_length: int) -> None:
        super().__init__(max_rows=max_rows, is_open=True)
        first = torch.tensor([[0]], device=device_of(model))
        asked = {"attention_mask": torch.ones_like(first), "max_new_tokens": max_length - 1}
        self._call = prepare_call(model, first, asked, bans=bans)
        refuse_call(self._call, bans)

    def prepare(self, prompt: Sequence[int], bans: CompiledBans, *, policy: Policy, seed: int, **asked: Any) -> RowSpec:
        """Return the specification of a text for `submit`. Raises `ValueError` for settings that are not supported.

        asked: the keyword arguments of `Call.again`.
        """
        call = self._call.again(torch.tensor([prompt], device=self._call.input_ids.device), **asked)
        return prepare_text(call, bans, policy=policy, seed=seed)

    def steps(self) -> Iterator[dict[int, list[Event | ValueError]]]:
        """Generate until `close` was called and all texts are finished; yield the events after each forward pass.

        A dict maps the number of each text to its events. If a text failed, its error comes before its last event.
        """
        # The batch grows as needed, since a pass over few texts costs less than one over `max_rows` rows.
        with open_engine(self._call, max_rows=1, grows=True) as engine:
            for step in decode_in_steps(self, engine):
                yield _list_by_number(step, engine)


def _list_by_number(step: StepEvents, engine: BatchEngine) -> dict[int, list[Event | ValueError]]:
    # A function, so that `steps` refers to no finished row while it waits for texts; `decode_in_steps` keeps the list.
    happened: dict[int, list[Event | ValueError]] = defaultdict(list)
    for row, events in step:
        for event in events:
            if isinstance(event, Finished):
                happened[row.number].append(Forwarded(0, engine.excess(row)))
                if event.reason == "failed":
                    happened[row.number].append(describe_failure(row))
            happened[row.number].append(event)
    step.clear()
    return happened


@contextmanager
def open_engine(call: Call, *, max_rows: int, grows: bool = False) -> Iterator[BatchEngine]:
    """Yield an engine with an empty cache of `max_rows` rows, for texts with the model and settings of the call.

    grows: whether the cache gets another row for each text beyond `max_rows`.

    Raises `InputError` for a model whose rows can't be replaced.
    """
    if call.model.config.is_encoder_decoder:
        raise InputError("encoder-decoder models can't take new prompts in flight: call generate for each prompt")
    language_model, _ = split_arguments(call, rows=1)
    try:
        cache, part = language_model.new_cache(max_rows), call.config.prefill_chunk_size or PART
        yield BatchEngine(language_model, cache, filler=call.pad or 0, grows=grows, part=part)
    finally:
        language_model.leave_decode_mode()


def make_completion(model: PreTrainedModel, row: Row, report: Report, vocabulary: Vocabulary) -> Completion:
    warn_if_too_long(model, len(row.tokens) + row.prompt_length)
    text = vocabulary.decode(row.tokens, after=row.ids_up_to(0)[0].tolist())
    error = describe_failure(row) if report.reason == "failed" else None
    return Completion(row.number, text, row.tokens, report, error=error)


def describe_failure(row: Row) -> ValueError:
    if isinstance(row.fault, InputError):
        return row.fault
    if row.fault is not None:
        whose = "a processor, a criterion or the search for bans"
        error = ValueError(f"{whose} failed after {describe_count(len(row.tokens), 'token')}: {row.fault!r}")
        error.__cause__ = row.fault
        return error
    table = find_dense(row.node)
    broken = 0 if table is None else int((~table.logits.isfinite()).sum())
    of_whom = (
        f"{broken:,} of the model's {table.logits.numel():,} logits are" if table and broken else "the scores are all"
    )
    return ValueError(
        f"no token could be drawn after {describe_count(len(row.tokens), 'token')}, since {of_whom} NaN or infinite: "
        "leave the prompt out, load the model in another dtype, or change its logits processors"
    )

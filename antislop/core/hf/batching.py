"""In-flight batching: the row of a finished text is taken by the next prompt, while the others continue."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import chain, count, islice, repeat
from operator import index
from types import NoneType
from typing import Any, NamedTuple, TypeAlias, TypeVar

import torch
from transformers import PreTrainedModel

from antislop.core.bans.ban_list import BanList, Bans
from antislop.core.bans.bans import Ban
from antislop.core.hf.calls import Call, PromptInput
from antislop.core.hf.compiled_bans import CompiledBans
from antislop.core.hf.preparation import share_callbacks, split_arguments
from antislop.core.hf.refusals import PromptError, warn_if_too_long
from antislop.core.hf.vocabulary import Vocabulary
from antislop.core.loop.engine import PART, BatchEngine
from antislop.core.loop.row import Row, RowSpec
from antislop.core.loop.sampling import seed_of
from antislop.core.loop.scheduler import Scheduler
from antislop.core.loop.step import StepEvents, decode_in_steps
from antislop.core.loop.tables import find_dense
from antislop.core.trace.events import Completion, Conceded, Event, Finished, Forwarded, Report
from antislop.display import describe_count
from antislop.errors import InputError
from antislop.files.chats import is_chat

LISTS_KEPT = 64
"""Maximum number of compiled lists that are kept for later texts."""

T = TypeVar("T")
Value = TypeVar("Value")
WriteTexts: TypeAlias = Callable[..., Iterator[Completion]]
"""Writes texts whose calls share the first one's model and settings; yields completions with the texts' numbers."""


class TextRequest(NamedTuple):
    """A text that `generate_many` is asked for: its prompt, the seed of its random numbers, and its bans."""

    prompt: PromptInput
    seed: int
    bans: CompiledBans


def read_requests(
    prompts: Iterable[PromptInput],
    own: CompiledBans,
    *,
    bans: Iterable[Bans | None] | None,
    batch_size: int,
    seed: int | None,
    seeds: Iterable[int] | None,
) -> Iterator[TextRequest]:
    """Check the arguments of `generate_many` at once, and return what it is asked for, read text by text.

    own: the bans of a text whose list is None.
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
    compiled: dict[int, tuple[Bans | None, CompiledBans]] = {}  # by the id of a list, which is its own while it is kept

    def compile_once(text_bans: Bans | None) -> CompiledBans:
        if id(text_bans) not in compiled:
            if len(compiled) >= LISTS_KEPT:
                del compiled[next(iter(compiled))]
            compiled[id(text_bans)] = text_bans, own if text_bans is None else own.with_bans(text_bans)
        return compiled[id(text_bans)][1]

    texts = pair(pair(prompts, each, name="seeds"), repeat(None) if bans is None else bans, name="bans")
    return (TextRequest(prompt, text_seed, compile_once(text_bans)) for (prompt, text_seed), text_bans in texts)


def pair(prompts: Iterable[T], values: Iterable[Value], *, name: str) -> Iterator[tuple[T, Value]]:
    """Yield each prompt with its value, which is read after it. Raises `InputError` if values are missing."""
    rest = iter(values)
    for prompt in prompts:
        try:
            value = next(rest)
        except StopIteration:
            instead = "a single seed" if name == "seeds" else "leave them out"
            raise InputError(f"there are fewer {name} than prompts: pass one for each prompt, or {instead}") from None
        yield prompt, value


def _read_seed(value: Any) -> int:
    with suppress(TypeError):
        if -(2**63) <= (number := index(value)) < 2**64:  # of Python, NumPy or torch, which takes no others
            return number
    raise InputError(f"a seed is {value!r:.60}: pass whole numbers of up to 64 bits, one for each prompt as seeds")


def complete_in_flight(
    texts: Iterable[tuple[Call, RowSpec] | PromptError],
    *,
    max_rows: int,
    vocabulary: Vocabulary,
    warn: Callable[[Conceded], None],
    write: WriteTexts,
) -> Iterator[Completion]:
    """Write texts in a batch of up to `max_rows` rows, and yield each when it is finished.

    texts: from calls with the same model and settings; the error of a prompt becomes its completion's.
    """
    refused: list[Completion] = []
    numbers: dict[int, int] = {}  # of row number: its prompt's number
    rows = count()

    def read() -> Iterator[tuple[Call, RowSpec]]:
        for number, text in enumerate(texts):
            if isinstance(text, PromptError):
                refused.append(Completion(number, "", [], Report(), error=text))
            else:
                numbers[next(rows)] = number
                yield text

    others = read()
    if first := list(islice(others, max_rows)):
        specs = share_callbacks(spec for _, spec in chain(first, others))
        for completion in write(first[0][0], specs, max_rows=len(first), vocabulary=vocabulary, warn=warn):
            yield from refused
            refused.clear()
            yield replace(completion, number=numbers.pop(completion.number))
    yield from refused


def write_in_flight(
    call: Call, specs: Iterable[RowSpec], *, max_rows: int, vocabulary: Vocabulary, warn: Callable[[Conceded], None]
) -> Iterator[Completion]:
    """Write texts in batches of this package."""
    reports: dict[int, Report] = defaultdict(partial(Report, surfaces=vocabulary))
    with open_engine(call, max_rows=max_rows) as engine:
        for row, events in chain.from_iterable(decode_in_steps(Scheduler(specs, max_rows=max_rows), engine)):
            reports[row.number].extend(events)
            for event in events:
                if isinstance(event, Conceded):
                    warn(event)
                elif isinstance(event, Finished):
                    report = reports.pop(row.number)
                    report.add(Forwarded(0, engine.excess(row)))
                    yield make_completion(call.model, row, report, vocabulary)


class InFlight(Scheduler):
    """Texts of calls like this one: any thread may submit and cancel them, and one thread writes them in a batch."""

    def __init__(self, call: Call, *, max_rows: int) -> None:
        super().__init__(max_rows=max_rows, is_open=True)
        self._call = call

    def steps(self) -> Iterator[dict[int, list[Event | ValueError]]]:
        """Write until `close` was called and all texts are finished; yield what happened after each forward pass.

        It is listed by the number of its text. The reason why a text failed comes before its end.
        """
        # A batch that grows: a pass over few texts then costs less than one over `max_rows`.
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
    """Yield an engine with an empty cache of `max_rows` rows for calls like this one.

    grows: whether the cache grows by a row for each text beyond `max_rows`.

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

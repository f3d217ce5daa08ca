"""One call of `generate`, ready to begin: rows, engine and loop, and what comes out in the end."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor
from transformers import GenerationMixin
from transformers.cache_utils import Cache
from transformers.generation import GenerateDecoderOnlyOutput, GenerateEncoderDecoderOutput
from transformers.generation.streamers import BaseStreamer

from antislop.core.hf.caches.cache import TransformersCache
from antislop.core.hf.calls import Call
from antislop.core.hf.compiled_bans import CompiledBans
from antislop.core.hf.model import TransformersModel
from antislop.core.hf.private import CACHE, belongs_to_caller
from antislop.core.hf.refusals import PromptLengths, warn_if_too_long
from antislop.core.loop.engine import BatchEngine
from antislop.core.loop.row import Row
from antislop.core.loop.scheduler import Scheduler
from antislop.core.loop.step import decode_in_steps
from antislop.core.trace.events import Conceded, Drawn, Event, Finished, Forked, Forwarded, Report, Settled
from antislop.core.trace.trace import Recording, Trace, TracedRow
from antislop.display import shorten
from antislop.errors import CapabilityError, ConcededWarning, InputError


@dataclass(repr=False)
class _Reported:
    report: Report = None  # type: ignore[assignment]  # fields of an output have None as their default
    reports: list[Report] = None  # type: ignore[assignment]
    trace: Trace | Any = None  # typed so that nobody has to rule out None, which comes with record="none" only
    texts: list[str] = None  # type: ignore[assignment]

    @property
    def text(self) -> str:
        """The text after the prompt if there is one only. Raises `InputError` for several."""
        if len(self.texts) != 1:
            raise InputError(f"the output has {len(self.texts)} texts, and text is for a single one: use texts")
        return self.texts[0]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} with {', '.join(self.keys())}: {shorten(repr(self.texts), 60)}>"  # type: ignore[attr-defined]

    def _repr_html_(self) -> str:
        """Return the texts with their withdrawn parts if they were recorded, else the report."""
        return self.report._repr_html_() if self.trace is None else self.trace._repr_html_()


@dataclass(repr=False)
class DecoderOnlyOutput(_Reported, GenerateDecoderOnlyOutput):  # type: ignore[misc]  # mypy does not read its base
    """`generate`'s output of decoder-only models, with four more fields.

    report: counts of all rows together.
    reports: one for each row.
    trace: all that happened; None with record="none".
    texts: for each row, what follows the prompt, without special tokens. `text` is the only one of them.
    """


@dataclass(repr=False)
class EncoderDecoderOutput(_Reported, GenerateEncoderDecoderOutput):  # type: ignore[misc]
    """`generate`'s output of encoder-decoder models, with the four fields more that `DecoderOnlyOutput` has."""


ReportedOutput: TypeAlias = DecoderOnlyOutput | EncoderDecoderOutput
"""What `generate` returns with return_dict_in_generate."""
CallOutput: TypeAlias = Tensor | ReportedOutput
"""What `generate` returns: ids [rows, tokens], or more with return_dict_in_generate."""


class EventStream(Iterator[Event]):
    """The events of one text, as they happen."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._events = run.events()

    def __next__(self) -> Event:
        return next(self._events)

    def close(self) -> None:
        """End the text here."""
        self._events.close()

    @property
    def trace(self) -> Trace | None:
        """What has happened so far; None with record="none"."""
        return self._run.trace


@dataclass
class Run:
    call: Call
    language_model: TransformersModel
    cache: TransformersCache
    rows: list[Row]
    prompts: PromptLengths
    bans: CompiledBans
    warn: Callable[[Conceded], None]
    recording: Recording
    describe: Callable[[], Mapping[str, Any]]  # returns the facts of the call, for its trace

    def __post_init__(self) -> None:
        self._past: Cache | None = None  # the cache that is returned with the sequences
        self._reports = [Report(surfaces=self.bans.vocabulary) for _ in self.rows]
        self._excess: dict[int, int] = {}  # by row, the tokens in the cache that were withdrawn
        self._pad = self.call.pad or 0
        self.engine = BatchEngine(self.language_model, self.cache, filler=self._pad)

    def events(self) -> Generator[Event, None, None]:
        """Yield what happens to the only row; events after its last token are in `trace` only."""
        if len(self.rows) > 1:
            raise InputError(
                f"one text can be streamed at a time, not {len(self.rows)}: pass one prompt and num_return_sequences=1"
            )
        with self._borrowed_model(), closing(self._decode()) as steps:
            for row, events in steps:
                for event in events:
                    self._note(row, [event])
                    _refuse_fork(event)
                    yield event
            self._finish()

    def complete(self, streamer: BaseStreamer | None = None) -> CallOutput:
        """Run to the end."""
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
        return self._output() if config.return_dict_in_generate else self._sequences()

    @property
    def trace(self) -> Trace | None:
        if self.recording.level == "none":
            return None
        mask = self.call.mask
        masks: list[tuple[int, ...] | None] = [None] * len(self.rows)  # without padding, or if it is for other inputs
        if mask is not None and mask.ndim == 2 and mask.shape[1] == self.rows[0].prompt_length and not mask.all():
            lists = [tuple(int(value) for value in values) for values in mask.tolist()]
            masks = [lists[min(row.root, len(lists) - 1)] for row in self.rows]
        rows = tuple(
            TracedRow(tuple(row.ids_up_to(0)[0].tolist()), tuple(report.events), mask)
            for row, report, mask in zip(self.rows, self._reports, masks, strict=True)
        )
        return Trace(rows, self.bans.bans, self.bans.vocabulary, self.describe)

    def _finish(self) -> None:
        """Feed the rest of a text, but its last token, to a cache that the caller will see; count tokens cut."""
        is_seen = belongs_to_caller(self.cache.cache) or self.call.config.return_dict_in_generate
        if len(self.rows) > 1:
            for row in self.rows:
                self._note(row, [Forwarded(0, self._excess[row.number])])
        elif is_seen:
            fed, cut = self.engine.finish(self.rows[0])
            if fed or cut:
                self._note(self.rows[0], [Forwarded(fed, cut)])

    def _decode(self) -> Generator[tuple[Row, list[Event]], None, None]:
        for step in decode_in_steps(Scheduler(rows=self.rows), self.engine):
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
                self.warn(event)
            elif isinstance(event, Finished):
                self._excess[row.number] = self.engine.excess(row)  # another text may take its place
                warn_if_too_long(self.call.model, self.prompts.tokens[row.root] + len(row.tokens))
        self._reports[row.number].extend(events, keep=self.recording.level != "none")

    def _sequences(self) -> Tensor:
        longest = max(len(row.tokens) for row in self.rows)
        ids = self.rows[0].ids
        sequences = ids.new_full((len(self.rows), self.rows[0].prompt_length + longest), self._pad)
        for sequence, row in zip(sequences, self.rows, strict=True):
            sequence[: row.ids.shape[1]] = row.ids[0]
        return sequences

    def _output(self) -> ReportedOutput:
        model, config = self.call.model, self.call.config
        fields: dict[str, Any] = {
            "sequences": self._sequences(),
            "scores": self._steps(1) if config.output_scores else None,
            "logits": self._steps(0) if config.output_logits else None,
            CACHE: self._past,
        }
        if type(model).generate is not GenerationMixin.generate:
            # Its own `generate` may expect a tensor in every field; see `with_reports`.
            is_encoder_decoder = model.config.is_encoder_decoder
            plain: Any = GenerateEncoderDecoderOutput if is_encoder_decoder else GenerateDecoderOnlyOutput
            return cast(ReportedOutput, plain(**fields))
        return self._report(fields)

    def with_reports(self, output: CallOutput) -> CallOutput:
        """Add reports to what `complete` returned without them, for a model with a `generate` of its own."""
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
        """Give the model and the caller's cache back afterwards.

        The cache then holds the texts; after an error, or if rows differ in length, what it held before.
        """
        is_complete = False
        try:
            yield
            is_complete = True
        finally:
            self.language_model.leave_decode_mode()
            if self.cache.give_back(is_whole=is_complete):
                self._past = self.cache.cache

    def _steps(self, index: int) -> tuple[Tensor, ...]:
        """Return logits (0) or scores (1) of each step, [rows, vocab].

        After a row's end they belong to the pad tokens that the row is fed, as in `generate`; 0 if a row was cut.
        """
        kept = [[step[index] for step in row.kept or []] for row in self.rows]
        empty = next((torch.zeros_like(step) for own in kept for step in own), None)  # None if no text has a token
        steps = max(map(len, kept))
        for row, own in zip(self.rows, kept, strict=True):
            is_other = self.engine.is_ragged or row.follower is not None or self._excess.get(row.number)
            for logits in () if is_other else row.after_end[: steps - len(own)]:
                own.append(row.spec.callbacks.process([row], [len(own)], logits) if index else logits)
            own += [] if empty is None else [empty] * (steps - len(own))
        return tuple(map(torch.cat, zip(*kept, strict=True)))


_USUAL = {Forwarded, Drawn, Settled}  # what happens in most steps of most rows


def _refuse_fork(event: Event) -> None:
    if isinstance(event, Forked):
        raise CapabilityError("the controller forks the text, and one text can be streamed at a time: use generate")


class ConcessionWarner:
    """Warns of the first concession that it is called with, in the line of the code that called the library."""

    def __init__(self) -> None:
        self._has_warned = False

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()  # copies warn again: they may be in another process

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

"""Judge the texts of requests to transformers' continuous batching.

Its scheduler, cache and forward passes stay as they are. Between a batch and the next one, each request with bans has
its token judged as in `generate`: most stay. A text that is rewound draws again from the stored probabilities, without
a forward pass, and its request reads on from there. Continuous batching draws the tokens, but for those of
`generate_many`: its texts draw themselves, by their own processors and random numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from math import ceil
from typing import Any

import torch
from torch import Tensor
from transformers import ContinuousBatchingConfig, PreTrainedModel
from transformers.generation.continuous_batching import ContinuousBatchingManager

from antislop.core.hf.calls import Call
from antislop.core.hf.compiled_bans import Terms
from antislop.core.hf.generation import list_facts, refuse_model
from antislop.core.hf.many import make_completion
from antislop.core.hf.paged import private
from antislop.core.hf.private import cache_name
from antislop.core.hf.refusals import PromptError, refuse_conflicts
from antislop.core.loop.drawing import LogitsDrawing, draw_together, take_drawn
from antislop.core.loop.engine import PART
from antislop.core.loop.protocols import count_shared
from antislop.core.loop.row import Callbacks, Row, RowSpec
from antislop.core.loop.step import advance_together, go_on
from antislop.core.loop.tables import Draws
from antislop.core.loop.writing import begin
from antislop.core.trace.events import Completion, Conceded, Event, Forwarded, Report
from antislop.errors import InputError

KEY = "antislop"
"""The argument of `add_request` by which a text travels with its request."""
ONE_TOKEN = Forwarded(1, 0)  # the usual event, which texts can share because it is a value


class RequestText:
    """The text of a request.

    row: None before the first token of a text that its request decides about.
    error: the exception by which the text ended, if one did.
    """

    def __init__(self, row: Row | None = None) -> None:
        self.row = row
        self.is_streamed = False
        self.error: Exception | None = None

    def __deepcopy__(self, memo: Mapping[int, Any]) -> RequestText:
        return self  # transformers copies a request that it begins anew; the copy continues this text

    def begin(self, state: Any, processors: Any, *, do_sample: bool) -> Row:  # noqa: ARG002
        """Begin the text when the first token is drawn, or return what was begun."""
        assert self.row is not None, "it was made with the text"
        private.join_restart(state)
        return self.row

    def count(self, fed: int) -> None:
        """Take that the model has read tokens of the text."""

    def take(self, events: Sequence[Event]) -> None:
        """Take what happened to the text."""


class AppliedText(RequestText):
    """The text of a request that was added inside `applied_to`, under the terms of its sampler."""

    def __init__(self, terms: Terms) -> None:
        super().__init__()
        self.terms = terms

    def __deepcopy__(self, memo: Mapping[int, Any]) -> RequestText:
        # transformers copies the request for each sequence of a prompt, before its first token: a text for each.
        return AppliedText(self.terms) if self.row is None else self

    def begin(self, state: Any, processors: Any, *, do_sample: bool) -> Row:
        private.join_restart(state)
        if self.row is None:
            spec = self.terms.bans.make_row(
                state.initial_tokens,
                policy=replace(self.terms.policy, do_sample=do_sample),
                callbacks=RequestCallbacks(state, processors),
                max_new_tokens=private.NO_LIMIT if state.max_new_tokens is None else state.max_new_tokens,
            )
            self.row = Row(spec)
            begin([self.row], lambda _: LogitsDrawing())
            self.is_streamed, state.streaming = state.streaming, False
        return self.row

    def take(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Conceded):
                self.terms.warn(event)


class RequestCallbacks(Callbacks):
    """When the text of a request ends, and what the engine's processors make of its logits."""

    def __init__(self, state: Any, processors: Any) -> None:
        self.eos_token_ids = private.end_tokens_of(state)
        self._prompt = state.initial_tokens
        self._processors = processors
        self._arguments = {name: value for name, value in state.logit_processor_kwargs.items() if name != KEY}

    def process(self, rows: Sequence[Row], lengths: Sequence[int], logits: Tensor) -> Tensor:
        tokens = self._prompt + rows[0].tokens[: lengths[0]]
        return private.process(self._processors, self._arguments, tokens, logits)

    def is_done(self, row: Row) -> bool:
        return row.tokens[-1] in self.eos_token_ids or len(row.tokens) >= row.max_new_tokens


class BatchJudge:
    """Judges the batches of one manager.

    choose: returns the terms for a request that is added now; None if the request is written without bans.
    """

    def __init__(self, manager: Any) -> None:
        self.choose: Callable[[], Terms | None] = lambda: None
        self._manager = manager
        self.add: Callable[..., Any] = manager.add_request  # of the manager itself, for any request
        keeps = {"first": partial(self._keep, "_logits"), "last": partial(self._keep, "_scores")}
        self._processors = private.add_processors(manager, **keeps)
        self._logits = self._scores = torch.empty(0)  # of the latest batch, [requests, vocab]
        self._draws: list[Draws] = []  # with rows that a rewind may still need
        self._latest: list[Row] = []
        private.allow_argument(manager, KEY, RequestText)
        private.follow_batches(manager, self._prepare)
        manager.add_request = self.add_request

    def add_request(self, *args: Any, **kwargs: Any) -> Any:
        """Add a request as the manager does; its text is written under the sampler of this call's thread."""
        terms = self.choose()
        if terms is None:
            return self.add(*args, **kwargs)
        self.check(terms)
        return self.add(*args, **kwargs, **{KEY: AppliedText(terms)})

    def check(self, terms: Terms) -> None:
        """Raise `InputError` if the manager's texts can't be written under a sampler's terms."""
        processors = self._processors.logits_processor
        refuse_model(self._manager.model, self._manager.generation_config, processors, terms.bans)

    def _keep(self, name: str, _: Tensor, values: Tensor) -> Tensor:
        setattr(self, name, values)
        return values

    def _prepare(self, processor: Any) -> None:
        if private.judge_batches(processor, partial(self._judge, processor)):
            private.share_settled_blocks(processor, _count_settled)

    @torch.no_grad()
    def _judge(self, processor: Any, requests: list[Any], tokens: list[int]) -> tuple[list[Any], list[int]]:
        """Judge the tokens of a batch; return the requests that the processor is to update, and their tokens."""
        drawn: list[Any] = []
        texts: dict[int, RequestText] = {}  # by place among those that have drawn
        for request in requests:
            text: RequestText | None = private.argument_of(request.state, KEY)
            if text is not None:
                text.count(request.query_length)
            if request.has_new_token:
                if text is not None:
                    texts[len(drawn)] = text
                drawn.append(request)
        if not texts:
            return requests, tokens
        rows = [
            text.begin(drawn[place].state, self._processors, do_sample=processor.do_sample)
            for place, text in texts.items()
        ]
        for row in {*self._latest}.difference(rows):
            row.node  # noqa: B018 - it takes its probabilities from the batch while their places there are known
        for row in rows:
            row.unchanged = len(row.tokens)
        places = slice(len(drawn)) if len(texts) == len(drawn) else torch.tensor([*texts], device=self._logits.device)
        logits = self._logits[places]
        scores = logits if self._scores is self._logits else self._scores[places]
        if rows[0].has_own_generator:  # all of a manager have, or none
            draws = draw_together(rows, logits, places=range(len(rows)), batch=len(rows), dtype=processor.model_dtype)
        else:
            draws = take_drawn(rows, [tokens[place] for place in texts], logits, scores, dtype=processor.model_dtype)
        judged: list[int | None] = list(tokens[: len(drawn)])
        for number, (place, text) in enumerate(texts.items()):
            judged[place] = _add_draw(processor, drawn[place].state, text, draws, number)
        self._draws = [each for each in self._draws if each.batch.trim()] + [draws]
        self._latest = [row for row in rows if not row.is_finished]
        if None not in judged:
            return requests, judged  # type: ignore[return-value]
        handled = {id(request) for request, token in zip(drawn, judged, strict=True) if token is None}
        return [each for each in requests if id(each) not in handled], [each for each in judged if each is not None]


def _add_draw(processor: Any, state: Any, text: RequestText, draws: Draws, number: int) -> int | None:
    """Add a drawn token to a text; return the one that its request gets instead, None if it was rewound or failed."""
    row = text.row
    assert row is not None, "a token was drawn"
    settled, length = row.settled, len(row.tokens)
    try:
        go_on(row, partial(row.drawing.take, row, draws, number))
        if row.is_lockstep:
            go_on(row, partial(advance_together, [row]))
        is_rewound = row.is_finished or row.unchanged < length or len(row.tokens) > length + 1
        kept = length
        if is_rewound:  # the tokens drawn instead may be those that the cache already has
            kept = count_shared(state.generated_tokens, row.tokens[:-1], start=settled)
        if row.is_finished:
            row.events.append(Forwarded(0, length - kept))
        text.take(row.release())
    except Exception as error:  # noqa: BLE001 - one text ends with its error, the others continue
        row.is_finished, text.error = True, error
        private.fail(processor, state, error)
        return None
    if row.is_finished:
        return private.finish(state, row.tokens, kept=kept)
    if text.is_streamed and row.settled > settled:
        private.tell(processor, state, row.tokens[: row.settled])
    if kept < length or len(row.tokens) > length + 1:
        cut = private.rewind(processor, state, row.tokens, kept=kept)
        row.events.append(Forwarded(0, cut))
        return None
    return row.tokens[-1]


def _count_settled(state: Any) -> int | None:
    """Return how many tokens of a request stay in its cache, with its prompt; None without bans."""
    text: RequestText | None = private.argument_of(state, KEY)
    if text is None or text.row is None:
        return None  # it is reading its prompt
    row = text.row
    return row.prompt_length + min(row.settled, row.unchanged)


def init_judged(
    model: PreTrainedModel, choose: Callable[[], Terms | None], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Call `init_continuous_batching` for a model; requests are written under what `choose` returns then.

    Raises `InputError` for what can't be judged, and for a release of transformers that was not tested.
    """
    private.check_release()

    def make(twin: PreTrainedModel) -> Any:
        manager = type(twin).init_continuous_batching(twin, *args, **kwargs)
        if "stop" not in vars(manager):  # else an earlier call has kept it
            private.keep_twin(manager, model, twin)
        return manager

    manager = private.make_manager(model, make)
    judge: BatchJudge = getattr(vars(manager).get("add_request"), "__self__", None) or BatchJudge(manager)
    judge.choose = choose
    if (terms := choose()) is not None:
        judge.check(terms)
    return manager


class ManyText(RequestText):
    """A text of `generate_many`, which keeps a report. completion: once it has ended without an error."""

    def __init__(self, row: Row, report: Report, complete: Callable[[Row, Report], Completion]) -> None:
        super().__init__(row)
        begin([row], lambda _: LogitsDrawing())
        self._row, self._report, self._complete = row, report, complete
        self.completion: Completion | None = None

    def count(self, fed: int) -> None:
        self._row.events.append(ONE_TOKEN if fed == 1 else Forwarded(fed, 0))

    def take(self, events: Sequence[Event]) -> None:
        self._report.extend(events)
        if self._row.is_finished:
            self.completion = self._complete(self._row, self._report)


def write_paged(
    call: Call,
    specs: Iterable[RowSpec],
    *,
    max_rows: int,
    terms: Terms,
    config: ContinuousBatchingConfig | None,
) -> Iterator[Completion]:
    """Write texts in the continuous batching of transformers, up to `max_rows` at a time by default.

    As many wait for their turn, so twice as many prompts are read ahead. A text that its cache can't hold has an error.
    """
    if not isinstance(config, ContinuousBatchingConfig | None):
        raise InputError(f"continuous_batching_config is {config!r:.60}; a ContinuousBatchingConfig is expected")
    specs = iter(specs)
    ahead = list(islice(specs, 2 * max_rows))
    _refuse_call(call, ahead[0])
    private.check_release()
    config = _fill(config or ContinuousBatchingConfig(), call, ahead, max_rows)
    # Not `init_continuous_batching`: it may return the manager of an earlier call, or that of `applied_to`.
    manager = private.make_manager(
        call.model, lambda twin: ContinuousBatchingManager(twin, private.ENDLESS, config), has_cache=True
    )
    judge = BatchJudge(manager)
    manager.start()
    room = manager.continuous_batching_config.num_blocks * config.page_size
    vocabulary = terms.bans.vocabulary
    complete = partial(make_completion, call.model, vocabulary=vocabulary)
    writing: dict[str, ManyText] = {}
    try:
        for number, spec in enumerate(chain(ahead, specs)):
            if (length := _measure(spec)) > room:
                sentence = (
                    f"a text of up to {length:,} tokens, its prompt included, does not fit into a cache of {room:,}"
                )
                error = PromptError(f"{sentence}: ask for fewer new tokens, or set num_blocks in its configuration")
                yield Completion(number, "", [], Report(), error=error)
                continue
            text = ManyText(Row(spec, number=number), Report(surfaces=vocabulary), complete)
            writing[judge.add(spec.prompt[0].tolist(), **{KEY: text})] = text
            if len(writing) == 2 * max_rows:
                yield _await(manager, writing, terms.warn)
        while writing:
            yield _await(manager, writing, terms.warn)
    finally:
        manager.stop(hard_stop=True)


def _await(manager: Any, writing: dict[str, ManyText], warn: Callable[[Conceded], None]) -> Completion:
    """Return the next text that has ended. Raises its error, or that of the manager."""
    while (output := manager.get_result(timeout=1)) is None and manager.is_running():
        pass
    text = None if output is None else writing.pop(output.request_id)
    if text is None or text.completion is None:
        raise (text and text.error) or private.error_of(manager)
    for event in text.completion.report.events:
        if isinstance(event, Conceded):
            warn(event)  # here, in the thread of the caller, whose line the warning is about
    return text.completion


def _measure(spec: RowSpec) -> int:
    """Return how many tokens of a text may be in a cache."""
    return spec.prompt.shape[1] + spec.max_new_tokens - 1


def _fill(
    config: ContinuousBatchingConfig, call: Call, specs: Sequence[RowSpec], max_rows: int
) -> ContinuousBatchingConfig:
    """Fill in what a configuration leaves open, but what transformers knows better: how much memory a GPU has left."""
    longest = max(map(_measure, specs))
    open_settings = {
        "max_requests_per_batch": max_rows,
        "max_batch_tokens": max(PART, max_rows),
        "use_async_batching": False,
        "use_cuda_graph": False,
    }
    if call.model.device.type == "cpu":  # else transformers would take 60 % of the memory for its cache
        open_settings["num_blocks"] = max_rows * ceil(longest / config.page_size) + 1
    return replace(config, **{name: value for name, value in open_settings.items() if getattr(config, name) is None})


def _refuse_call(call: Call, spec: RowSpec) -> None:
    """Refuse what `generate_many` does, and continuous batching can't do or would not do as it was asked."""
    known = {"attention_mask", "position_ids", "use_cache", "logits_to_keep", cache_name(call.model), "encoder_outputs"}
    given = {name for name, value in call.model_kwargs.items() if isinstance(value, Tensor) or value}
    facts = list_facts(call, spec) | ({"inputs"} if given - known else set())
    refuse_conflicts("paged", facts, model=type(call.model).__name__, names=", ".join(sorted(given - known)))

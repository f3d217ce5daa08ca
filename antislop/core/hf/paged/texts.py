"""Search the texts of transformers' continuous batching for bans, and rewind them.

The scheduler, cache and forward passes of transformers stay as they are. After each batch, the drawn token of each
request with bans is judged as in `generate`; most tokens stay. If a text is rewound, other tokens are drawn from its
stored probabilities, without a forward pass, and its request continues from there. Continuous batching draws the
tokens, except in `generate_many`, where this package draws them with each text's own processors and random numbers.
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
from antislop.core.hf.refusals import PromptError, refusal, refuse_conflicts
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
"""The keyword argument of `add_request` that attaches a `RequestText` to a request."""
ONE_TOKEN = Forwarded(1, 0)  # the most frequent event; being immutable, it can be shared by all texts


class RequestText:
    """The text that one request generates under bans.

    row: the state of the text; None before the first token of an `AppliedText`.
    error: the exception that ended the text; None if there was none.
    """

    def __init__(self, row: Row | None = None) -> None:
        self.row = row
        self.is_streamed = False
        self.error: Exception | None = None

    def __deepcopy__(self, memo: Mapping[int, Any]) -> RequestText:
        return self  # transformers copies a request that it restarts; the copy continues the same text

    def begin(self, state: Any, processors: Any, *, do_sample: bool) -> Row:  # noqa: ARG002
        """Return the row of the text, for which a token was drawn; at the first token, make the row if needed."""
        assert self.row is not None, "it was made with the text"
        private.join_restart(state)
        return self.row

    def count(self, fed: int) -> None:
        """Record that the model has read `fed` more tokens of the text."""

    def take(self, events: Sequence[Event]) -> None:
        """Record events of the text."""


class AppliedText(RequestText):
    """The text of a request that was added inside `applied_to`; the sampler's terms apply to it."""

    def __init__(self, terms: Terms) -> None:
        super().__init__()
        self.terms = terms

    def __deepcopy__(self, memo: Mapping[int, Any]) -> RequestText:
        # Before the first token, transformers copies a request for each sequence of its prompt: each gets a new text.
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
    """The callbacks of a request's text: the manager's logits processors, and the request's end tokens and limit."""

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
    """Judge the tokens of each batch of one manager.

    choose: a function that returns the terms for a request that is being added; None for a request without bans.
    """

    def __init__(self, manager: Any) -> None:
        self.choose: Callable[[], Terms | None] = lambda: None
        self._manager = manager
        self.add: Callable[..., Any] = manager.add_request  # the manager's original method
        keeps = {"first": partial(self._keep, "_logits"), "last": partial(self._keep, "_scores")}
        self._processors = private.add_processors(manager, **keeps)
        self._logits = self._scores = torch.empty(0)  # those of the latest batch, [requests, vocab]
        self._draws: list[Draws] = []  # draws of earlier batches whose probabilities a rewind may still need
        self._latest: list[Row] = []
        private.allow_argument(manager, KEY, RequestText)
        private.follow_batches(manager, self._prepare)
        manager.add_request = self.add_request

    def add_request(self, *args: Any, **kwargs: Any) -> Any:
        """Add a request as the manager does; the sampler active in the calling thread applies to its text."""
        terms = self.choose()
        if terms is None:
            return self.add(*args, **kwargs)
        self.check(terms)
        return self.add(*args, **kwargs, **{KEY: AppliedText(terms)})

    def check(self, terms: Terms) -> None:
        """Raise `InputError` if a sampler's bans can't be used with the manager's model or settings."""
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
        """Judge the tokens of a batch; return the requests that the processor is to update, and their new tokens."""
        drawn: list[Any] = []
        texts: dict[int, RequestText] = {}  # by index in `drawn`, the requests that have drawn a token
        for request in requests:
            text: RequestText | None = request.state.logit_processor_kwargs.get(KEY)
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
            row.node  # noqa: B018 - reading it stores the row's probabilities while their place in the batch is known
        for row in rows:
            row.unchanged = len(row.tokens)
        places = slice(len(drawn)) if len(texts) == len(drawn) else torch.tensor([*texts], device=self._logits.device)
        logits = self._logits[places]
        scores = logits if self._scores is self._logits else self._scores[places]
        if rows[0].has_own_generator:  # either all texts of a manager have one, or none
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
    """Add a drawn token to a text; return the token for its request, None if the text was rewound or has failed."""
    row = text.row
    assert row is not None, "a token was drawn"
    settled, length = row.settled, len(row.tokens)
    try:
        go_on(row, partial(row.drawing.take, row, draws, number))
        if row.is_lockstep:
            go_on(row, partial(advance_together, [row]))
        is_rewound = row.is_finished or row.unchanged < length or len(row.tokens) > length + 1
        kept = length
        if is_rewound:  # the tokens drawn again may equal those that the cache already has
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
    """Return how many tokens of a request, its prompt included, no rewind removes from its cache; None without bans."""
    text: RequestText | None = state.logit_processor_kwargs.get(KEY)
    if text is None or text.row is None:
        return None  # the request is still reading its prompt
    row = text.row
    return row.prompt_length + min(row.settled, row.unchanged)


def init_judged(
    model: PreTrainedModel, choose: Callable[[], Terms | None], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Return the manager of `init_continuous_batching`, changed so that bans apply to its requests.

    choose: as in `BatchJudge`. Raises `InputError` if bans can't be applied, or were not tested with this transformers.
    """
    private.check_release()

    def make(twin: PreTrainedModel) -> Any:
        manager = type(twin).init_continuous_batching(twin, *args, **kwargs)
        if "stop" not in vars(manager):  # otherwise an earlier call has already changed this manager
            private.keep_twin(manager, model, twin)
        return manager

    manager = private.make_manager(model, make)
    judge: BatchJudge = getattr(vars(manager).get("add_request"), "__self__", None) or BatchJudge(manager)
    judge.choose = choose
    if (terms := choose()) is not None:
        judge.check(terms)
    return manager


class ManyText(RequestText):
    """A text of `generate_many`, with a report. completion: the finished text; None until it ends without an error."""

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
    """Generate texts with transformers' continuous batching (engine="paged"), by default `max_rows` at a time.

    Another `max_rows` texts wait in its queue. A text too long for the cache becomes a completion with an error.
    """
    if not isinstance(config, ContinuousBatchingConfig | None):
        raise InputError(f"continuous_batching_config is {config!r:.60}; a ContinuousBatchingConfig is expected")
    specs = iter(specs)
    ahead = list(islice(specs, 2 * max_rows))
    _refuse_call(call, ahead[0])
    private.check_release()
    config = _fill(config or ContinuousBatchingConfig(), call, ahead, max_rows)
    # `init_continuous_batching` is not used: it may return a manager of an earlier call or of `applied_to`.
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
                error = refusal("paged text beyond the cache", error=PromptError, length=length, room=room)
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
    """Wait for the next finished text and return its completion. Raises the error of the text or of the manager."""
    while (output := manager.get_result(timeout=1)) is None and manager.is_running():
        pass
    text = None if output is None else writing.pop(output.request_id)
    if text is None or text.completion is None:
        raise (text and text.error) or private.error_of(manager)
    for event in text.completion.report.events:
        if isinstance(event, Conceded):
            warn(event)  # not in the manager's thread, since the warning is to name the caller's line
    return text.completion


def _measure(spec: RowSpec) -> int:
    """Return the maximum number of tokens of a text, its prompt included, that a cache must hold."""
    return spec.prompt.shape[1] + spec.max_new_tokens - 1


def _fill(
    config: ContinuousBatchingConfig, call: Call, specs: Sequence[RowSpec], max_rows: int
) -> ContinuousBatchingConfig:
    """Return a configuration with its unset settings filled in, except a GPU's memory, which transformers measures."""
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
    """Raise `InputError` for arguments of `generate_many` that continuous batching would refuse or ignore."""
    known = {"attention_mask", "position_ids", "use_cache", "logits_to_keep", cache_name(call.model), "encoder_outputs"}
    given = {name for name, value in call.model_kwargs.items() if isinstance(value, Tensor) or value}
    facts = list_facts(call, spec) | ({"inputs"} if given - known else set())
    refuse_conflicts("paged", facts, model=type(call.model).__name__, names=", ".join(sorted(given - known)))

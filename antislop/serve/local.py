"""A backend with this library's own loop: one thread, one model, requests that share a batch.

Requests come from the event loop's thread. The worker's thread prepares one when a row is free for it, so that only
this thread uses the model and reads tokens with a matcher. After each forward pass it hands over all events at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from logging import getLogger
from pathlib import Path
from threading import Lock, Thread
from typing import TypeAlias

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from antislop.core.bans import Bans
from antislop.core.hf import CompiledBans, InFlight, find_response_template, max_positions
from antislop.core.loop import RowSpec, Sampling
from antislop.core.trace import BATCH_SIZE, Event, Finished
from antislop.errors import InputError
from antislop.serve.backend import BackendError, Busy, GenerationRequest, PromptChoices
from antislop.serve.request_preparer import RequestPreparer
from antislop.steer.grammar.grammar import Grammar

GRAMMAR_SECONDS = 10.0
"""How long a request waits for its grammar."""
LAST_SECONDS = 10.0
"""How long `close` waits for the thread after it has cut off all requests: a forward pass may be running."""

log = getLogger(__name__)

Arrival: TypeAlias = Event | PromptChoices | Exception
"""An event of a request, or the error that ends it."""


class _PendingRequest:
    def __init__(self, request_id: str, grammar: Grammar | None) -> None:
        self.request_id = request_id
        self.grammar = grammar
        self.loop = asyncio.get_running_loop()
        self.arrived: asyncio.Queue[Sequence[Arrival]] = asyncio.Queue()


class LocalBackend:
    """Generates with a transformers model, which nobody else may use until `close`.

    The options are those of `antislop.serve.app`. Raises `InputError` for a model that can't be served.
    """

    cuts_min_p_first = False

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        bans: Bans = (),
        batch_size: int = BATCH_SIZE,
        max_model_len: int | None = None,
        queue_length: int = 128,
        name: str | None = None,
    ) -> None:
        if batch_size < 1 or queue_length < 0:
            raise InputError(f"batch_size is {batch_size} and queue_length {queue_length}; at least 1 and 0 expected")
        self.context_length = _choose_context_length(model, max_model_len)
        self.name = name or Path(model.name_or_path).name or type(model).__name__
        self.tokenizer = tokenizer
        self.response_template = find_response_template(tokenizer, model)
        self.bans = CompiledBans.compile(bans, tokenizer)
        self._preparer = RequestPreparer(model, self.bans, context_length=self.context_length)
        trial = GenerationRequest(prompt=[0], bans=self.bans, max_new_tokens=1, sampling=Sampling(), seed=0)
        call, _ = self._preparer.prepare(trial)  # refuses what the model can't do
        self._scheduler = InFlight(call, max_rows=batch_size)
        self._grammars = ThreadPoolExecutor(1, thread_name_prefix="antislop-grammars")
        self._limit = batch_size + queue_length
        self._lock = Lock()  # of the next four
        self._pending: dict[int, _PendingRequest] = {}
        self._thread: Thread | None = None
        self._is_closing = False
        self._failure = ""

    @property
    def active(self) -> int:
        return len(self._pending)

    async def write(self, request: GenerationRequest) -> AsyncGenerator[Event | PromptChoices, None]:
        self._preparer.check(request)
        if "dry_multiplier" in request.sampling.in_effect:
            await asyncio.to_thread(self._preparer.samplers.find_breakers, request.sampling.dry_sequence_breakers)
        text = request.schema or request.lark
        grammar = None if text is None else await self._compile(text, is_lark=request.schema is None)
        number, pending = self._submit(request, grammar)
        try:
            while True:
                for item in await pending.arrived.get():
                    if isinstance(item, Exception):
                        raise item
                    yield item
                    if isinstance(item, Finished):
                        return
        finally:
            self._leave(number)

    async def check(self) -> None:
        if self._failure:
            raise BackendError(self._failure)

    async def close(self, *, timeout: float | None = None) -> None:
        with self._lock:
            self._is_closing, thread = True, self._thread
        self._scheduler.close()
        self._grammars.shutdown(wait=False, cancel_futures=True)
        if thread is None:
            return
        await asyncio.to_thread(thread.join, timeout)
        if thread.is_alive():
            self._fail(list(self._pending), BackendError("the server is shutting down"))
            await asyncio.to_thread(thread.join, LAST_SECONDS)

    # -- called by the event loop's thread --

    async def _compile(self, text: str, *, is_lark: bool) -> Grammar:
        """Return a grammar; one is compiled after another, in a thread. Raises `InputError`."""
        if self._is_closing:
            raise Busy("the server is shutting down")
        find = partial(self._preparer.find_grammar, text, is_lark=is_lark)
        work = asyncio.get_running_loop().run_in_executor(self._grammars, find)
        try:
            return await asyncio.wait_for(work, GRAMMAR_SECONDS)
        except asyncio.TimeoutError:
            raise InputError(
                f"the schema was not compiled within {GRAMMAR_SECONDS:g} seconds: simplify it, or try again later"
            ) from None

    def _submit(self, request: GenerationRequest, grammar: Grammar | None) -> tuple[int, _PendingRequest]:
        """Queue a request; return its number and where its events arrive."""
        pending = _PendingRequest(request.request_id, grammar)
        with self._lock:
            if self._failure:
                raise BackendError(self._failure)
            if self._is_closing:
                raise Busy("the server is shutting down")
            if len(self._pending) >= self._limit:
                raise Busy(
                    f"{len(self._pending)} texts are being written or waiting, which is the limit: try again later"
                )
            text = partial(self._prepare, request, pending)
            number = self._scheduler.submit(text, request=request.request_id or None)
            self._pending[number] = pending
            if self._thread is None:
                self._thread = Thread(target=self._work, name="antislop-in-flight", daemon=True)
                self._thread.start()
        return number, pending

    def _leave(self, number: int) -> None:
        """Free the row of a request whose events nobody reads any more."""
        with self._lock:
            is_running = self._pending.pop(number, None) is not None
        if is_running:
            self._scheduler.cancel(number)

    # -- called by the worker's thread --

    def _work(self) -> None:
        """Decode until the scheduler is closed; after an error, go on with the requests that wait."""
        reason, admitted = BackendError("the model failed; the server's log says why"), -1
        while True:
            try:
                for step in self._scheduler.steps():
                    self._deliver(step)
                return
            except Exception:
                numbers = [row.number for row in self._scheduler.abandon()]
                ids = {self._pending[number].request_id for number in numbers if number in self._pending}
                log.exception("the model failed; requests that it ended: %s", ", ".join(sorted(ids)) or "none")
            self._fail(numbers, reason)
            if self._scheduler.admitted == admitted:  # no text has come since the last error: it would fail for ever
                self._give_up(reason)
                return
            admitted = self._scheduler.admitted

    def _prepare(self, request: GenerationRequest, pending: _PendingRequest) -> RowSpec | None:
        """Return what a free row has to write; None, after its reader was told, if there is nothing or an error."""
        try:
            if request.scores_prompt:
                self._tell(pending, PromptChoices(self._preparer.score_prompt(request)))
            if request.max_new_tokens:
                return self._preparer.prepare(request, grammar=pending.grammar)[1]
            self._tell(pending, Finished("done", 0.0), is_last=True)
            return None
        except ValueError as error:
            reason: Exception = InputError(str(error))
        except Exception:
            log.exception("a text could not be prepared")
            reason = BackendError("the text could not be prepared; the server's log says why")
        self._tell(pending, reason, is_last=True)
        return None

    def _tell(self, pending: _PendingRequest, item: Arrival, *, is_last: bool = False) -> None:
        """Hand over what happened to a request that has no row yet."""
        with self._lock:
            numbers = [number for number, other in self._pending.items() if other is pending]
        self._post({number: [item] for number in numbers}, numbers if is_last else [])

    def _deliver(self, step: Mapping[int, Sequence[Event | ValueError]]) -> None:
        items = {
            number: [self._explain(number, event) if isinstance(event, ValueError) else event for event in events]
            for number, events in step.items()
        }
        finished = [number for number, events in step.items() if any(isinstance(event, Finished) for event in events)]
        self._post(items, finished)

    def _explain(self, number: int, failure: ValueError) -> Exception:
        pending = self._pending.get(number)
        if isinstance(failure, InputError):
            has_grammar = pending is not None and pending.grammar is not None
            return InputError(f"the schema can't be followed: {failure}") if has_grammar else failure
        error = BackendError(str(failure))
        error.__cause__ = failure.__cause__
        return error

    def _fail(self, numbers: Sequence[int], reason: Exception) -> None:
        self._post({number: [reason] for number in numbers}, numbers)
        for number in numbers:
            self._scheduler.cancel(number)

    def _give_up(self, reason: BackendError) -> None:
        """Fail all requests, and those to come."""
        with self._lock:
            self._failure = str(reason)
        self._fail(list(self._pending), reason)

    def _post(self, items: Mapping[int, Sequence[Arrival]], finished: Sequence[int]) -> None:
        """Wake the event loop once for all requests, and forget the finished ones."""
        with self._lock:
            readers = [(number, self._pending[number]) for number in items if number in self._pending]
            for number in finished:
                self._pending.pop(number, None)
        for loop in {pending.loop for _, pending in readers}:
            own = [(number, pending) for number, pending in readers if pending.loop is loop]
            try:
                loop.call_soon_threadsafe(_arrive, [(pending, items[number]) for number, pending in own])
            except RuntimeError:  # the loop is closed, so nobody reads any more
                for number, _ in own:
                    self._leave(number)


def _arrive(arrivals: Sequence[tuple[_PendingRequest, Sequence[Arrival]]]) -> None:
    for pending, items in arrivals:
        pending.arrived.put_nowait(items)


def _choose_context_length(model: PreTrainedModel, limit: int | None) -> int:
    positions = max_positions(model)
    if limit is None and positions is None:
        raise InputError(f"{type(model).__name__} names no limit of its length: pass max_model_len")
    if limit is not None and (limit < 2 or (positions is not None and limit > positions)):
        raise InputError(f"max_model_len is {limit}; 2 to {positions or 'any number of'} tokens were expected")
    return limit or positions or 0

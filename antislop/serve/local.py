"""The server's local backend: one worker thread runs the model, and all requests share its batch.

The event loop's thread submits requests. The worker thread prepares a request when a row of the batch is free, so that
only the worker uses the model and the matchers. After each forward pass it hands all events to the event loop at once.
"""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import AsyncGenerator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from logging import getLogger
from pathlib import Path
from secrets import randbits
from threading import Lock, Thread
from time import monotonic
from typing import TypeAlias
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from antislop.core.bans import Bans, Matcher
from antislop.core.hf import (
    BatchCallbacks,
    CompiledBans,
    InFlight,
    TransformersModel,
    find_response_template,
    max_positions,
)
from antislop.core.loop import LanguageModel, RowSpec, Sampling
from antislop.core.trace import BATCH_SIZE, Event, Finished, TokenChoice
from antislop.errors import InputError, first_line
from antislop.serve.backend import BackendError, Busy, GenerationRequest, PromptChoices
from antislop.steer.grammar.compilation import compile_llguidance, read_json_schema, read_lark
from antislop.steer.grammar.grammar import Grammar
from antislop.steer.samplers import SamplerMaker

GRAMMAR_SECONDS = 10.0
"""How long a request waits for its grammar."""
LAST_SECONDS = 10.0
"""How long `close` waits for the worker thread after cutting off all requests: a forward pass may still run."""
GRAMMARS_KEPT = 64
"""How many compiled grammars are cached."""
TOKENS_SCORED = 128
"""How many tokens of a prompt are scored together, with all their logits in memory."""
RESTORE_AFTER = 60.0
"""Seconds after which a regex that timed out in one text is applied again to later texts."""

log = getLogger(__name__)

Arrival: TypeAlias = Event | PromptChoices | Exception
"""An event of a request, or the error that ends the request."""


@dataclass(eq=False)
class _PendingRequest:
    request_id: str
    grammar: Grammar | None
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    arrived: asyncio.Queue[Sequence[Arrival]] = field(default_factory=asyncio.Queue)


class LocalBackend:
    """Generates with a transformers model, which no other code may use until `close`.

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
        positions, limit = max_positions(model), max_model_len
        if limit is None and positions is None:
            raise InputError(f"{type(model).__name__} names no limit of its length: pass max_model_len")
        if limit is not None and (limit < 2 or (positions is not None and limit > positions)):
            raise InputError(f"max_model_len is {limit}; 2 to {positions or 'any number of'} tokens were expected")
        self.context_length = limit or positions or 0
        self.name = name or Path(model.name_or_path).name or type(model).__name__
        self.tokenizer = tokenizer
        self.response_template = find_response_template(tokenizer, model)
        self.bans = CompiledBans.compile(bans, tokenizer)
        self._scheduler = InFlight(model, self.bans, max_rows=batch_size, max_length=self.context_length)
        self._preparer = RequestPreparer(model, self.bans, self._scheduler, context_length=self.context_length)
        self._grammars = ThreadPoolExecutor(1, thread_name_prefix="antislop-grammars")
        self._limit = batch_size + queue_length
        self._lock = Lock()  # guards the next four attributes
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
        pending = _PendingRequest(request.request_id, grammar)
        with self._lock:
            if self._failure:
                raise BackendError(self._failure)
            if self._is_closing:
                raise Busy("the server is shutting down")
            if (count := len(self._pending)) >= self._limit:
                raise Busy(f"no more texts than the limit of {count} may be written or waiting: try again later")
            prepare = partial(self._prepare, request, pending)
            number = self._scheduler.submit(prepare, request=request.request_id or None)
            self._pending[number] = pending
            if self._thread is None:
                self._thread = Thread(target=self._work, name="antislop-in-flight", daemon=True)
                self._thread.start()
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
        """Compile a grammar, in a thread that compiles one at a time. Raises `InputError`."""
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

    def _leave(self, number: int) -> None:
        """Free the row of a request whose events nobody reads any more."""
        with self._lock:
            pending = self._pending.pop(number, None)
        if pending is not None:
            self._scheduler.cancel(number)

    # -- called by the worker's thread --

    def _work(self) -> None:
        """Decode until the scheduler is closed. If the model fails, fail the batch, and go on with waiting requests."""
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
                with self._lock:
                    self._failure = str(reason)  # later requests get it
                self._fail(list(self._pending), reason)
                return
            admitted = self._scheduler.admitted

    def _prepare(self, request: GenerationRequest, pending: _PendingRequest) -> RowSpec | None:
        """Return the batch row of a request; None, with the end posted, if there is nothing to generate or an error."""
        try:
            if request.scores_prompt:
                self._tell(pending, PromptChoices(self._preparer.score_prompt(request)))
            if request.max_new_tokens:
                return self._preparer.prepare(request, grammar=pending.grammar)
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
        """Post an event or an error to the reader of a request that has no batch row yet."""
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
        if finished and not self._pending:  # glibc keeps memory that threads freed: 18 MB after 900 requests
            with suppress(AttributeError, OSError, TypeError):  # on other systems
                ctypes.CDLL(None).malloc_trim(0)

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

    def _post(self, items: Mapping[int, Sequence[Arrival]], finished: Sequence[int]) -> None:
        """Hand items to the readers of requests, waking each event loop once; forget the finished requests."""
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


class RequestPreparer:
    """Checks requests for one model, and turns them into rows of the batch.

    bans: the server's own list, compiled.
    context_length: maximum tokens of prompt and text together.
    """

    def __init__(self, model: PreTrainedModel, bans: CompiledBans, in_flight: InFlight, *, context_length: int) -> None:
        self._model = model
        self._in_flight = in_flight
        self._tokenizer = bans.tokenizer
        self._vocabulary = int(model.get_input_embeddings().weight.shape[0])
        self._context_length = context_length
        # Rows with the same sampling settings share their callbacks, so that their logits are processed together.
        self._shared: WeakValueDictionary[Sampling, BatchCallbacks] = WeakValueDictionary()
        self._timed_out_since: WeakKeyDictionary[Matcher, float] = WeakKeyDictionary()
        self.samplers = SamplerMaker.of(bans.tokenizer, bans.vocabulary)
        self.find_grammar = lru_cache(GRAMMARS_KEPT)(self._make_grammar)
        self._ends = sorted(TransformersModel(model).eos_token_id) or None

    def check(self, request: GenerationRequest) -> None:
        """Raise `InputError` for a request that can't be served. Thread-safe."""
        prompt, limit = request.prompt, self._context_length
        if not prompt:
            raise InputError("an empty prompt was passed: pass at least one token, the bos token for instance")
        if min(prompt) < 0 or max(prompt) >= self._vocabulary:
            raise InputError(f"a token of the prompt is not in the vocabulary, 0 to {self._vocabulary - 1}")
        if request.logit_bias and max(request.logit_bias) >= self._vocabulary:
            raise InputError(f"a biased token is not in the vocabulary, 0 to {self._vocabulary - 1}")
        if request.max_new_tokens < (0 if request.scores_prompt else 1):
            raise InputError(f"{request.max_new_tokens} tokens are asked for; at least 1 was expected")
        if len(prompt) + request.max_new_tokens > limit:
            raise InputError(
                f"the context has {limit:,} tokens, less than the {len(prompt):,} of the prompt with the new ones, "
                f"{request.max_new_tokens:,}: shorten the prompt, or ask for fewer tokens"
            )

    def prepare(self, request: GenerationRequest, *, grammar: Grammar | None = None) -> RowSpec:
        """Return the batch row of a request. Raises `ValueError` for a request that can't be served."""
        matcher, now = request.bans.matcher, monotonic()
        # The text of one client must not end a ban for all others.
        if matcher.timed_out and now - self._timed_out_since.setdefault(matcher, now) >= RESTORE_AFTER:
            del self._timed_out_since[matcher]
            matcher.restore()
        seed = randbits(63) if request.seed is None else request.seed
        bias = {(token,): float(value) for token, value in request.logit_bias.items()}
        spec = self._in_flight.prepare(
            request.prompt,
            request.bans,
            policy=request.policy,
            seed=seed,
            settings=request.sampling.generate_arguments | ({"sequence_bias": bias} if bias else {}),
            max_new_tokens=request.max_new_tokens,
            logits_processor=[*([] if grammar is None else [grammar]), *self.samplers.make(request.sampling)],
            stopping_criteria=request.stopping_criteria,
        )
        if isinstance(spec.callbacks, BatchCallbacks) and spec.callbacks.fits_any_prompt:
            spec = replace(spec, callbacks=self._shared.setdefault(request.sampling, spec.callbacks))
        return replace(spec, alternatives=request.alternatives)

    def score_prompt(self, request: GenerationRequest) -> list[TokenChoice | None]:
        return score_prompt(TransformersModel(self._model), request.prompt, alternatives=request.alternatives or 0)

    def _make_grammar(self, text: str, *, is_lark: bool = False) -> Grammar:
        """Compile a JSON schema or a grammar, which takes up to seconds. Not thread-safe. Raises `InputError`."""
        try:
            grammar = read_lark(text) if is_lark else read_json_schema(text)
            return Grammar(compile_llguidance(grammar, self._tokenizer, end_tokens=self._ends))
        except ValueError as error:  # most are `GrammarError`s
            raise InputError(f"the schema can't be followed: {first_line(error)}") from error


@torch.no_grad()
def score_prompt(
    model: LanguageModel, prompt: Sequence[int], *, alternatives: int, size: int = TOKENS_SCORED
) -> list[TokenChoice | None]:
    """Return each prompt token's probability and rank, None for the first token. size: tokens per forward pass."""
    ids, cache = torch.tensor([prompt]), model.new_cache(1)
    cache.settle(0, len(prompt))
    choices: list[TokenChoice | None] = [None]
    while (read := len(choices) - 1) < len(prompt) - 1:
        end = min(read + size if read else 1, len(prompt) - 1)  # a new cache's first pass returns its last logits only
        logits = model.forward(ids[:, read:end], cache)[0]
        # Each token [n] has a row of the logits [n, vocab].
        token_logits = logits.gather(1, ids[0, read + 1 : end + 1].to(logits.device)[:, None])
        ranks = 1 + (logits > token_logits).sum(dim=-1)
        likeliest = logits.topk(min(alternatives, logits.shape[-1]))
        listed = torch.cat([token_logits, likeliest.values], dim=-1).float()
        shares = (listed - logits.float().logsumexp(dim=-1, keepdim=True)).cpu().double().exp().tolist()
        for (share, *others), rank, tokens in zip(shares, ranks.tolist(), likeliest.indices.tolist(), strict=True):
            choices.append(TokenChoice(share, share, rank, tuple(zip(tokens, others, strict=True))))
    return choices

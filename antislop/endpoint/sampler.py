"""`AntiSlop` for models behind an HTTP endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, aclosing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, islice, repeat
from typing import Any, get_args
from weakref import WeakKeyDictionary

import torch

from antislop.decoding.policy import Method, seed_of
from antislop.decoding.row import Row
from antislop.endpoint.alternatives import AlternativesText, AlternativesWriter
from antislop.endpoint.coverage import Coverage
from antislop.endpoint.endpoint import Endpoint
from antislop.endpoint.loop_thread import LoopThread
from antislop.endpoint.methods import EndpointMethod, plan_method
from antislop.endpoint.old_dialects import EndpointError
from antislop.endpoint.settings import TextSettings, make_spec
from antislop.endpoint.streamed_text import StreamedText
from antislop.endpoint.streams.client import StreamingClient
from antislop.endpoint.streams.messages import ServerFeatures
from antislop.endpoint.streams.probe import describe
from antislop.endpoint.token_names import TokenNames
from antislop.endpoint.traffic import Traffic
from antislop.errors import InputError
from antislop.hf.calls import PromptInput, encode
from antislop.hf.compiled_bans import CompiledBans, CompiledLists
from antislop.lists.ban_list import Bans
from antislop.sampler import AntiSlop
from antislop.trace.completions import Completion, check_prompts, pair, refuse_one_list
from antislop.trace.events import Conceded, Event
from antislop.trace.report import Report
from antislop.trace.text_pieces import stream_text

"""A text, its ids, or the messages of a chat, which the tokenizer's template turns into ids."""
REJECTION_TRIES = 10
"""Times as many rewinds to one position are allowed if nothing is subtracted there."""


@dataclass(frozen=True)
class EndpointCompletion(Completion):
    """A text from an endpoint. error: why the text ends early, after its last settled token, or None.

    coverage: the probability beyond the alternatives; with the other methods nothing is beyond them. traffic: the
    requests. method: the way that was used.
    """

    coverage: Coverage
    traffic: Traffic
    method: EndpointMethod


@dataclass(frozen=True)
class _Order:
    """A text to be written."""

    ids: list[int]
    settings: TextSettings
    bans: CompiledBans
    seed: int
    number: int = 0
    ban_method: Method | None = None


class EndpointSampler:
    """Generate from a served model without the banned phrases.

    sampler: bans, options, and the tokenizer, which must be that of the served model; it serves any number of
    endpoints.
    method: how bans are kept. The first four let the server draw each token, by its own settings and over its whole
    vocabulary, and are exact; a combination that is not is refused. "auto" chooses the cheapest at each token, from
    what the server returns; "reject" works with every server and asks again from the start of a violation; "thin"
    keeps a ledger of the probabilities that the server returns, and keeps a token by chance; "bias" sends what is left
    as logit_bias, for one token. "alternatives" draws in this process among the likeliest tokens, and never writes any
    other: for criteria and settings that the server does not have.
    eos_token_id: the tokens that end a text, beside those of the tokenizer and of the server.
    alternatives: for method="alternatives", the number of log-probabilities to request at each position; vLLM returns
    up to 20 unless it was started with a larger `--max-logprobs`. They must be those of the unmodified model, which is
    vLLM's default (`--logprobs-mode`).
    tokens_per_request: for the same, the number of tokens that the server drafts per request. The distribution of the
    texts does not depend on it; with 1, the texts don't depend on the server's random numbers.

    Settings of a text: `max_new_tokens`, `do_sample` (default: True), `temperature`, `top_k`, `top_p`, `min_p`,
    `typical_p`, `repetition_penalty`, `stop_strings`, `stopping_criteria`, as in `generate`; but vLLM cuts by `min_p`
    before `top_p`, `generate` after it, so that both together leave fewer tokens there. Raises `ValueError` for
    values out of range, and for a sampler with `draft_bans`.
    """

    def __init__(
        self,
        sampler: AntiSlop,
        endpoint: Endpoint,
        *,
        method: EndpointMethod = "auto",
        alternatives: int = 20,
        tokens_per_request: int = 8,
        eos_token_id: int | Sequence[int] | None = None,
    ) -> None:
        for name, value in (("alternatives", alternatives), ("tokens_per_request", tokens_per_request)):
            if value < 1:
                raise ValueError(f"{name} is {value}; at least 1 is expected")
        if method not in get_args(EndpointMethod):
            raise InputError(f"method is {method!r}; it is one of {', '.join(map(repr, get_args(EndpointMethod)))}")
        if sampler.draft_bans:
            raise ValueError("draft_bans needs the model in this process: leave it out for an endpoint")
        self.method = method
        self._sampler = sampler
        self._endpoint = endpoint
        self._alternatives = alternatives
        self._tokens_per_request = tokens_per_request
        self._bans = sampler.compiled
        self._tokenizer = self._bans.tokenizer
        end_tokens = self._tokenizer.eos_token_id if eos_token_id is None else eos_token_id
        self._eos = [end_tokens] if isinstance(end_tokens, int) else list(end_tokens or ())
        self._names = TokenNames(self._tokenizer, self._bans.vocabulary)
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, StreamingClient] = WeakKeyDictionary()
        self.features: ServerFeatures | None = None  # of the server, once it was probed

    def generate_many(
        self,
        prompts: Iterable[PromptInput],
        *,
        bans: Iterable[Bans | None] | None = None,
        batch_size: int = 16,
        seed: int | None = None,
        seeds: Iterable[int] | None = None,
        **settings: Any,
    ) -> Iterator[EndpointCompletion]:
        """Generate from many prompts, with up to `batch_size` texts in flight, and yield each text when it is finished.

        prompts: texts, which the tokenizer turns into ids with its special tokens, ids, or chats; read when a text can
        start. seed: it and a prompt's index determine the random numbers of its text, whatever the order and the batch
        size, if the server honors seeds. seeds: one for each prompt instead, read after it. bans: a list for each
        prompt, read after it; None for the list of the sampler.

        If the server fails, a text ends early and has an `error`; the other texts continue.
        """
        check_prompts(prompts)
        refuse_one_list(bans)
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}; at least 1 is expected")
        text_settings = self._read_settings(settings)
        if seed is not None and seeds is not None:
            raise ValueError("both seed and seeds were passed: pass one seed for all prompts, or one for each")
        if seeds is None:
            seeds = map(partial(seed_of, _random_seed() if seed is None else seed), count())
        lists = CompiledLists(self._bans)
        inputs = enumerate(pair(pair(prompts, seeds), repeat(None) if bans is None else bans, name="bans"))
        orders = (
            _Order(self._encode(prompt), text_settings, lists.compile(text_bans)[0], text_seed, number)
            for number, ((prompt, text_seed), text_bans) in inputs
        )
        return self._complete_many(orders, batch_size=batch_size)

    def stream(self, prompt: PromptInput, *, seed: int | None = None, **settings: Any) -> Iterator[str]:
        """Yield one text in settled pieces, which no rewind withdraws."""
        vocabulary, ids = self._bans.vocabulary, self._encode(prompt)
        events = self.events(ids, seed=seed, **settings)
        return stream_text(events, vocabulary, drops_space=vocabulary.drops_space_after(ids))

    def events(self, prompt: PromptInput, *, seed: int | None = None, **settings: Any) -> Iterator[Event]:
        """Yield the events of one text as they occur. Raises `EndpointError` if the server fails."""
        order = self._order(prompt, self._bans, seed, settings)
        if self.method == "alternatives":
            try:
                yield from self._start_alternatives(order, self._make_writer()).events()
            finally:
                self._endpoint.close()
            return
        thread = LoopThread()
        try:
            yield from thread.iterate(self._stream(order))
        finally:
            thread.close(self.close())

    def events_async(
        self,
        prompt: PromptInput,
        *,
        bans: CompiledBans | None = None,
        ban_method: Method | None = None,
        seed: int | None = None,
        **settings: Any,
    ) -> AsyncGenerator[Event, None]:
        """Yield the events of one text in the running event loop; closing the generator ends the text on the server.

        bans: a compiled list in the place of the sampler's. ban_method: in the place of the sampler's `method`. Not for
        method="alternatives", which uses threads. Call `close` before the loop ends.
        """
        if self.method == "alternatives":
            raise InputError("method='alternatives' needs threads: use events or generate_many")
        order = self._order(prompt, bans or self._bans, seed, settings)
        return self._stream(replace(order, ban_method=ban_method or self._sampler.method))

    async def probe(self) -> ServerFeatures:
        """Return what the server can do, by a few requests, once. Raises `EndpointError`."""
        if self.features is None:
            self.features = await self._client().probe()
        return self.features

    def describe_server(self) -> str:
        """Return a line on what the server can do. Raises `EndpointError` if it can't be reached."""
        if self.method == "alternatives":
            return f"method alternatives: among the {self._alternatives} likeliest tokens at each position"
        thread = LoopThread()
        try:
            return describe(thread.submit(self.probe()).result())
        finally:
            thread.close(self.close())

    async def close(self) -> None:
        """Close the connections of the running event loop."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()

    def _read_settings(self, settings: Mapping[str, Any]) -> TextSettings:
        self._bans.vocabulary.refuse_changes(self._tokenizer)
        text_settings = TextSettings(**settings)
        text_settings.make_criteria(self._tokenizer, self._eos)
        if self.method == "alternatives":
            text_settings.make_warpers()
        return text_settings

    def _order(self, prompt: PromptInput, bans: CompiledBans, seed: int | None, settings: Mapping[str, Any]) -> _Order:
        seed = _random_seed() if seed is None else seed
        return _Order(self._encode(prompt), self._read_settings(settings), bans, seed)

    def _encode(self, prompt: PromptInput) -> list[int]:
        ids: list[int] = encode(prompt, self._tokenizer, torch.device("cpu")).tolist()
        return ids

    def _complete_many(self, orders: Iterator[_Order], *, batch_size: int) -> Iterator[EndpointCompletion]:
        running: set[Future[EndpointCompletion]] = set()
        with self._open(batch_size) as submit:
            while True:
                running |= set(map(submit, islice(orders, batch_size - len(running))))
                if not running:
                    return
                futures, running = wait(running, return_when=FIRST_COMPLETED)
                yield from sorted((future.result() for future in futures), key=lambda finished: finished.number)

    def _open(self, batch_size: int) -> AbstractContextManager[Callable[[_Order], Future[EndpointCompletion]]]:
        """Return a function that starts a text; on exit, all texts that are not finished end."""
        return self._open_threads(batch_size) if self.method == "alternatives" else self._open_loop(batch_size)

    @contextmanager
    def _open_loop(self, batch_size: int) -> Iterator[Callable[[_Order], Future[EndpointCompletion]]]:
        thread = LoopThread(coalesces=batch_size > 1)
        try:
            yield lambda order: thread.submit(self._write(order))
        finally:
            thread.close(self.close())

    @contextmanager
    def _open_threads(self, batch_size: int) -> Iterator[Callable[[_Order], Future[EndpointCompletion]]]:
        writer, pool = self._make_writer(), ThreadPoolExecutor(batch_size)
        try:
            yield lambda order: pool.submit(self._write_alternatives, order, writer)
        finally:
            writer.stop.set()
            pool.shutdown(cancel_futures=True)
            self._endpoint.close()

    def _client(self) -> StreamingClient:
        """Return the client of the running event loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            self._clients[loop] = StreamingClient(self._endpoint, self._tokenizer, self._bans.vocabulary)
        return self._clients[loop]

    async def _start(self, order: _Order) -> StreamedText:
        """Return a text that is ready to be written. Raises `InputError` for settings that can't be exact here."""
        features = await self.probe()
        sampling, length = order.settings.sampling, len(order.ids) + order.settings.max_new_tokens
        plan = plan_method(self.method, sampling, features)
        if features.context_length is not None and length > features.context_length:
            raise EndpointError(
                f"the prompt's {len(order.ids):,} tokens and max_new_tokens={order.settings.max_new_tokens:,} are more "
                f"than the server's context of {features.context_length:,}: lower max_new_tokens"
            )
        policy = self._sampler.make_policy(do_sample=sampling.do_sample)
        policy = replace(policy, method=order.ban_method or policy.method)
        if policy.method == "token" and plan.logprobs is None:
            raise InputError("the first-token rule needs the log-probabilities of the written tokens: use 'exact'")
        if plan.logprobs is None:
            policy = replace(
                policy,
                max_rewinds=policy.max_rewinds * REJECTION_TRIES,
                max_withdrawn_ratio=policy.max_withdrawn_ratio * REJECTION_TRIES,
            )
        end_tokens = sorted({*self._eos, *features.end_tokens})
        spec = make_spec(
            order.ids,
            order.bans,
            policy=policy,
            warpers=TextSettings(max_new_tokens=1).make_warpers(),
            criteria=order.settings.make_criteria(self._tokenizer, end_tokens),
            capacity=order.settings.max_new_tokens,
            seed=order.seed,
        )
        end_token = self._eos[0] if self._eos else min(end_tokens, default=None)
        return StreamedText(self._client(), spec, plan, sampling, seed=order.seed, end_token=end_token)

    async def _stream(self, order: _Order) -> AsyncGenerator[Event, None]:
        async with aclosing((await self._start(order)).events()) as events:
            async for event in events:
                if isinstance(event, Conceded):
                    self._sampler.warn(event)
                yield event

    async def _write(self, order: _Order) -> EndpointCompletion:
        """Generate to the end, or until the server fails."""
        report, error, row, traffic = Report(surfaces=self._bans.vocabulary), None, None, Traffic()
        try:
            text = await self._start(order)
            row, traffic = text.row, text.traffic
            async for event in text.events():
                report.add(event)
                if isinstance(event, Conceded):
                    self._sampler.warn(event)
        except EndpointError as failure:
            error = failure
        return self._complete(order, row, report, Coverage(), traffic, error=error)

    def _make_writer(self) -> AlternativesWriter:
        return AlternativesWriter(
            self._endpoint, self._names, self._alternatives, self._tokens_per_request, self._sampler.warn
        )

    def _start_alternatives(self, order: _Order, writer: AlternativesWriter) -> AlternativesText:
        with writer.lock:
            spec = make_spec(
                order.ids,
                order.bans,
                policy=self._sampler.make_policy(do_sample=order.settings.do_sample),
                warpers=order.settings.make_warpers(),
                criteria=order.settings.make_criteria(self._tokenizer, self._eos),
                capacity=order.settings.max_new_tokens,
                seed=order.seed,
            )
        return AlternativesText(writer, spec, seed=order.seed)

    def _write_alternatives(self, order: _Order, writer: AlternativesWriter) -> EndpointCompletion:
        """Generate to the end, or until the server fails."""
        text = self._start_alternatives(order, writer)
        report, error = Report(surfaces=self._bans.vocabulary), None
        try:
            for event in text.events():
                report.add(event)
        except EndpointError as failure:
            error = failure
        if report.reason == "failed":
            error = EndpointError("the server's log-probabilities leave no token that can be drawn: use another server")
        traffic = Traffic(text.coverage.requests, text.coverage.retries, text.written)
        return self._complete(order, text.row, report, text.coverage, traffic, error=error)

    def _complete(
        self,
        order: _Order,
        row: Row | None,
        report: Report,
        coverage: Coverage,
        traffic: Traffic,
        *,
        error: EndpointError | None,
    ) -> EndpointCompletion:
        tokens = [] if row is None else row.tokens if error is None else row.tokens[: row.settled]
        text = self._bans.vocabulary.decode(tokens, after=order.ids)
        return EndpointCompletion(order.number, text, tokens, report, coverage, traffic, self.method, error=error)


def _random_seed() -> int:
    return int(torch.randint(2**31, ()))

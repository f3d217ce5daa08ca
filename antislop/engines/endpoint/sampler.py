"""`EndpointSampler`: what `AntiSlop` does, for models behind an HTTP endpoint."""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import aclosing, closing
from dataclasses import dataclass, replace
from itertools import islice
from threading import Thread
from typing import Any, TypeVar, get_args
from weakref import WeakKeyDictionary

import torch
from transformers import StoppingCriteria, StoppingCriteriaList
from transformers.generation import EosTokenCriteria

from antislop.core.bans import Bans
from antislop.core.hf import BatchCallbacks, CompiledBans, PromptInput, StopStrings, Vocabulary, encode, read_requests
from antislop.core.loop import Policy, Sampling
from antislop.core.sampler import AntiSlop
from antislop.core.trace import BATCH_SIZE, Completion, Conceded, Event, Report
from antislop.display import describe_count
from antislop.engines.endpoint.client import StreamingClient, describe
from antislop.engines.endpoint.endpoint import Endpoint, EndpointError, EndpointMethod, ServerFeatures
from antislop.engines.endpoint.streamed_text import EndpointText, Traffic, plan_method
from antislop.errors import InputError
from antislop.steer.samplers import SamplerMaker

COALESCING_SECONDS = 0.0005
"""Seconds for which events of many streams are collected; the next tokens of fast servers come after 4 ms or more."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class EndpointSettings:
    """How a text is drawn and when it ends."""

    max_new_tokens: int
    sampling: Sampling
    stop_strings: str | list[str] | None = None
    stopping_criteria: Sequence[StoppingCriteria] = ()

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise InputError(f"max_new_tokens is {self.max_new_tokens}; at least 1 is expected")

    @classmethod
    def of(cls, **arguments: Any) -> EndpointSettings:
        """Read arguments of `generate`. Raises `InputError` for values out of range."""
        sampling, others = Sampling.read(arguments)
        return cls(sampling=sampling, **others)

    def make_criteria(self, vocabulary: Vocabulary, end_tokens: Sequence[int]) -> StoppingCriteriaList:
        """Return the criteria that end a text: for end tokens, for stop strings, and the caller's own."""
        criteria: list[StoppingCriteria] = [EosTokenCriteria(eos_token_id=list(end_tokens))] if end_tokens else []
        if self.stop_strings or self.stop_strings == "":
            criteria.append(StopStrings.read(self.stop_strings, vocabulary.spell))
        return StoppingCriteriaList([*criteria, *self.stopping_criteria])


@dataclass(frozen=True)
class EndpointCompletion(Completion):
    """A text from an endpoint. A text with an `error` ends after its last settled token."""

    traffic: Traffic
    method: EndpointMethod


@dataclass(frozen=True)
class _Request:
    prompt: list[int]
    settings: EndpointSettings
    bans: CompiledBans
    seed: int
    number: int = 0
    policy: Policy | None = None


class EndpointSampler:
    """Generate from a served model without the banned phrases.

    sampler: bans, options, and the served model's tokenizer.
    method: how bans are kept, all exactly. "reject" asks again from the start of a violation, on any server; "thin"
        subtracts the probability of each withdrawn phrase, and accepts a later token with probability (remaining /
        original); "bias" has one token drawn from what is left, by `logit_bias`; "auto" takes the cheapest per token.
    eos_token_id: end tokens beside the server's own; default: the tokenizer's.

    Settings of a text: `max_new_tokens`, `do_sample` (default: True), `temperature`, `top_k`, `top_p`, `min_p`,
    `typical_p`, `repetition_penalty`, `stop_strings`, `stopping_criteria`, as in `generate`, and llama.cpp's for DRY,
    XTC and top-nσ; but vLLM cuts by `min_p` before `top_p`, so that both together leave fewer tokens. Raises
    `InputError` for values out of range and settings that can't be exact on this server.
    """

    def __init__(
        self,
        sampler: AntiSlop,
        endpoint: Endpoint,
        *,
        method: EndpointMethod = "auto",
        eos_token_id: int | Sequence[int] | None = None,
    ) -> None:
        if method not in get_args(EndpointMethod):
            raise InputError(f"method is {method!r}; it is one of {', '.join(map(repr, get_args(EndpointMethod)))}")
        for name, value, kind in (("sampler", sampler, AntiSlop), ("endpoint", endpoint, Endpoint)):
            if not isinstance(value, kind):
                raise InputError(f"{name} is a {type(value).__name__}: pass an AntiSlop, then an Endpoint")
        self.method = method
        self._sampler = sampler
        self._endpoint = endpoint
        self._bans = sampler.compiled
        self._tokenizer = self._bans.tokenizer
        self._samplers = SamplerMaker.of(self._tokenizer, self._bans.vocabulary)
        end_tokens = self._tokenizer.eos_token_id if eos_token_id is None else eos_token_id
        self._end_tokens = [end_tokens] if isinstance(end_tokens, int) else list(end_tokens or ())
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, StreamingClient] = WeakKeyDictionary()
        self.features: ServerFeatures | None = None  # of the server, once it was probed

    def generate_many(
        self,
        prompts: Iterable[PromptInput],
        *,
        bans: Iterable[Bans | None] | None = None,
        batch_size: int = BATCH_SIZE,
        seed: int | None = None,
        seeds: Iterable[int] | None = None,
        **settings: Any,
    ) -> Iterator[EndpointCompletion]:
        """Generate from many prompts, up to `batch_size` at a time, and yield each text when it is finished.

        If the server fails, a text ends early and has an `error`; the others continue.

        prompts: texts (to which special tokens are added), ids, or chats; each is read when its text can start.
        bans: a list of bans for each prompt, read after the prompt; None for the sampler's bans.
        seed: with a prompt's index, determines the random numbers of its text, if the server honors seeds.
        seeds: in place of `seed`, a seed for each prompt, read after the prompt.
        """
        text_settings = EndpointSettings.of(**settings)
        self._check(text_settings)
        texts = read_requests(prompts, self._bans, bans=bans, batch_size=batch_size, seed=seed, seeds=seeds)
        requests = (
            _Request(self._encode(text.prompt), text_settings, text.bans, text.seed, number)
            for number, text in enumerate(texts)
        )
        return self._complete_many(requests, batch_size=batch_size)

    def stream(self, prompt: PromptInput, *, seed: int | None = None, **settings: Any) -> Iterator[str]:
        """Yield one text in pieces as they settle; no rewind withdraws them any more."""
        ids = self._encode(prompt)
        return self._bans.vocabulary.stream(self.events(ids, seed=seed, **settings), after=ids)

    def events(self, prompt: PromptInput, *, seed: int | None = None, **settings: Any) -> Iterator[Event]:
        """Return the events of one text as they occur. Raises `EndpointError` if the server fails."""
        events = self.events_async(prompt, EndpointSettings.of(**settings), seed=seed)
        with closing(LoopThread(self.close)) as thread:
            yield from thread.iterate(events)

    def events_async(
        self,
        prompt: PromptInput,
        settings: EndpointSettings,
        *,
        bans: CompiledBans | None = None,
        policy: Policy | None = None,
        seed: int | None = None,
    ) -> AsyncGenerator[Event, None]:
        """Yield the events of one text in the running event loop; before that loop ends, `close` must be called.

        Closing the generator ends the text on the server.

        bans, policy: None for those of the sampler.
        """
        seed = int(torch.randint(2**31, ())) if seed is None else seed
        self._check(settings)
        request = _Request(self._encode(prompt), settings, bans or self._bans, seed, policy=policy)
        return self._stream(request)  # errors of arguments come from the call, not with the first event

    async def _stream(self, request: _Request) -> AsyncGenerator[Event, None]:
        async with aclosing((await self._start(request)).events()) as events:
            async for event in events:
                if isinstance(event, Conceded):
                    self._sampler.terms.warn(event)
                yield event

    async def probe(self) -> ServerFeatures:
        """Return what the server can do; the first call finds out by a few requests. Raises `EndpointError`."""
        if self.features is None:
            self.features = await self._client().probe()
        return self.features

    def describe_server(self) -> str:
        """Return a line on what the server can do. Raises `EndpointError` if it can't be reached."""
        with closing(LoopThread(self.close)) as thread:
            return describe(thread.submit(self.probe()).result())

    async def close(self) -> None:
        """Close the connections of the running event loop."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()

    def _check(self, settings: EndpointSettings) -> None:
        self._bans.vocabulary.refuse_changes(self._tokenizer)
        settings.make_criteria(self._bans.vocabulary, self._end_tokens)  # raises the errors of stop strings

    def _encode(self, prompt: PromptInput) -> list[int]:
        if ids := encode(prompt, self._tokenizer):
            return ids
        raise InputError("an empty prompt was passed: pass at least one token, the bos token for instance")

    def _complete_many(self, requests: Iterator[_Request], *, batch_size: int) -> Iterator[EndpointCompletion]:
        running: set[Future[EndpointCompletion]] = set()
        with closing(LoopThread(self.close, coalesces=batch_size > 1)) as thread:
            while True:
                started = islice(requests, batch_size - len(running))
                running |= {thread.submit(self._write(request)) for request in started}
                if not running:
                    return
                futures, running = wait(running, return_when=FIRST_COMPLETED)
                yield from sorted((future.result() for future in futures), key=lambda finished: finished.number)

    def _client(self) -> StreamingClient:
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            self._clients[loop] = StreamingClient(self._endpoint, self._tokenizer, self._bans.vocabulary)
        return self._clients[loop]

    async def _start(self, request: _Request) -> EndpointText:
        features = await self.probe()
        settings, sampling = request.settings, request.settings.sampling
        plan = plan_method(self.method, sampling, features)
        length = len(request.prompt) + settings.max_new_tokens
        if features.context_length is not None and length > features.context_length:
            raise EndpointError(
                f"the prompt's {describe_count(len(request.prompt), 'token')} and "
                f"max_new_tokens={settings.max_new_tokens:,} are more than the server's context of "
                f"{features.context_length:,}: lower max_new_tokens"
            )
        policy = request.policy or replace(self._sampler.terms.policy, do_sample=sampling.do_sample)
        if plan.logprobs is None and policy.method == "token":
            raise InputError("the first-token rule needs the log-probabilities of the written tokens: use 'exact'")
        spec = request.bans.make_row(
            request.prompt,
            policy=policy if plan.logprobs is not None else policy.for_rejection(),
            callbacks=BatchCallbacks(
                logits_processor=await asyncio.to_thread(self._samplers.make_all, sampling),
                stopping_criteria=settings.make_criteria(self._bans.vocabulary, sorted(set(self._end_tokens))),
                rows=1,
                shares_processors=True,
                shares_criteria=True,
            ),
            max_new_tokens=settings.max_new_tokens,
            generator=torch.Generator().manual_seed(request.seed),
        )
        end_token = self._end_tokens[0] if self._end_tokens else None
        special = self._bans.vocabulary.breaks
        return EndpointText(
            self._client(), spec, plan, sampling, seed=request.seed, end_token=end_token, special=special
        )

    async def _write(self, request: _Request) -> EndpointCompletion:
        vocabulary = self._bans.vocabulary
        report, error, row, traffic = Report(surfaces=vocabulary), None, None, Traffic()
        try:
            text = await self._start(request)
            row, traffic = text.row, text.traffic
            async for event in text.events():
                report.add(event)
                if isinstance(event, Conceded):
                    self._sampler.terms.warn(event)
        except EndpointError as failure:
            error = failure
        tokens = [] if row is None else row.tokens
        if row is not None and error is not None:
            tokens = tokens[: row.settled]
        content = vocabulary.decode(tokens, after=request.prompt)
        return EndpointCompletion(request.number, content, tokens, report, traffic, self.method, error=error)


class LoopThread:
    """An event loop in another thread: texts continue while the caller works, or runs a loop itself, as in notebooks.

    finish: what `close` runs last in the loop.
    coalesces: whether events are handled together, up to `COALESCING_SECONDS` late, which is for many streams.
    """

    def __init__(self, finish: Callable[[], Coroutine[Any, Any, None]], *, coalesces: bool = False) -> None:
        self._finish = finish
        self._loop = asyncio.SelectorEventLoop(CoalescingSelector()) if coalesces else asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="antislop endpoint", daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine; canceling the returned future cancels it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def iterate(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        async def follow() -> T:
            return await items.__anext__()

        try:
            while True:
                try:
                    yield self.submit(follow()).result()
                except StopAsyncIteration:
                    return
        finally:
            self.submit(items.aclose()).result()

    def close(self) -> None:
        """Cancel the coroutines that run, run `finish`, and end the thread."""

        async def end() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._finish()

        try:
            self.submit(end()).result()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


class CoalescingSelector(selectors.DefaultSelector):
    """Waits a little after the first event, and returns this event with those that came meanwhile.

    A server sends the tokens of a step together, in many streams; waking up for each takes processor time from a server
    on the same machine.
    """

    def select(self, timeout: float | None = None) -> Sequence[tuple[selectors.SelectorKey, int]]:  # type: ignore[override]
        events = super().select(timeout)
        if not events or (timeout is not None and timeout <= 0):  # a loop that has work does not wait
            return events
        time.sleep(COALESCING_SECONDS)
        return super().select(0)

"""The tasks behind one answer: each turns a backend's events into chunks."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from time import perf_counter

from antislop.core.trace import Event, Finished
from antislop.serve.backend import Backend, BackendError, GenerationRequest, PromptChoices
from antislop.serve.chunk_maker import AnswerChunk, ChunkMaker
from antislop.serve.metrics import ServerMetrics

START_SECONDS = 1.0
"""How long an answer waits for its first row. An error until then has its own status code."""


@dataclass
class _RunningRequest:
    """A request with a task of its own. queue: gets its chunks with its number in the answer, or its error."""

    number: int
    request: GenerationRequest
    maker: ChunkMaker
    queue: asyncio.Queue[tuple[int, AnswerChunk] | Exception]
    is_started: asyncio.Event
    metrics: ServerMetrics

    async def run(self, backend: Backend) -> None:
        began, reason = perf_counter(), "left"
        self.metrics.active.inc()
        try:
            reason = await self._follow(backend.write(self.request), began)
        except Exception as error:  # noqa: BLE001 - it is raised where the answer is made
            reason = "failed"
            self.queue.put_nowait(error)
        finally:
            self.is_started.set()
            self.metrics.active.dec()
            self.metrics.count_text(
                self.maker.report,
                prompt=len(self.request.prompt),
                kept=self.maker.kept,
                reason=reason,
                began=began,
            )

    async def _follow(self, events: AsyncGenerator[Event | PromptChoices, None], began: float) -> str:
        """Queue the chunks, and return the reason for the end."""
        if not self.request.scores_prompt and (prompt := self.maker.begin()):
            self.queue.put_nowait((self.number, prompt))
            if prompt.finish_reason:
                return prompt.finish_reason
        has_text = False
        async with aclosing(events):
            async for event in events:
                self.is_started.set()
                if isinstance(event, Finished) and event.reason == "failed":
                    raise BackendError("no token could be drawn, since the model returned no probabilities")
                chunk = self.maker.add(event)
                if chunk is None:
                    continue
                if chunk.text and not has_text and not isinstance(event, PromptChoices):
                    has_text = True
                    self.metrics.first_token.observe(perf_counter() - began)
                self.queue.put_nowait((self.number, chunk))
                if chunk.finish_reason:
                    return chunk.finish_reason
        raise BackendError("the engine ended a text without a reason")


class RunningRequests:
    """The requests of one answer. Iterate over `chunks`, and call `close` in any case.

    Chunks wait in memory until the client takes them, at most the whole text of each request.
    """

    def __init__(self, requests: Iterable[tuple[GenerationRequest, ChunkMaker]], metrics: ServerMetrics) -> None:
        self._queue: asyncio.Queue[tuple[int, AnswerChunk] | Exception] = asyncio.Queue()
        self._is_started = asyncio.Event()
        self._running = [
            _RunningRequest(number, request, maker, self._queue, self._is_started, metrics)
            for number, (request, maker) in enumerate(requests)
        ]
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def makers(self) -> Sequence[ChunkMaker]:
        return [running.maker for running in self._running]

    async def start(self, backend: Backend) -> None:
        """Begin; return when the first request has a row, or after `START_SECONDS`. Raises errors until then."""
        self._tasks = [asyncio.create_task(running.run(backend)) for running in self._running]
        with suppress(asyncio.TimeoutError):  # an answer that begins is kept open by proxies, and gets pings
            await asyncio.wait_for(self._is_started.wait(), START_SECONDS)
        items = [self._queue.get_nowait() for _ in range(self._queue.qsize())]
        for item in items:
            if isinstance(item, Exception):
                raise item
            self._queue.put_nowait(item)

    async def chunks(self) -> AsyncIterator[tuple[int, AnswerChunk]]:
        """Yield chunks with their text's number; waiting ones of a text are joined. Raises the backend's errors."""
        left = len(self._running)
        while left:
            items = [await self._queue.get(), *(self._queue.get_nowait() for _ in range(self._queue.qsize()))]
            waiting: dict[int, list[AnswerChunk]] = defaultdict(list)
            errors = []
            for item in items:
                if isinstance(item, Exception):
                    errors.append(item)
                else:
                    waiting[item[0]].append(item[1])
            for number, chunks in waiting.items():
                chunk = AnswerChunk.join(chunks)
                left -= chunk.finish_reason is not None
                yield number, chunk
            if errors:
                raise errors[0]

    async def close(self) -> None:
        """Free the rows of texts that are not finished."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

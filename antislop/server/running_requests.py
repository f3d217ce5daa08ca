"""Texts under way: each a task that turns a backend's events into chunks, several of them one answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from time import perf_counter
from typing import NamedTuple

from antislop.server.backend import Backend, PromptChoices, TextRequest
from antislop.server.chunk_maker import TextChunk, TextStream
from antislop.server.metrics import ServerMetrics
from antislop.trace.events import Event, Finished, TokenChoice

START_SECONDS = 1.0
"""How long an answer waits for its first text to get a row: errors until then have a status of their own."""


class FailedText(RuntimeError):
    """Raised if the model gave no probabilities to draw from."""


class Caller(NamedTuple):
    """Who asks: the address and the name of the client's program, and the key by which it may abort its texts."""

    address: str
    program: str
    genkey: str = ""


class NumberedChunk(NamedTuple):
    """A chunk, and the number of its text in the answer."""

    number: int
    chunk: TextChunk


@dataclass
class _RunningText:
    """A text that is being written by a task of its own."""

    number: int
    request: TextRequest
    stream: TextStream
    queue: asyncio.Queue[NumberedChunk | Exception]
    is_started: asyncio.Event
    metrics: ServerMetrics
    is_aborted: bool = False
    is_ended: bool = False

    async def run(self, backend: Backend) -> None:
        """Queue the text's chunks; an error is queued in their place."""
        began, reason = perf_counter(), "left"
        self.metrics.active.inc()
        try:
            reason = await self._follow(backend.write(self.request), began)
        except asyncio.CancelledError:
            if not self.is_aborted:
                raise
            reason = "aborted"
        except Exception as error:  # noqa: BLE001 - it is raised where the answer is made
            reason, self.is_ended = "failed", True
            self.queue.put_nowait(error)
        finally:
            self.is_started.set()
            self.metrics.active.dec()
            self.metrics.count_text(
                self.stream.report,
                prompt=len(self.request.prompt),
                kept=self.stream.kept,
                reason=reason,
                began=began,
            )

    async def _follow(self, events: AsyncGenerator[Event | PromptChoices, None], began: float) -> str:
        if not self.request.scores_prompt and self._begin():
            return "length"
        async with aclosing(events):
            async for event in events:
                self.is_started.set()
                if isinstance(event, PromptChoices):
                    if self._begin(event.choices):
                        return "length"
                    continue
                if isinstance(event, Finished) and event.reason == "failed":
                    raise FailedText("no token could be drawn, since the model returned no probabilities")
                chunk = self.stream.add(event)
                if chunk is None:
                    continue
                if chunk.text and began:
                    self.metrics.first_token.observe(perf_counter() - began)
                    began = 0.0
                self._put(chunk)
                if chunk.finish_reason:
                    return chunk.finish_reason
        raise FailedText("the engine ended a text without a reason")

    def abort(self) -> None:
        """Queue the end of the text, since its task may be canceled before it has begun."""
        self.is_aborted = True
        self.is_started.set()
        self._put(TextChunk(finish_reason="stop"))

    def _begin(self, choices: Sequence[TokenChoice | None] = ()) -> bool:
        """Queue the prompt if it is echoed; return whether nothing is to follow it."""
        chunk = self.stream.begin(choices)
        if chunk is not None:
            self._put(chunk)
        return chunk is not None and chunk.finish_reason is not None

    def _put(self, chunk: TextChunk) -> None:
        if not self.is_ended:
            self.is_ended = chunk.finish_reason is not None
            self.queue.put_nowait(NumberedChunk(self.number, chunk))


class RunningTexts:
    """The texts of one answer. Iterate over `chunks`, and call `close` in any case.

    Chunks that a slow client has not taken wait in memory: they are no more than its texts.
    """

    def __init__(self, streams: Iterable[tuple[TextRequest, TextStream]], metrics: ServerMetrics) -> None:
        self._queue: asyncio.Queue[NumberedChunk | Exception] = asyncio.Queue()
        self._is_started = asyncio.Event()
        self._texts = [
            _RunningText(number, request, stream, self._queue, self._is_started, metrics)
            for number, (request, stream) in enumerate(streams)
        ]
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def streams(self) -> Sequence[TextStream]:
        """The texts with their counts, in the order of their numbers."""
        return [text.stream for text in self._texts]

    async def start(self, backend: Backend) -> None:
        """Begin all texts, and return when the first has a row, or soon. Raises the backend's errors until then."""
        self._tasks = [asyncio.create_task(text.run(backend)) for text in self._texts]
        with suppress(asyncio.TimeoutError):  # an answer that begins is kept open by proxies, and gets pings
            await asyncio.wait_for(self._is_started.wait(), START_SECONDS)
        items = [self._queue.get_nowait() for _ in range(self._queue.qsize())]
        for item in items:
            if isinstance(item, Exception):
                raise item
            self._queue.put_nowait(item)

    async def chunks(self) -> AsyncIterator[NumberedChunk]:
        """Yield the chunks of all texts as they come; those that wait are joined. Raises the backend's errors."""
        left = len(self._texts)
        while left:
            items = [await self._queue.get(), *(self._queue.get_nowait() for _ in range(self._queue.qsize()))]
            joined: dict[int, TextChunk] = {}
            for item in items:
                if isinstance(item, NumberedChunk):
                    earlier = joined.get(item.number)
                    joined[item.number] = item.chunk if earlier is None else earlier.join(item.chunk)
            for number, chunk in joined.items():
                left -= chunk.finish_reason is not None
                yield NumberedChunk(number, chunk)
            for item in items:
                if isinstance(item, Exception):
                    raise item

    def abort(self) -> int:
        """End the texts after what is settled, and return the number of those that were under way."""
        running = [(text, task) for text, task in zip(self._texts, self._tasks, strict=False) if not text.is_ended]
        for text, task in running:
            text.abort()
            task.cancel()
        return len(running)

    async def close(self) -> None:
        """Free the rows of texts that are not finished."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

"""An event loop in a thread of its own, for callers that are not asynchronous."""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import AsyncGenerator, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from threading import Thread
from typing import Any, TypeVar

COALESCING_SECONDS = 0.0005
"""Seconds for which events are collected; fast servers write the next tokens after 4 ms or more."""

T = TypeVar("T")


class LoopThread:
    """Runs coroutines in another thread: texts continue while the caller works, or runs a loop itself, as in notebooks.

    coalesces: for many streams; events are then handled up to `COALESCING_SECONDS` later, and together.
    """

    def __init__(self, *, coalesces: bool = False) -> None:
        self._loop = asyncio.SelectorEventLoop(CoalescingSelector()) if coalesces else asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="antislop endpoint", daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine; canceling the returned future cancels it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def iterate(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        try:
            while True:
                try:
                    yield self.submit(_next(items)).result()
                except StopAsyncIteration:
                    return
        finally:
            self.submit(items.aclose()).result()

    def close(self, last: Coroutine[Any, Any, None]) -> None:
        """Cancel what runs, run a last coroutine, and end the thread."""
        try:
            self.submit(_cancel_all()).result()
            self.submit(last).result()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


class CoalescingSelector(selectors.DefaultSelector):
    """Waits a little after the first event, and returns it with those that came meanwhile.

    A server sends the tokens of a step together, in many streams; waking up for each takes processor time from a server
    on the same machine.
    """

    def select(self, timeout: float | None = None) -> Sequence[tuple[selectors.SelectorKey, int]]:  # type: ignore[override]
        events = super().select(timeout)
        if not events or (timeout is not None and timeout <= 0):  # a loop that has work does not rest
            return events
        time.sleep(COALESCING_SECONDS)
        return super().select(0)


async def _next(items: AsyncGenerator[T, None]) -> T:
    return await items.__anext__()


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

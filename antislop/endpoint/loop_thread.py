"""An event loop in a thread of its own, for callers that are not asynchronous."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Iterator
from concurrent.futures import Future
from threading import Thread
from typing import Any, TypeVar

from antislop.endpoint.coalescing_selector import CoalescingSelector

T = TypeVar("T")


class LoopThread:
    """Runs coroutines in another thread, so that texts continue while their caller does other work.

    A caller may itself be called by an event loop, as in a notebook, and could then run no second one in its thread.

    coalesces: for many streams; events are then handled up to `coalescing_selector.PAUSE` later, and together.
    """

    def __init__(self, *, coalesces: bool = False) -> None:
        self._loop = asyncio.SelectorEventLoop(CoalescingSelector()) if coalesces else asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="antislop endpoint", daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine; canceling the returned future cancels it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def iterate(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        """Yield what an asynchronous generator yields, one item at a time, and close it in the end."""
        try:
            while True:
                try:
                    yield self.submit(_next(items)).result()
                except StopAsyncIteration:
                    return
        finally:
            self.submit(items.aclose()).result()

    def close(self, last: Coroutine[Any, Any, None]) -> None:
        """Cancel what runs, wait for its end, run a last coroutine, and end the thread."""
        try:
            self.submit(_cancel_all()).result()
            self.submit(last).result()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


async def _next(items: AsyncGenerator[T, None]) -> T:
    return await items.__anext__()


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

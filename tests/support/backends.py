"""A backend of the HTTP server that plays events at a given pace, and a real server for an app."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx
import uvicorn
from transformers import PreTrainedTokenizerBase

from antislop import AntiSlop
from antislop.core.bans.ban_list import Bans
from antislop.core.hf.compiled_bans import find_response_template
from antislop.core.trace.events import Drawn, Event, Finished, Settled
from antislop.serve.backend import BackendError, Busy, GenerationRequest
from antislop.serve.http_server import BoundedProtocol

LONG_STREAM = {"prompt": "a", "max_tokens": 400, "stream": True}


class SlowBackend:
    """A backend that writes the events of `play(request)`.

    pause: seconds before each event.
    limit: requests at a time; more are refused.
    written: all requests so far.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        play: Callable[[GenerationRequest], Iterable[Event | Exception]],
        *,
        bans: Bans = (),
        pause: float = 0.0,
        limit: int = 1000,
        context_length: int | None = 512,
    ) -> None:
        self.name = "tiny"
        self.tokenizer = tokenizer
        self.bans = AntiSlop(tokenizer, list(bans)).compiled
        self.context_length = context_length
        self.active = 0
        self.written: list[GenerationRequest] = []
        self.is_closed = self.is_cut = False
        self.cuts_min_p_first = False
        self.response_template = find_response_template(tokenizer)
        self._play, self._pause, self._limit = play, pause, limit

    async def write(self, request: GenerationRequest) -> AsyncGenerator[Event, None]:
        if self.active >= self._limit or self.is_closed:
            raise Busy("the queue is full: try again later")
        self.written.append(request)
        self.active += 1
        try:
            for event in self._play(request):
                await asyncio.sleep(self._pause)
                if self.is_cut:
                    raise BackendError("the server is shutting down")
                if isinstance(event, Exception):
                    raise event
                yield event
        finally:
            self.active -= 1

    async def check(self) -> None:
        """Never fail."""

    async def close(self, *, timeout: float | None = None) -> None:
        self.is_closed = True
        end = math.inf if timeout is None else time.monotonic() + timeout
        while self.active:
            self.is_cut = self.is_cut or time.monotonic() >= end
            await asyncio.sleep(0.01)


def send(app: Any, method: str = "POST", path: str = "/v1/completions", **more: Any) -> httpx.Response:
    """Send a request to an app without a connection; raise what the app raises.

    base_url: the address by which the app was reached.
    """

    async def ask() -> httpx.Response:
        base_url = more.pop("base_url", "http://server")
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=base_url) as client:
            return await client.request(method, path, **more)

    return asyncio.run(ask())


@contextmanager
def run_server(app: Any) -> Iterator[str]:
    """Run an app by uvicorn on a free port of 127.0.0.1, and yield its URL."""
    options: dict[str, Any] = {"http": BoundedProtocol, "ws": "none", "log_level": "critical", "access_log": False}
    config = uvicorn.Config(app, host="127.0.0.1", port=0, **options)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        threading.Event().wait(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(timeout=10)
        assert not thread.is_alive()


def play_tokens(tokens: Sequence[int]) -> Iterator[Event]:
    """Yield the events of a text that is written without a rewind."""
    for token in tokens:
        yield Drawn(token)
        yield Settled((token,))
    yield Finished("done", 0.0)


def wait_until(is_done: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait for a condition, and fail if it takes too long."""
    end = time.monotonic() + seconds
    while not is_done():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.01)


async def leave_streams(url: str, count: int) -> None:
    """Begin streams, and close each connection after its first bytes."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(limits=limits, timeout=30) as client:

        async def leave() -> None:
            async with client.stream("POST", f"{url}/v1/completions", json=LONG_STREAM) as answer:
                async for _ in answer.aiter_raw():
                    return

        await asyncio.gather(*(leave() for _ in range(count)))

"""Backends of the HTTP server: one that writes text after text, and one that plays events at a given pace."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import uvicorn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from antislop import AntiSlop
from antislop.hf.compiled_bans import CompiledBans
from antislop.lists.ban_list import Bans
from antislop.serving.server.backend import BackendError, Busy, TextRequest
from antislop.trace.events import Event

END = object()


class SlowBackend:
    """Write the events of `play(request)`.

    pause: seconds before each event. limit: texts at a time, more are refused. written: all requests so far.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        play: Callable[[TextRequest], Iterable[Event | Exception]],
        *,
        bans: Bans = (),
        pause: float = 0.0,
        limit: int = 1000,
        context_length: int = 512,
    ) -> None:
        self.name = "tiny"
        self.tokenizer = tokenizer
        self.bans = AntiSlop(tokenizer, list(bans)).compiled
        self.context_length = context_length
        self.active = 0
        self.written: list[TextRequest] = []
        self.is_closed = self.is_cut = False
        self._play, self._pause, self._limit = play, pause, limit

    async def write(self, request: TextRequest) -> AsyncGenerator[Event, None]:
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

    async def close(self, *, timeout: float | None = None) -> None:
        self.is_closed = True
        end = math.inf if timeout is None else time.monotonic() + timeout
        while self.active:
            self.is_cut = self.is_cut or time.monotonic() >= end
            await asyncio.sleep(0.01)


class OneByOneBackend(SlowBackend):
    """Write each text by a call of `AntiSlop.events`, one after another, as the oracle of faster backends."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, bans: Bans = (), **options: Any):
        self._lock = threading.Lock()
        super().__init__(tokenizer, lambda request: list(self._write(model, request)), bans=bans, **options)

    def _write(self, model: PreTrainedModel, request: TextRequest) -> Iterator[Event]:
        sampler = make_sampler(request.bans, method=request.method)
        with self._lock:
            if request.seed is not None:
                torch.manual_seed(request.seed)
            yield from sampler.events(
                model, torch.tensor([list(request.prompt)]), **settings_of(request), **record_of(request)
            )


def make_sampler(bans: CompiledBans, **options: Any) -> AntiSlop:
    """Return a sampler of compiled bans."""
    return AntiSlop(bans.tokenizer, bans.bans, **options)


def settings_of(request: TextRequest) -> dict[str, Any]:
    """Return the arguments of `generate` for a request."""
    sampling = request.sampling
    chosen: dict[str, Any] = {
        "max_new_tokens": request.max_new_tokens,
        "do_sample": sampling.do_sample,
        "repetition_penalty": sampling.repetition_penalty,
        "stop_strings": list(request.stop) or None,
    }
    if sampling.do_sample:
        chosen |= {
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p or None,
            "typical_p": sampling.typical_p,
        }
    return chosen


def record_of(request: TextRequest) -> dict[str, Any]:
    """Return the arguments that record choices, if the request asks for them."""
    return {} if request.alternatives is None else {"record": "top", "record_top_k": max(1, request.alternatives)}


@contextmanager
def run_server(app: Any) -> Iterator[str]:
    """Run an app by uvicorn on a free port of 127.0.0.1, and yield its URL."""
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="critical", access_log=False)
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
    from antislop.trace.events import Drawn, Finished, Settled

    for token in tokens:
        yield Drawn(token)
        yield Settled((token,))
    yield Finished("done", 0.0)

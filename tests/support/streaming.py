"""A `SimulatedEngine` behind real HTTP on 127.0.0.1, which fails on request, and beside it without a network."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from aiohttp import web

from antislop.engines.endpoint.client import StreamingClient
from antislop.engines.endpoint.connection import Refused
from antislop.engines.endpoint.endpoint import Endpoint, StreamItem, StreamRequest
from tests.support.models import build_tokenizer
from tests.support.simulated_engine import EngineKind, RequestRefused, SimulatedEngine
from tests.support.simulated_formats import DONE, STREAMED_PATHS, answer_get, answer_post, stream

KINDS: tuple[EngineKind, ...] = ("vllm", "llama.cpp", "openai")
TOKENIZER = build_tokenizer()
TABLE = 2 * torch.randn(len(TOKENIZER), len(TOKENIZER), generator=torch.Generator().manual_seed(0))
"""The logits of each token after each other token."""


def make_engine(kind: EngineKind = "vllm", **options: Any) -> SimulatedEngine:
    """Return an engine that draws by the table."""
    return SimulatedEngine(lambda tokens: TABLE[tokens[-1]], TOKENIZER, kind, **options)


async def read(client: StreamingClient, request: StreamRequest) -> list[StreamItem]:
    """Return all items of a stream."""
    return [item async for item in client.stream(request)]


@dataclass(frozen=True)
class Fault:
    """How a request fails.

    kind: "drop" the connection, "stall", "end" the answer early, report an "error" in the stream, or send "garbage" or
        a "flood" of it; "status": an answer without events.
    after: the number of events that are sent before.
    """

    kind: Literal["drop", "stall", "end", "error", "garbage", "flood", "status"] = "status"
    after: int = 0
    status: int = 500
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class StreamingServer:
    """A running server.

    faults: of the next requests for tokens, of which the probe's are the first.
    pace: seconds before each event.
    open: number of streams that are being written.
    cut: number of streams that their client left.
    requests: paths and bodies.
    ports: of the client's connections, one per request.
    """

    engine: SimulatedEngine
    url: str = ""
    faults: deque[Fault | None] = field(default_factory=deque)
    pace: float = 0.0
    open: int = 0
    cut: int = 0
    requests: list[tuple[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    ports: list[int] = field(default_factory=list)

    @property
    def endpoint(self) -> Endpoint:
        """Return where it is, for a client that does not wait long."""
        return Endpoint(f"{self.url}/v1", timeout=5, backoff=0.01)

    def client(self, endpoint: Endpoint | None = None) -> StreamingClient:
        """Return a client with the engine's tokenizer."""
        return StreamingClient(endpoint or self.endpoint, self.engine.tokenizer, self.engine.vocabulary)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer a request."""
        body = await request.json() if request.method == "POST" else None
        self.requests.append((request.path, body))
        self.headers.append(dict(request.headers))
        self.ports.append(request.transport.get_extra_info("peername")[1] if request.transport else 0)
        fault = self.faults.popleft() if self.faults and request.path in STREAMED_PATHS else None
        if fault and fault.kind == "status":
            return _refuse(fault.status, "told to fail", fault.headers)
        if fault and fault.kind == "drop" and not fault.after and request.transport is not None:
            request.transport.close()
        try:
            if body is None:
                return web.json_response(answer_get(self.engine, request.path))
            if not body.get("stream"):
                return web.json_response(answer_post(self.engine, request.path, body))
            return await self._stream(request, stream(self.engine, request.path, body), fault)
        except RequestRefused as refused:
            return _refuse(refused.status, str(refused), {})

    async def _stream(self, request: web.Request, events: Iterator[Any], fault: Fault | None) -> web.StreamResponse:
        """Send the events; the first is drawn before the status, so that a bad request gets its own."""
        event = next(events, None)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        self.open += 1
        count = 0
        try:
            await response.prepare(request)
            while event is not None:
                await asyncio.sleep(self.pace)
                if fault and count == fault.after and not await self._fail(fault, request, response):
                    return response
                await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
                event, count = next(events, None), count + 1
            if self.engine.kind != "llama.cpp":
                await response.write(f"data: {DONE}\n\n".encode())
        except (ConnectionError, asyncio.CancelledError):
            self.cut += 1
            raise
        finally:
            self.open -= 1
        return response

    async def _fail(self, fault: Fault, request: web.Request, response: web.StreamResponse) -> bool:
        """Fail, and return whether events follow."""
        if fault.kind == "drop" and request.transport is not None:
            request.transport.abort()
        elif fault.kind == "error":
            error = {"message": "told to fail", "type": "InternalServerError", "code": fault.status}
            await response.write(b"data: " + json.dumps({"error": error}).encode() + b"\n\n")
        elif fault.kind == "garbage":
            await response.write(b"data: {nonsense\n\n")
        elif fault.kind == "flood":
            await response.write(b"x" * 10000)
        elif fault.kind == "stall":
            await asyncio.sleep(60)
        return False


def _refuse(status: int, message: str, headers: dict[str, str]) -> web.Response:
    return web.json_response({"error": {"message": message, "code": status}}, status=status, headers=headers)


@contextmanager
def serve_streams(engine: SimulatedEngine) -> Iterator[StreamingServer]:
    """Serve on a free port, in a thread with an event loop of its own, until the block ends."""
    server, ready, loop = StreamingServer(engine), threading.Event(), asyncio.new_event_loop()
    ending = asyncio.Event()

    async def run() -> None:
        app = web.Application(client_max_size=1 << 28)
        app.router.add_route("*", "/{path:.*}", server.handle)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        ready.set()
        await ending.wait()
        await runner.cleanup()

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),))
    thread.start()
    ready.wait()
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(ending.set)
        thread.join()
        loop.close()


class _DirectConnection:
    """Stands in for a `StreamConnection`; bodies and events stay values."""

    def __init__(self, engine: SimulatedEngine) -> None:
        self._engine = engine

    def address(self, path: str) -> str:
        return path

    async def ask(self, url: str, body: Any = None, **_: Any) -> Any:
        try:
            return answer_get(self._engine, url) if body is None else answer_post(self._engine, url, body)
        except RequestRefused as refused:
            raise Refused(str(refused), refused.status) from None

    async def stream(self, url: str, body: Any, **_: Any) -> AsyncGenerator[Any, None]:
        try:
            for event in stream(self._engine, url, body):
                yield event
        except RequestRefused as refused:
            raise Refused(str(refused), refused.status) from None

    async def close(self) -> None:
        pass


def connect_directly(engine: SimulatedEngine) -> StreamingClient:
    """Return a client of an engine in this process, for tests that need many tokens."""
    client = StreamingClient(Endpoint("http://127.0.0.1:9/v1"), engine.tokenizer, engine.vocabulary)
    client._connection = _DirectConnection(engine)  # type: ignore[assignment]
    return client

"""Run an app by uvicorn, with limits on connections, and a shutdown that finishes running texts."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from errno import EADDRNOTAVAIL
from types import FrameType
from typing import TYPE_CHECKING

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from antislop.display import describe_count
from antislop.errors import InputError

if TYPE_CHECKING:
    from fastapi import FastAPI

    from antislop.serve.service import Service

SHUTDOWN_SECONDS = 120.0
"""How long running texts may take after a signal."""
LAST_SECONDS = 5
"""How long the server may then take to send the last answers."""
REQUEST_SECONDS = 20.0
"""How long a request may take to arrive, and how long a new connection may wait before its first request."""
MAX_CONNECTIONS = 512
"""The most open connections; further ones are closed at once: a process may often open only 1,024 files."""


def bind(host: str, port: int) -> socket.socket:
    """Return a bound socket, not yet listening. Raises `InputError`."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise InputError(f"the host {host!r} is unknown ({error.strerror}): pass --host 127.0.0.1") from error
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        option = "--host" if error.errno == EADDRNOTAVAIL else "--port"
        raise InputError(f"port {port} of {host} can't be used ({error.strerror}): pass another {option}") from error
    return listener


class BoundedProtocol(H11Protocol):
    """HTTP/1.1 with limits on connections, and on the time in which a request arrives.

    Without limits, a client without a key could keep a connection forever by sending a byte now and then.
    """

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.close()
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._watch()

    def shutdown(self) -> None:
        """Close the connection: after the answer if an answer is being sent, else at once."""
        if self._is_receiving:
            self.transport.close()
        else:
            super().shutdown()

    @property
    def _is_receiving(self) -> bool:
        return self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

    def _watch(self) -> None:
        """Set a deadline while the connection waits for a request; cancel it once the request is complete."""
        if self._is_receiving and not self.transport.is_closing():
            self._deadline = self._deadline or self.loop.call_later(REQUEST_SECONDS, self.transport.close)
        elif self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class DrainingServer(uvicorn.Server):
    """A server that, at a signal, finishes its texts, answers 503 to other requests, and exits.

    say: called with a sentence about what a signal does.
    seconds: how long texts may take after the first signal; the second cuts them off.
    """

    def __init__(self, app: FastAPI, *, say: Callable[[str], None], seconds: float = SHUTDOWN_SECONDS) -> None:
        config = uvicorn.Config(
            app,
            http=BoundedProtocol,
            ws="none",
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_keep_alive=10,  # httpx keeps idle connections for 5 s: with less, it may send into a closed one
            timeout_graceful_shutdown=LAST_SECONDS,
        )
        super().__init__(config)
        self.signal: int | None = None
        self._service: Service = app.state.service
        self._say = say
        self._seconds = seconds
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing: list[asyncio.Task[None]] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Finish running texts at the first signal, cut them off at the second, exit at once at the third."""
        self.signal = self.signal or sig
        if self._loop is None or len(self._closing) > 1:
            self.should_exit = self.force_exit = True
        else:
            self._loop.call_soon_threadsafe(self._begin_closing)

    def _begin_closing(self) -> None:
        seconds = 0.0 if self._closing else self._seconds
        if seconds and (count := self._service.backend.active):
            self._say(f"finishing {describe_count(count, 'text')}; the same signal again cuts them off")
        self._closing.append(asyncio.ensure_future(self._close(seconds)))

    async def _close(self, seconds: float) -> None:
        await self._service.close(timeout=seconds)
        self.should_exit = True

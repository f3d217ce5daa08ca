"""HTTP requests to one endpoint, with retries and limits, for any server's format."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from antislop.display import describe_count, make_visible
from antislop.engines.endpoint.endpoint import Endpoint, EndpointError, StreamBroken
from antislop.errors import DISTRIBUTION, InputError

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession

MAX_STREAMS = 64
"""Most requests that are open at a time; others wait."""
RETRIED_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
MAX_WAIT_SECONDS = 30.0
"""Longest wait between two attempts."""
MAX_LINE_BYTES = 1 << 24
"""Maximum size of an event."""
MAX_ERROR_BYTES = 1 << 16
"""How much is read of an answer with an error status."""
KEEP_ALIVE_SECONDS = 4.0
"""How long idle connections are kept; uvicorn and llama.cpp's server close theirs after 5 s."""
MAX_LEAVE_SECONDS = 1.0
"""How long to wait for a server to close a stream that is no longer read."""

_Reader: TypeAlias = "Callable[[ClientResponse], AsyncGenerator[Any, None]]"


class Refused(EndpointError):
    """Raised if the server refuses a request, finally or in all attempts. status: of HTTP; 0 if not known."""

    def __init__(self, problem: str, status: int) -> None:
        super().__init__(problem)
        self.status = status


class _Failure(Exception):
    """A failed attempt.

    wait: seconds that the server demands before another attempt.
    is_final: whether another attempt is useless.
    """

    def __init__(self, problem: str, *, wait: float = 0.0, is_final: bool = False, status: int = 0) -> None:
        super().__init__(problem)
        self.wait, self.is_final, self.status = wait, is_final, status


class StreamConnection:
    """The connections to one endpoint, for one event loop at a time. Uses no proxies and follows no redirects."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._session: ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def address(self, path: str) -> str:
        """Return the URL of a path: `base_url` replaces the "/v1" of a path; other paths replace its own "/v1"."""
        base = self._endpoint.base_url.rstrip("/")
        if path.startswith("/v1/"):
            return base + path.removeprefix("/v1")
        return base.removesuffix("/v1") + path

    def stream(
        self, url: str, body: dict[str, Any], *, max_bytes: int, is_last: bool = False
    ) -> AsyncGenerator[Any, None]:
        """Yield the parsed events of a streamed answer; closing the generator ends the text on the server.

        is_last: whether no request follows on the connection; if so, wait for the server to close it.

        Raises `EndpointError`, or `StreamBroken` after an event.
        """
        read = partial(_read_events, max_bytes=max_bytes)
        return self._exchange(url, json.dumps(body).encode(), read, is_last=is_last)

    async def ask(self, url: str, body: dict[str, Any] | None = None, *, max_bytes: int = 1 << 20) -> Any:
        """Return the parsed answer to a POST, or to a GET without a body. Raises `EndpointError`."""
        payload = None if body is None else json.dumps(body).encode()
        async with aclosing(self._exchange(url, payload, partial(_read_whole, max_bytes=max_bytes))) as answers:
            return await answers.__anext__()

    async def close(self) -> None:
        """Close all connections; they are opened again when needed."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _exchange(
        self, url: str, payload: bytes | None, read: _Reader, *, is_last: bool = False
    ) -> AsyncGenerator[Any, None]:
        """Yield the parts of an answer; a failure before the first part is retried."""
        server_wait, problem, status = 0.0, "", 0
        for attempt in range(self._endpoint.retries + 1):
            if attempt:
                own_wait = self._endpoint.backoff * 2 ** (attempt - 1) * random.uniform(0.5, 1.0)
                await asyncio.sleep(min(MAX_WAIT_SECONDS, max(server_wait, own_wait)))
            has_begun = False
            try:
                async with self._request(url, payload, is_last=is_last) as response, aclosing(read(response)) as parts:
                    async for part in parts:
                        has_begun = True
                        try:
                            yield part
                        except GeneratorExit:
                            if is_last:
                                await _leave(response)
                            raise
                return
            except _Failure as failure:
                server_wait, problem, status = failure.wait, str(failure), failure.status
                if failure.is_final:
                    raise Refused(f"{url} {problem}", status) from None
                if has_begun:
                    raise StreamBroken(f"{url} {problem}") from None
        problem = f"{url} {problem} (tried {describe_count(self._endpoint.retries + 1, 'time')})"
        raise Refused(problem, status) if status else EndpointError(problem)

    @asynccontextmanager
    async def _request(self, url: str, payload: bytes | None, *, is_last: bool) -> AsyncIterator[ClientResponse]:
        try:
            from aiohttp import ClientError, ClientSession, ClientTimeout, DummyCookieJar, TCPConnector
        except ModuleNotFoundError:
            raise InputError(f"aiohttp is missing: pip install '{DISTRIBUTION}[endpoint]'") from None
        loop = asyncio.get_running_loop()
        if self._session is None or self._loop is not loop:
            timeout = self._endpoint.timeout
            headers = {"Content-Type": "application/json"}
            if self._endpoint.api_key is not None:
                headers["Authorization"] = f"Bearer {self._endpoint.api_key}"
            self._session = ClientSession(
                connector=TCPConnector(limit=MAX_STREAMS, keepalive_timeout=KEEP_ALIVE_SECONDS),
                timeout=ClientTimeout(total=None, sock_connect=timeout, sock_read=timeout),
                cookie_jar=DummyCookieJar(),
                headers=headers,
                trust_env=False,
            )
            self._loop = loop
        session = self._session
        # The server closes the connection when it has ended the text: the next request then finds the text's cache.
        headers = {"Connection": "close"} if is_last else {}
        try:
            response = await session.request("GET" if payload is None else "POST", url, data=payload, headers=headers)
            try:
                if response.status != 200:
                    raise await _refuse(response)
                yield response
            finally:
                response.close()
        except asyncio.TimeoutError:
            raise _Failure(f"did not answer within {self._endpoint.timeout:g} s: raise timeout") from None
        except ClientError as error:
            raise _Failure(f"can't be reached ({error or type(error).__name__}): check base_url") from None


async def _refuse(response: ClientResponse) -> _Failure:
    status, content = response.status, await response.content.read(MAX_ERROR_BYTES)
    advice = " (base_url usually ends in /v1)" if status in (404, 405) else ""
    advice = " (pass api_key)" if status in (401, 403) else advice
    problem = f"answered {status}: {_read_message(content)}{advice}"
    header = response.headers.get("Retry-After", "")
    wait = float(header) if header.isdecimal() else 0.0  # inference servers send no dates
    return _Failure(problem, wait=wait, is_final=status not in RETRIED_STATUSES, status=status)


async def _read_whole(response: ClientResponse, *, max_bytes: int) -> AsyncGenerator[Any, None]:
    content = bytearray()
    async for block in response.content.iter_any():
        content += block
        if len(content) > max_bytes:
            raise _too_large(max_bytes)
    yield _parse(bytes(content))


async def _leave(response: ClientResponse) -> None:
    """Close this side of the connection, and wait until the server closes the other side, too."""
    from aiohttp import ClientError

    transport = None if response.connection is None else response.connection.transport
    if transport is None or not transport.can_write_eof():  # TLS can't be closed in one direction alone
        return

    async def drain() -> None:
        async for _ in response.content.iter_any():
            pass

    with suppress(ClientError, OSError, asyncio.TimeoutError):
        transport.write_eof()
        await asyncio.wait_for(drain(), MAX_LEAVE_SECONDS)


async def _read_events(response: ClientResponse, *, max_bytes: int) -> AsyncGenerator[Any, None]:
    line_start, room, is_done, has_begun = b"", max_bytes, False, False
    async for block in response.content.iter_any():
        room -= len(block)
        *lines, line_start = (line_start + block).split(b"\n")
        if room < 0 or len(line_start) > MAX_LINE_BYTES:
            raise _too_large(max_bytes if room < 0 else MAX_LINE_BYTES)
        for line in lines:
            if line.startswith(b"data:"):
                content = line[5:].strip()
                is_done |= content == b"[DONE]"
                if not is_done:
                    event, has_begun = _check_event(content), True
                    yield event
            elif line.startswith((b"error:", b"{")):  # a refusal with status 200
                _check_event(line.removeprefix(b"error:").strip(), is_error=True)
    if line_start.strip():
        raise _Failure(f"ended within an event: {_shorten(line_start)!r}")
    if not has_begun:
        raise _Failure("ended without an event")


def _too_large(max_bytes: int) -> _Failure:
    return _Failure(f"sent more than {max_bytes:,} bytes, too many for an answer: check base_url", is_final=True)


def _parse(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise _Failure(f"did not answer in JSON: {_shorten(content)!r}", is_final=True) from None


def _check_event(content: bytes, *, is_error: bool = False) -> Any:
    """Return a parsed event; raises `_Failure` for an error reported in a stream."""
    event = _parse(content)
    if is_error or (isinstance(event, dict) and "error" in event):
        error = event.get("error", event) if isinstance(event, dict) else event
        code = error.get("code") if isinstance(error, dict) else None
        status = code if isinstance(code, int) else 0
        is_final = 400 <= status < 500 and status not in RETRIED_STATUSES
        raise _Failure(f"reported an error: {_read_message(content)}", is_final=is_final, status=status)
    return event


def _read_message(content: bytes) -> str:
    try:
        parsed = json.loads(content)
    except (ValueError, RecursionError):
        return _shorten(content) or "an empty body"
    error = parsed.get("error", parsed) if isinstance(parsed, dict) else parsed
    message = error.get("message", error.get("detail", error)) if isinstance(error, dict) else error
    return make_visible(message[:500]) if isinstance(message, str) else _shorten(content)


def _shorten(content: bytes) -> str:
    return make_visible(content[:200].decode(errors="replace"))

"""The HTTP client: requests the log-probabilities of possible next tokens from a completions endpoint.

Knows neither tokenizers nor bans, and needs only the standard library.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from io import BufferedReader, RawIOBase
from socket import socket
from threading import TIMEOUT_MAX, Event
from typing import Any, NamedTuple
from urllib.parse import SplitResult, urlsplit

from antislop.endpoint.failures import (
    RETRIED_STATUSES,
    advise,
    choose_wait,
    read_message,
    read_seconds,
    shorten,
)
from antislop.endpoint.old_dialects import DIALECTS, NEUTRAL, Answer, Api, EndpointError, check_answer
from antislop.errors import InputError

ANSWER_BASE, ANSWER_PART = 1 << 20, 1 << 10
"""Limit of bytes of an answer: a base, and a part for each token of the prompt and for each alternative."""
SEND_PIECE = 1 << 14
"""Bytes per send."""


class _TooLarge(Exception):
    """Raised if an answer exceeds its limit of bytes."""


@dataclass
class Endpoint:
    """A completions endpoint; safe to use from any number of threads.

    base_url: the URL before `/completions`, such as "http://127.0.0.1:8000/v1"; for api="sglang", before `/generate`.
    model: its name on the server; some servers need none. api_key: sent as a bearer token.
    timeout: seconds for a request, from connecting to the last byte of its answer.
    retries: limit of repeated requests after a failed connection, a time-out, 429 or 5xx. The first waits `backoff`
    seconds and each further one twice as long, less a random part of up to half; a longer `Retry-After` is obeyed, up
    to 30 seconds.
    extra: additional fields of each request; `None` removes a field that is sent by default.

    Uses no proxies. Raises `InputError` for an unusable URL, key or field, without the secrets in them.
    """

    base_url: str
    model: str | None = None
    api_key: str | None = field(default=None, repr=False)
    api: Api = "openai"
    timeout: float = 120.0
    retries: int = 4
    backoff: float = 0.5
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        parts = _split(self.base_url)
        if self.api not in DIALECTS:
            raise InputError(f"api is {self.api!r}; it is 'openai' or 'sglang'")
        if not 0 < self.timeout < TIMEOUT_MAX:
            raise InputError(f"timeout is {self.timeout!r}; seconds above 0 are expected")
        if self.retries < 0 or not 0 <= self.backoff < TIMEOUT_MAX:
            raise InputError(f"retries is {self.retries!r} and backoff {self.backoff!r}; neither can be below 0")
        if not _is_plain(self.api_key or ""):
            raise InputError("the API key contains white space or a character that is not ASCII: pass the key alone")
        if self.extra.get("id_slot") is not None:
            raise InputError("extra names a slot (id_slot), with which llama.cpp draws wrong tokens: leave it out")
        self._path = parts.path.rstrip("/") + DIALECTS[self.api].path
        self._url = f"{parts.scheme}://{parts.netloc}{self._path}"
        self._host, self._port = str(parts.hostname), parts.port or (443 if parts.scheme == "https" else 80)
        self._kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._idle: deque[HTTPConnection] = deque()

    def complete(
        self,
        prompt: Sequence[int],
        *,
        max_tokens: int,
        alternatives: int,
        seed: int,
        greedy: bool = False,
        stop: Event | None = None,
    ) -> Answer:
        """Return up to `max_tokens` positions after a prompt of token ids, each with its likeliest `alternatives`.

        The server draws from the unchanged distribution of the model, or writes the likeliest tokens if `greedy`.
        stop: an event; once it is set, no further attempt is made. Raises `EndpointError`.
        """
        dialect = DIALECTS[self.api]
        settings = {"max_tokens": max_tokens, "temperature": 0.0 if greedy else 1.0, "seed": seed, **NEUTRAL}
        body = dialect.ask(list(prompt), alternatives, settings)
        body |= {"model": self.model, **self.extra}
        payload = json.dumps({name: value for name, value in body.items() if value is not None}).encode()
        limit = ANSWER_BASE + ANSWER_PART * (len(prompt) + max_tokens * (alternatives + 1))
        content, retries = self._request(payload, stop, limit=limit)
        try:
            answer = dialect.read(json.loads(content))
            check_answer(answer, max_tokens=max_tokens)
        except EndpointError as error:
            raise EndpointError(f"{self._url}: {error}") from None
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise EndpointError(f"{self._url} is no completions endpoint: it answered {shorten(content)!r}") from None
        return answer._replace(retries=retries)

    def close(self) -> None:
        """Close the idle connections; they are reopened when needed."""
        while self._idle:
            self._idle.pop().close()

    def _request(self, body: bytes, stop: Event | None, *, limit: int) -> tuple[bytes, int]:
        """Send a request, with retries; return the answer, of up to `limit` bytes, and the number of retries."""
        server_wait, failure = 0.0, ""
        for attempt in range(self.retries + 1):
            if attempt:
                _wait(choose_wait(attempt, backoff=self.backoff, server_wait=server_wait), stop)
            if stop is not None and stop.is_set():
                raise EndpointError(f"{self._url} got no further request: the run was stopped")
            try:
                status, server_wait, content = self._exchange(body, _Budget(time.monotonic() + self.timeout, limit))
            except TimeoutError:
                server_wait, failure = 0.0, f"did not answer within {self.timeout:g} s: raise timeout"
                continue
            except OSError as error:
                server_wait, failure = 0.0, f"can't be reached ({error or type(error).__name__}): check base_url"
                continue
            except (HTTPException, ValueError) as error:
                server_wait, failure = 0.0, f"does not answer in HTTP ({type(error).__name__}): check base_url"
                continue
            except _TooLarge:
                raise EndpointError(
                    f"{self._url} sent more than {limit:,} bytes, too many for an answer: check base_url"
                ) from None
            if status == 200:
                return content, attempt
            failure = f"answered {status}: {read_message(content)}" + advise(status)
            if status not in RETRIED_STATUSES:
                raise EndpointError(f"{self._url} {failure}")
        raise EndpointError(f"{self._url} {failure} (tried {self.retries + 1} times)")

    def _exchange(self, body: bytes, budget: _Budget) -> tuple[int, float, bytes]:
        """Return the status, the seconds to wait that the server demands, and the content."""
        headers = {"Content-Type": "application/json", "Accept": "application/json", "Content-Length": str(len(body))}
        if self.api_key is not None:
            headers["Authorization"] = f"Bearer {self.api_key}"
        connection, is_kept = self._connect(budget)
        try:
            connection.response_class = partial(_respond, budget=budget)  # type: ignore[assignment]
            connection.request("POST", self._path, _pace(body, connection.sock, budget), headers)
            with connection.getresponse() as response:
                if (response.length or 0) > budget.limit:
                    raise _TooLarge
                content = response.read(budget.limit + 1 if response.length is None else None)
        except BaseException as error:
            connection.close()
            if is_kept and isinstance(error, ConnectionError):  # servers close idle connections
                self.close()
                return self._exchange(body, budget)
            raise
        if response.status >= 200:
            self._idle.append(connection)
        else:  # a final answer may follow, and would be read as the answer to the next request
            connection.close()
        return response.status, read_seconds(response.headers.get("Retry-After")), content

    def _connect(self, budget: _Budget) -> tuple[HTTPConnection, bool]:
        """Return an open connection, and whether an earlier request used it."""
        try:
            connection, is_kept = self._idle.pop(), True
        except IndexError:
            connection, is_kept = self._kind(self._host, self._port), False
        if connection.sock is None:
            connection.timeout = budget.seconds
            connection.connect()
            is_kept = False
        connection.sock.settimeout(budget.seconds)
        return connection, is_kept


def _split(base_url: str) -> SplitResult:
    """Return the parts of a URL; raises `InputError` without the secrets in it."""
    if set("@?#") & set(base_url):
        raise InputError(
            "base_url contains a user name, a password, a query or a fragment, none of which would be sent: remove "
            "all text up to '@' and from '?' or '#'; pass a key as api_key"
        )
    example = "something like http://127.0.0.1:8000/v1 is expected"
    try:
        parts = urlsplit(base_url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        (parts.hostname or "").encode("idna")
    except ValueError as error:
        raise InputError(f"base_url is {base_url!r}, whose host or port is invalid ({error}): {example}") from None
    if not is_url or not _is_plain(base_url):
        raise InputError(f"base_url is {base_url!r}; {example}")
    return parts


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable() and " " not in text


@dataclass
class _Budget:
    """The budget of a request: a deadline, in seconds of the monotonic clock, and a limit of bytes of its answer."""

    deadline: float
    limit: int

    @property
    def seconds(self) -> float:
        """The remaining time; raises `TimeoutError` if there is none."""
        seconds = self.deadline - time.monotonic()
        if seconds <= 0:
            raise TimeoutError
        return seconds


class _BoundedReader(RawIOBase):
    """Read an answer from a socket, headers included, within a budget; a socket's timeout restarts at each byte."""

    def __init__(self, sock: socket, budget: _Budget) -> None:
        self._sock = sock
        self._raw = sock.makefile("rb", buffering=0)
        self._budget = budget
        self._room = budget.limit

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int | None:
        """Read the available bytes; raises `TimeoutError` and `_TooLarge`."""
        self._sock.settimeout(self._budget.seconds)
        count = self._raw.readinto(buffer)
        self._room -= count or 0
        if self._room < 0:
            raise _TooLarge
        return count

    def close(self) -> None:
        """Release the socket."""
        self._raw.close()
        super().close()


class _BoundedSocket(NamedTuple):
    """The part of a socket that `HTTPResponse` uses."""

    sock: socket
    budget: _Budget

    def makefile(self, mode: str) -> BufferedReader:  # noqa: ARG002
        """Return the reader of the answer."""
        return BufferedReader(_BoundedReader(self.sock, self.budget))


def _respond(sock: socket, *, method: str, budget: _Budget) -> HTTPResponse:
    return HTTPResponse(_BoundedSocket(sock, budget), method=method)  # type: ignore[arg-type]


def _pace(body: bytes, sock: socket, budget: _Budget) -> Iterator[bytes]:
    """Yield a body in pieces; before each, set the socket's timeout to the remaining time."""
    for start in range(0, len(body), SEND_PIECE):
        sock.settimeout(budget.seconds)
        yield body[start : start + SEND_PIECE]


def _wait(seconds: float, stop: Event | None) -> None:
    if stop is None:
        time.sleep(seconds)
    else:
        stop.wait(seconds)

"""The server's FastAPI app: its routes, the check of the API key, and the reloading of changed lists of bans."""

from __future__ import annotations

import asyncio
import re
import warnings
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, dataclass
from hashlib import sha256
from hmac import compare_digest
from http import HTTPStatus
from ipaddress import ip_address
from pathlib import Path
from uuid import uuid4

from fastapi import FastAPI
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from antislop import __version__
from antislop.core.bans import BanList, Bans
from antislop.errors import InputError, first_line
from antislop.serve.backend import Backend
from antislop.serve.request_errors import RequestError, request_id, translate
from antislop.serve.routes import server, texts
from antislop.serve.routes.answers import IGNORED_HEADER, WARNING_HEADER
from antislop.serve.service import ServerMetrics, Service

OPEN_PATHS = {"/", "/health"}
"""Paths that need no key, since their answers contain nothing about models and texts."""
ADVICE = {404: "; send texts to /v1/completions or /v1/chat/completions", 405: "; send what its header Allow names"}
"""The end of the error for an unknown path (404) or method (405), which says what to send instead."""
RELOAD_SECONDS = 1.0
"""Seconds between two checks of whether files of bans have changed."""
ID_HEADER = "X-Request-Id"
ID_PATTERN = re.compile(r"[\w.:/+=@-]{1,128}", re.ASCII)
"""Request ids that a client may choose. Other ids could break the lines of a log, or fill the log."""


def make_app(
    backend: Backend,
    *,
    api_key: str | None = None,
    lists: Mapping[str, Bans] | None = None,
    reloaders: Sequence[BanReloader] = (),
    allow_origins: Sequence[str] = (),
) -> FastAPI:
    """Return an app that serves a backend, and closes it when the server shuts down.

    lists: lists of bans, by the names with which requests choose them.

    Raises `InputError` for an origin that `check_origins` refuses, and for a list that can't be used.
    """
    check_origins(allow_origins)
    service = Service(backend, lists=lists)

    @asynccontextmanager
    async def live(_: FastAPI) -> AsyncIterator[None]:
        # The warning would put a client's regex into the log; `timed_out_regexes` of the answer counts it.
        warnings.filterwarnings("ignore", message="the regex .* took longer", category=RuntimeWarning)
        watches = [asyncio.ensure_future(reloader.watch(service)) for reloader in reloaders]
        yield
        for watch in watches:
            watch.cancel()
        await service.close()

    app = FastAPI(title="antislop", version=__version__, lifespan=live, openapi_url=None)
    app.state.service = service
    for routes in (texts, server):
        app.include_router(routes.router)

    @app.exception_handler(RequestError)
    async def answer_error(_: Request, error: RequestError) -> Response:
        return _respond(error)

    @app.exception_handler(HTTPException)  # of a path or a method that no route has
    async def answer_http_error(request: Request, error: HTTPException) -> Response:
        reason = HTTPStatus(error.status_code).phrase.lower()
        message = f"{request.method} {request.url.path[:80]}: {reason}{ADVICE.get(error.status_code, '')}"
        return _respond(RequestError(error.status_code, message, headers=error.headers))

    app.add_middleware(AccessGate, key=api_key)
    if allow_origins:  # outside the gate: pages read the gate's errors, too, and a preflight has no key
        app.add_middleware(
            CORSMiddleware,
            allow_origins=allow_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=[ID_HEADER, IGNORED_HEADER, WARNING_HEADER, "Retry-After"],
        )
    app.add_middleware(RequestMarker, metrics=service.metrics)
    return app


def check_origins(origins: Sequence[str]) -> None:
    """Raise `InputError` for an origin in a form that no browser sends: to allow it would have no effect."""
    for origin in origins:
        if origin != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/\s?#@*A-Z]+", origin):
            raise InputError(f"{origin!r} is not an origin; write https://chat.example or *")


def is_loopback(host: str) -> bool:
    """Return whether only programs on this machine can reach an address."""
    try:
        address = ip_address(host)
    except ValueError:
        return host == "localhost"
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


class RequestMarker:
    """Middleware that gives each request and its answer an id, and counts answers."""

    def __init__(self, app: ASGIApp, *, metrics: ServerMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        sent = Headers(scope=scope).get(ID_HEADER, "")
        number = sent if ID_PATTERN.fullmatch(sent) else uuid4().hex
        request_id.set(number)

        async def mark(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[ID_HEADER] = number
                route = getattr(scope.get("route"), "path", "none")
                self._metrics.requests.labels(route, str(message["status"])).inc()
            await send(message)

        await self._app(scope, receive, mark)


class AccessGate:
    """Middleware that refuses requests without the key, and turns errors that no route caught into answers.

    key: the key that requests need. None: no key, but web pages whose site's name leads to this machine are refused.
    """

    def __init__(self, app: ASGIApp, *, key: str | None) -> None:
        self._app = app
        self._digest = None if key is None else sha256(key.encode()).digest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        has_begun = False

        async def note(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._choose(scope)(scope, receive, note)
        except Exception as error:
            fault = translate(error)
            if has_begun:  # the server can only close the connection
                raise
            await _respond(fault)(scope, receive, send)

    def _choose(self, scope: Scope) -> ASGIApp:
        headers = Headers(scope=scope)
        if self._digest is None:  # a site can make its own name lead to this machine (DNS rebinding)
            host, (address, _) = headers.get("host", ""), scope.get("server") or ("", None)
            name = host.rpartition(":")[0] or host
            domain = name.rpartition(".")[2].lower()
            is_nobodys = domain.isdecimal() or domain in ("localhost", "local", "internal")
            if "." not in name or is_nobodys or not is_loopback(address):
                return self._app
            reason = f"the host {name[:80]!r} is not this machine: connect to 127.0.0.1, or start the server with a key"
            return _respond(RequestError(403, reason, code="wrong_host"))
        scheme, _, token = headers.get("authorization", "").partition(" ")
        sent = [token.strip() if scheme.lower() == "bearer" else "", headers.get("x-api-key", "")]
        # Digests have one length, so that the time of comparing them tells nothing of the key.
        digests = [sha256(key.encode("latin-1")).digest() for key in sent]
        if scope["path"] in OPEN_PATHS or any(compare_digest(digest, self._digest) for digest in digests):
            return self._app
        message = "the key is missing or wrong: send Authorization: Bearer KEY"
        challenge = {"WWW-Authenticate": "Bearer"}
        return _respond(RequestError(401, message, code="invalid_api_key", headers=challenge))


@dataclass
class BanReloader:
    """Reloads a service's list of bans when the list's files change, without delaying requests.

    name: the list's name; "" for the service's own list.
    warn: called if a file can't be used; the list then stays as it was.
    """

    files: Sequence[Path]
    read: Callable[[], BanList]
    _: KW_ONLY
    name: str = ""
    say: Callable[[str], None]
    warn: Callable[[str], None]

    def __post_init__(self) -> None:
        self._versions = self._find_versions()

    async def watch(self, service: Service) -> None:
        while True:
            await asyncio.sleep(RELOAD_SECONDS)
            await self.reload(service)

    async def reload(self, service: Service) -> None:
        versions = await asyncio.to_thread(self._find_versions)
        if versions == self._versions:
            return
        self._versions = versions
        place = f" of the list {self.name}" if self.name else ""
        try:
            bans = await asyncio.to_thread(self.read)
            # The next request gets the new list. If that list is invalid, this raises, and the old list stays.
            service.lists[self.name] = await asyncio.to_thread(service.lists[self.name].with_bans, bans)
        except (InputError, OSError) as error:
            self.warn(f"the bans{place} stay as they were: {first_line(error)}")
        else:
            self.say(f"the bans{place} were read again, {len(bans):,} in all")

    def _find_versions(self) -> list[tuple[int, int, int]]:
        stats = [file.stat() if file.exists() else None for file in self.files]
        return [(0, 0, 0) if stat is None else (stat.st_mtime_ns, stat.st_size, stat.st_ino) for stat in stats]


def _respond(error: RequestError) -> Response:
    return JSONResponse(error.content, error.status, error.headers)

"""What each request passes before a route sees it: the key, and the count of its answer."""

from __future__ import annotations

from hashlib import sha256
from hmac import compare_digest

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from antislop.server.metrics import ServerMetrics
from antislop.server.request_errors import RequestError

OPEN_PATHS = {"/", "/health"}
"""Paths that need no key: they tell nothing of a model or a text."""


class AccessGate:
    """Middleware that refuses requests without the key, and counts answers.

    key: None lets everybody in.
    """

    def __init__(self, app: ASGIApp, *, key: str | None, metrics: ServerMetrics) -> None:
        self._app = app
        self._digest = None if key is None else sha256(key.encode()).digest()
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 401."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def count(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = getattr(scope.get("route"), "path", "none")
                self._metrics.requests.labels(route, str(message["status"])).inc()
            await send(message)

        if self._digest is None or scope["path"] in OPEN_PATHS or self._has_key(Headers(scope=scope)):
            await self._app(scope, receive, count)
        else:
            error = RequestError(
                401, "the key is missing or wrong: send Authorization: Bearer KEY", code="invalid_api_key"
            )
            await JSONResponse(error.content, 401, {"WWW-Authenticate": "Bearer"})(scope, receive, count)

    def _has_key(self, headers: Headers) -> bool:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        sent = [token.strip() if scheme.lower() == "bearer" else "", headers.get("x-api-key", "")]
        digests = [sha256(key.encode("latin-1")).digest() for key in sent]
        return any(compare_digest(digest, self._digest or b"") for digest in digests)

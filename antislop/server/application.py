"""The FastAPI app over a backend."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from antislop import __version__
from antislop.server.access import AccessGate
from antislop.server.backend import Backend
from antislop.server.reloading import BanReloader
from antislop.server.request_errors import RequestError
from antislop.server.routes import chats, completions, models, monitoring, page
from antislop.server.service import Service


def make_app(service: Service, *, api_key: str | None = None, reloader: BanReloader | None = None) -> FastAPI:
    """Return the app of a service, which it closes when the server shuts down.

    reloader: of the service's bans, if their files are watched.
    """

    @asynccontextmanager
    async def live(_: FastAPI) -> AsyncIterator[None]:
        # It would log what a request contains, which `dropped_regexes` of its answer counts.
        warnings.filterwarnings("ignore", message="the regex .* took longer", category=RuntimeWarning)
        watch = asyncio.ensure_future(reloader.watch(service)) if reloader else None
        yield
        if watch:
            watch.cancel()
        await service.close()

    app = FastAPI(title="antislop", version=__version__, lifespan=live, openapi_url=None)
    app.state.service = service
    for routes in (completions, chats, models, monitoring, page):
        app.include_router(routes.router)
    app.add_exception_handler(RequestError, _answer_error)
    app.add_exception_handler(HTTPException, _answer_http_error)
    app.add_middleware(AccessGate, key=api_key, metrics=service.metrics)
    return app


def serve_backend(backend: Backend, *, api_key: str | None = None) -> FastAPI:
    """Return the app of a backend."""
    return make_app(Service(backend), api_key=api_key)


async def _answer_error(_: Request, error: Exception) -> Response:
    if not isinstance(error, RequestError):
        raise error
    return JSONResponse(error.content, error.status, error.headers)


async def _answer_http_error(request: Request, error: Exception) -> Response:
    """Answer an unknown path or method in the shape of all errors."""
    if not isinstance(error, HTTPException):
        raise error
    reason = HTTPStatus(error.status_code).phrase.lower()
    refusal = RequestError(error.status_code, f"{request.method} {request.url.path[:80]}: {reason}")
    return JSONResponse(refusal.content, error.status_code, dict(error.headers or {}))

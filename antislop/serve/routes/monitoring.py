"""Routes that watch the server."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import JSONResponse, Response

from antislop.errors import first_line
from antislop.serve.backend import BackendError
from antislop.serve.routes.answers import service_of

router = APIRouter()


@router.get("/health")
async def report_health(request: Request) -> Response:
    """Answer 503 while the server shuts down, and if its backend failed."""
    service = service_of(request)
    content: dict[str, Any] = {"status": "ok", "active": service.backend.active}
    try:
        await service.backend.check()
    except BackendError as error:
        content |= {"status": "failed", "reason": first_line(error)}
    if service.is_closing:
        content["status"] = "stopping"
    return JSONResponse(content, status_code=200 if content["status"] == "ok" else 503)


@router.get("/metrics")
async def report_metrics(request: Request) -> Response:
    return Response(service_of(request).metrics.write(), media_type=CONTENT_TYPE_LATEST)

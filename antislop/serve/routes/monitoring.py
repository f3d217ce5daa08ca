"""Routes that watch the server, and that end texts."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import JSONResponse, Response

from antislop.errors import first_line
from antislop.serve.backend import BackendError
from antislop.serve.bodies.fields import AbortBody, check, read_object
from antislop.serve.routes.answers import caller_of, service_of

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


@router.post("/api/extra/abort")
async def abort(request: Request) -> dict[str, Any]:
    """Answer as KoboldCpp does."""
    body = check(AbortBody, await read_object(request, may_be_empty=True))
    count = service_of(request).abort(caller_of(request, body.genkey))
    return {"success": "true" if count else "false"}

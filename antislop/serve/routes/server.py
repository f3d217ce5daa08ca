"""Routes about the server itself: its models, health and counts, and a page to try it."""

from __future__ import annotations

from functools import cache
from typing import Any

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST
from prometheus_client.exposition import generate_latest
from starlette.responses import HTMLResponse, JSONResponse, Response

from antislop import __version__
from antislop.display import fill_page
from antislop.errors import first_line
from antislop.files.models import ModelSpec
from antislop.serve.backend import BackendError
from antislop.serve.routes.answers import service_of

router = APIRouter()


# -- models, as OpenAI's clients and SillyTavern ask for them ----------------------------------------------------------


def _describe(request: Request, name: str | None = None) -> dict[str, Any]:
    service = service_of(request)
    return {
        "id": name or service.backend.name,
        "object": "model",
        "created": service.began,
        "owned_by": "antislop",
        "max_model_len": service.backend.context_length,
    }


@router.get("/v1/models")
@router.get("/v1/model/list")
async def list_models(request: Request) -> dict[str, Any]:
    return {"object": "list", "data": [_describe(request, name) for name in service_of(request).models]}


@router.get("/v1/models/{name:path}")
async def describe_named(request: Request, name: str) -> dict[str, Any]:
    service_of(request).read_model(name)
    return _describe(request, name)


@router.get("/v1/model")
async def describe_model(request: Request) -> dict[str, Any]:
    """Describe the model as TabbyAPI does, with the length of each list of bans, and whether the model is bundled."""
    service = service_of(request)
    parameters = {"max_seq_len": service.backend.context_length, "prompt_template_content": service.chat_template}
    counts = {name: len(compiled.bans) for name, compiled in service.lists.items()}
    is_toy = service.backend.tokenizer.name_or_path == ModelSpec().find_source()
    own = {"bans": counts.pop(""), "lists": counts, "toy": is_toy}
    return {**_describe(request), "parameters": parameters, "antislop": own}


@router.get("/props")
async def describe_properties(request: Request) -> dict[str, Any]:
    """Answer as llama.cpp and KoboldCpp do: from this answer, SillyTavern derives the size of the context."""
    service = service_of(request)
    settings = {"n_ctx": service.backend.context_length}
    return {"chat_template": service.chat_template, "default_generation_settings": settings}


@router.get("/version")
async def tell_version() -> dict[str, str]:
    """Answer with antislop's version, in the form of vLLM's answer."""
    return {"version": __version__}


# -- health and counts -------------------------------------------------------------------------------------------------


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
    return Response(generate_latest(service_of(request).metrics.registry), media_type=CONTENT_TYPE_LATEST)


# -- a page that speaks to the public routes ---------------------------------------------------------------------------


@router.get("/")
async def show_page() -> Response:
    page, policy = _render()
    return HTMLResponse(
        page,
        headers={
            "Content-Security-Policy": policy,
            "Cache-Control": "no-cache",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        },
    )


@cache
def _render() -> tuple[str, str]:
    page, policy = fill_page("serve.html", styles=("page.css", "serve.css"), script="serve.js")
    # The data: image is the empty icon.
    return page, f"{policy}; img-src data:; connect-src 'self'; frame-ancestors 'none'"

"""Routes that describe the model, as OpenAI's clients and SillyTavern ask for it."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from antislop import __version__
from antislop.core.hf import TINY
from antislop.serve.routes.answers import service_of

router = APIRouter()


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
    """Describe the model as TabbyAPI does, the lengths of the server's lists, and whether it is the bundled model."""
    service = service_of(request)
    parameters = {"max_seq_len": service.backend.context_length, "prompt_template_content": service.chat_template}
    counts = {name: len(compiled.bans) for name, compiled in service.lists.items()}
    is_toy = service.backend.tokenizer.name_or_path == str(TINY)
    own = {"bans": counts.pop(""), "lists": counts, "toy": is_toy}
    return {**_describe(request), "parameters": parameters, "antislop": own}


@router.get("/props")
async def describe_properties(request: Request) -> dict[str, Any]:
    """Answer as llama.cpp and KoboldCpp do: SillyTavern derives the size of the context from it."""
    service = service_of(request)
    settings = {"n_ctx": service.backend.context_length}
    return {"chat_template": service.chat_template, "default_generation_settings": settings}


@router.get("/version")
async def tell_version() -> dict[str, str]:
    """Answer as vLLM does."""
    return {"version": __version__}

"""Routes that describe the model: OpenAI's, TabbyAPI's and KoboldCpp's."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from antislop import __version__
from antislop.core.hf.pretrained import TINY
from antislop.serve.bodies.fields import CountBody, EncodeBody, check, read_object
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
    """Answer as llama.cpp and KoboldCpp do."""
    service = service_of(request)
    settings = {"n_ctx": service.backend.context_length}
    return {"chat_template": service.chat_template, "default_generation_settings": settings}


@router.post("/v1/token/encode")
async def encode(request: Request) -> dict[str, Any]:
    """Answer as TabbyAPI does."""
    body = check(EncodeBody, await read_object(request))
    service = service_of(request)
    ids = await service.encode(
        body.text, special_tokens=body.add_bos_token, reads_special_tokens=body.encode_special_tokens
    )
    return {"tokens": ids, "length": len(ids)}


@router.post("/api/extra/tokencount")
async def count_tokens(request: Request) -> dict[str, Any]:
    """Answer as KoboldCpp does."""
    body = check(CountBody, await read_object(request))
    ids = await service_of(request).encode(body.prompt, special_tokens=body.special)
    return {"value": len(ids), "ids": ids}


@router.get("/api/v1/model")
async def name_model(request: Request) -> dict[str, str]:
    """Answer as KoboldCpp does."""
    return {"result": service_of(request).backend.name}


@router.get("/version")
async def tell_version() -> dict[str, str]:
    """Answer as vLLM does."""
    return {"version": __version__}


@router.get("/api/extra/version")
async def name_server() -> dict[str, str]:
    """Name this server and its version, where KoboldCpp has its own."""
    return {"result": "antislop", "version": __version__}


@router.get("/api/extra/true_max_context_length")
@router.get("/api/v1/config/max_context_length")
async def count_context(request: Request) -> dict[str, int | None]:
    """Answer as KoboldCpp does."""
    return {"value": service_of(request).backend.context_length}

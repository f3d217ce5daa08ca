"""POST /v1/completions: texts that continue prompts."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from antislop.server.bodies.fields import CompletionBody, read_body
from antislop.server.bodies.json_reading import read_object
from antislop.server.request_errors import RequestError, shorten
from antislop.server.routes.answers import AnswerWriter, CompletionFormat, make_id
from antislop.server.routes.texts import TextAnswer, reads_trace, service_of
from antislop.server.service import Service

DEFAULT_TOKENS = 16
"""OpenAI's default of `max_tokens` on this route."""

router = APIRouter()


@router.post("/v1/completions")
async def complete(request: Request) -> Response:
    """Continue one prompt or several."""
    service, has_trace = service_of(request), reads_trace(request)
    body, unheeded = read_body(CompletionBody, await read_object(request))
    if body.max_tokens == 0 and not body.echo:
        raise RequestError(400, "max_tokens is 0, and the answer would be empty: pass echo: true", param="max_tokens")
    given = _list_prompts(body.prompt)
    prompts = [await _encode(service, prompt, body) for prompt in given]
    pairs = zip(given, prompts, strict=True) if body.echo else ()
    requests = await service.plan(
        body,
        prompts,
        default_tokens=DEFAULT_TOKENS,
        alternatives=body.logprobs,
        echoes=[prompt if isinstance(prompt, str) else service.to_text(ids) for prompt, ids in pairs],
    )
    writer = AnswerWriter(
        CompletionFormat(),
        service.backend.name,
        service.decode,
        has_logprobs=body.logprobs is not None,
        has_trace=has_trace,
        id=make_id("cmpl"),
    )
    return await TextAnswer(request, body, writer, unheeded).respond(requests)


def _list_prompts(prompt: Any) -> list[Any]:
    """Return the prompts of a body: a text, ids, or several of either. Raises `RequestError`."""
    if prompt is None:
        raise RequestError(400, "prompt is missing: send a text or a list of ids", param="prompt")
    if isinstance(prompt, str) or (isinstance(prompt, list) and prompt and all(map(_is_id, prompt))):
        return [prompt]
    if isinstance(prompt, list) and prompt and len({type(part) for part in prompt}) == 1:
        return prompt
    raise RequestError(
        400, f"prompt is {shorten(prompt)}; a text, a list of ids, or a list of either was expected", param="prompt"
    )


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


async def _encode(service: Service, prompt: Any, body: CompletionBody) -> list[int]:
    if isinstance(prompt, str):
        ids = await service.encode(prompt, special_tokens=body.add_bos_token)
    elif isinstance(prompt, list) and all(map(_is_id, prompt)):
        ids = prompt
    else:
        raise RequestError(
            400, f"prompt contains {shorten(prompt)}, which is no text and no list of ids", param="prompt"
        )
    if not ids:
        raise RequestError(400, "the prompt has no tokens: send at least one", param="prompt")
    size = service.vocabulary_size
    if unknown := [token for token in ids if not 0 <= token < size]:
        message = f"the prompt contains the id {shorten(unknown[0])}; the model has {size:,} tokens"
        raise RequestError(400, message, param="prompt")
    return ids

"""POST /v1/completions: texts that continue prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from antislop.serve.bodies.fields import CompletionBody
from antislop.serve.chunk_maker import AnswerChunk, SettledToken
from antislop.serve.request_errors import RequestError, shorten
from antislop.serve.routes.answers import AnswerResponder, TokenBytes, logprob_of, write_token
from antislop.serve.service import Service

DEFAULT_TOKENS = 16
"""OpenAI's default of `max_tokens` in completions."""

router = APIRouter()


@router.post("/v1/completions")
async def complete(request: Request) -> Response:
    responder = await AnswerResponder.read(request, CompletionBody, CompletionFormat())
    service, body = responder.service, responder.body
    if body.max_tokens == 0 and not body.echo:
        raise RequestError(400, "max_tokens is 0, and the answer would be empty: pass echo: true", param="max_tokens")
    given = _list_prompts(body.prompt)
    prompts = [await _encode(service, prompt, body) for prompt in given]
    pairs = zip(given, prompts, strict=True) if body.echo else ()
    echoes = [prompt if isinstance(prompt, str) else service.vocabulary.decode(ids) for prompt, ids in pairs]
    return await responder.respond(prompts, default_tokens=DEFAULT_TOKENS, echoes=echoes)


class CompletionFormat:
    prefix = "cmpl"
    whole = part = "text_completion"

    def begin(self) -> None:
        return None

    def write_part(self, number: int, chunk: AnswerChunk, logprobs: Any) -> dict[str, Any]:  # noqa: ARG002
        return {"text": chunk.text, "logprobs": logprobs}

    write_whole = write_part

    def locate(self, number: int, index: int) -> int:  # noqa: ARG002
        return index

    def write_logprobs(self, tokens: Sequence[SettledToken], read: TokenBytes) -> dict[str, Any]:
        """Return parallel lists."""
        return {
            "tokens": [write_token(read(token.token)) for token in tokens],
            "token_logprobs": [None if token.choice is None else logprob_of(token.choice.share) for token in tokens],
            "top_logprobs": [_list_likeliest(token, read) for token in tokens],
            "text_offset": [token.start for token in tokens],
        }


def _list_likeliest(token: SettledToken, read: TokenBytes) -> dict[str, float] | None:
    """Return the log-probabilities of the likeliest tokens and of the token itself, by their texts."""
    if token.choice is None:
        return None
    likeliest: dict[str, float] = {}
    for other, share in (*token.choice.alternatives, (token.token, token.choice.share)):
        likeliest.setdefault(write_token(read(other)), logprob_of(share))
    return likeliest


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
        service.refuse_long(prompt)
        ids = await service.encode(prompt, special_tokens=body.add_bos_token)
    elif isinstance(prompt, list) and all(map(_is_id, prompt)):
        ids = prompt
    else:
        raise RequestError(
            400, f"prompt contains {shorten(prompt)}; a text or a list of ids was expected", param="prompt"
        )
    if not ids:
        raise RequestError(400, "the prompt has no tokens: send at least one", param="prompt")
    size = service.vocabulary_size
    if unknown := [token for token in ids if not 0 <= token < size]:
        message = f"the prompt contains the id {shorten(unknown[0])}; the model has {size:,} tokens"
        raise RequestError(400, message, param="prompt")
    service.measure(ids, body.max_tokens, DEFAULT_TOKENS)  # before the next prompt is encoded
    return ids

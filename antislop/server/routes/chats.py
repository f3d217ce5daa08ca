"""POST /v1/chat/completions: answers to messages, by the tokenizer's chat template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request
from jinja2 import TemplateError
from starlette.responses import Response

from antislop.errors import first_line
from antislop.server.bodies.fields import ChatBody
from antislop.server.chunk_maker import SettledToken
from antislop.server.request_errors import RequestError, shorten
from antislop.server.routes.answers import AnswerResponder, TokenBytes, logprob_of, write_token
from antislop.server.service import Service

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
MAX_MESSAGES = 10_000

router = APIRouter()


@router.post("/v1/chat/completions")
async def chat(request: Request) -> Response:
    responder = await AnswerResponder.read(request, ChatBody, ChatFormat())
    body = responder.body
    if body.top_logprobs and not body.logprobs:
        raise RequestError(400, "top_logprobs needs logprobs: true", param="top_logprobs")
    return await responder.respond([await _read_chat(responder.service, body.messages)], default_tokens=None)


class ChatFormat:
    prefix = "chatcmpl"
    whole, part = "chat.completion", "chat.completion.chunk"

    def begin(self) -> dict[str, Any]:
        return {"delta": {"role": "assistant", "content": ""}, "logprobs": None}

    def write_part(self, text: str, logprobs: Any) -> dict[str, Any]:
        return {"delta": {"content": text} if text else {}, "logprobs": logprobs}

    def write_whole(self, text: str, logprobs: Any) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text, "refusal": None}, "logprobs": logprobs}

    def write_logprobs(self, tokens: Sequence[SettledToken], read: TokenBytes) -> dict[str, Any]:
        def describe(token: int, share: float) -> dict[str, Any]:
            data = read(token)
            return {"token": write_token(data), "logprob": logprob_of(share), "bytes": list(data)}

        return {
            "content": [
                {
                    **describe(token.token, token.choice.share),
                    "top_logprobs": [describe(other, share) for other, share in token.choice.alternatives],
                }
                for token in tokens
                if token.choice is not None
            ],
            "refusal": None,
        }


async def _read_chat(service: Service, messages: Any) -> list[int]:
    if not service.has_chat_template:
        raise RequestError(
            400, "the model's tokenizer has no chat template: send a prompt to /v1/completions", param="messages"
        )
    checked = read_messages(messages)
    try:
        ids = await service.read_template(checked)
    except (TemplateError, ValueError, TypeError, LookupError, AttributeError) as error:
        message = f"the model's chat template refuses these messages ({first_line(error)[:200]})"
        raise RequestError(400, message, param="messages") from error
    if not ids:
        raise RequestError(400, "the messages have no tokens: send at least one", param="messages")
    return ids


def read_messages(messages: Any) -> list[dict[str, str]]:
    """Return messages of texts, as templates read them. Raises `RequestError`."""
    if not isinstance(messages, list) or not 1 <= len(messages) <= MAX_MESSAGES:
        message = f"messages is {shorten(messages)}; a list of 1 to {MAX_MESSAGES:,} messages was expected"
        raise RequestError(400, message, param="messages")
    return [_read_message(message, f"messages.{number}") for number, message in enumerate(messages)]


def _read_message(message: Any, place: str) -> dict[str, str]:
    if not isinstance(message, dict):
        raise RequestError(400, f"{place} is {shorten(message)}; an object was expected", param=place)
    filled = {name: value for name, value in message.items() if value is not None and value != []}
    role = filled.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise RequestError(400, f"{place}.role is {shorten(role)}; one of {', '.join(ROLES)} was expected", param=place)
    for name in filled.keys() - {"role", "content", "name"}:
        raise RequestError(400, f"{place} has {name[:60]!r}, which is not supported: leave it out", param=place)
    name = filled.get("name")
    if not isinstance(name, (str, type(None))):
        raise RequestError(400, f"{place}.name is {shorten(name)}; a text was expected", param=place)
    return {
        "role": ROLES[role],
        "content": _read_content(filled.get("content"), place),
        **({"name": name} if name else {}),
    }


def _read_content(content: Any, place: str) -> str:
    """Return the text of a message: a text, or parts of type "text"."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError(400, f"{place}.content is {shorten(content)}; a text was expected", param=place)
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise RequestError(
                400, f"{place}.content has {shorten(part)}; only parts of type text are read", param=place
            )
    return "".join(part["text"] for part in content)

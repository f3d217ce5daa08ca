"""POST /v1/completions and /v1/chat/completions: texts that continue prompts, and answers to messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fastapi import APIRouter, Request
from jinja2 import TemplateError
from starlette.responses import Response

from antislop.errors import first_line
from antislop.files.chats import TEMPLATE_ERRORS
from antislop.serve.answer_messages import MessageDelta, MessageParser, write_grammar
from antislop.serve.bodies.fields import ChatBody, CompletionBody
from antislop.serve.bodies.messages import choose_required, read_chat
from antislop.serve.chunk_maker import AnswerChunk, SettledToken
from antislop.serve.request_errors import RequestError, shorten
from antislop.serve.routes.answers import AnswerFormat, AnswerResponder, TokenBytes, logprob_of, write_token
from antislop.serve.service import Service

DEFAULT_TOKENS = 16
"""OpenAI's default of `max_tokens` in completions."""

router = APIRouter()


# -- completions -------------------------------------------------------------------------------------------------------


@router.post("/v1/completions")
async def complete(request: Request) -> Response:
    responder = await AnswerResponder.read(request, CompletionBody, CompletionFormat())
    service, body = responder.service, responder.body
    if body.max_tokens == 0 and not body.echo:
        raise RequestError(400, "max_tokens is 0, and the answer would be empty: pass echo: true", param="max_tokens")
    prompt = body.prompt
    if prompt is None:
        raise RequestError(400, "prompt is missing: send a text or a list of ids", param="prompt")
    if isinstance(prompt, str) or (isinstance(prompt, list) and prompt and all(type(each) is int for each in prompt)):
        given = [prompt]
    elif isinstance(prompt, list) and prompt and len({type(part) for part in prompt}) == 1:
        given = prompt
    else:
        message = f"prompt is {shorten(prompt)}; a text, a list of ids, or a list of either was expected"
        raise RequestError(400, message, param="prompt")
    prompts = [await _encode(service, prompt, body) for prompt in given]
    pairs = zip(given, prompts, strict=True) if body.echo else ()
    echoes = [prompt if isinstance(prompt, str) else service.vocabulary.decode(ids) for prompt, ids in pairs]
    return await responder.respond(prompts, default_tokens=DEFAULT_TOKENS, echoes=echoes)


class CompletionFormat(AnswerFormat):
    prefix = "cmpl"
    whole = part = "text_completion"

    def write_part(self, number: int, chunk: AnswerChunk, logprobs: Any) -> dict[str, Any]:  # noqa: ARG002
        return {"text": chunk.text, "logprobs": logprobs}

    write_whole = write_part

    def write_logprobs(self, tokens: Sequence[SettledToken], read: TokenBytes) -> dict[str, Any]:
        """Return OpenAI's parallel lists, with an item for each token in each of them."""
        return {
            "tokens": [write_token(read(token.token)) for token in tokens],
            "token_logprobs": [None if token.choice is None else logprob_of(token.choice.share) for token in tokens],
            "top_logprobs": [_list_likeliest(token, read) for token in tokens],
            "text_offset": [token.start for token in tokens],
        }


def _list_likeliest(token: SettledToken, read: TokenBytes) -> dict[str, float] | None:
    """Return log-probabilities by the texts of tokens: of the likeliest tokens at a place, and of the drawn token."""
    if token.choice is None:
        return None
    likeliest: dict[str, float] = {}
    for other, share in (*token.choice.alternatives, (token.token, token.choice.share)):
        likeliest.setdefault(write_token(read(other)), logprob_of(share))
    return likeliest


async def _encode(service: Service, prompt: Any, body: CompletionBody) -> list[int]:
    if isinstance(prompt, str):
        service.refuse_long(prompt)
        ids = await service.encode(prompt, special_tokens=body.add_bos_token)
    elif isinstance(prompt, list) and all(type(each) is int for each in prompt):
        ids = prompt
    else:
        message = f"prompt contains {shorten(prompt)}; a text or a list of ids was expected"
        raise RequestError(400, message, param="prompt")
    if not ids:
        raise RequestError(400, "the prompt has no tokens: send at least one", param="prompt")
    size = service.vocabulary_size
    if unknown := [token for token in ids if not 0 <= token < size]:
        message = f"the prompt contains the id {shorten(unknown[0])}; the model has {size:,} tokens"
        raise RequestError(400, message, param="prompt")
    service.measure(ids, body.max_tokens, DEFAULT_TOKENS)  # refuses before the next prompt is encoded
    return ids


# -- chats -------------------------------------------------------------------------------------------------------------


@router.post("/v1/chat/completions")
async def chat(request: Request) -> Response:
    answer = ChatFormat()
    responder = await AnswerResponder.read(request, ChatBody, answer)
    service, body = responder.service, responder.body
    if body.top_logprobs and not body.logprobs:
        raise RequestError(400, "top_logprobs needs logprobs: true", param="top_logprobs")
    given = read_chat(body)
    required = choose_required(body, given.tools)
    if not service.backend.tokenizer.chat_template:
        message = "the model's tokenizer has no chat template: send a prompt to /v1/completions"
        raise RequestError(400, message, param="messages")
    try:
        rendered = await service.render(given)
    except (TemplateError, *TEMPLATE_ERRORS) as error:
        message = f"the model's chat template refuses these messages ({first_line(error)[:200]})"
        raise RequestError(400, message, param="messages") from error
    if not rendered.ids:
        raise RequestError(400, "the messages have no tokens: send at least one", param="messages")
    changes: dict[str, Any] = {}
    template = service.response_template
    if template is not None and body.response_format.schema_text is None:  # by a schema, all of the text is content
        changes["spelled"] = service.spelled
        answer.make_parser = lambda: MessageParser(template, prompt=rendered.text, tools=given.tools)
    if required and "tools" in rendered.unused:
        message = "the model's chat template does not show tools: leave tool_choice out"
        raise RequestError(400, message, param="tool_choice")
    if required:
        is_thinking = answer.make_parser is not None and answer.make_parser().is_thinking
        has_many = body.parallel_tool_calls and body.tool_choice == "required"
        changes["lark"] = write_grammar(
            template, required, is_thinking=is_thinking, has_many=has_many, special=service.spelled
        )
    return await responder.respond([rendered.ids], default_tokens=None, changes=changes, unused=rendered.unused)


class ChatFormat(AnswerFormat):
    """The format of chat answers. make_parser: returns a parser for a text's message; None: texts are content only."""

    prefix = "chatcmpl"
    whole, part = "chat.completion", "chat.completion.chunk"

    def __init__(self) -> None:
        self.make_parser: Callable[[], MessageParser] | None = None
        self._parsers: dict[int, MessageParser] = {}

    def begin(self) -> dict[str, Any]:
        return {"delta": {"role": "assistant", "content": ""}, "logprobs": None}

    def write_part(self, number: int, chunk: AnswerChunk, logprobs: Any) -> dict[str, Any]:
        delta, first_call, reason = self._parse(number, chunk)
        return {"delta": delta.to_dict(first_call=first_call), "logprobs": logprobs, **reason}

    def write_whole(self, number: int, chunk: AnswerChunk, logprobs: Any) -> dict[str, Any]:
        delta, _, reason = self._parse(number, chunk)
        content = {"content": delta.content or (None if delta.calls else "")}
        message = {"role": "assistant", "refusal": None, **delta.to_dict(), **content}
        return {"message": message, "logprobs": logprobs, **reason}

    def locate(self, number: int, index: int) -> int:
        return self._parsers[number].locate(index) if number in self._parsers else index

    def _parse(self, number: int, chunk: AnswerChunk) -> tuple[MessageDelta, int, dict[str, Any]]:
        """Return a chunk's part of the message, the index of the part's first call, and any changed `finish_reason`."""
        if self.make_parser is None:
            return MessageDelta(content=chunk.text), 0, {}
        if number not in self._parsers:
            self._parsers[number] = self.make_parser()
        parser = self._parsers[number]
        count, delta = parser.calls, parser.feed(chunk.text)
        if chunk.finish_reason is None:
            return delta, count, {}
        delta += parser.end(is_cut=chunk.finish_reason != "stop")
        return delta, count, {"finish_reason": "tool_calls"} if parser.calls and chunk.finish_reason == "stop" else {}

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

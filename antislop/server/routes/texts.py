"""How a request's texts become an answer: JSON, or server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from sse_starlette import EventSourceResponse
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from antislop.errors import InputError
from antislop.server.backend import BackendError, TextRequest
from antislop.server.bodies.fields import TextBody
from antislop.server.request_errors import RequestError, shorten
from antislop.server.routes.answers import AnswerWriter, CollectedText, write_usage
from antislop.server.running_requests import Caller, FailedText, RunningTexts
from antislop.server.service import Service, translate

UNHEEDED_HEADER = "X-Antislop-Unheeded"
"""Names the fields of the body that have no effect."""
Result = TypeVar("Result")


def service_of(request: Request) -> Service:
    """Return the service of the app that got a request."""
    service: Service = request.app.state.service
    return service


def caller_of(request: Request, genkey: str = "") -> Caller:
    """Return who sent a request."""
    return Caller(request.client.host if request.client else "", request.headers.get("user-agent", ""), genkey)


def reads_trace(request: Request) -> bool:
    """Return whether a request asks for what was withdrawn, by `?trace=1`. Raises `RequestError`."""
    value = request.query_params.get("trace", "0")
    if value not in ("0", "1"):
        raise RequestError(400, f"trace is {shorten(value)}; 0 or 1 was expected", param="trace")
    return value == "1"


async def stay_connected(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of some work, which is canceled if the client closes the connection first."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_wait_until_gone(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise RequestError(499, "the client closed the connection")
    finally:
        for running in (task, gone):
            running.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _wait_until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


@dataclass(frozen=True)
class TextAnswer:
    """The answer to a request for texts.

    unheeded: names of fields without an effect.
    """

    request: Request
    body: TextBody
    writer: AnswerWriter
    unheeded: Sequence[str]

    async def respond(self, requests: Sequence[TextRequest]) -> Response:
        """Write the texts, and return the answer. Raises `RequestError`, before the answer begins."""
        service, stack = service_of(self.request), AsyncExitStack()
        unheeded = {*self.unheeded, *([] if service.keeps_order(self.body.sampling) else ["sampler_order"])}
        headers = {UNHEEDED_HEADER: ", ".join(sorted(unheeded))} if unheeded else {}
        try:
            texts = await stay_connected(
                self.request,
                stack.enter_async_context(service.write(requests, caller_of(self.request, self.body.genkey))),
            )
            if self.body.stream:
                return TextEvents(self._stream(texts, requests), stack.pop_all(), headers)
            return await stay_connected(self.request, self._collect(texts, requests, headers))
        finally:
            await stack.aclose()

    async def _collect(
        self, texts: RunningTexts, requests: Sequence[TextRequest], headers: dict[str, str]
    ) -> JSONResponse:
        collected = [CollectedText() for _ in requests]
        try:
            async for number, chunk in texts.chunks():
                collected[number].add(chunk)
        except (InputError, BackendError, FailedText) as error:
            raise translate(error) from error
        usage = self._count(texts, requests)

        def write() -> JSONResponse:
            return JSONResponse(self.writer.write_whole(collected, usage), headers=headers)

        return await asyncio.to_thread(write)  # up to seconds for the log-probabilities of long prompts

    async def _stream(self, texts: RunningTexts, requests: Sequence[TextRequest]) -> AsyncIterator[bytes]:
        has_usage = self.body.stream_options.include_usage
        more = {"usage": None} if has_usage else {}
        try:
            for number in range(len(requests)):
                if first := self.writer.write_first(number):
                    yield encode_event(first | more)
            async for number, chunk in texts.chunks():
                yield encode_event(self.writer.write_part(number, chunk) | more)
            if has_usage:
                yield encode_event(self.writer.write_usage(self._count(texts, requests)))
        except (InputError, BackendError, FailedText) as error:
            yield encode_event(translate(error).content)
        yield b"data: [DONE]\n\n"

    def _count(self, texts: RunningTexts, requests: Sequence[TextRequest]) -> dict[str, Any]:
        prompts = sum(len(request.prompt) for request in requests[:: self.body.n])
        kept = sum(stream.kept for stream in texts.streams)
        return write_usage(prompts, kept, (stream.report for stream in texts.streams))


class TextEvents(EventSourceResponse):
    """A stream of events that frees the rows of its texts at its end, however it comes."""

    def __init__(self, content: AsyncIterator[bytes], stack: AsyncExitStack, headers: dict[str, str]) -> None:
        super().__init__(content, headers=headers, sep="\n", shutdown_grace_period=3600)
        self._stack = stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        async with self._stack:
            with suppress(OSError):  # the client has gone
                await super().__call__(scope, receive, send)


def encode_event(data: dict[str, Any]) -> bytes:
    r"""Return an event of a stream.

    >>> encode_event({"text": "é\n"})
    b'data: {"text":"\xc3\xa9\\n"}\n\n'
    """
    return b"data: " + json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"

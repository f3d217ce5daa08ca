"""HTTP answers made from running requests: one JSON object, or a stream of server-sent events."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from math import log
from typing import Any, Generic, Protocol, TypeVar
from uuid import uuid4

from sse_starlette import EventSourceResponse
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from antislop.core.trace import Report
from antislop.serve.backend import GenerationRequest
from antislop.serve.bodies.bans import warn_of_stars
from antislop.serve.bodies.fields import Generation, read_body, read_object
from antislop.serve.chunk_maker import AnswerChunk, FinishReason, SettledToken
from antislop.serve.request_errors import RequestError, shorten, translate, translate_errors
from antislop.serve.service import RunningRequests, Service

IGNORED_HEADER = "X-Antislop-Ignored-Fields"
"""The header that names the fields of the body that have no effect."""
MAX_NAMED = 64
"""The most names in that header."""
WARNING_HEADER = "X-Antislop-Warning"
"""The header that warns, in a sentence, of a ban in the body that the client may understand differently."""
LOWEST_LOGPROB = -9999.0
"""The number that stands for a log-probability of minus infinity, which JSON does not have."""

Result = TypeVar("Result")
TokenBytes = Callable[[int], bytes]


def service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


class AnswerFormat(Protocol):
    """The format of an answer, which differs between completions and chats.

    prefix: what the answer's id begins with.
    whole, part: the value of `object` in a whole answer, and in a chunk of a stream.
    """

    prefix: str
    whole: str
    part: str

    def begin(self) -> dict[str, Any] | None:
        """Return the item of `choices` in a first chunk without text; None if streams begin with text."""
        return None

    def write_part(self, number: int, chunk: AnswerChunk, logprobs: Any) -> dict[str, Any]:
        """Return the item of `choices` for a chunk of text `number`, without `index`, maybe without `finish_reason`."""

    def write_whole(self, number: int, chunk: AnswerChunk, logprobs: Any) -> dict[str, Any]:
        """Return the item of `choices` for the whole text `number`, without `index`, maybe without `finish_reason`."""

    def locate(self, number: int, index: int) -> int:  # noqa: ARG002
        """Return the index in the client's text of the character that has `index` in the model's text `number`."""
        return index

    def write_logprobs(self, tokens: Sequence[SettledToken], read: TokenBytes) -> dict[str, Any]: ...


def count_bans(reports: Sequence[Report]) -> dict[str, Any]:
    """Return how many violations, rewinds, withdrawn tokens and concessions some texts had together."""
    total = Report.total(reports)
    counts = {name: getattr(total, name) for name in ("violations", "withdrawn_tokens", "rewinds", "conceded")}
    exhausted = sum(report.reason == "exhausted" for report in reports)
    rare = {"timed_out_regexes": len(total.timed_out), "exhausted": exhausted, "forced": len(total.forced)}
    return counts | {name: count for name, count in rare.items() if count} | _count_parts(total)


def _count_parts(report: Report) -> dict[str, dict[str, int]]:
    """Return the number of rewinds in each part of a message, such as its thoughts; {} if there are none."""
    return {"rewinds_by_part": dict(report.rewinds_by_part)} if report.rewinds_by_part else {}


def write_token(data: bytes) -> str:
    r"""Return the text of a token, or OpenAI's notation for bytes of an unfinished character.

    >>> write_token(b"\xc3")
    'bytes:\\xc3'
    """
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def write_names(names: Collection[str]) -> str:
    r"""Return names of fields as the value of a header. Clients choose the names, which may contain any character.

    >>> write_names(["top_a", "a\n"])
    'a\\n, top_a'
    """
    written = sorted(ascii(name[:60])[1:-1][:60] for name in names)[:MAX_NAMED]
    more = [f"and {len(names) - MAX_NAMED} more"] if len(names) > MAX_NAMED else []
    return ", ".join([*written, *more]).strip()  # a header neither begins nor ends with a space


def logprob_of(share: float) -> float:
    return max(LOWEST_LOGPROB, log(share)) if share > 0 else LOWEST_LOGPROB


@dataclass(frozen=True)
class AnswerResponder(Generic[Generation]):
    """Answers one HTTP request.

    ignored: names of fields without an effect.
    has_trace: whether the answer lists withdrawn texts, as `?trace=1` in the URL asks.
    """

    request: Request
    service: Service
    body: Generation
    format: AnswerFormat
    model: str
    ignored: Sequence[str]
    has_trace: bool
    id: str = field(default_factory=lambda: uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    async def read(
        cls, request: Request, kind: type[Generation], answer_format: AnswerFormat
    ) -> AnswerResponder[Generation]:
        """Read the body of a request, and return the request's responder. Raises `RequestError`."""
        service, trace = service_of(request), request.query_params.get("trace", "0")
        if trace not in ("0", "1"):
            raise RequestError(400, f"trace is {shorten(trace)}; 0 or 1 was expected", param="trace")
        body, ignored = read_body(kind, await read_object(request))
        model = service.name_model(service.choose_list(body))
        return cls(request, service, body, answer_format, model, ignored, has_trace=trace == "1")

    async def respond(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        default_tokens: int | None,
        echoes: Sequence[str] = (),
        changes: Mapping[str, Any] | None = None,
        unused: Collection[str] = (),
    ) -> Response:
        """Continue prompts as the body asks, and return the answer. Raises `RequestError` before the answer begins.

        default_tokens, echoes: see `Service.make_requests`.
        changes: fields to replace in each `GenerationRequest`.
        unused: more names of fields without an effect.
        """
        service, stack = self.service, AsyncExitStack()
        requests = await service.make_requests(self.body, prompts, default_tokens=default_tokens, echoes=echoes)
        requests = [replace(request, **changes or {}) for request in requests]
        ignored, sampling = {*self.ignored, *unused}, self.body.sampling
        if service.backend.cuts_min_p_first and sampling.do_sample and sampling.top_p < 1 and sampling.min_p > 0:
            ignored.add("sampler_order")  # `generate` applies min_p after top_p
        headers = {IGNORED_HEADER: write_names(ignored)} if ignored else {}
        headers |= {WARNING_HEADER: warning} if (warning := warn_of_stars(self.body)) else {}
        try:
            running = await stay_connected(self.request, stack.enter_async_context(service.write(requests)))
            if self.body.stream:
                return EventResponse(self._stream(running, requests), stack.pop_all(), headers)
            return await stay_connected(self.request, self._collect(running, requests, headers))
        finally:
            await stack.aclose()

    async def _collect(
        self, running: RunningRequests, requests: Sequence[GenerationRequest], headers: dict[str, str]
    ) -> JSONResponse:
        parts: list[list[AnswerChunk]] = [[] for _ in requests]
        with translate_errors():
            async for number, chunk in running.chunks():
                parts[number].append(chunk)
        usage, reports = self._count(running, requests), [maker.report for maker in running.makers]

        def write() -> JSONResponse:
            choices = []
            for number, (text, report) in enumerate(zip(map(AnswerChunk.join, parts), reports, strict=True)):
                choice = self.format.write_whole(number, text, self._write_logprobs(text.tokens))
                choice = {"finish_reason": text.finish_reason, **choice, "index": number}
                counts = self._trace(number, text) if self.has_trace else {}
                if counts := counts | _count_parts(report):
                    choice["antislop"] = counts
                choices.append(choice)
            answer = {**self._head(self.format.whole), "choices": choices, "usage": usage}
            return JSONResponse(answer, headers=headers)

        return await asyncio.to_thread(write)  # takes up to seconds for log-probabilities of long prompts

    async def _stream(self, running: RunningRequests, requests: Sequence[GenerationRequest]) -> AsyncIterator[bytes]:
        has_usage = self.body.stream_options.include_usage
        more = {"usage": None} if has_usage else {}
        try:
            for number in range(len(requests)):
                if first := self.format.begin():
                    yield encode_event(self._write_chunk(first, number, None) | more)
            async for number, chunk in running.chunks():
                logprobs = self._write_logprobs(chunk.tokens) if chunk.tokens else None
                choice = self.format.write_part(number, chunk, logprobs)
                if self.has_trace and chunk.withdrawn:
                    choice["antislop"] = self._trace(number, chunk)
                if chunk.finish_reason:
                    counts = count_bans([running.makers[number].report])
                    choice["antislop"] = {**choice.get("antislop", {}), **counts}
                yield encode_event(self._write_chunk(choice, number, chunk.finish_reason) | more)
            if has_usage:
                usage = self._count(running, requests)
                yield encode_event({**self._head(self.format.part), "choices": [], "usage": usage})
        except Exception as error:  # noqa: BLE001 - whatever it is, the client gets it as an event
            yield encode_event(translate(error).content)
        yield b"data: [DONE]\n\n"

    def _count(self, running: RunningRequests, requests: Sequence[GenerationRequest]) -> dict[str, Any]:
        prompt = sum(len(request.prompt) for request in requests[:: self.body.n])
        kept = sum(maker.kept for maker in running.makers)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": kept,
            "total_tokens": prompt + kept,
            "antislop": count_bans([maker.report for maker in running.makers]),
        }

    def _head(self, kind: str) -> dict[str, Any]:
        answer_id = f"{self.format.prefix}-{self.id}"
        return {"id": answer_id, "object": kind, "created": self.created, "model": self.model}

    def _write_chunk(self, choice: dict[str, Any], number: int, reason: FinishReason | None) -> dict[str, Any]:
        return {**self._head(self.format.part), "choices": [{"finish_reason": reason, **choice, "index": number}]}

    def _write_logprobs(self, tokens: Sequence[SettledToken]) -> dict[str, Any] | None:
        """Return the log-probabilities of tokens; None if the body asks for none."""
        read = self.service.vocabulary.surface
        return None if self.body.alternatives is None else self.format.write_logprobs(tokens, read)

    def _trace(self, number: int, chunk: AnswerChunk) -> dict[str, Any]:
        placed = [text._replace(start=self.format.locate(number, text.start)) for text in chunk.withdrawn]
        return {"withdrawn": [text.to_dict() for text in placed]}


class EventResponse(EventSourceResponse):
    """A stream of server-sent events. At its end, even by an error, it closes a stack, which frees its batch rows."""

    def __init__(self, content: AsyncIterator[bytes], stack: AsyncExitStack, headers: dict[str, str]) -> None:
        super().__init__(content, headers=headers, sep="\n", shutdown_grace_period=3600)
        self._stack = stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._stack:
            with suppress(OSError):  # the client has gone
                await super().__call__(scope, receive, send)


async def stay_connected(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of `work`; cancel `work` if the client closes the connection first."""

    async def wait_until_gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(wait_until_gone())
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise RequestError(499, "the client closed the connection")
    finally:
        for running in (task, gone):
            running.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


def encode_event(data: dict[str, Any]) -> bytes:
    r"""Return data as the bytes of a server-sent event.

    >>> encode_event({"text": "é\n"})
    b'data: {"text":"\xc3\xa9\\n"}\n\n'
    """
    return b"data: " + json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"

"""The server's service, which turns validated request bodies into generation requests and runs these on a backend."""

from __future__ import annotations

import asyncio
import re
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager, suppress
from copy import deepcopy
from functools import cache, partial
from hashlib import sha256
from random import SystemRandom
from time import perf_counter
from typing import NamedTuple, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from antislop.core.bans import Bans
from antislop.core.hf import CompiledBans, choose_scopes, encode, variables_of
from antislop.core.loop import seed_of
from antislop.core.trace import Event, Finished, Report
from antislop.display import describe_count
from antislop.engines.sent_bans import SentBans
from antislop.errors import InputError
from antislop.files.chats import apply_template
from antislop.serve.backend import Backend, BackendError, GenerationRequest, PromptChoices
from antislop.serve.bodies.bans import BanCache, collect_bans, find_bans
from antislop.serve.bodies.fields import MAX_CHOICES, GenerationBody
from antislop.serve.bodies.messages import Chat
from antislop.serve.chunk_maker import AnswerChunk, ChunkMaker, Echo
from antislop.serve.request_errors import RequestError, refuse_busy, request_id, shorten, translate_errors

UNKNOWN_CONTEXT_TOKENS = 2048
"""The limit of new tokens for a request that sets none, if the model's context length is unknown."""

START_SECONDS = 1.0
"""How long an HTTP answer waits for its first text to start. An error within this time still gets its own status."""

BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
"""Upper bounds of the buckets of histograms, in seconds."""

Result = TypeVar("Result")


class ServerMetrics:
    """The server's Prometheus metrics: counts and times only, never the contents of a request."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self.requests = Counter("antislop_requests", "Answered requests.", ["route", "status"], registry=registry)
        self.active = Gauge("antislop_texts_active", "Texts being written or waiting.", registry=registry)
        self.texts = Counter("antislop_texts", "Texts by the reason for their end.", ["reason"], registry=registry)
        self.prompt_tokens = Counter("antislop_prompt_tokens", "Tokens of prompts.", registry=registry)
        self.kept_tokens = Counter("antislop_kept_tokens", "Tokens of texts.", registry=registry)
        self.violations = Counter("antislop_violations", "Bans that were completed.", registry=registry)
        self.rewinds = Counter("antislop_rewinds", "Rewinds.", registry=registry)
        self.withdrawn_tokens = Counter("antislop_withdrawn_tokens", "Tokens withdrawn by rewinds.", registry=registry)
        self.conceded = Counter("antislop_conceded", "Bans that stayed in a text.", registry=registry)
        self.first_token = Histogram(
            "antislop_first_token_seconds", "Time to the first text.", registry=registry, buckets=BUCKETS
        )
        self.duration = Histogram("antislop_text_seconds", "Time of a text.", registry=registry, buckets=BUCKETS)

    def count_text(self, report: Report, *, prompt: int, kept: int, reason: str, began: float) -> None:
        """Count a text that ended. reason: "stop", "length", "left" (the client has gone) or "failed", for instance."""
        self.texts.labels(reason).inc()
        self.prompt_tokens.inc(prompt)
        self.kept_tokens.inc(kept)
        self.violations.inc(report.violations)
        self.rewinds.inc(report.rewinds)
        self.withdrawn_tokens.inc(report.withdrawn_tokens)
        self.conceded.inc(report.conceded)
        self.duration.observe(perf_counter() - began)


class RenderedChat(NamedTuple):
    """A chat rendered up to the answer, its token ids, and the names of request fields that the template ignores."""

    text: str
    ids: list[int]
    unused: list[str]


class Service:
    """Runs requests on a backend, for one event loop.

    lists: compiled lists of bans by the names with which requests choose them; "" names the server's own list.
    began: when the service was made, in seconds since 1970.
    response_template: how thoughts and tool calls are parsed from answers; None if answers are content only.
    spelled: the special tokens that the response template contains, by token id.
    """

    def __init__(self, backend: Backend, *, lists: Mapping[str, Bans] | None = None) -> None:
        self.backend = backend
        check_names(lists or ())
        self.lists = {"": backend.bans} | {name: backend.bans.with_bans(bans) for name, bans in (lists or {}).items()}
        self.metrics = ServerMetrics()
        self.is_closing = False
        self.began = int(time.time())
        self.vocabulary = backend.bans.vocabulary
        self.vocabulary_size = len(backend.tokenizer)
        self.response_template = template = backend.response_template
        self._choose_scopes = cache(partial(choose_scopes, template=template))
        self.spelled = {} if template is None else template.find_spelled(self.vocabulary.breaks)
        self._longest_token = max(map(len, backend.tokenizer.get_vocab()))  # in characters
        self._lists = BanCache()
        self._tokenizer = deepcopy(backend.tokenizer)  # a fast tokenizer may be used by one thread at a time
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="antislop-prompts")
        self._end_tokens = frozenset(backend.tokenizer.all_special_ids)
        self._random = SystemRandom()

    # -- prompts ------------------------------------------------------------------------------------------------------

    async def encode(self, text: str, *, special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text. special_tokens: whether the tokenizer adds special tokens, such as bos."""
        return await self._read(lambda: encode(text, self._tokenizer, special_tokens=special_tokens))

    async def render(self, chat: Chat) -> RenderedChat:
        """Return a chat as rendered by the tokenizer's chat template. Raises what the template raises."""
        return await self._read(lambda: self._render(chat))

    def _render(self, chat: Chat) -> RenderedChat:
        tokenizer, tools = self._tokenizer, chat.tools or None
        known = variables_of(tokenizer.get_chat_template(None, tools))
        variables, unused = chat.choose_variables(known)
        text = apply_template(
            chat.messages,
            tokenizer,
            tools=tools,
            add_generation_prompt=chat.continued is None,
            continue_final_message=chat.continued or False,
            **variables,
        )
        text += chat.prefix
        self.refuse_long(text)
        return RenderedChat(text, tokenizer(text, add_special_tokens=False)["input_ids"], unused)

    def refuse_long(self, text: str) -> None:
        """Raise `RequestError` for a text that exceeds the context in any encoding: encoding takes a second per MB."""
        context = self.backend.context_length
        if context is not None and len(text) > context * self._longest_token:
            message = f"the prompt has {len(text):,} characters, but the model's context has {context:,} tokens in all"
            message += ": send a shorter prompt"
            raise RequestError(400, message, param="prompt", code="context_length_exceeded")

    @property
    def chat_template(self) -> str:
        """The tokenizer's chat template; "" if the tokenizer has none, or several."""
        template = self._tokenizer.chat_template
        return template if isinstance(template, str) else ""

    async def _read(self, read: Callable[[], Result]) -> Result:
        self._refuse_if_closing()
        return await asyncio.get_running_loop().run_in_executor(self._reader, read)

    # -- texts --------------------------------------------------------------------------------------------------------

    async def make_requests(
        self,
        body: GenerationBody,
        prompts: Sequence[Sequence[int]],
        *,
        default_tokens: int | None,
        echoes: Sequence[str | None] = (),
    ) -> list[GenerationRequest]:
        """Return the requests of a body, `n` for each prompt. Raises `RequestError`.

        default_tokens: the limit of new tokens without `max_tokens` in the body; None: the rest of the context.
        echoes: the text of each prompt, if the answer is to begin with the prompt.
        """
        chosen = self.choose_list(body)
        if len(prompts) * body.n > MAX_CHOICES:
            asked = f"{describe_count(len(prompts), 'prompt')} and n = {body.n}"
            raise RequestError(400, f"{asked} are more than {MAX_CHOICES} texts")
        lengths = [self.measure(prompt, body.max_tokens, default_tokens) for prompt in prompts]
        if unknown := [token for token in body.logit_bias if token >= self.vocabulary_size]:
            message = f"logit_bias has the id {unknown[0]}; the model has {self.vocabulary_size:,} tokens"
            raise RequestError(400, message, param="logit_bias")
        if body.ban_rewind and body.ban_method == "token":
            message = "ban_method 'token' draws one token again: leave out ban_rewind"
            raise RequestError(400, message, param="ban_rewind")
        method = "text" if body.ban_rewind == "text" else body.ban_method
        if method != "exact" and body.ban_rewind in (None, "text"):
            body = body.model_copy(update={"ban_rewind": "span"})  # only "exact" has other units
        bans = await self._compile(body, chosen)
        seed = self._random.getrandbits(62) if body.seed is None else body.seed
        given = zip(prompts, lengths, echoes or [None] * len(prompts), strict=True)
        repeated = [one for one in given for _ in range(body.n)]
        return [
            GenerationRequest(
                prompt=prompt,
                bans=bans,
                max_new_tokens=length,
                sampling=body.sampling,
                stop=tuple(body.stop),
                seed=seed_of(seed, number) % 2**63,
                method=method,
                on_exhausted=body.on_exhausted,
                max_rewinds=body.max_rewinds,
                schema=body.response_format.schema_text,
                logit_bias=body.logit_bias,
                alternatives=body.alternatives,
                echo=echo,
                request_id=request_id.get(),
            )
            for number, (prompt, length, echo) in enumerate(repeated)
        ]

    @asynccontextmanager
    async def write(self, requests: Sequence[GenerationRequest]) -> AsyncIterator[RunningRequests]:
        """Run requests while the context is open; its exit frees their rows in the batch. Raises `RequestError`."""
        self._refuse_if_closing()
        makers = [
            ChunkMaker(
                self.vocabulary,
                request.max_new_tokens,
                stop=request.stop,
                drops_space=self.vocabulary.drops_space_after(request.prompt),
                end_tokens=self._end_tokens,
                spelled=request.spelled,
                echo=None if request.echo is None else Echo.of(self.vocabulary, request.prompt, request.echo),
            )
            for request in requests
        ]
        running = RunningRequests(requests, makers, self.metrics)
        try:
            with translate_errors():
                await running.start(self.backend)
            yield running
        finally:
            await running.close()

    async def close(self, *, timeout: float | None = None) -> None:
        """Refuse new requests, and close the backend; see `Backend.close`."""
        self.is_closing = True
        await self.backend.close(timeout=timeout)
        self._lists.close()

    def _refuse_if_closing(self) -> None:
        if self.is_closing:
            raise refuse_busy("the server is shutting down", status=503, seconds=10)

    @property
    def models(self) -> dict[str, str]:
        """The model names that clients can send, each with the name of the list of bans that it chooses."""
        return {self.name_model(name): name for name in self.lists}

    def name_model(self, chosen: str) -> str:
        """Return the model name that chooses a list: NAME for the server's own list, NAME@LIST for another list."""
        return f"{self.backend.name}@{chosen}" if chosen else self.backend.name

    def read_model(self, name: str | None) -> str:
        """Return the name of the list that a model name chooses. Raises `RequestError` for an unknown model."""
        if name and name not in (models := self.models):
            choice = ", ".join(map(repr, models))
            message = f"the model {name[:80]!r} is not served here: pass {choice}, or leave it out"
            raise RequestError(404, message, param="model", code="model_not_found")
        return self.models[name] if name else ""

    def choose_list(self, body: GenerationBody) -> str:
        """Return the name of the list that a body chooses by `ban_list`, or else by `model`. Raises `RequestError`."""
        chosen, named = self.read_model(body.model), ", ".join(repr(name) for name in self.lists if name)
        if body.ban_list and chosen and chosen != body.ban_list:
            message = f"model names the list {chosen!r}, and ban_list {shorten(body.ban_list)}: pass one of them"
            raise RequestError(400, message, param="ban_list")
        if body.ban_list not in self.lists:
            choice = f"pass {named}" if named else "start it with --list NAME=FILE"
            message = f"the server has no list {shorten(body.ban_list)}: {choice}, or leave ban_list out"
            raise RequestError(400, message, param="ban_list")
        return body.ban_list or chosen

    def measure(self, prompt: Sequence[int], max_tokens: int | None, default: int | None) -> int:
        """Return the limit of new tokens for a prompt. Raises `RequestError` if both don't fit into the context."""
        context = self.backend.context_length
        if context is None:
            return (default or UNKNOWN_CONTEXT_TOKENS) if max_tokens is None else max_tokens
        left = context - len(prompt)
        wanted = max(1, min(default or left, left)) if max_tokens is None else max_tokens
        if wanted > left:
            asked = f" and {describe_count(max_tokens, 'new one')}" if max_tokens and left > 0 else ""
            raise RequestError(
                400,
                f"the prompt has {describe_count(len(prompt), 'token')}{asked}, but the model's context has "
                f"{context:,} in all: "
                + (f"ask for at most {describe_count(left, 'new token')}" if left > 0 else "send a shorter prompt"),
                param="max_tokens" if left > 0 else "prompt",
                code="context_length_exceeded",
            )
        return wanted

    async def _compile(self, body: GenerationBody, chosen: str) -> CompiledBans:
        if chosen:  # the server's own list, which `use_global_bans` is about, is left out anyway
            body = body.model_copy(update={"use_global_bans": True})
        own, sent = self.lists[chosen], find_bans(body)
        with translate_errors(param="ban_scope"):
            scopes = self._choose_scopes(body.ban_scope, has_calls=body.has_calls)
        if body.response_format.type != "text" and body.ban_scope != "thinking":
            scopes = ()  # the whole text is content
        if sent == SentBans() and not (scopes and len(own.bans)):
            return own
        self._refuse_if_closing()
        with translate_errors(param="bans"):
            key = own, sha256(repr(sent).encode()).digest(), scopes
            return await self._lists.compile(key, lambda: own.with_bans(collect_bans(sent, own.bans, scopes=scopes)))


class RunningRequests:
    """The requests of one HTTP answer, each run by an asyncio task. Iterate over `chunks`, and always call `close`.

    Chunks that the client hasn't read yet wait in memory: at most the whole text of each request.
    """

    def __init__(
        self, requests: Sequence[GenerationRequest], makers: Sequence[ChunkMaker], metrics: ServerMetrics
    ) -> None:
        self.makers = makers
        self._requests = requests
        self._metrics = metrics
        # Each chunk is queued with the number of its request.
        self._queue: asyncio.Queue[tuple[int, AnswerChunk] | Exception] = asyncio.Queue()
        self._is_started = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def _run(self, number: int, backend: Backend) -> None:
        request, maker = self._requests[number], self.makers[number]
        began, reason = perf_counter(), "left"
        self._metrics.active.inc()
        try:
            reason = await self._follow(number, backend.write(request), began)
        except Exception as error:  # noqa: BLE001 - it is raised where the answer is made
            reason = "failed"
            self._queue.put_nowait(error)
        finally:
            self._is_started.set()
            self._metrics.active.dec()
            prompt = len(request.prompt)
            self._metrics.count_text(maker.report, prompt=prompt, kept=maker.kept, reason=reason, began=began)

    async def _follow(self, number: int, events: AsyncGenerator[Event | PromptChoices, None], began: float) -> str:
        """Queue the chunks of a request's text, and return the reason why the text ended."""
        maker, has_text = self.makers[number], False
        if not self._requests[number].scores_prompt and (prompt := maker.begin()):
            self._queue.put_nowait((number, prompt))
            if prompt.finish_reason:
                return prompt.finish_reason
        async with aclosing(events):
            async for event in events:
                self._is_started.set()
                if isinstance(event, Finished) and event.reason == "failed":
                    raise BackendError("no token could be drawn, since the model returned no probabilities")
                chunk = maker.add(event)
                if chunk is None:
                    continue
                if chunk.text and not has_text and not isinstance(event, PromptChoices):
                    has_text = True
                    self._metrics.first_token.observe(perf_counter() - began)
                self._queue.put_nowait((number, chunk))
                if chunk.finish_reason:
                    return chunk.finish_reason
        raise BackendError("the engine ended a text without a reason")

    async def start(self, backend: Backend) -> None:
        """Start all requests; return at the first event of any, or after `START_SECONDS`. Raises errors until then."""
        self._tasks = [asyncio.create_task(self._run(number, backend)) for number in range(len(self._requests))]
        with suppress(asyncio.TimeoutError):  # begin the HTTP answer: it then gets pings, and proxies keep it open
            await asyncio.wait_for(self._is_started.wait(), START_SECONDS)
        items = [self._queue.get_nowait() for _ in range(self._queue.qsize())]
        for item in items:
            if isinstance(item, Exception):
                raise item
            self._queue.put_nowait(item)

    async def chunks(self) -> AsyncIterator[tuple[int, AnswerChunk]]:
        """Yield (request's number, chunk). A request's waiting chunks are joined. Raises the backend's errors."""
        left = len(self._requests)
        while left:
            items = [await self._queue.get(), *(self._queue.get_nowait() for _ in range(self._queue.qsize()))]
            waiting: dict[int, list[AnswerChunk]] = defaultdict(list)
            errors = []
            for item in items:
                if isinstance(item, Exception):
                    errors.append(item)
                else:
                    waiting[item[0]].append(item[1])
            for number, chunks in waiting.items():
                chunk = AnswerChunk.join(chunks)
                left -= chunk.finish_reason is not None
                yield number, chunk
            if errors:
                raise errors[0]

    async def close(self) -> None:
        """Stop the texts that are not finished, which frees their rows in the batch."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def check_names(names: Iterable[str]) -> None:
    """Raise `InputError` for a name of a list that can't be LIST in the model name NAME@LIST."""
    for name in names:
        if not re.fullmatch(r"[\w.-]{1,64}", name, re.ASCII):
            raise InputError(f"{name!r} is not a name for a list: pass 1 to 64 letters, digits and any of . _ -")

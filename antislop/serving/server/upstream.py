"""A backend that lets another server write: exact bans in front of vLLM, llama.cpp or SGLang."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from sys import maxsize

from transformers import PreTrainedTokenizerBase

from antislop.errors import InputError
from antislop.hf.compiled_bans import CompiledBans
from antislop.sampler import AntiSlop
from antislop.serving.completions import Endpoint
from antislop.serving.dialects import EndpointError
from antislop.serving.endpoint import EndpointSampler
from antislop.serving.exact_methods import EndpointMethod
from antislop.serving.sampling import Sampling
from antislop.serving.server.backend import BackendError, Busy, TextRequest
from antislop.trace.events import Event

QUEUE_LENGTH = 256
"""Default limit of texts that are written at once; the other server has a queue of its own."""
POLL = 0.05
"""Seconds between two looks at the texts under way while the backend closes."""


class UpstreamBackend:
    """Writes texts by an `EndpointSampler`.

    sampler: the server's own bans, options and tokenizer. endpoint: the other server. method: see `EndpointSampler`;
    "alternatives" is not possible here. Raises `EndpointError` if the server can't be reached.
    """

    def __init__(
        self,
        sampler: AntiSlop,
        endpoint: Endpoint,
        *,
        method: EndpointMethod = "auto",
        queue_length: int = QUEUE_LENGTH,
    ) -> None:
        if method == "alternatives":
            raise InputError("method='alternatives' is not possible behind a server: leave method out")
        self._served = EndpointSampler(sampler, endpoint, method=method)
        self.description = self._served.describe_server()
        features = self._served.features
        served_name = None if features is None else features.model
        self.name = endpoint.model or Path(served_name or "model").name  # llama.cpp has the path of its file
        self.bans: CompiledBans = sampler.compiled
        self.active = 0
        self._queue_length = queue_length
        self._is_closing = False

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer of the other server's model."""
        return self.bans.tokenizer

    @property
    def context_length(self) -> int:
        """The other server's maximum of tokens, if it told one."""
        features = self._served.features
        return maxsize if features is None or features.context_length is None else features.context_length

    async def write(self, request: TextRequest) -> AsyncGenerator[Event, None]:
        """Yield the events of one text; closing the generator ends it on the other server."""
        if self._is_closing or self.active >= self._queue_length:
            state = "shutting down" if self._is_closing else f"writing {self.active} texts already"
            raise Busy(f"the server is {state}: try again later")
        if request.alternatives is not None:
            raise InputError("log-probabilities are not passed on from another server: leave logprobs out")
        self.active += 1
        try:
            async with aclosing(self._start(request)) as events:
                async for event in events:
                    yield event
        except EndpointError as error:
            raise BackendError(str(error)) from error
        finally:
            self.active -= 1

    async def close(self, *, timeout: float | None = None) -> None:
        """Take no more texts, and return when those under way are finished; cut them off after `timeout` seconds."""
        self._is_closing = True
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        while self.active and (deadline is None or loop.time() < deadline):
            await asyncio.sleep(POLL)
        await self._served.close()

    def _start(self, request: TextRequest) -> AsyncGenerator[Event, None]:
        """Return the events of a text; raises `InputError` for settings that can't be exact on the other server."""
        return self._served.events_async(
            list(request.prompt),
            bans=request.bans,
            ban_method=request.method,
            seed=request.seed,
            max_new_tokens=request.max_new_tokens,
            stop_strings=list(request.stop) or None,
            **_name_settings(request.sampling),
        )


def _name_settings(sampling: Sampling) -> dict[str, float | int | bool]:
    """Return the keywords of `generate` for settings."""
    settings: dict[str, float | int | bool] = {"repetition_penalty": sampling.repetition_penalty}
    if not sampling.do_sample:
        return settings | {"do_sample": False}
    names = ("temperature", "top_k", "top_p", "min_p", "typical_p")
    return settings | {name: getattr(sampling, name) for name in names}

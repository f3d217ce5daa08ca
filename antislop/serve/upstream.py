"""A backend in front of another server: exact bans for vLLM or llama.cpp."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from antislop.core.hf import CompiledBans, find_response_template
from antislop.core.sampler import AntiSlop
from antislop.core.trace import Event
from antislop.display import describe_count
from antislop.engines.endpoint.client import NO_ROUTE_STATUSES
from antislop.engines.endpoint.connection import Refused, StreamConnection
from antislop.engines.endpoint.dialects import DIALECTS
from antislop.engines.endpoint.endpoint import Endpoint, EndpointError
from antislop.engines.endpoint.sampler import EndpointSampler, EndpointSettings
from antislop.errors import InputError
from antislop.serve.backend import BackendError, Busy, GenerationRequest

POLL_SECONDS = 0.05
"""Seconds between two checks for running requests while the backend closes."""
CHECK_SECONDS = 2.0
"""How long the other server may take to answer a check, and for how long the check is not repeated."""
FAILED = "the server behind this one failed or can't be reached: try again later"
"""The error for clients; only the log has the other server's address and its own error."""


class UpstreamBackend:
    """Generates by an `EndpointSampler`. Raises `EndpointError` if the other server can't be reached.

    queue_length: requests that may run at once; the other server has a queue of its own.
    """

    def __init__(self, sampler: AntiSlop, endpoint: Endpoint, *, queue_length: int = 128) -> None:
        self._served = EndpointSampler(sampler, endpoint)
        self.description = self._served.describe_server()  # probes the other server
        features = self._served.features
        assert features is not None
        self.name = endpoint.model or Path(features.model or "model").name  # llama.cpp has the path of its file
        self.context_length = features.context_length
        self.cuts_min_p_first = DIALECTS[features.server].cuts_min_p_first
        self.bans: CompiledBans = sampler.compiled
        self.tokenizer: PreTrainedTokenizerBase = sampler.compiled.tokenizer
        self.response_template = find_response_template(self.tokenizer)
        self.active = 0
        self._queue_length = queue_length
        self._is_closing = False
        self._connection = StreamConnection(replace(endpoint, timeout=CHECK_SECONDS, retries=0))
        self._checking, self._checked, self._is_alive = asyncio.Lock(), -CHECK_SECONDS, True

    async def write(self, request: GenerationRequest) -> AsyncGenerator[Event, None]:
        if self._is_closing or self.active >= self._queue_length:
            state = "shutting down" if self._is_closing else f"writing {describe_count(self.active, 'text')} already"
            raise Busy(f"the server is {state}: try again later")
        if request.alternatives is not None:
            raise InputError("log-probabilities are not passed on from another server: leave logprobs out")
        if request.schema is not None:
            raise InputError("a grammar can't be followed on another server: leave response_format out")
        if request.lark is not None:
            raise InputError("a call can't be required of another server: leave tool_choice out")
        if request.logit_bias:
            raise InputError("a bias is not passed on to another server: leave logit_bias out")
        self.active += 1
        try:
            settings = EndpointSettings(
                max_new_tokens=request.max_new_tokens,
                sampling=request.sampling,
                stopping_criteria=request.stopping_criteria,
            )
            events = self._served.events_async(
                list(request.prompt), settings, bans=request.bans, policy=request.policy, seed=request.seed
            )
            async with aclosing(events):
                async for event in events:
                    yield event
        except EndpointError as error:
            raise BackendError(FAILED) from error
        finally:
            self.active -= 1

    async def check(self) -> None:
        """Raise `BackendError` unless the other server answers now, or answered in the last `CHECK_SECONDS`."""
        loop = asyncio.get_running_loop()
        async with self._checking:
            if loop.time() - self._checked >= CHECK_SECONDS:
                try:
                    await self._connection.ask(self._connection.address("/v1/models"))
                    self._is_alive = True
                except EndpointError as error:  # some servers lack the route
                    self._is_alive = isinstance(error, Refused) and error.status in NO_ROUTE_STATUSES
                self._checked = loop.time()
        if not self._is_alive:
            raise BackendError(FAILED)

    async def close(self, *, timeout: float | None = None) -> None:
        self._is_closing = True
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        while self.active and (deadline is None or loop.time() < deadline):
            await asyncio.sleep(POLL_SECONDS)
        await self._connection.close()
        await self._served.close()

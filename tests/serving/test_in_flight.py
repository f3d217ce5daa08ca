"""The backend that writes texts with this library's own loop: each text is as if alone, whatever happens to others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar

import pytest
import torch
from transformers import PreTrainedModel

from antislop import AntiSlop, Ban
from antislop.errors import InputError
from antislop.serving.sampling import Sampling
from antislop.serving.server.backend import Busy, TextRequest
from antislop.serving.server.in_flight import InFlightBackend
from antislop.serving.server.spec_maker import settings_of
from antislop.trace.events import Event, Settled
from antislop.trace.report import Report
from tests.support.models import build_model, build_tokenizer

T = TypeVar("T")

TOKENIZER = build_tokenizer()
BANS = [Ban("ab", edges="anywhere"), Ban("e", edges="anywhere", weight=0.3)]


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    """A model that writes to the end of each text."""
    model = build_model("llama")
    model.generation_config.suppress_tokens = [1]
    return model


@asynccontextmanager
async def serving(model: PreTrainedModel, **options: Any) -> AsyncIterator[InFlightBackend]:
    backend = InFlightBackend(model, TOKENIZER, **{"bans": BANS, "batch_size": 4, **options})
    try:
        yield backend
    finally:
        await backend.close(timeout=60)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a test's coroutine; a text that never ends is an error."""
    return asyncio.run(asyncio.wait_for(work, timeout=120))


def request_of(backend: InFlightBackend, number: int = 0, **changes: Any) -> TextRequest:
    prompt = [0, *(2 + (number * step) % 15 for step in range(1, 3 + number % 4))]
    request = TextRequest(
        prompt=prompt, bans=backend.bans, max_new_tokens=12 + number % 9, sampling=Sampling(), seed=number
    )
    return replace(request, **changes)


async def read(backend: InFlightBackend, request: TextRequest) -> list[Event]:
    return [event async for event in backend.write(request)]


def tokens_of(events: Sequence[Event]) -> list[int]:
    return [token for event in events if isinstance(event, Settled) for token in event.tokens]


def write_alone(model: PreTrainedModel, request: TextRequest) -> tuple[list[int], dict[str, Any]]:
    """Return the tokens and the counts of the same text from `generate_many`."""
    sampler = AntiSlop(TOKENIZER, request.bans.bans, method=request.method)
    settings = settings_of(request.sampling) | {"max_new_tokens": request.max_new_tokens}
    if request.stop:
        settings["stop_strings"] = list(request.stop)
    done = next(iter(sampler.generate_many(model, [request.prompt], seeds=[request.seed or 0], **settings)))
    return done.tokens, counts_of(done.report)


def counts_of(report: Report) -> dict[str, Any]:
    return {**report.to_dict(), "matcher_seconds": None}


SAMPLINGS = (
    Sampling(),
    Sampling(temperature=0),
    Sampling(temperature=0.7, top_k=9, top_p=0.9),
    Sampling(repetition_penalty=1.4, min_p=0.02),
    Sampling(typical_p=0.8),
)


def vary(backend: InFlightBackend, number: int) -> TextRequest:
    """Return a request with settings of its own."""
    return request_of(
        backend,
        number,
        sampling=SAMPLINGS[number % len(SAMPLINGS)],
        stop=("aa", "d") if number % 3 == 1 else (),
        method=("exact", "token", "text")[number % 4 % 3],
    )


def test_texts_with_different_settings_are_each_as_if_alone(model: PreTrainedModel) -> None:
    async def write() -> list[tuple[TextRequest, list[Event]]]:
        async with serving(model) as backend:
            requests = [vary(backend, number) for number in range(24)]
            return list(zip(requests, await asyncio.gather(*(read(backend, r) for r in requests)), strict=True))

    rewinds = 0
    for request, events in run(write()):
        tokens, counts = write_alone(model, request)
        assert tokens_of(events) == tokens
        assert counts_of(Report.of(events, surfaces=request.bans.vocabulary)) == counts
        rewinds += counts["rewinds"]
    assert rewinds > 20


def test_a_greedy_text_is_that_of_the_sampler(model: PreTrainedModel) -> None:
    async def write() -> list[Event]:
        async with serving(model) as backend:
            return await read(backend, request_of(backend, 3, sampling=Sampling(temperature=0)))

    events = run(write())
    prompt = torch.tensor([[0, *(2 + (3 * step) % 15 for step in range(1, 6))]])
    expected = AntiSlop(TOKENIZER, BANS).generate(model, prompt, do_sample=False, max_new_tokens=15)
    assert tokens_of(events) == expected[0, 6:].tolist()


REFUSED: tuple[tuple[dict[str, Any], str], ...] = (
    ({"prompt": []}, "an empty prompt"),
    ({"prompt": [0, 48]}, "not in the vocabulary, 0 to 47"),
    ({"prompt": [-1]}, "not in the vocabulary"),
    ({"max_new_tokens": 0}, "at least 1"),
    ({"max_new_tokens": 511}, "the context has 512 tokens"),
    ({"seed": 2**64}, "64 bits"),
    ({"stop": ("a", "")}, "a stop string is empty"),
)


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_what_can_not_be_served_is_refused(model: PreTrainedModel, changes: dict[str, Any], message: str) -> None:
    async def write() -> None:
        async with serving(model) as backend:
            with pytest.raises(InputError, match=message):
                await read(backend, request_of(backend, **changes))
            assert backend.active == 0

    run(write())


def test_texts_beyond_the_queue_are_refused(model: PreTrainedModel) -> None:
    async def write() -> None:
        async with serving(model, batch_size=2, queue_length=1) as backend:
            texts = [asyncio.ensure_future(read(backend, request_of(backend, n))) for n in range(3)]
            await asyncio.sleep(0)
            assert backend.active == 3
            with pytest.raises(Busy, match="3 texts are being written"):
                await read(backend, request_of(backend))
            assert all(await asyncio.gather(*texts))

    run(write())

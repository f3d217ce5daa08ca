"""The streaming client reads the real llama.cpp, whose probabilities are those of `generate` with the same settings."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import aclosing
from dataclasses import replace
from typing import Any
from urllib.request import urlopen

import pytest

import antislop
from antislop.core.hf.vocabulary import Vocabulary
from antislop.core.loop.sampling import Sampling
from antislop.engines.endpoint.client import StreamingClient
from antislop.engines.endpoint.endpoint import ServerFeatures, StreamItem, StreamRequest, StreamToken
from tests.support.served_streams import (
    PROMPT,
    SETTINGS,
    check_drawn_probabilities,
    check_raw_probabilities_under_a_bias,
    check_that_draws_are_streams,
    compute_probabilities,
    use,
)
from tests.support.statistics import p_value
from tests.support.streaming import read


@pytest.fixture(scope="module")
def tiny() -> Any:
    return antislop.tiny_model()


def test_the_probe_finds_what_llama_cpp_can_do(llama_cpp: Any, tiny: Any) -> None:
    features: ServerFeatures = use(llama_cpp, tiny[1], StreamingClient.probe)
    assert (features.server, features.context_length) == ("llama.cpp", 512)
    assert features.logprobs == {"raw", "drawn"}
    assert features.has_ids
    assert features.has_bias


@pytest.mark.parametrize("settings", SETTINGS)
def test_llama_cpp_draws_from_the_distribution_of_generate(llama_cpp: Any, tiny: Any, settings: str) -> None:
    check_drawn_probabilities(llama_cpp, tiny, SETTINGS[settings])


def test_llama_cpp_throws_the_coin_of_xtc(llama_cpp: Any, tiny: Any) -> None:
    sampling = Sampling(temperature=1.4, top_k=6, xtc_probability=0.5, xtc_threshold=0.1)
    prompt: list[int] = tiny[1](PROMPT)["input_ids"]
    request = StreamRequest(prompt=prompt, max_tokens=1, seed=3, sampling=sampling)
    counts = Counter((message.token,) for message in use(llama_cpp, tiny[1], lambda client: client.draw(request, 300)))
    expected, without = (
        {(token,): p for token, p in enumerate(compute_probabilities(tiny[0], prompt, each).tolist())}
        for each in (sampling, replace(sampling, xtc_probability=0.0))
    )
    assert p_value(counts, expected) > 1e-3 > p_value(counts, without)


def test_raw_log_probabilities_ignore_the_bias(llama_cpp: Any, tiny: Any) -> None:
    check_raw_probabilities_under_a_bias(llama_cpp, tiny)


def test_draws_are_the_first_tokens_of_streams(llama_cpp: Any, tiny: Any) -> None:
    check_that_draws_are_streams(llama_cpp, tiny)


def find_byte_tokens(vocabulary: Vocabulary) -> list[int]:
    """Return the tokens that are a part of a character of two bytes."""
    return [token for token, surface in enumerate(vocabulary.surfaces) if surface in (b"\xc3", b"\xa9", b"\xc2")]


def test_tokens_that_end_within_a_character_are_named(llama_cpp: Any, tiny: Any) -> None:
    """Those up to the first that the client must ask for are the ones that the same seed draws without a stream."""
    _, tokenizer = tiny
    parts = find_byte_tokens(Vocabulary.of(tokenizer))
    assert len(parts) > 1, "the tokenizer has no tokens that are a part of a character"
    bias = dict.fromkeys(parts, 14.0)
    request = StreamRequest(
        prompt=tokenizer(PROMPT)["input_ids"], max_tokens=16, seed=0, sampling=Sampling(), bias=bias, logprobs="drawn"
    )

    async def act(client: StreamingClient) -> int:
        unnamed = 0
        for seed in range(6):
            asked = replace(request, seed=seed)
            messages = await read(client, asked)
            tokens = [message.token for message in messages if isinstance(message, StreamToken)]
            body = client_body(asked)
            answer = await client._connection.ask(f"{llama_cpp.url}/completion", body)
            jump = next((i for i, message in enumerate(messages) if message.logprob is None), len(tokens))
            unnamed += sum(message.logprob is None for message in messages[:-1])
            assert tokens[: jump + 1] == answer["tokens"][: jump + 1]
            assert None not in tokens
        return unnamed

    assert use(llama_cpp, tokenizer, act) > 10


def client_body(request: StreamRequest) -> dict[str, Any]:
    """Return the body of a request that is not streamed."""
    from antislop.engines.endpoint.dialects import LlamaCppStream

    return LlamaCppStream(request).ask() | {"stream": False}


def count_busy(server: Any) -> int:
    """Return the number of texts that the server writes, as its metrics tell it."""
    with urlopen(f"{server.url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return int(float(next(line.split()[1] for line in lines if line.startswith("llamacpp:requests_processing "))))


def test_a_closed_stream_frees_its_slot(llama_cpp: Any, tiny: Any) -> None:
    _, tokenizer = tiny
    request = StreamRequest(
        prompt=tokenizer(PROMPT)["input_ids"], max_tokens=400, seed=0, sampling=Sampling(), bias={1: -100.0}
    )

    async def act(client: StreamingClient) -> float:
        first: StreamItem
        async with aclosing(client.stream(request)) as messages:
            first = await messages.__anext__()
            assert isinstance(first, StreamToken)
            assert await asyncio.to_thread(count_busy, llama_cpp) == 1
        start = time.perf_counter()
        while await asyncio.to_thread(count_busy, llama_cpp):
            assert time.perf_counter() < start + 2
        return time.perf_counter() - start

    assert use(llama_cpp, tokenizer, act) < 1

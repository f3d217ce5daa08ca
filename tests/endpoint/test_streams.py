"""The streaming client and its dialects read what each kind of server means, and ask for what they want."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from math import exp
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from antislop.endpoint import Endpoint, EndpointError
from antislop.endpoint.sampling import Sampling
from antislop.endpoint.streams.client import StreamingClient
from antislop.endpoint.streams.messages import Ended, Message, ServerFeatures, StreamedToken, StreamRequest
from antislop.endpoint.streams.probe import describe
from tests.support.models import build_spaced_tokenizer
from tests.support.simulated_engine import EngineKind, SimulatedEngine
from tests.support.statistics import p_value
from tests.support.streaming import KINDS, TABLE, TOKENIZER, connect_directly, make_engine, read, serve_streams

SIZE = len(TOKENIZER)
WITH_IDS = KINDS[:3]
REQUEST = StreamRequest(prompt=[int(TABLE[4].argmax()), 4], max_tokens=60, seed=5, sampling=Sampling())
SETTINGS = {
    "plain": Sampling(),
    "warm": Sampling(temperature=1.7),
    "top_k": Sampling(temperature=0.8, top_k=6),
    "top_p": Sampling(temperature=1.3, top_p=0.7),
    "min_p": Sampling(temperature=1.3, min_p=0.1),
    "penalty": Sampling(repetition_penalty=1.9),
}


def drawn_from(sampling: Sampling, bias: Mapping[int, float] | None = None) -> torch.Tensor:
    """Return the probabilities of the token after the request's prompt, by the processors of `generate`."""
    logits = TABLE[REQUEST.prompt[-1]].clone()
    for token, value in (bias or {}).items():
        logits[token] += value
    processors = LogitsProcessorList([RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)])
    processors += [TemperatureLogitsWarper(float(sampling.temperature))]
    processors += [TopKLogitsWarper(sampling.top_k)] if sampling.top_k else []
    processors += [TopPLogitsWarper(sampling.top_p)] if sampling.top_p < 1 else []
    processors += [MinPLogitsWarper(sampling.min_p)] if sampling.min_p else []
    return torch.softmax(processors(torch.tensor([REQUEST.prompt]), logits[None])[0].double(), dim=-1)


async def count_first_tokens(engine: SimulatedEngine, request: StreamRequest, draws: int) -> Counter[tuple[int, ...]]:
    client = connect_directly(engine)
    names = {engine.piece(token): token for token in range(SIZE)}
    counts: Counter[tuple[int, ...]] = Counter()
    for message in await client.draw(request, draws):
        if isinstance(message, Ended):
            counts[(1 if message.token is None else message.token,)] += 1
        else:
            counts[(names[message.text.encode()] if message.token is None else message.token,)] += 1
    return counts


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("settings", SETTINGS)
def test_each_server_draws_as_generate_does_whatever_its_defaults(kind: EngineKind, settings: str) -> None:
    request = replace(REQUEST, sampling=SETTINGS[settings])
    counts = asyncio.run(count_first_tokens(make_engine(kind), request, 1500))
    expected = {(token,): p for token, p in enumerate(drawn_from(SETTINGS[settings]).tolist())}
    assert p_value(counts, expected) > 1e-3


@pytest.mark.parametrize("kind", WITH_IDS)
def test_a_bias_acts_before_the_temperature(kind: EngineKind) -> None:
    bias, sampling = {5: 3.0, 7: -2.0, 30: -np.inf}, Sampling(temperature=2.0)
    counts = asyncio.run(count_first_tokens(make_engine(kind), replace(REQUEST, bias=bias, sampling=sampling), 1500))
    expected = {(token,): p for token, p in enumerate(drawn_from(sampling, bias).tolist())}
    assert counts[(30,)] == 0
    assert p_value(counts, expected) > 1e-3


@pytest.mark.parametrize(
    ("kind", "logprobs"), [("vllm", "raw"), ("vllm", "drawn"), ("llama.cpp", "raw"), ("llama.cpp", "drawn")]
)
def test_log_probabilities_are_of_the_kind_that_was_requested(kind: EngineKind, logprobs: Any) -> None:
    sampling = Sampling(temperature=0.7, top_k=20)
    engine = make_engine(kind, tells_drawn=logprobs == "drawn")
    request = replace(REQUEST, max_tokens=1, sampling=sampling, logprobs=logprobs, alternatives=3)
    (message, _) = asyncio.run(read(connect_directly(engine), request))
    expected = drawn_from(sampling if logprobs == "drawn" else Sampling())
    assert message.logprob == pytest.approx(float(expected[message.token].log()))
    likeliest = expected.topk(3)
    told = {token: exp(logprob) for token, logprob in message.alternatives}
    assert (
        told.items()
        >= dict(zip(likeliest.indices.tolist(), map(pytest.approx, likeliest.values.tolist()), strict=True)).items()
    )


def test_sglang_tells_no_log_probability_of_a_truncated_distribution() -> None:
    client = connect_directly(make_engine("sglang"))
    for sampling, is_told in (
        (Sampling(temperature=0.7), True),
        (Sampling(top_k=9), False),
        (Sampling(temperature=0), False),
    ):
        request = replace(REQUEST, max_tokens=1, sampling=sampling, logprobs="drawn")
        (message, _) = asyncio.run(read(client, request))
        assert (message.logprob is not None) == is_told
        if is_told:
            assert message.logprob == pytest.approx(float(drawn_from(sampling)[message.token].log()))


def test_a_first_bias_forces_the_first_token_alone() -> None:
    client = connect_directly(make_engine(has_first_bias=True))
    bias = {9: 1000.0, 10: -np.inf}
    texts = [asyncio.run(read(client, replace(REQUEST, seed=i, first_bias=bias, max_tokens=8))) for i in range(9)]
    assert all(text[0].token == 9 for text in texts)
    assert any(message.token != 9 for text in texts for message in text[1:])


@pytest.mark.parametrize("kind", KINDS)
def test_over_http_the_same_messages_arrive_as_in_process(kind: EngineKind) -> None:
    logprobs: Any = {"vllm": "raw", "openai": None}.get(kind, "drawn")
    request = replace(REQUEST, logprobs=logprobs)

    async def run(url_client: StreamingClient) -> tuple[Any, ...]:
        try:
            messages = [await read(url_client, replace(request, seed=seed)) for seed in range(4)]
            return await url_client.probe(), messages, await url_client.draw(request, 5)
        finally:
            await url_client.close()

    with serve_streams(make_engine(kind)) as server:
        over_http = asyncio.run(run(server.client()))
    assert over_http == asyncio.run(run(connect_directly(make_engine(kind))))
    features, texts, draws = over_http
    assert features.server == kind
    assert len(draws) == 5
    assert all(isinstance(text[-1], Ended) and len(text) <= 61 for text in texts)


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_tokens_are_the_likeliest(kind: EngineKind) -> None:
    client = connect_directly(make_engine(kind))
    messages = asyncio.run(read(client, replace(REQUEST, max_tokens=5, sampling=Sampling(temperature=0))))
    tokens = list(REQUEST.prompt)
    for message in messages[:-1]:
        tokens.append(int(TABLE[tokens[-1]].argmax()))
        assert isinstance(message, StreamedToken)
        assert message.text in ("", TOKENIZER.decode(tokens[-1])) or kind == "vllm"
        assert message.token in (tokens[-1], None)


def test_draws_are_the_first_tokens_of_streams_with_the_seeds_from_its_own_on() -> None:
    for kind in KINDS:
        client = connect_directly(make_engine(kind))
        draws = asyncio.run(client.draw(REQUEST, 6))
        streams = [asyncio.run(read(client, replace(REQUEST, seed=REQUEST.seed + i, max_tokens=1))) for i in range(6)]
        assert draws == [messages[0] for messages in streams]


def test_draws_cost_vllm_one_request() -> None:
    async def run(client: StreamingClient) -> None:
        await client.probe()
        before = len(server.requests)
        assert len(await client.draw(REQUEST, 16)) == 16
        assert len(server.requests) == before + 1
        await client.close()

    with serve_streams(make_engine()) as server:
        asyncio.run(run(server.client()))


@pytest.mark.parametrize("kind", WITH_IDS)
def test_a_server_ends_texts_at_tokens_that_the_tokenizer_does_not_know_as_ends(kind: EngineKind) -> None:
    client = connect_directly(make_engine(kind, end_tokens=frozenset({1, 7})))
    request = replace(REQUEST, bias={7: 60.0}, logprobs="raw" if kind == "vllm" else "drawn")
    (ended,) = asyncio.run(read(client, request))
    assert isinstance(ended, Ended)
    assert (ended.reason, ended.token) == ("stop", 7)
    assert ended.logprob is not None
    assert asyncio.run(client.draw(request, 2)) == [ended, ended]


def test_a_stream_ends_with_the_context() -> None:
    client = connect_directly(make_engine("llama.cpp", context_length=64))
    messages = asyncio.run(read(client, replace(REQUEST, max_tokens=100, bias={1: -np.inf})))
    assert len(messages) == 64 - 2 + 1
    assert messages[-1] == Ended("length")


def test_an_incremental_sglang_is_read_like_the_other() -> None:
    clients = [connect_directly(make_engine("sglang", is_incremental=flag)) for flag in (True, False)]
    request = replace(REQUEST, logprobs="drawn", alternatives=2)
    assert asyncio.run(read(clients[0], request)) == asyncio.run(read(clients[1], request))


FEATURES = {
    "vllm": {"logprobs": {"raw"}, "has_ids": True, "has_bias": True, "context_length": 512, "penalizes_prompt": True},
    "llama.cpp": {"logprobs": {"raw", "drawn"}, "has_ids": True, "has_bias": True, "context_length": 512},
    "sglang": {
        "logprobs": {"drawn"},
        "has_truncated_logprobs": False,
        "has_ids": True,
        "has_bias": True,
        "context_length": 512,
    },
    "openai": {"logprobs": set(), "has_ids": False, "has_bias": False, "context_length": None},
}


@pytest.mark.parametrize("kind", KINDS)
def test_up_to_three_requests_find_out_what_a_server_can_do(kind: EngineKind) -> None:
    async def run(client: StreamingClient) -> ServerFeatures:
        features = await asyncio.gather(*(client.probe() for _ in range(5)))
        await client.close()
        assert all(other is features[0] for other in features)
        return features[0]

    with serve_streams(make_engine(kind)) as server:
        features = asyncio.run(run(server.client()))
    assert len(server.requests) <= 3
    assert {name: getattr(features, name) for name in FEATURES[kind]} == FEATURES[kind]
    assert features.bias_limit is None
    assert not features.has_first_bias


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"tells_drawn": True}, {"logprobs": {"drawn"}}),
        ({"has_first_bias": True}, {"has_first_bias": True, "has_bias": True}),
        ({"bias_limit": 8}, {"has_bias": True, "bias_limit": 1024}),
        ({"bias_limit": 0}, {"has_bias": False, "has_first_bias": False, "logprobs": {"raw"}}),
        ({"bias_limit": 0, "tells_drawn": True}, {"has_bias": False, "logprobs": {"drawn"}}),
    ],
)
def test_the_probe_tells_apart_how_vllm_was_started(options: dict[str, Any], expected: dict[str, Any]) -> None:
    features = asyncio.run(connect_directly(make_engine(**options)).probe())
    assert {name: getattr(features, name) for name in expected} == expected


def test_what_a_server_can_do_is_one_line() -> None:
    features = ServerFeatures(
        server="vllm", model="m", logprobs=frozenset({"raw"}), has_bias=True, bias_limit=1024, has_first_bias=True
    )
    assert describe(features) == (
        "vllm, model m: names tokens by their texts, log-probabilities raw, logit_bias of 1,024 tokens, "
        "bias for the first token alone"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_another_tokenizer_than_the_served_models_is_refused(kind: EngineKind) -> None:
    engine = make_engine(kind)
    client = connect_directly(engine)
    other = build_spaced_tokenizer()
    engine.tokenizer = other
    engine.vocabulary = type(engine.vocabulary).of(other)
    with pytest.raises(EndpointError, match=r"the tokenizer is not that of tiny: .* pass the served model's tokenizer"):
        asyncio.run(client.probe())


def test_a_setting_that_a_server_lacks_is_refused() -> None:
    for kind in ("vllm", "sglang", "openai"):
        client = connect_directly(make_engine(kind))  # type: ignore[arg-type]
        with pytest.raises(EndpointError, match=f"{kind} has no typical_p: leave it out, or use another server"):
            asyncio.run(read(client, replace(REQUEST, sampling=Sampling(typical_p=0.5))))
    assert asyncio.run(
        read(connect_directly(make_engine("llama.cpp")), replace(REQUEST, sampling=Sampling(typical_p=0.5)))
    )


def test_additional_fields_override_those_of_the_dialect() -> None:
    with serve_streams(make_engine()) as server:
        endpoint = Endpoint(
            server.endpoint.base_url, model="tiny", api_key="k", extra={"min_tokens": None, "user": "me"}
        )

        async def run() -> None:
            client = server.client(endpoint=endpoint)
            await read(client, REQUEST)
            await client.close()

        asyncio.run(run())
    _, body = server.requests[-1]
    assert body["user"] == "me"
    assert body["model"] == "tiny"
    assert "min_tokens" not in body
    assert {headers["Authorization"] for headers in server.headers} == {"Bearer k"}


def test_texts_of_tokens_that_are_not_one_token_have_no_id() -> None:
    async def stream() -> AsyncGenerator[Message, None]:
        client = connect_directly(make_engine("openai"))
        await client.probe()
        for text in ("ab", "zz", "�"):
            yield client._find(StreamedToken(None, None, text))  # type: ignore[misc]

    async def run() -> list[Message]:
        return [message async for message in stream()]

    assert [message.token for message in asyncio.run(run())] == [TOKENIZER.convert_tokens_to_ids("ab"), None, None]

"""The streaming client and its dialects read what each kind of server means, and ask for what they want."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import exp
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from antislop.core.loop.sampling import Sampling
from antislop.engines import Endpoint, EndpointError
from antislop.engines.endpoint import client as client_module
from antislop.engines.endpoint.client import StreamingClient, describe
from antislop.engines.endpoint.dialects import DIALECTS, OpenaiStream, StreamDialect, read_items
from antislop.engines.endpoint.endpoint import ServerFeatures, StreamEnd, StreamRequest, StreamToken
from tests.support.depth import DEPTH, first_quick
from tests.support.models import build_spaced_tokenizer
from tests.support.served_streams import process
from tests.support.simulated_engine import EngineKind, SimulatedEngine
from tests.support.simulated_formats import answer_post
from tests.support.statistics import p_value
from tests.support.streaming import KINDS, TABLE, TOKENIZER, connect_directly, make_engine, read, serve_streams

SIZE = len(TOKENIZER)
WITH_IDS = KINDS[:2]
REQUEST = StreamRequest(prompt=[int(TABLE[4].argmax()), 4], max_tokens=60, seed=5, sampling=Sampling())
SETTINGS = {
    "plain": Sampling(),
    "warm": Sampling(temperature=1.7),
    "top_k": Sampling(temperature=0.8, top_k=6),
    "top_p": Sampling(temperature=1.3, top_p=0.7),
    "min_p": Sampling(temperature=1.3, min_p=0.1),
    "penalty": Sampling(repetition_penalty=1.9),
}
NEUTRAL = {"dry_multiplier": 0.0, "top_n_sigma": 0.0, "xtc_probability": 0.0, "min_keep": 0}
OF_LLAMA_CPP = {
    "dry": Sampling(dry_multiplier=2.0, dry_allowed_length=1, dry_penalty_last_n=9, dry_sequence_breakers=()),
    "top_n_sigma": Sampling(temperature=1.5, top_n_sigma=1.0),
    "min_keep": Sampling(temperature=1.5, top_p=0.1, min_keep=4),
    "xtc": Sampling(temperature=1.5, xtc_probability=0.5, xtc_threshold=0.05),
}


def drawn_from(
    sampling: Sampling, bias: Mapping[int, float] | None = None, *, prompt: Sequence[int] = REQUEST.prompt
) -> torch.Tensor:
    """Return the probabilities of the token after a prompt, by the processors of `generate`."""
    logits = TABLE[prompt[-1]].clone()
    for token, value in (bias or {}).items():
        logits[token] += value
    return process(logits, [*prompt], sampling)


async def count_first_tokens(engine: SimulatedEngine, request: StreamRequest, draws: int) -> Counter[tuple[int, ...]]:
    client = connect_directly(engine)
    names = {engine.piece(token): token for token in range(SIZE)}
    counts: Counter[tuple[int, ...]] = Counter()
    for message in await client.draw(request, draws):
        if isinstance(message, StreamEnd):
            counts[(1 if message.token is None else message.token,)] += 1
        else:
            counts[(names[message.text.encode()] if message.token is None else message.token,)] += 1
    return counts


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("settings", first_quick(SETTINGS, 2))
def test_each_server_draws_as_generate_does_whatever_its_defaults(kind: EngineKind, settings: str) -> None:
    request = replace(REQUEST, sampling=SETTINGS[settings])
    counts = asyncio.run(count_first_tokens(make_engine(kind), request, 1500))
    expected = {(token,): p for token, p in enumerate(drawn_from(SETTINGS[settings]).tolist())}
    assert p_value(counts, expected) > 1e-3


@pytest.mark.parametrize("settings", OF_LLAMA_CPP)
def test_llama_cpp_draws_as_our_own_samplers_do(settings: str) -> None:
    sampling, prompt = OF_LLAMA_CPP[settings], [4, *REQUEST.prompt]
    request = replace(REQUEST, prompt=prompt, sampling=sampling)
    counts = asyncio.run(count_first_tokens(make_engine("llama.cpp"), request, 1500))
    expected, without = (drawn_from(each, prompt=prompt) for each in (sampling, replace(sampling, **NEUTRAL)))
    assert float((expected - without).abs().sum()) > 0.05, "the setting has no effect"
    assert p_value(counts, {(token,): p for token, p in enumerate(expected.tolist())}) > 1e-3


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
    request = replace(REQUEST, max_tokens=1, sampling=sampling, logprobs=logprobs, top_logprobs=3)
    (message, _) = asyncio.run(read(connect_directly(engine), request))
    expected = drawn_from(sampling if logprobs == "drawn" else Sampling())
    assert message.logprob == pytest.approx(float(expected[message.token].log()))
    likeliest = expected.topk(3)
    told = {token: exp(logprob) for token, logprob in message.alternatives}
    assert (
        told.items()
        >= dict(zip(likeliest.indices.tolist(), map(pytest.approx, likeliest.values.tolist()), strict=True)).items()
    )


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
    assert all(isinstance(text[-1], StreamEnd) and len(text) <= 61 for text in texts)


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_tokens_are_the_likeliest(kind: EngineKind) -> None:
    client = connect_directly(make_engine(kind))
    messages = asyncio.run(read(client, replace(REQUEST, max_tokens=5, sampling=Sampling(temperature=0))))
    tokens = list(REQUEST.prompt)
    for message in messages[:-1]:
        tokens.append(int(TABLE[tokens[-1]].argmax()))
        assert isinstance(message, StreamToken)
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
    assert isinstance(ended, StreamEnd)
    assert (ended.reason, ended.token) == ("stop", 7)
    assert ended.logprob is not None
    assert asyncio.run(client.draw(request, 2)) == [ended, ended]


def test_a_stream_ends_with_the_context() -> None:
    client = connect_directly(make_engine("llama.cpp", context_length=64))
    messages = asyncio.run(read(client, replace(REQUEST, max_tokens=100, bias={1: -np.inf})))
    assert len(messages) == 64 - 2 + 1
    assert messages[-1] == StreamEnd("length")


FEATURES = {
    "vllm": {"logprobs": {"raw"}, "has_ids": True, "has_bias": True, "context_length": 512, "penalizes_prompt": True},
    "llama.cpp": {"logprobs": {"raw", "drawn"}, "has_ids": True, "has_bias": True, "context_length": 512},
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


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"tells_drawn": True}, {"logprobs": {"drawn"}}),
        ({"bias_limit": 8}, {"has_bias": True, "bias_limit": 1024}),
        ({"bias_limit": 0}, {"has_bias": False, "logprobs": {"raw"}}),
        ({"bias_limit": 0, "tells_drawn": True}, {"has_bias": False, "logprobs": {"drawn"}}),
    ],
)
def test_the_probe_tells_apart_how_vllm_was_started(options: dict[str, Any], expected: dict[str, Any]) -> None:
    features = asyncio.run(connect_directly(make_engine(**options)).probe())
    assert {name: getattr(features, name) for name in expected} == expected


def test_a_tokenizer_without_the_words_of_the_probe_is_probed_with_another_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = make_engine()
    monkeypatch.setattr(client_module, "PROBE_TEXT", "")
    assert asyncio.run(connect_directly(engine).probe()).has_bias


def test_what_a_server_can_do_is_one_line() -> None:
    features = ServerFeatures(server="vllm", model="m", logprobs=frozenset({"raw"}), has_bias=True, bias_limit=1024)
    assert describe(features) == (
        "vllm, model m: names tokens by their texts, log-probabilities raw, logit_bias of 1,024 tokens"
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


def refuse_as_transformers_serve(body: Mapping[str, Any]) -> str | None:
    """As transformers 5.23 does: it takes `logprobs` and gives none."""
    known = {"prompt", "max_tokens", "model", "stream", "seed", "temperature", "top_p", "logit_bias", "logprobs"}
    unknown = body.keys() - known - {"frequency_penalty", "presence_penalty"}
    return f"Unexpected fields in the request: {unknown}" if unknown else None


def refuse_as_mlx(body: Mapping[str, Any]) -> str | None:
    """As mlx_lm.server 0.32 does."""
    if body.get("top_k", 0) < 0:
        return "top_k must be at least 0"
    return None if isinstance(body.get("logprobs", False), bool) else "logprobs must be of type bool"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"names_streamed": False}, "which tokens its text has: a server whose streams have logprobs is needed"),
        (
            {"takes_ids": False},
            "^the server takes no prompt of token ids, which texts under bans need: serve .*unmarshal",
        ),
        ({"takes_ids": False, "owner": "library"}, r"Ollama takes no prompt of token ids.*llama-server.*unmarshal"),
        ({"takes_ids": False, "owner": "organization_owner"}, "^LM Studio takes no prompt of token ids, which"),
        ({"names_tokens": False}, "^the server does not name its tokens for logprobs=1, which"),
        (
            {"takes_ids": False, "names_tokens": False, "refuse": refuse_as_transformers_serve},
            r"^the server takes no prompt of token ids and does not name its tokens for logprobs=1, which.*Unexpected",
        ),
        (
            {"takes_ids": False, "names_tokens": False, "refuse": refuse_as_mlx},
            r"^the server takes no prompt of token ids and does not name its tokens .*top_k must be at least 0\)",
        ),
        ({"refuse": lambda body: "the model is not loaded"}, "^the model is not loaded"),
    ],
)
def test_a_server_that_can_not_tell_its_tokens_is_refused_at_the_start(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(EndpointError, match=sentence):
        asyncio.run(connect_directly(make_engine("openai", **options)).probe())


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
    client = connect_directly(make_engine("openai"))
    event = {"choices": [{"text": "x", "logprobs": {"tokens": ["ab", "zz", "�"]}}]}
    items = client._read(OpenaiStream(REQUEST), event)
    ids = [item.token for item in items if isinstance(item, StreamToken)]
    assert ids == [TOKENIZER.convert_tokens_to_ids("ab"), None, None]


def answer_of(kind: EngineKind) -> tuple[StreamDialect, Any]:
    """Return a dialect and an answer that it reads."""
    request = replace(REQUEST, max_tokens=4, logprobs="raw" if kind == "vllm" else "drawn", top_logprobs=2)
    dialect = DIALECTS[kind](request)
    answer = answer_post(make_engine(kind), dialect.path, dialect.ask() | {"stream": False})
    return dialect, json.loads(json.dumps(answer))


def put(answer: Any, path: tuple[str | int, ...], value: Any) -> None:
    """Put something else into an answer."""
    for part in path[:-1]:
        answer = answer[part]
    answer[path[-1]] = value


VLLM_LOGPROB = ("choices", 0, "logprobs", "token_logprobs", 0)
LLAMA_CPP_ENTRY = ("completion_probabilities", 0)
BAD_VALUES: list[tuple[EngineKind, tuple[str | int, ...], Any, str]] = [
    ("vllm", VLLM_LOGPROB, float("nan"), "nan as a log-probability: numbers up to 0 are needed"),
    ("vllm", VLLM_LOGPROB, float("inf"), "inf as a log-probability"),
    ("vllm", VLLM_LOGPROB, 0.5, "0.5 as a log-probability"),
    ("vllm", VLLM_LOGPROB, "-1", "'-1' as a log-probability"),
    ("vllm", VLLM_LOGPROB, None, "None as a log-probability"),
    ("vllm", ("choices", 0, "token_ids", 0), 2.5, "2.5 as the id of a token"),
    ("vllm", ("choices", 0, "token_ids"), None, "the answer has no token ids: use vLLM 0.10.2 or later"),
    ("vllm", ("choices",), [3], "is not a completions endpoint"),
    ("llama.cpp", (*LLAMA_CPP_ENTRY, "prob"), float("nan"), "nan as a probability: a number from 0 to 1 is needed"),
    ("llama.cpp", (*LLAMA_CPP_ENTRY, "prob"), 1.5, "1.5 as a probability"),
    ("llama.cpp", ("tokens_predicted",), 0, "more tokens than were predicted"),
    ("llama.cpp", ("stop_type",), "word", "ended the text with stop_type 'word'"),
    ("openai", ("choices", 0, "logprobs"), None, "does not say which tokens its text has"),
    ("openai", ("choices", 0, "logprobs", "tokens", 0), "\ud800", "is not a completions endpoint"),
]


@pytest.mark.parametrize(("kind", "path", "value", "sentence"), BAD_VALUES)
def test_an_answer_that_can_not_be_used_is_refused_in_one_sentence(
    kind: EngineKind, path: tuple[str | int, ...], value: Any, sentence: str
) -> None:
    dialect, answer = answer_of(kind)
    put(answer, path, value)
    with pytest.raises(EndpointError) as caught:
        read_items(dialect, answer, "http://x")
    assert sentence in str(caught.value)
    assert len(str(caught.value)) < 600


def test_log_probabilities_of_few_bits_are_taken() -> None:
    """Some servers compute a little above 0; some say -9999, or the lowest float, for what can't come."""
    for value, taken in ((1e-4, 0.0), (-3.4e38, -1e4), (float("-inf"), -1e4), (-9999, -9999)):
        dialect, answer = answer_of("vllm")
        put(answer, VLLM_LOGPROB, value)
        first = read_items(dialect, answer, "http://x")[0]
        assert isinstance(first, StreamToken)
        assert first.logprob == taken


ODD_VALUES = [float("nan"), float("-inf"), 1e308, -1e308, 0, -1, 2**70, True, None, "", "\ud800", "x", [], {}, [-1]]


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_answers_contain_they_are_read_or_refused(kind: EngineKind) -> None:
    """Nothing but an `EndpointError`, which ends one text, is raised."""
    numbers = Random(kind)
    client, outcomes = connect_directly(make_engine(kind)), Counter[type]()
    for _ in range(150 * DEPTH):
        dialect, answer = answer_of(kind)
        inner = answer
        while True:
            name = numbers.choice(list(inner) if isinstance(inner, dict) else range(len(inner)))
            if not isinstance(inner[name], (dict, list)) or not inner[name] or numbers.random() < 0.1:
                inner[name] = numbers.choice(ODD_VALUES)
                break
            inner = inner[name]
        try:
            outcomes[type(client._read(dialect, answer))] += 1
        except EndpointError as error:
            outcomes[type(error)] += 1
    assert outcomes.keys() == {list, EndpointError}

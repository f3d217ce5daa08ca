"""Texts that a real llama.cpp server draws, without the banned phrases."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase, StoppingCriteria

import antislop
from antislop import AntiSlop, Ban
from antislop.core.bans.token_matcher import State
from antislop.core.loop.sampling import Sampling
from antislop.core.trace.events import Drawn, Finished, Rewound, Settled
from antislop.engines import Endpoint, EndpointCompletion, EndpointError, EndpointSampler
from antislop.engines.endpoint.endpoint import EndpointMethod
from antislop.errors import InputError
from antislop.serve.backend import Busy, GenerationRequest
from antislop.serve.upstream import UpstreamBackend
from tests.support.memory import count_left
from tests.support.models import build_tokenizer
from tests.support.processes import ServingProcess
from tests.support.refusals import refused
from tests.support.simulated_engine import SimulatedEngine
from tests.support.streaming import TOKENIZER, Fault, StreamingServer, make_engine, serve_streams

PROMPTS = ["The old house", "She opened the door and", "One day", "The rain"]
BANS = ["into the", "was", "her", "she", "eyes", "hand"]


@pytest.fixture(scope="module")
def tiny() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    return antislop.tiny_model()


@pytest.fixture(scope="module")
def sampler(tiny: tuple[PreTrainedModel, PreTrainedTokenizerBase]) -> AntiSlop:
    return AntiSlop(tiny[1], BANS)


@pytest.fixture
def serve(sampler: AntiSlop, llama_cpp: ServingProcess) -> Callable[..., EndpointSampler]:
    return lambda **options: EndpointSampler(sampler, Endpoint(f"{llama_cpp.url}/v1"), **options)


Serve = Callable[..., EndpointSampler]
PROBE = None
"""In the place of a fault: the probe's request for tokens, which does not fail."""


def in_order(served: EndpointSampler, prompts: list[Any], **settings: Any) -> list[EndpointCompletion]:
    return sorted(served.generate_many(prompts, **settings), key=lambda done: done.number)


def test_a_text_takes_few_requests_where_truncation_leaves_little_beside_a_ban(
    tiny: tuple[PreTrainedModel, PreTrainedTokenizerBase], llama_cpp: ServingProcess
) -> None:
    """Each word after " the" was withdrawn one by one, in up to 1,512 requests, and some texts failed."""
    served = EndpointSampler(AntiSlop(tiny[1], ["the", "was"]), Endpoint(f"{llama_cpp.url}/v1"))
    texts = in_order(served, ["The old house"] * 8, max_new_tokens=60, seed=1, min_p=0.05)
    assert [text.error for text in texts] == [None] * len(texts)
    assert not any(text.conceded for text in texts)
    assert max(text.traffic.requests for text in texts) <= 60


@pytest.mark.parametrize("method", ["auto", "reject", "thin", "bias"])
def test_no_ban_is_left_in_the_texts_of_a_server(serve: Serve, sampler: AntiSlop, method: EndpointMethod) -> None:
    texts = in_order(serve(method=method), PROMPTS, max_new_tokens=40, seed=1)
    assert [text.error for text in texts] == [None] * len(PROMPTS)
    assert [text.method for text in texts] == [method] * len(PROMPTS)
    assert sum(text.report.rewinds for text in texts) > 0
    for text, prompt in zip(texts, PROMPTS, strict=True):
        found = sampler.compiled.bans.find(prompt + text.text)
        assert all(match.end <= len(prompt) for match in found) and not text.conceded
        traffic = text.traffic
        assert traffic.received_tokens + traffic.chosen >= len(text.tokens) + text.report.withdrawn_tokens
        assert 1 <= traffic.requests <= 1 + 3 * text.report.rewinds + traffic.thinned


def test_finished_texts_are_freed_without_the_collector(serve: Serve) -> None:
    """A full collection interrupts all texts, for a fifth of a second if transformers is imported."""
    served = serve()
    in_order(served, PROMPTS, max_new_tokens=10, seed=1)
    assert count_left(State, lambda: in_order(served, PROMPTS, max_new_tokens=30, seed=2)) <= 0
    count = count_left(Drawn, lambda: in_order(served, PROMPTS, max_new_tokens=30, seed=2))
    assert count < 30, "equal events are one object"


def test_texts_depend_on_their_seed_alone(serve: Serve) -> None:
    alone = in_order(serve(), PROMPTS, max_new_tokens=20, seed=3, batch_size=1)
    together = in_order(serve(), PROMPTS, max_new_tokens=20, seed=3, batch_size=4)
    assert [text.tokens[:5] for text in together] == [text.tokens[:5] for text in alone]  # batches change last bits


def test_greedy_texts_of_a_server_are_those_of_the_model(
    serve: Serve, sampler: AntiSlop, tiny: tuple[PreTrainedModel, PreTrainedTokenizerBase]
) -> None:
    served = in_order(serve(), PROMPTS, max_new_tokens=25, do_sample=False)
    local = sorted(
        sampler.generate_many(tiny[0], PROMPTS, max_new_tokens=25, do_sample=False, batch_size=1),
        key=lambda done: done.number,
    )
    assert [text.tokens for text in served] == [text.tokens for text in local]
    assert sum(text.report.rewinds for text in served) > 0


def test_each_text_may_have_its_own_bans(serve: Serve) -> None:
    texts = in_order(serve(), ["The old house"] * 2, bans=[["house"], None], max_new_tokens=30, seeds=[5, 5])
    assert "house" not in texts[0].text


def test_a_text_is_streamed_in_settled_pieces(serve: Serve) -> None:
    served = serve()
    whole = in_order(served, ["One day"], max_new_tokens=25, seeds=[7])[0]
    assert "".join(served.stream("One day", seed=7, max_new_tokens=25)) == whole.text
    events = list(served.events("One day", seed=7, max_new_tokens=25))
    assert [token for event in events if isinstance(event, Settled) for token in event.tokens] == whole.tokens
    assert sum(isinstance(event, Rewound) for event in events) == whole.report.rewinds


def test_prompts_have_random_numbers_of_their_own(serve: Serve) -> None:
    texts = in_order(serve(), ["One day"] * 6, max_new_tokens=12, seed=1)
    assert len({text.text for text in texts}) == 6


class EndsWith(StoppingCriteria):
    """A criterion of the caller's own, without a memory."""

    def __init__(self, token: int) -> None:
        self.token = token

    def __call__(self, input_ids: torch.LongTensor, scores: torch.Tensor, **kwargs: Any) -> torch.BoolTensor:
        return input_ids[:, -1] == self.token  # type: ignore[return-value]


def test_a_text_ends_at_a_stop_string_or_as_a_criterion_says(serve: Serve) -> None:
    (text,) = in_order(serve(), ["The old house"], max_new_tokens=60, seeds=[1], stop_strings=["."])
    assert text.text.count(".") <= 1
    asked: dict[str, Any] = {"max_new_tokens": 20, "do_sample": False}
    (whole,) = in_order(serve(), ["One day"], **asked)
    (text,) = in_order(serve(), ["One day"], stopping_criteria=[EndsWith(whole.tokens[7])], **asked)
    assert text.tokens == whole.tokens[: whole.tokens.index(whole.tokens[7]) + 1]


@pytest.mark.parametrize("method", ["reject", "thin", "bias"])
def test_criteria_of_the_caller_are_called_with_rewound_texts_too(method: EndpointMethod) -> None:
    """The text ends at the first token 14, or at the limit, whatever was withdrawn."""
    sampler = AntiSlop(TOKENIZER, [Ban("a", edges="anywhere"), Ban("d.", edges="anywhere")])
    with serve_streams(make_engine()) as server:
        served = EndpointSampler(sampler, server.endpoint, method=method, eos_token_id=1)
        texts = in_order(served, [[3, 4]] * 8, max_new_tokens=30, seed=1, stopping_criteria=[EndsWith(14)])
    assert sum(text.report.rewinds for text in texts) > 8
    assert [text.error for text in texts] == [None] * 8
    for text in texts:
        assert text.report.reason == "done"
        assert 14 not in text.tokens[:-1]
        assert len(text.tokens) == 30 or text.tokens[-1] in (1, 14)
        assert "a" not in text.text
    assert 14 in {text.tokens[-1] for text in texts}


def test_settings_that_no_method_can_follow_are_refused(serve: Serve) -> None:
    with pytest.raises(InputError, match="act after the bias"):
        list(serve(method="bias").generate_many(PROMPTS, max_new_tokens=5, top_p=0.9))
    refused("method is 'best'", serve, method="best")
    for sentence, arguments in {
        "temperature is 0": {"max_new_tokens": 5, "temperature": 0},
        "max_new_tokens is 0": {"max_new_tokens": 0},
        "stop_strings is ": {"max_new_tokens": 5, "stop_strings": [""]},
        "batch_size is 0": {"max_new_tokens": 5, "batch_size": 0},
        "both seed and seeds": {"max_new_tokens": 5, "seed": 1, "seeds": [1]},
    }.items():
        refused(sentence, serve().generate_many, PROMPTS, **arguments)
    refused("an empty prompt", lambda: list(serve().generate_many([[]], max_new_tokens=5)))


def test_another_order_of_arguments_is_refused(tiny: tuple[PreTrainedModel, PreTrainedTokenizerBase]) -> None:
    with pytest.raises(InputError, match="sampler is a Endpoint: pass an AntiSlop, then an Endpoint"):
        EndpointSampler(Endpoint("http://127.0.0.1:9/v1"), AntiSlop(tiny[1], []))  # type: ignore[arg-type]


def test_a_text_longer_than_the_context_has_an_error(serve: Serve) -> None:
    text = in_order(serve(), ["One day"], max_new_tokens=100_000)[0]
    assert isinstance(text.error, EndpointError) and "context of 512" in str(text.error)


def test_a_server_that_is_not_there_is_an_error_of_each_text(sampler: AntiSlop) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    served = EndpointSampler(sampler, Endpoint(url, retries=0))
    texts = in_order(served, PROMPTS[:2], max_new_tokens=5)
    assert [type(text.error) for text in texts] == [EndpointError] * 2
    with pytest.raises(EndpointError, match="can't be reached"):
        served.describe_server()


def sample_table(server: StreamingServer, **endpoint: Any) -> EndpointSampler:
    sampler = AntiSlop(TOKENIZER, [Ban("abcabcabc", edges="anywhere")])
    return EndpointSampler(sampler, replace(server.endpoint, **endpoint), eos_token_id=1)


def test_a_text_that_the_server_fails_does_not_end_the_others() -> None:
    with serve_streams(make_engine()) as server:
        server.faults += [PROBE, Fault(status=400)]
        texts = in_order(sample_table(server), [[3, 4]] * 3, max_new_tokens=5, seed=1, batch_size=1)
    assert [text.error is None for text in texts] == [False, True, True]
    assert "answered 400: told to fail" in str(texts[0].error)
    assert (texts[0].tokens, texts[0].text, texts[0].report.reason) == ([], "", None)


def test_a_text_that_fails_keeps_its_settled_text() -> None:
    with serve_streams(make_engine()) as server:
        (whole,) = in_order(sample_table(server), [[3, 4]], max_new_tokens=20, seed=1)
        server.faults += [PROBE, Fault("drop", 10), Fault(status=400)]
        (text,) = in_order(sample_table(server), [[3, 4]], max_new_tokens=20, seed=1)
    assert text.error is not None
    assert text.traffic.retries == 1
    assert 0 < len(text.tokens) < 20
    assert whole.tokens[: len(text.tokens)] == text.tokens


def test_a_stream_that_breaks_off_is_continued() -> None:
    with serve_streams(make_engine()) as server:
        server.faults += [PROBE, Fault("drop", 5), Fault(status=503)]
        (text,) = in_order(sample_table(server), [[3, 4]], max_new_tokens=20, seed=1)
    assert text.error is None
    assert text.traffic.retries == 1
    first, refused, repeated = (body["prompt"] for _, body in server.requests[-3:])
    assert len(repeated) > len(first) == 2
    assert repeated == refused


def test_texts_of_a_closed_iterator_are_abandoned() -> None:
    with serve_streams(make_engine()) as server:
        server.pace = 0.002
        texts = sample_table(server).generate_many([[3, 4]] * 1000, max_new_tokens=10, batch_size=4, seed=1)
        assert next(texts).error is None
        texts.close()  # type: ignore[attr-defined]
        asked = len(server.requests)
        assert asked < 50
    assert len(server.requests) == asked


def test_the_tokenizer_of_another_model_is_refused(llama_cpp: ServingProcess) -> None:
    served = EndpointSampler(AntiSlop(build_tokenizer(), []), Endpoint(f"{llama_cpp.url}/v1"))
    with pytest.raises(EndpointError, match="tokenizer"):
        served.describe_server()


def test_an_upstream_backend_writes_what_the_sampler_does(sampler: AntiSlop, llama_cpp: ServingProcess) -> None:
    backend = UpstreamBackend(sampler, Endpoint(f"{llama_cpp.url}/v1"), queue_length=2)
    ids = tuple(backend.tokenizer("One day")["input_ids"])
    request = GenerationRequest(
        prompt=ids, bans=sampler.compiled, max_new_tokens=25, sampling=Sampling(temperature=0.8), seed=7
    )

    async def use() -> list[int]:
        async with aclosing(backend.write(request)) as first, aclosing(backend.write(request)) as second:
            await anext(first)
            await anext(second)
            assert backend.active == 2
            with pytest.raises(Busy):
                await anext(backend.write(request))
        assert backend.active == 0
        tokens: list[int] = []
        async for event in backend.write(request):
            tokens += event.tokens if isinstance(event, Settled) else ()
            assert not isinstance(event, Finished) or event.reason == "done"
        await backend.close()
        with pytest.raises(Busy, match="shutting down"):
            await anext(backend.write(request))
        return tokens

    served = EndpointSampler(sampler, Endpoint(f"{llama_cpp.url}/v1"))
    alone = in_order(served, ["One day"], max_new_tokens=25, seeds=[7], temperature=0.8)[0]
    assert asyncio.run(use()) == alone.tokens


def test_a_text_ends_where_the_server_says_so_whatever_the_tokenizer_knows(sampler: AntiSlop) -> None:
    """Servers end texts at all tokens of a generation config, of which a tokenizer knows one."""
    tokenizer = build_tokenizer()
    logits = torch.full((len(tokenizer), len(tokenizer)), -30.0)
    for token, after in ((3, 4), (4, 5), (5, 7)):
        logits[token, after] = 0.0
    engine = SimulatedEngine(lambda tokens: logits[tokens[-1]], tokenizer, "vllm", end_tokens=frozenset({7}))
    with serve_streams(engine) as server:
        served = EndpointSampler(AntiSlop(tokenizer, []), server.endpoint, eos_token_id=1)
        text = in_order(served, [[3]], max_new_tokens=20, seed=1)[0]
    assert text.error is None
    assert text.tokens == [4, 5, 7]
    assert text.report.reason == "done"

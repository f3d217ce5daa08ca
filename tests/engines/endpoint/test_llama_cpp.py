"""The real llama.cpp: its ids, its probabilities, what the client reads of its streams, and what they draw."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import aclosing, closing, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.request import Request, urlopen

import pytest
import torch
from hypothesis import example, given, strategies as st
from transformers import PreTrainedTokenizerBase

import antislop
from antislop import AntiSlop
from antislop.core.hf.vocabulary import Vocabulary
from antislop.core.loop.sampling import Sampling
from antislop.engines import Endpoint, EndpointSampler
from antislop.engines.endpoint import connection
from antislop.engines.endpoint.client import StreamingClient
from antislop.engines.endpoint.connection import StreamConnection
from antislop.engines.endpoint.endpoint import EndpointMethod, ServerFeatures, StreamItem, StreamRequest, StreamToken
from antislop.files.models import ModelSpec
from tests.support.depth import DEPTH, first_quick
from tests.support.letters import CASES, FEW_CASES, build_model, build_tokenizer, draw_texts, expected_texts
from tests.support.llama_cpp import serve_llama_cpp
from tests.support.processes import ServingProcess
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

pytest.importorskip("xllamacpp", reason="xllamacpp is not installed: llama.cpp is not tested")
from tests.support.gguf_file import write_gguf

LARGEST_DIFFERENCE = 2e-4  # nats; 3e-5 was measured


def post(server: Any, path: str, body: dict[str, Any]) -> dict[str, Any]:
    request = Request(server.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urlopen(request, timeout=30) as answer:
        return json.load(answer)


@pytest.fixture(scope="module")
def tiny() -> Any:
    return antislop.tiny_model()


@given(text=st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20))
@example("")
@example(" It's 12345 — café!\n\n  ok 🙂\t")
def test_the_server_tokenizes_as_transformers_does(llama_cpp: Any, tiny: Any, text: str) -> None:
    tokens = post(llama_cpp, "/tokenize", {"content": text, "add_special": True, "parse_special": True})["tokens"]
    assert tokens == tiny[1](text)["input_ids"]


def check_ids_and_log_probabilities(server: Any, model: Any, tokenizer: PreTrainedTokenizerBase) -> None:
    prompt = tokenizer(PROMPT)["input_ids"]
    body = {"prompt": prompt, "n_predict": 60, "temperature": 0, "return_tokens": True, "n_probs": 20}
    answer = post(server, "/completion", body)
    text = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=60)[0]
    assert answer["tokens"] == text[len(prompt) :].tolist()
    with torch.no_grad():
        logprobs = model(text[None, :-1]).logits[0, len(prompt) - 1 :].log_softmax(-1)
    for position, expected in zip(answer["completion_probabilities"], logprobs, strict=True):
        for token in position["top_logprobs"]:
            assert token["logprob"] == pytest.approx(float(expected[token["id"]]), abs=LARGEST_DIFFERENCE)


def test_greedy_ids_and_log_probabilities_are_those_of_transformers(llama_cpp: Any, tiny: Any) -> None:
    check_ids_and_log_probabilities(llama_cpp, *tiny)


def test_a_tokenizer_as_sentencepiece_makes_them_is_written_too(assets: Path, tmp_path: Path) -> None:
    model, tokenizer = ModelSpec(str(assets / "models" / "stories3M")).load()
    write_gguf(model, tokenizer, tmp_path / "stories3M.gguf")
    with serve_llama_cpp(tmp_path / "stories3M.gguf", slots=1) as server:
        check_ids_and_log_probabilities(server, model, tokenizer)
        for text in ("", " It's 12345 — café!\n\n  ok 🙂\t"):
            assert (
                post(server, "/tokenize", {"content": text, "add_special": True})["tokens"] == tokenizer(text).input_ids
            )


def test_a_server_ends_with_its_context(tmp_path: Path, tiny: Any) -> None:
    write_gguf(*tiny, tmp_path / "tiny.gguf")
    with serve_llama_cpp(tmp_path / "tiny.gguf", slots=1) as server:
        assert post(server, "/tokenize", {"content": "a"})["tokens"]
    with pytest.raises(OSError, match="refused"):
        post(server, "/tokenize", {"content": "a"})


def test_texts_that_follow_each_other_need_no_second_attempts(llama_cpp: Any, tiny: Any) -> None:
    """The server closes the connection after a stream, although its answer keeps it alive."""

    async def read() -> int:
        vocabulary = antislop.AntiSlop(tiny[1], ["a testament to"]).compiled.vocabulary
        client = StreamingClient(Endpoint(f"{llama_cpp.url}/v1", retries=0), tiny[1], vocabulary)
        request = StreamRequest(prompt=[0, 5], max_tokens=3, seed=1, sampling=Sampling(), logprobs="raw")
        try:
            for _ in range(4):
                messages = [message async for message in client.stream(request)]
            return len(messages)
        finally:
            await client.close()

    assert asyncio.run(read()) == 4


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


TIMES = 150 * DEPTH


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServingProcess]:
    path = tmp_path_factory.mktemp("letters") / "letters.gguf"
    write_gguf(build_model(), build_tokenizer(), path)
    with serve_llama_cpp(path) as server:
        yield server


@pytest.mark.slow
@pytest.mark.parametrize(("bans", "setting", "method"), CASES if DEPTH > 1 else FEW_CASES)
def test_texts_of_llama_cpp_are_those_of_rejection_sampling(
    letters: ServingProcess, bans: str, setting: str, method: EndpointMethod
) -> None:
    drawn = draw_texts(letters.url, bans, setting, method, times=TIMES)
    assert p_value(drawn, expected_texts(bans, setting)) > 1e-3


# -- leaving -----------------------------------------------------------------------------------------------------------


SLOTS = 8


@pytest.fixture(scope="module")
def served(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A server that no other test uses."""
    path: Path = tmp_path_factory.mktemp("leaving") / "model.gguf"
    write_gguf(*tiny, path)
    with serve_llama_cpp(path, slots=SLOTS) as process:
        yield process


def count_prompt_tokens(served: Any) -> int:
    """Return the number of the prompts' tokens that the server evaluated so far."""
    with urlopen(f"{served.url}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("llamacpp:prompt_tokens_total")))


def test_rewinds_let_no_prompt_be_evaluated_again(served: Any, tiny: Any) -> None:
    """Without the wait, one request in six goes to the slot of another text."""
    _, tokenizer = tiny
    bans = AntiSlop(tokenizer, ["was", "wanted", "happy", "big", "play", "said", "saw", "went", "had"])
    sampler = EndpointSampler(bans, Endpoint(f"{served.url}/v1"), method="reject")
    prompt = tokenizer(" ".join(["One day, a cat went to see a dog."] * 10))["input_ids"]
    before = count_prompt_tokens(served)
    texts = [*sampler.generate_many([prompt] * SLOTS, max_new_tokens=380, batch_size=SLOTS, seed=3)]
    evaluated = count_prompt_tokens(served) - before
    assert all(text.error is None for text in texts)
    requests = sum(text.traffic.requests for text in texts)
    assert requests > 100
    assert evaluated <= SLOTS * len(prompt) + 4 * requests


def test_a_server_that_does_not_end_a_text_is_left_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MAX_LEAVE_SECONDS", 0.2)

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        with closing(writer), suppress(ConnectionError):
            while True:
                writer.write(b'data: {"token": 1}\n\n')
                await writer.drain()
                await asyncio.sleep(0.01)

    async def act() -> float:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            client = StreamConnection(Endpoint(f"{url}/v1"))
            async with aclosing(client.stream(f"{url}/completion", {}, max_bytes=10**6, is_last=True)) as events:
                await anext(events)
                begin = time.monotonic()
            seconds = time.monotonic() - begin
            await client.close()
            await asyncio.sleep(0.1)  # the server notices it
        return seconds

    assert 0.15 < asyncio.run(act()) < 5


@pytest.mark.parametrize("transport", first_quick([None, SimpleNamespace(can_write_eof=lambda: False)]))
def test_a_connection_that_has_no_two_directions_is_left_at_once(transport: Any) -> None:
    """As over TLS, or if it is closed already."""
    response: Any = SimpleNamespace(connection=SimpleNamespace(transport=transport))
    asyncio.run(connection._leave(response))

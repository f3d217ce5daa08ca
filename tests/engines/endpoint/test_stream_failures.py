"""What the streaming client does if a server fails, and what happens to a stream that nobody reads any more."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, strategies as st

from antislop.core.loop.sampling import Sampling
from antislop.engines import Endpoint, EndpointError
from antislop.engines.endpoint import client as client_module, connection
from antislop.engines.endpoint.client import StreamingClient
from antislop.engines.endpoint.endpoint import StreamBroken, StreamItem, StreamRequest
from antislop.errors import InputError
from tests.support.simulated_engine import EngineKind
from tests.support.streaming import KINDS, Fault, StreamingServer, make_engine, read, serve_streams

REQUEST = StreamRequest(prompt=[3, 4], max_tokens=40, seed=5, sampling=Sampling(), bias={1: -100.0})


def run(server: StreamingServer, use: Callable[[StreamingClient], Coroutine[Any, Any, Any]], **options: Any) -> Any:
    """Use a client of a server in an event loop of its own, after the probe."""

    async def main() -> Any:
        client = server.client(**options)
        try:
            await client.probe()
            return await use(client)
        finally:
            await client.close()

    return asyncio.run(main())


async def read_until_it_breaks(client: StreamingClient) -> tuple[list[StreamItem], str]:
    messages = []
    try:
        async for message in client.stream(REQUEST):
            messages.append(message)  # noqa: PERF401 - what arrived before the error is kept
    except StreamBroken as broken:
        return messages, str(broken)
    pytest.fail("the stream did not break")


async def wait_until_nothing_is_open(server: StreamingServer) -> float:
    """Return the seconds until no stream is being written."""
    start = time.perf_counter()
    while server.open:
        assert time.perf_counter() < start + 5
        await asyncio.sleep(0.001)
    return time.perf_counter() - start


@pytest.mark.parametrize(
    "fault",
    [Fault(status=500), Fault(status=429), Fault("drop"), Fault("error"), Fault("end")],
    ids=lambda fault: f"{fault.kind} {fault.status}",
)
def test_a_failure_before_the_first_token_is_invisible(fault: Fault) -> None:
    async def use(client: StreamingClient) -> list[list[StreamItem]]:
        whole = await read(client, REQUEST)
        server.faults += [fault, fault]
        return [whole, await read(client, REQUEST)]

    with serve_streams(make_engine()) as server:
        whole, repeated = run(server, use)
    assert whole == repeated
    assert len(whole) == 41


@pytest.mark.parametrize("fault", [Fault("drop", 5), Fault("error", 5), Fault("end", 5)], ids=lambda fault: fault.kind)
@pytest.mark.parametrize("kind", KINDS)
def test_after_a_later_failure_the_tokens_so_far_are_valid(kind: EngineKind, fault: Fault) -> None:
    async def use(client: StreamingClient) -> tuple[list[StreamItem], list[StreamItem]]:
        whole = await read(client, REQUEST)
        server.faults.append(fault)
        messages, _ = await read_until_it_breaks(client)
        return whole, messages

    with serve_streams(make_engine(kind)) as server:
        whole, messages = run(server, use)
    assert len(messages) in (5, 6, 7)  # vLLM's first event has one token, and one in four has two
    assert whole[: len(messages)] == messages


def test_what_no_repetition_can_mend_is_not_repeated() -> None:
    async def use(client: StreamingClient) -> None:
        for fault, sentence in (
            (Fault(status=400), "answered 400: told to fail"),
            (Fault(status=401), r"answered 401: told to fail \(pass api_key\)"),
            (Fault("error", status=400), "reported an error: told to fail"),
            (Fault("garbage"), "did not answer in JSON: '{nonsense'"),
        ):
            server.faults.append(fault)
            count = len(server.requests)
            with pytest.raises(EndpointError, match=sentence):
                await read(client, REQUEST)
            assert len(server.requests) == count + 1

    with serve_streams(make_engine()) as server:
        run(server, use)


def test_a_server_that_always_fails_is_given_up() -> None:
    async def use(client: StreamingClient) -> None:
        server.faults += [Fault(status=503)] * 9
        with pytest.raises(EndpointError, match=r"answered 503: told to fail \(tried 3 times\)"):
            await read(client, REQUEST)
        assert len(server.faults) == 6

    with serve_streams(make_engine()) as server:
        run(server, use, endpoint=Endpoint(server.endpoint.base_url, retries=2, backoff=0.01))


def test_a_wait_that_the_server_demands_is_kept() -> None:
    async def use(client: StreamingClient) -> float:
        server.faults.append(Fault(status=429, headers={"Retry-After": "1"}))
        start = time.perf_counter()
        await read(client, REQUEST)
        return time.perf_counter() - start

    with serve_streams(make_engine()) as server:
        assert run(server, use) >= 1


def test_a_silent_server_is_given_up_after_the_timeout() -> None:
    async def use(client: StreamingClient) -> None:
        server.faults.append(Fault("stall", 3))
        messages, sentence = await read_until_it_breaks(client)
        assert messages
        assert "did not answer within 0.3 s: raise timeout" in sentence

    with serve_streams(make_engine()) as server:
        run(server, use, endpoint=Endpoint(server.endpoint.base_url, timeout=0.3))


def test_nobody_listens() -> None:
    with serve_streams(make_engine()) as server:
        endpoint = Endpoint(server.endpoint.base_url, retries=1, backoff=0)
        client = server.client(endpoint=endpoint)

    async def use() -> None:
        with pytest.raises(EndpointError, match=r"can't be reached .*: check base_url \(tried 2 times\)"):
            await client.probe()
        await client.close()

    asyncio.run(use())


@pytest.mark.parametrize("kind", KINDS)
def test_closing_a_stream_ends_its_text_at_once(kind: EngineKind) -> None:
    request = replace(REQUEST, max_tokens=400)

    async def use(client: StreamingClient) -> None:
        server.pace = 0.002
        async with aclosing(client.stream(request)) as messages:
            await messages.__anext__()
        assert await wait_until_nothing_is_open(server) < 1
        assert server.cut == 1
        task = asyncio.create_task(read(client, request))
        while not server.open:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await wait_until_nothing_is_open(server)
        assert server.cut == 2

    with serve_streams(make_engine(kind)) as server:
        run(server, use)
    assert server.engine.written < 300


def test_a_finished_stream_leaves_its_connection_to_the_next_one() -> None:
    async def use(client: StreamingClient) -> None:
        for _ in range(5):
            await read(client, REQUEST)
        server.pace = 0.002  # or the whole answer may be there before it is left
        async with aclosing(client.stream(REQUEST)) as messages:
            await messages.__anext__()
        await read(client, REQUEST)

    kept: tuple[EngineKind, ...] = ("vllm", "openai")
    for kind in kept:
        with serve_streams(make_engine(kind)) as server:
            run(server, use)
        assert len(set(server.ports)) == 2
        assert len(set(server.ports[:-1])) == 1


def test_no_more_streams_are_open_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MAX_STREAMS", 3)

    async def use(client: StreamingClient) -> int:
        server.pace = 0.002
        tasks = [asyncio.create_task(read(client, REQUEST)) for _ in range(6)]
        highest = 0
        while not all(task.done() for task in tasks):
            highest = max(highest, server.open)
            await asyncio.sleep(0.002)
        return highest

    with serve_streams(make_engine()) as server:
        assert run(server, use) == 3


def test_a_client_can_be_used_by_one_event_loop_after_the_other() -> None:
    with serve_streams(make_engine()) as server:
        client = server.client()

        async def use() -> list[StreamItem]:
            _, _, messages = await asyncio.gather(client.probe(), client.probe(), read(client, REQUEST))
            await client.close()
            return messages

        assert asyncio.run(use()) == asyncio.run(use())


def test_too_long_answers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MAX_LINE_BYTES", 64)

    async def use(client: StreamingClient) -> None:
        server.faults.append(Fault("flood"))
        with pytest.raises(EndpointError, match="sent more than 64 bytes, too many for an answer"):
            await read(client, REQUEST)

    with serve_streams(make_engine()) as server:
        run(server, use)


def test_the_limit_of_bytes_leaves_room_for_alternatives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "ANSWER_BASE_BYTES", 2000)
    kinds: tuple[EngineKind, ...] = ("vllm", "llama.cpp")
    for kind in kinds:
        logprobs: Any = "raw" if kind == "vllm" else "drawn"
        request = replace(REQUEST, logprobs=logprobs, top_logprobs=20)
        with serve_streams(make_engine(kind)) as server:
            assert len(run(server, partial(read, request=request))) == 41


def test_without_aiohttp_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_streams(make_engine()) as server:
        client = server.client()
        monkeypatch.setitem(sys.modules, "aiohttp", None)
        with pytest.raises(InputError, match=r"aiohttp is missing: pip install 'antislop-lm\[endpoint\]'"):
            asyncio.run(client.probe())


def test_no_proxy_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with serve_streams(make_engine()) as server:
        assert run(server, lambda client: read(client, REQUEST))


@pytest.mark.parametrize(
    "content", [b'{"error": {"message": "\\u001b[2J\\u202egnp"}}', b"\x1b[2J \xe2\x80\xae"], ids=["JSON", "text"]
)
def test_words_of_a_server_in_an_error_do_not_control_the_terminal(content: bytes) -> None:
    message = connection._read_message(content)
    assert message.startswith("␛[2J")
    assert message.isprintable()


def test_an_error_that_is_nested_too_deeply_is_shortened() -> None:
    assert len(connection._read_message(b'{"error":' * 100_000)) <= 200


class Body:
    """An answer that arrives in some blocks."""

    def __init__(self, blocks: list[bytes]) -> None:
        self.content, self._blocks = self, blocks

    async def iter_any(self) -> Any:
        for block in self._blocks:
            yield block


EVENTS = [{"text": "a\u2028b"}, {"n": [1, 2]}, {"text": "é\n"}]


@given(cuts=st.lists(st.integers(0, 120)), space=st.sampled_from(["", " "]), line=st.sampled_from(["\n", "\r\n"]))
def test_events_are_the_same_wherever_the_network_cuts_them(cuts: list[int], space: str, line: str) -> None:
    lines = [f"data:{space}{json.dumps(event, ensure_ascii=False)}" for event in EVENTS]
    sent = (line * 2).join([": a comment", "event: message", *lines, f"data:{space}[DONE]", ""]).encode()
    places = [0, *sorted(cut for cut in cuts if cut < len(sent)), len(sent)]
    blocks = [sent[start:stop] for start, stop in pairwise(places)]

    async def collect() -> list[Any]:
        events = connection._read_events(Body(blocks), max_bytes=1000)  # type: ignore[arg-type]
        return [event async for event in events]

    assert asyncio.run(collect()) == EVENTS

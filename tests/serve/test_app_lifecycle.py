"""How texts end that nobody waits for: clients that leave, shutdowns, engines that fail; and connections that stall."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from transformers import PreTrainedTokenizerBase

import antislop
from antislop import AntiSlop, BanList
from antislop.core.trace.events import Event, Finished
from antislop.errors import InputError
from antislop.serve import http_server, upstream
from antislop.serve.application import BanReloader, make_app
from antislop.serve.backend import BackendError
from antislop.serve.http_server import DrainingServer, bind
from antislop.serve.service import Service
from antislop.serve.upstream import UpstreamBackend
from tests.support.backends import SlowBackend, leave_streams, play_tokens, run_server, wait_until
from tests.support.models import build_tokenizer
from tests.support.simulated_engine import SimulatedEngine
from tests.support.streaming import serve_streams

LONG = {"prompt": "a", "max_tokens": 400}


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return antislop.tiny_model()[1]


def make_slow(tokenizer: PreTrainedTokenizerBase, **options: Any) -> SlowBackend:
    return SlowBackend(tokenizer, lambda request: play_tokens([60] * request.max_new_tokens), **options)


@pytest.fixture
def slow(tokenizer: PreTrainedTokenizerBase) -> SlowBackend:
    return make_slow(tokenizer, pause=0.02)


@pytest.fixture
def url(slow: SlowBackend) -> Iterator[str]:
    with run_server(make_app(slow)) as address:
        yield address


def read_some(url: str, body: dict[str, Any]) -> None:
    """Wait 0.3 seconds for the beginning of an answer, and leave."""
    with httpx.Client(timeout=0.3) as client, client.stream("POST", f"{url}/v1/completions", json=body) as answer:
        next(answer.iter_raw(chunk_size=100))
        raise httpx.ReadTimeout("left")


@pytest.mark.parametrize("is_streamed", [True, False])
def test_a_client_that_leaves_frees_its_rows(slow: SlowBackend, url: str, is_streamed: bool) -> None:
    with pytest.raises(httpx.ReadTimeout):
        read_some(url, {**LONG, "n": 3, "stream": is_streamed})
    wait_until(lambda: slow.active == 0)


def test_a_client_that_leaves_while_it_waits_for_a_row_frees_its_place(tokenizer: PreTrainedTokenizerBase) -> None:
    silent = SlowBackend(tokenizer, lambda request: play_tokens([60]), pause=30)
    with run_server(make_app(silent)) as url:
        for is_streamed in (True, False):
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(f"{url}/v1/completions", json={**LONG, "stream": is_streamed}, timeout=0.2)
            wait_until(lambda: silent.active == 0)


def test_a_stream_begins_before_its_text_has_a_row(tokenizer: PreTrainedTokenizerBase) -> None:
    silent = SlowBackend(tokenizer, lambda request: play_tokens([60]), pause=30)
    with run_server(make_app(silent)) as url, httpx.Client(timeout=10) as client:
        with client.stream("POST", f"{url}/v1/completions", json={**LONG, "stream": True}) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            assert silent.active == 1
        wait_until(lambda: silent.active == 0)


def test_many_streams_that_are_cut_off_leave_no_row(slow: SlowBackend, url: str) -> None:
    asyncio.run(leave_streams(url, 60))
    wait_until(lambda: slow.active == 0)
    assert len(slow.written) == 60
    metrics = httpx.get(f"{url}/metrics").text
    assert 'antislop_texts_total{reason="left"} 60.0' in metrics
    assert "antislop_texts_active 0.0" in metrics


def begin(url: str, answers: dict[str, Any], name: str, **more: Any) -> threading.Thread:
    """Send a request in a thread of its own, which keeps the answer."""

    def run() -> None:
        answers[name] = httpx.post(f"{url}/v1/completions", json={**LONG, **more}, timeout=30)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_a_full_queue_is_answered_with_429(tokenizer: PreTrainedTokenizerBase) -> None:
    with run_server(make_app(make_slow(tokenizer, limit=0))) as url:
        for is_streamed in (True, False):
            answer = httpx.post(f"{url}/v1/completions", json={**LONG, "stream": is_streamed})
            assert (answer.status_code, answer.headers["Retry-After"]) == (429, "1")


@pytest.mark.parametrize("error", [BackendError("the upstream server is gone"), Finished("failed", 0.0)])
def test_an_engine_that_fails_is_told_in_the_stream_or_by_503(
    tokenizer: PreTrainedTokenizerBase, error: Exception | Event
) -> None:
    failing = SlowBackend(tokenizer, lambda request: [*list(play_tokens([60, 61]))[:4], error])
    with run_server(make_app(failing)) as url:
        answer = httpx.post(f"{url}/v1/completions", json=LONG)
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "engine_failed"
        text = httpx.post(f"{url}/v1/completions", json={**LONG, "stream": True}).text
    events = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert events[-1] == "[DONE]"
    assert json.loads(events[-2])["error"] == answer.json()["error"]
    assert json.loads(events[0])["choices"][0]["text"]


def test_a_dead_upstream_is_told_by_its_health_and_to_clients_without_its_address(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(upstream, "CHECK_SECONDS", 0.2)
    tokenizer = build_tokenizer()
    engine = SimulatedEngine(lambda _: torch.zeros(len(tokenizer)), tokenizer, "vllm")
    with ExitStack() as other:
        endpoint = replace(other.enter_context(serve_streams(engine)).endpoint, retries=0)
        backend = UpstreamBackend(AntiSlop(tokenizer, []), endpoint)
        with run_server(make_app(backend)) as url:
            assert httpx.post(f"{url}/v1/completions", json=LONG | {"max_tokens": 3}).status_code == 200
            assert httpx.get(f"{url}/health").json() == {"status": "ok", "active": 0}
            other.close()
            wait_until(lambda: httpx.get(f"{url}/health").status_code == 503)
            health = httpx.get(f"{url}/health").json()
            assert (health["status"], health["reason"]) == ("failed", upstream.FAILED)
            refused = httpx.post(f"{url}/v1/completions", json=LONG | {"max_tokens": 3})
            streamed = httpx.post(f"{url}/v1/completions", json=LONG | {"max_tokens": 3, "stream": True})
    assert refused.status_code == 503
    assert refused.json()["error"]["message"] == upstream.FAILED
    for answer in (refused, streamed):
        assert not any(word in answer.text for word in ("127.0.0.1", "Errno", "Error(", endpoint.base_url))
    assert endpoint.base_url in caplog.text, "the operator has to know which server"


class Running:
    """A server in a thread, as `antislop serve` runs it, which gets signals as calls."""

    def __init__(self, backend: SlowBackend) -> None:
        self.said: list[str] = []
        self.server = DrainingServer(make_app(backend), say=self.said.append)
        self.listener = bind("127.0.0.1", 0)
        self.address = self.listener.getsockname()
        self.url = f"http://127.0.0.1:{self.address[1]}"
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.listener]}, daemon=True)
        self.thread.start()
        wait_until(lambda: self.server.started)

    def connect(self, data: bytes) -> socket.socket:
        connection = socket.create_connection(self.address, timeout=30)
        connection.sendall(data)
        return connection

    def end(self) -> None:
        self.server.handle_exit(15, None)
        self.join()

    def join(self) -> None:
        self.thread.join(timeout=30)
        assert not self.thread.is_alive()
        self.listener.close()


def test_a_shutdown_finishes_what_runs_and_refuses_what_comes(tokenizer: PreTrainedTokenizerBase) -> None:
    slow = make_slow(tokenizer, pause=0.01)
    running, answers = Running(slow), {}
    thread = begin(running.url, answers, "first", max_tokens=60, stream=True)
    wait_until(lambda: slow.active == 1)
    running.server.handle_exit(15, None)
    wait_until(lambda: slow.is_closed)
    refused = httpx.post(f"{running.url}/v1/completions", json=LONG)
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "10")
    assert httpx.get(f"{running.url}/health").status_code == 503
    thread.join()
    running.join()
    assert answers["first"].text.endswith("data: [DONE]\n\n")
    events = [json.loads(line.removeprefix("data: ")) for line in answers["first"].text.split("\n\n")[:-2]]
    text = "".join(event["choices"][0]["text"] for event in events)
    assert text == tokenizer.decode([60] * 60)
    assert running.said == ["finishing 1 text; the same signal again cuts them off"]


def test_a_second_signal_cuts_texts_off(tokenizer: PreTrainedTokenizerBase) -> None:
    slow = make_slow(tokenizer, pause=0.2)
    running, answers = Running(slow), {}
    thread = begin(running.url, answers, "first", stream=True)
    wait_until(lambda: slow.active == 1)
    running.server.handle_exit(15, None)
    wait_until(lambda: slow.is_closed)
    running.server.handle_exit(15, None)
    thread.join(timeout=10)
    running.join()
    assert '"error":{"message":"the server is shutting down"' in answers["first"].text
    assert slow.active == 0


def test_a_port_in_use_is_one_sentence() -> None:
    with bind("127.0.0.1", 0) as listener:
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(InputError, match=rf"port {port} of .* can.t be used"):
            bind("127.0.0.1", port)
    with pytest.raises(InputError, match=r"the host .* is unknown"):
        bind("nowhere.invalid", 80)


def test_a_list_is_read_again_when_its_file_changes(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    path = tmp_path / "bans.json"
    path.write_text('["a cat"]')
    said: list[str] = []
    warned: list[str] = []
    backend = make_slow(tokenizer, bans=["a cat"])
    reloader = BanReloader([path], lambda: BanList.load(path), say=said.append, warn=warned.append)

    async def change() -> list[list[str]]:
        service, lists = Service(backend), []
        for text in (None, '["a dog", "a cow"]', '["a dog",', '["a dog"]'):
            if text is not None:
                path.write_text(text)
            await reloader.reload(service)
            lists.append([ban.text for ban in service.lists[""].bans])
        path.unlink()
        await reloader.reload(service)
        return [*lists, [ban.text for ban in service.lists[""].bans]]

    lists = asyncio.run(change())
    assert lists == [["a cat"], ["a dog", "a cow"], ["a dog", "a cow"], ["a dog"], ["a dog"]]
    assert said == ["the bans were read again, 2 in all", "the bans were read again, 1 in all"]
    assert len(warned) == 2
    assert all(line.startswith("the bans stay as they were: ") for line in warned)


HEADERS = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
WHOLE = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"
BEGINNINGS = {"nothing": b"", "half a header": b"GET / HTTP/1.1\r\nHo", "half a body": HEADERS + b'{"prompt"'}
BODY = {"prompt": "a", "max_tokens": 100}


@contextmanager
def running(tokenizer: PreTrainedTokenizerBase, *, seconds: float = 0.0) -> Iterator[Running]:
    """Run a server that writes 100 tokens, each of two events, in these seconds."""
    server = Running(make_slow(tokenizer, pause=seconds / 200))
    try:
        yield server
    finally:
        server.end()


def is_closed(connection: socket.socket) -> bool:
    """Read what has arrived, and return whether the other side has closed the connection."""
    connection.setblocking(False)
    try:
        while connection.recv(4096):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        pass
    return True


def test_slow_and_silent_connections_are_closed_while_others_are_answered(
    tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "REQUEST_SECONDS", 2.0)
    beginnings = [b""] * 200 + [BEGINNINGS["half a header"]] * 50 + [BEGINNINGS["half a body"]] * 50
    with running(tokenizer) as server, ExitStack() as stack:
        slow = [stack.enter_context(server.connect(data)) for data in beginnings]
        end = time.monotonic() + 30
        while open_ := [connection for connection in slow if not is_closed(connection)]:
            assert time.monotonic() < end, f"{len(open_)} connections are still open"
            drip(open_[-20:])
            assert httpx.post(f"{server.url}/v1/completions", json=BODY).status_code == 200
        wait_until(lambda: not server.server.server_state.connections)


def drip(connections: Sequence[socket.socket]) -> None:
    for connection in connections:
        with suppress(ConnectionError):  # closed a moment ago
            connection.send(b"x")


def test_the_body_of_a_refused_request_has_the_same_deadline(
    tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "REQUEST_SECONDS", 1.0)
    with running(tokenizer) as server, server.connect(HEADERS.replace(b"/v1/completions", b"/none")) as connection:
        end = time.monotonic() + 30
        while not is_closed(connection):
            assert time.monotonic() < end
            drip([connection])
            time.sleep(0.05)


def test_an_answer_may_take_longer_than_its_request(
    tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "REQUEST_SECONDS", 0.5)
    with running(tokenizer, seconds=1.5) as server, httpx.Client() as client:
        for is_streamed in (True, False, True):
            answer = client.post(f"{server.url}/v1/completions", json={**BODY, "stream": is_streamed}, timeout=30)
            assert '"finish_reason":"length"' in answer.text


def test_more_connections_than_the_limit_are_closed_at_once(
    tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", 20)
    with running(tokenizer) as server, ExitStack() as stack:
        connections = [stack.enter_context(server.connect(b"")) for _ in range(50)]
        wait_until(lambda: sum(map(is_closed, connections)) == 30)
        assert len(server.server.server_state.connections) == 20
        for connection in connections:
            connection.close()
        wait_until(lambda: not server.server.server_state.connections)
        assert httpx.post(f"{server.url}/v1/completions", json=BODY).status_code == 200


@pytest.mark.parametrize("kind", [*BEGINNINGS, "a whole request", "a request and half of another"])
def test_a_shutdown_waits_for_no_connection_without_a_text(
    tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(http_server, "LAST_SECONDS", 60)
    more = {"a whole request": WHOLE, "a request and half of another": WHOLE + BEGINNINGS["half a body"]}
    server = Running(make_slow(tokenizer))
    with server.connect((BEGINNINGS | more)[kind]):
        wait_until(lambda: len(server.server.server_state.connections) == 1)
        time.sleep(0.2)
        server.end()  # which fails after 30 seconds

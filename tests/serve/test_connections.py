"""Connections that send nothing, or a byte now and then, are closed, and hold up neither other requests nor the end."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

import httpx
import pytest
from transformers import PreTrainedTokenizerBase

import antislop
from antislop.serve import http_server
from antislop.serve.application import make_app
from antislop.serve.http_server import DrainingServer, bind
from tests.support.backends import SlowBackend, play_tokens, wait_until

HEADERS = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
WHOLE = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"
BEGINNINGS = {"nothing": b"", "half a header": b"GET / HTTP/1.1\r\nHo", "half a body": HEADERS + b'{"prompt"'}
BODY = {"prompt": "a", "max_tokens": 100}


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return antislop.tiny_model()[1]


class Running:
    """A server in a thread, as `antislop serve` runs it. It writes 100 tokens in `seconds`."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, seconds: float = 0.0) -> None:
        pause = seconds / 200  # two events for each token
        self.backend = SlowBackend(tokenizer, lambda request: play_tokens([60] * request.max_new_tokens), pause=pause)
        self.server = DrainingServer(make_app(self.backend), say=lambda _: None)
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
        self.thread.join(timeout=30)
        assert not self.thread.is_alive()
        self.listener.close()


@contextmanager
def running(tokenizer: PreTrainedTokenizerBase, *, seconds: float = 0.0) -> Iterator[Running]:
    server = Running(tokenizer, seconds=seconds)
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
    server = Running(tokenizer)
    with server.connect((BEGINNINGS | more)[kind]):
        wait_until(lambda: len(server.server.server_state.connections) == 1)
        time.sleep(0.2)
        server.end()  # which fails after 30 seconds

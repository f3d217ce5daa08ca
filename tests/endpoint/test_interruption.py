"""Whatever interrupts a request reaches the caller, and the connection that it broke is not used again."""

from __future__ import annotations

import socket
from http.client import HTTPConnection
from typing import NoReturn

import pytest

from antislop.endpoint import Endpoint


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit, MemoryError])
@pytest.mark.parametrize("step", ["request", "getresponse"])
@pytest.mark.parametrize("is_kept", [False, True])
def test_an_interruption_within_a_request_is_raised_at_once(
    step: str, interruption: type[BaseException], is_kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken: list[HTTPConnection] = []

    def interrupt(connection: HTTPConnection, *_: object, **__: object) -> NoReturn:
        broken.append(connection)
        raise interruption

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        endpoint = Endpoint(f"http://127.0.0.1:{port}/v1")
        if is_kept:
            connection = HTTPConnection("127.0.0.1", port)
            connection.connect()
            endpoint._idle.append(connection)
        monkeypatch.setattr(HTTPConnection, step, interrupt)
        with pytest.raises(interruption):
            endpoint.complete([1], max_tokens=1, alternatives=1, seed=0)
    assert [connection.sock for connection in broken] == [None]
    assert not endpoint._idle

"""Events of many streams are handled together, and none is lost or late."""

from __future__ import annotations

import asyncio
import selectors
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial

import pytest

from antislop.engines.endpoint import sampler
from antislop.engines.endpoint.sampler import CoalescingSelector, LoopThread


@pytest.fixture
def pairs() -> Iterator[list[tuple[socket.socket, socket.socket]]]:
    with ExitStack() as stack:
        yield [tuple(map(stack.enter_context, socket.socketpair())) for _ in range(4)]


def register(selector: selectors.BaseSelector, pairs: list[tuple[socket.socket, socket.socket]]) -> None:
    for number, (end, _) in enumerate(pairs):
        selector.register(end, selectors.EVENT_READ, number)


def ready(selector: selectors.BaseSelector, timeout: float | None) -> list[int]:
    return sorted(key.data for key, _ in selector.select(timeout))


@pytest.mark.parametrize("timeout", [None, 60, 0, -1])
def test_what_is_ready_is_returned_as_by_a_plain_selector(
    pairs: list[tuple[socket.socket, socket.socket]], timeout: float | None
) -> None:
    with CoalescingSelector() as own, selectors.DefaultSelector() as plain:
        for selector in (own, plain):
            register(selector, pairs)
        for _, other in pairs[1:3]:
            other.send(b"x")
        assert ready(own, timeout) == ready(plain, timeout) == [1, 2]
        assert ready(own, timeout) == [1, 2], "what was not read is still ready"


def test_events_within_the_pause_are_returned_together(
    pairs: list[tuple[socket.socket, socket.socket]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: pairs[3][1].send(b"x"))
    with CoalescingSelector() as selector:
        register(selector, pairs)
        pairs[0][1].send(b"x")
        assert ready(selector, None) == [0, 3]


def test_neither_a_poll_nor_a_timeout_waits_for_the_pause(
    pairs: list[tuple[socket.socket, socket.socket]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler, "COALESCING_SECONDS", 60)
    with CoalescingSelector() as selector:
        register(selector, pairs)
        assert ready(selector, 0.01) == []
        pairs[0][1].send(b"x")
        assert ready(selector, 0) == [0]


def test_a_loop_thread_for_many_streams_runs_coroutines_and_their_timers() -> None:
    async def act() -> list[int]:
        async def wait(number: int) -> int:
            await asyncio.sleep(0.01 * number)
            return number

        return await asyncio.gather(*map(wait, range(3)))

    began = time.monotonic()
    with closing(LoopThread(partial(asyncio.sleep, 0), coalesces=True)) as thread:
        assert thread.submit(act()).result() == [0, 1, 2]
    assert time.monotonic() - began < 5

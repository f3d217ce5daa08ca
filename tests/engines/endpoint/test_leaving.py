"""The client waits until llama.cpp has ended a closed stream, so that the next request finds the text's cache."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import aclosing, closing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.request import urlopen

import pytest

from tests.support.depth import first_quick

pytest.importorskip("xllamacpp", reason="xllamacpp is not installed: llama.cpp is not tested")

import antislop
from antislop import AntiSlop
from antislop.engines import Endpoint, EndpointSampler
from antislop.engines.endpoint import connection
from antislop.engines.endpoint.connection import StreamConnection
from tests.support.gguf_file import write_gguf
from tests.support.llama_cpp import serve_llama_cpp

SLOTS = 8


@pytest.fixture(scope="module")
def tiny() -> Any:
    return antislop.tiny_model()


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

"""Measure what HTTP adds to a token: the time from a backend's event to the line that the client reads.

    python -m eval.speed.http_cost [--streams 16] [--tokens 200] [--pace 30] [--lists 800]

The backend plays the tokens of all streams at the same moments, as a batch does; the client is another process. Prints
a JSON line with the median and the 95th percentile in milliseconds, and the server's processor time per token. A second
line has the processor time of a request without bans, and of one whose list is known, before and after requests with
many other lists beside the bundled one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import AsyncGenerator
from typing import Any

import aiohttp
import httpx

import antislop
from antislop.core.trace.events import Event
from antislop.serve.application import make_app
from antislop.serve.backend import GenerationRequest
from tests.support.backends import SlowBackend, play_tokens, run_server

TOKEN = 60
WARM_UP = 10
"""Tokens of each stream that are not counted."""
REPEATS = 100
"""Requests whose median processor time counts."""


class PacedBackend(SlowBackend):
    """Plays one token of each text every `pace` seconds, all at the same moments, and notes when, by seed."""

    def __init__(self, tokenizer: Any, *, pace: float) -> None:
        super().__init__(tokenizer, lambda request: play_tokens([TOKEN] * request.max_new_tokens))
        self.played: dict[int, list[float]] = defaultdict(list)
        self.cpu = list[float]()
        self._pace = pace

    async def write(self, request: GenerationRequest) -> AsyncGenerator[Event, None]:
        """Yield the events of a text."""
        events = list(self._play(request))
        for number in range(request.max_new_tokens):
            await asyncio.sleep(self._pace - time.monotonic() % self._pace)
            self.cpu.append(time.process_time())
            self.played[request.seed or 0].append(time.monotonic())
            for event in events[2 * number : 2 * number + 2]:
                yield event
        yield events[-1]


async def read(url: str, *, streams: int, tokens: int) -> list[list[float]]:
    """Return when the tokens of each stream arrive."""

    async def read_one(session: aiohttp.ClientSession, number: int) -> list[float]:
        body = {"prompt": "a", "max_tokens": tokens, "seed": number, "stream": True}
        async with session.post(f"{url}/v1/completions", json=body) as answer:
            return [time.monotonic() async for line in answer.content if b'"text":' in line]

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        return list(await asyncio.gather(*(read_one(session, number) for number in range(streams))))


async def measure_lists(others: int) -> dict[str, float]:
    """Return milliseconds of processor time per request, before and after requests with `others` lists."""
    backend = SlowBackend(antislop.tiny_model()[1], lambda _: play_tokens([TOKEN]), bans=antislop.default_bans())
    transport = httpx.ASGITransport(make_app(backend))
    async with httpx.AsyncClient(transport=transport, base_url="http://server", timeout=None) as client:

        async def measure(count: int = REPEATS, **bans: Any) -> float:
            times = []
            for _ in range(count):
                began = time.process_time()
                (await client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1, **bans})).raise_for_status()
                times.append(1000 * (time.process_time() - began))
            return round(statistics.median(times), 2)

        mine = {"banned_strings": ["a testament to it"]}
        figures = {"compiling_ms": await measure(1, **mine), "without_ms": await measure()}
        figures["known_ms"] = await measure(**mine)
        for number in range(others):
            await measure(1, banned_strings=[f"phrase {number}"])
        return figures | {"without_after_ms": await measure(), "known_after_ms": await measure(**mine)}


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--pace", type=float, default=30, help="milliseconds between two tokens of a stream")
    parser.add_argument("--lists", type=int, default=800, help="other lists that requests bring")
    parser.add_argument("--read", metavar="URL", help="be the client of a server, and print the times")
    arguments = parser.parse_args()
    streams, tokens = arguments.streams, arguments.tokens
    if arguments.read:
        print(json.dumps(asyncio.run(read(arguments.read, streams=streams, tokens=tokens))))
        return
    backend = PacedBackend(antislop.tiny_model()[1], pace=arguments.pace / 1000)
    with run_server(make_app(backend)) as url:
        options = ["--streams", str(streams), "--tokens", str(tokens), "--read", url]
        command = [sys.executable, "-m", "eval.speed.http_cost", *options]
        arrived = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    played = [backend.played[seed] for seed in sorted(backend.played)]
    delays = [
        1000 * (there - here)
        for sent, received in zip(played, arrived, strict=True)
        for here, there in list(zip(sent, received, strict=False))[WARM_UP:]
    ]
    cpu = 1000 * (backend.cpu[-1] - backend.cpu[0]) / len(backend.cpu)
    percentiles = statistics.quantiles(delays, n=20)
    print(
        json.dumps(
            {"median_ms": round(percentiles[9], 2), "p95_ms": round(percentiles[18], 2), "cpu_ms": round(cpu, 3)}
        )
    )
    print(json.dumps(asyncio.run(measure_lists(arguments.lists))))


if __name__ == "__main__":
    main()

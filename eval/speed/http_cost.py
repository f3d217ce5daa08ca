"""Measure what HTTP adds to a token: the time from a backend's event to the line that the client reads.

    python -m eval.speed.http_cost [--streams 16] [--tokens 200] [--pace 30]

The backend plays the tokens of all streams at the same moments, as a batch does; the client is another process. Prints
a JSON line with the median and the 95th percentile in milliseconds, and the server's processor time per token.
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

import antislop
from antislop.serving.server.app import serve_backend
from antislop.serving.server.backend import TextRequest
from antislop.trace.events import Event
from tests.support.backends import SlowBackend, play_tokens, run_server

TOKEN = 60
WARM_UP = 10
"""Tokens of each stream that are not counted."""


class PacedBackend(SlowBackend):
    """Plays one token of each text every `pace` seconds, all at the same moments, and notes when, by seed."""

    def __init__(self, tokenizer: Any, *, pace: float) -> None:
        super().__init__(tokenizer, lambda request: play_tokens([TOKEN] * request.max_new_tokens))
        self.played: dict[int, list[float]] = defaultdict(list)
        self.cpu = list[float]()
        self._pace = pace

    async def write(self, request: TextRequest) -> AsyncGenerator[Event, None]:
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


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--pace", type=float, default=30, help="milliseconds between two tokens of a stream")
    parser.add_argument("--read", metavar="URL", help="be the client of a server, and print the times")
    arguments = parser.parse_args()
    streams, tokens = arguments.streams, arguments.tokens
    if arguments.read:
        print(json.dumps(asyncio.run(read(arguments.read, streams=streams, tokens=tokens))))
        return
    backend = PacedBackend(antislop.tiny_model()[1], pace=arguments.pace / 1000)
    with run_server(serve_backend(backend)) as url:
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


if __name__ == "__main__":
    main()

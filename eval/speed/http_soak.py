"""Ask a running `antislop serve` for text after text for minutes, cut many streams off, and watch its memory.

    python -m eval.speed.http_soak [--minutes 30] [--clients 24]

Starts the server in a process of its own. Prints a JSON line at each fifth of a minute; the last one compares the
memory of the first and the last quarter after ten minutes of warming up, and the status is 1 if it changed by more
than 2 % or if a text is left.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from resource import getpagesize
from typing import Any

import aiohttp

from eval.speed.soak import compare_quarters, print_line

GROWTH = 0.02
WARM_UP = 600.0
LEAVING = 0.3
WORDS = ("the", "was", "her", "into", "eyes")
LISTS = [list(pair) for pair in pairwise(WORDS)]
"""Few, since a matcher remembers the transitions of tokens that it has seen, and more so with each new text."""


@contextmanager
def serve(port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run the server with its bundled model; yield its process."""
    command = [sys.executable, "-m", "antislop", "serve", "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.terminate()


async def ask(session: aiohttp.ClientSession, until: float, rng: random.Random, counts: Counter[str]) -> None:
    """Ask for one text after another; leave some streams before their end."""
    while time.monotonic() < until:
        body: dict[str, Any] = {
            "prompt": "The old house" + " and" * rng.randrange(40),
            "max_tokens": rng.choice((5, 30, 80, 200)),
            "seed": rng.randrange(2**40),
            "temperature": rng.choice((0, 0.7, 1)),
            "banned_strings": LISTS[rng.randrange(len(LISTS))],
            "stream": rng.random() < 0.8,
        }
        leaves_after = rng.randrange(1, 60) if body["stream"] and rng.random() < LEAVING else None
        async with session.post("/v1/completions", json=body) as answer:
            counts[str(answer.status)] += 1
            async for _ in answer.content:
                if leaves_after is not None:
                    leaves_after -= 1
                    if not leaves_after:
                        counts["left"] += 1
                        answer.close()
                        break


def measure_memory(process: subprocess.Popen[bytes]) -> float:
    """Return the resident memory of a process in MB. Raises `RuntimeError` if it has ended."""
    if process.poll() is not None:
        raise RuntimeError(f"the server ended with status {process.returncode}: is its port in use?")
    return int(Path(f"/proc/{process.pid}/statm").read_text(encoding="ascii").split()[1]) * getpagesize() / 1e6


async def count_active(session: aiohttp.ClientSession) -> int:
    """Return the number of texts that the server writes."""
    async with session.get("/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return int(float(next(line for line in lines if line.startswith("antislop_texts_active ")).split()[1]))


async def wait_for(session: aiohttp.ClientSession) -> None:
    """Return when the server answers."""
    while True:
        try:
            async with session.get("/health"):
                return
        except aiohttp.ClientConnectionError:
            await asyncio.sleep(0.2)


async def soak(process: subprocess.Popen[bytes], port: int, *, seconds: float, clients: int) -> int:
    """Run clients for some seconds, print the course, and return the status."""
    rng, counts, course = random.Random(0), Counter[str](), list[tuple[float, float]]()
    connector = aiohttp.TCPConnector(limit=0, force_close=True)  # an idle connection may be closed as it is used again
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", connector=connector) as session:
        await wait_for(session)
        began = time.monotonic()
        tasks = [asyncio.ensure_future(ask(session, began + seconds, rng, counts)) for _ in range(clients)]
        while not all(task.done() for task in tasks):
            await asyncio.wait(tasks, timeout=12)
            course.append((time.monotonic() - began, measure_memory(process)))
            active = await count_active(session)
            print_line(seconds=course[-1][0], megabytes=course[-1][1], active=active, **counts)
        await asyncio.gather(*tasks)
        await asyncio.sleep(2)
        left = await count_active(session)
    growth = compare_quarters([megabytes for elapsed, megabytes in course if elapsed > WARM_UP] or [1.0])
    print_line(growth=growth, texts_left=left)
    return int(abs(growth - 1) > GROWTH or left > 0)


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--port", type=int, default=8765)
    arguments = parser.parse_args()
    with serve(arguments.port) as process:
        status = asyncio.run(soak(process, arguments.port, seconds=60 * arguments.minutes, clients=arguments.clients))
    sys.exit(status)


if __name__ == "__main__":
    main()

"""Write for long and watch the memory: with the server's backend, some of whose readers leave, or under a long list.

    python -m eval.speed.soak [--minutes 10] [--model tiny] [--clients 24]
    python -m eval.speed.soak --phrases 1000000 [--calls 2000] [--tokens 20000]

With the backend it prints a JSON line at each tenth of a minute; the last one compares the memory of the first and the
last quarter after a minute of warming up, and the status is 1 if it grew by more than 2 % or if a row is left.

Under a list it makes many calls and then writes one text, with attention to 256 tokens so that the cache stays as it
is; the status is 1 if the memory of the last quarter is more than 8 MB above that of the second.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from resource import getpagesize
from typing import Any

import torch
import transformers
from transformers import MistralConfig, MistralForCausalLM

from antislop import AntiSlop, Ban, BanList, default_bans
from antislop.core.bans.token_matcher import State
from antislop.core.loop.ledger import Node
from antislop.core.loop.row import Row
from antislop.core.loop.sampling import Sampling
from antislop.core.trace.events import Event, Finished, Settled
from antislop.serve.backend import GenerationRequest
from antislop.serve.bodies.bans import BanCache
from antislop.serve.local import LocalBackend
from eval.speed.measuring import PROMPTS, Subject, load
from eval.speed.phrases import invent

GROWTH = 1.02
FLAT = 8.0  # megabytes
WINDOW, MOMENTS = 256, 40
WARM_UP = 60.0
LEAVING = 0.3
"""The share of readers that leave before the end of their text."""
LISTS = 300
OWN = 0.3
"""The share of the requests that bring no list."""
CACHE_SIZE = 40_000
SAMPLINGS = (
    Sampling(),
    Sampling(temperature=0),
    Sampling(temperature=0.7, top_p=0.9),
    Sampling(repetition_penalty=1.2),
)


@dataclass
class Soak:
    """Clients that ask one backend for text after text until a time; `counts` of what happened."""

    backend: LocalBackend
    cache: BanCache
    until: float
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    counts: Counter[str] = field(default_factory=Counter)

    async def ask(self) -> None:
        """Ask for texts one after another."""
        while time.monotonic() < self.until:
            request = await self._make_request()
            leaves_after = self.rng.randrange(120) if self.rng.random() < LEAVING else None
            await self._read(request, leaves_after)

    async def _make_request(self) -> GenerationRequest:
        tokenizer = self.backend.tokenizer
        ids: list[int] = tokenizer(self.rng.choice(PROMPTS) + " and" * self.rng.randrange(40))["input_ids"]
        own, bans = self.backend.bans, self._lists[self.rng.randrange(LISTS)]
        return GenerationRequest(
            prompt=ids,
            bans=own if self.rng.random() < OWN else await self.cache.compile(bans, partial(own.with_bans, bans)),
            max_new_tokens=self.rng.choice((5, 30, 80, 200)),
            sampling=self.rng.choice(SAMPLINGS),
            stop=self.rng.choice(((), (), ("\n",), ("The end", "!"))),
            seed=self.rng.randrange(2**40),
            method=self.rng.choice(("exact", "exact", "token")),
        )

    def __post_init__(self) -> None:
        words = [word for word in self.backend.tokenizer.get_vocab() if word.strip("Ġ▁").isalpha() and len(word) > 3]
        words = sorted(word.strip("Ġ▁") for word in words)
        self._lists = [
            BanList([Ban(word) for word in self.rng.sample(words, self.rng.choice((3, 30, 300)))]) for _ in range(LISTS)
        ]

    async def _read(self, request: GenerationRequest, leaves_after: int | None) -> None:
        """Read a text to its end, or some of its events."""
        events, count = self.backend.write(request), 0
        async for event in events:
            count += 1
            self.counts["tokens"] += len(event.tokens) if isinstance(event, Settled) else 0
            self.counts["finished"] += isinstance(event, Finished)
            if count == leaves_after:
                break
        self.counts["left"] += count == leaves_after
        await events.aclose()


def measure_memory() -> float:
    """Return the resident memory of this process in MB."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * getpagesize() / 1e6


def count_objects() -> dict[str, int]:
    """Return the number of live rows, nodes and states."""
    gc.collect()
    kinds = Counter(type(thing).__name__ for thing in gc.get_objects() if type(thing) in (Row, Node, State))
    return dict(kinds)


async def soak(model_name: str, *, seconds: float, clients: int) -> int:
    """Run clients for some seconds, print the course, and return the status."""
    subject = load(model_name, 1)
    backend = LocalBackend(subject.model, subject.tokenizer, bans=default_bans())
    cache = BanCache(max_size=CACHE_SIZE)
    began = time.monotonic()
    work = Soak(backend, cache, began + seconds)
    tasks = [asyncio.ensure_future(work.ask()) for _ in range(clients)]
    course: list[tuple[float, float]] = []
    while not all(task.done() for task in tasks):
        await asyncio.wait(tasks, timeout=6)
        elapsed = time.monotonic() - began
        course.append((elapsed, measure_memory()))
        print_line(seconds=elapsed, megabytes=course[-1][1], active=backend.active, lists=len(cache), **work.counts)
    await asyncio.gather(*tasks)
    await asyncio.sleep(1)
    left, objects = backend.active, count_objects()
    await backend.close()
    cache.close()
    growth = compare_quarters([megabytes for elapsed, megabytes in course if elapsed > WARM_UP] or [1.0])
    print_line(growth=growth, rows_left=left, objects=objects)
    return int(growth > GROWTH or left > 0 or "Row" in objects)


def compare_quarters(values: Sequence[float]) -> float:
    """Return the median of the last quarter, divided by that of the first."""
    size = max(1, len(values) // 4)
    return statistics.median(values[-size:]) / statistics.median(values[:size])


def soak_list(count: int, *, calls: int, tokens: int) -> int:
    """Make calls, then write one text, under one list; print the course of the memory, and return the status."""
    subject = load("tiny", tokens // calls)
    vocabulary = (word.strip("Ġ▁") for word in subject.tokenizer.get_vocab())
    phrases = invent(count, sorted({word for word in vocabulary if word.isalpha()}), absent_from=[])
    began, before = time.process_time(), measure_memory()
    sampler = AntiSlop(subject.tokenizer, BanList(phrases))
    print_line(phrases=count, cpu_seconds=time.process_time() - began, megabytes=measure_memory() - before)
    growths = {
        "calls": watch((subject.write(seed, sampler) for seed in range(calls)), calls),
        "tokens": watch(_stream(replace(subject, tokens=tokens), sampler), tokens),
    }
    print_line(growth_in_megabytes=growths)
    return int(max(growths.values()) > FLAT)


def _stream(subject: Subject, sampler: AntiSlop) -> Iterator[Event]:
    """Yield an event per token of one text, of a model that attends to few tokens, whose cache stays as it is."""
    config = MistralConfig(**subject.model.config.to_dict() | {"sliding_window": WINDOW})
    model = MistralForCausalLM(config).eval()
    model.load_state_dict(subject.model.state_dict())
    ids = subject.tokenizer(PROMPTS[0], return_tensors="pt")["input_ids"]
    settings = {name: value for name, value in subject.settings().items() if name != "return_dict_in_generate"}
    events = sampler.events(model, ids, attention_mask=torch.ones_like(ids), record="none", **settings)
    return (event for event in events for _ in (event.tokens if isinstance(event, Settled) else ()))


def watch(steps: Iterable[object], count: int) -> float:
    """Print the memory at 40 moments of some steps; return by how much the last quarter is above the second, in MB."""
    course: list[float] = []
    for number, _ in enumerate(steps, 1):
        if number % max(1, count // MOMENTS) == 0:
            course.append(measure_memory())
            print_line(steps=number, megabytes=course[-1])
    quarter = len(course) // 4
    return statistics.median(course[-quarter:]) - statistics.median(course[quarter : 2 * quarter])


def print_line(**figures: Any) -> None:
    """Print figures as a JSON line."""
    rounded = {name: round(value, 4) if isinstance(value, float) else value for name, value in figures.items()}
    print(json.dumps(rounded), flush=True)


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--phrases", type=int, help="write under one list of so many phrases instead")
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--tokens", type=int, default=20_000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    if arguments.phrases is not None:
        sys.exit(soak_list(arguments.phrases, calls=arguments.calls, tokens=arguments.tokens))
    sys.exit(asyncio.run(soak(arguments.model, seconds=60 * arguments.minutes, clients=arguments.clients)))


if __name__ == "__main__":
    main()

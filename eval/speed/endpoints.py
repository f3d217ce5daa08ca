"""Bans on real servers, against the same server without bans: llama.cpp, and vLLM if a Python with it is configured."""

from __future__ import annotations

import functools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple
from urllib.request import urlopen

from antislop.engines import Endpoint, EndpointSampler
from antislop.files.models import ModelSpec
from eval.speed.cases import Bench
from eval.speed.measuring import Result, Skipped, Subject, stretch
from eval.speed.plain_streams import Engine, count_written, read_texts
from tests.support.gguf_file import write_gguf
from tests.support.llama_cpp import serve_llama_cpp
from tests.support.processes import ServingProcess
from tests.support.vllm_server import PYTHON, serve_vllm

STREAMS = 8
TEXTS = 96  # per round and contestant: at the end of a round fewer than `STREAMS` are left
LARGE_TEXTS = 16  # of a large model
WARM_UP = 2  # rounds: vLLM compiles a function for each number of texts, a matrix product for each number of tokens
RATE = 30  # violations per 1,000 kept tokens
LISTED = 500  # phrases of the list that never matches
NO_MATCH_GOAL = 0.95
GOALS: Mapping[Engine, Mapping[str, float]] = {
    "llama.cpp": {"speed": 0.8, "written": 1.15, "requests": 0.08},
    "vllm": {"speed": 0.6, "cpu": 1.3, "written": 1.15, "requests": 0.08},
}
"""With violations, relative to the server alone or per kept token."""


class Counts(NamedTuple):
    """What a contestant did in a round, by its own account."""

    kept: int
    requests: int
    received: int
    violations: int = 0


class Run(NamedTuple):
    """What the texts of one round cost.

    written: tokens, as the server counts them.
    received: of these, by the client.
    """

    kept: int
    requests: int
    received: int
    written: float
    seconds: float
    server_seconds: float
    client_seconds: float
    violations: int = 0

    @property
    def speed(self) -> float:
        """Kept tokens per second."""
        return self.kept / self.seconds


class Setup(NamedTuple):
    """A server and what runs on it.

    stretched: factor on the model's number of layers.
    texts: per round and contestant.
    """

    title: str
    engine: Engine
    stretched: int = 1
    texts: int = TEXTS


SETUPS: Sequence[Setup] = (
    Setup("llama.cpp", "llama.cpp"),
    Setup("vLLM", "vllm"),
    Setup("vLLM, 7 times the layers", "vllm", stretched=7, texts=TEXTS // 2),
)


@dataclass(frozen=True)
class Served:
    """A model on a running server."""

    subject: Subject
    setup: Setup
    process: ServingProcess

    def prompts(self) -> list[list[int]]:
        """Return the ids of the prompts of a round."""
        return [self.subject.tokenizer(self.subject.prompt(number))["input_ids"] for number in range(self.setup.texts)]

    def written(self) -> float:
        """Return the number of tokens that the server has written so far."""
        with urlopen(f"{self.process.url}/metrics", timeout=30) as answer:
            return count_written(answer.read().decode(), self.setup.engine)

    def measure(self, write: Callable[[int], Counts], seed: int) -> Run:
        """Let a contestant write the texts of a round."""
        written, server = self.written(), self.process.cpu_seconds()
        wall, client = time.perf_counter(), time.process_time()
        counts = write(seed)
        wall, client = time.perf_counter() - wall, time.process_time() - client
        time.sleep(0.3)  # the server notices that the last client left
        server = self.process.cpu_seconds() - server
        return Run(
            counts.kept,
            counts.requests,
            counts.received,
            self.written() - written,
            wall,
            server,
            client,
            counts.violations,
        )

    def read_plainly(self, seed: int) -> Counts:
        """Read texts without bans."""
        counts = read_texts(
            self.process.url, self.setup.engine, self.prompts(), streams=STREAMS, tokens=self.subject.tokens, seed=seed
        )
        return Counts(counts.kept, counts.requests, counts.kept)

    def sample(self, sampler: EndpointSampler, seed: int) -> Counts:
        """Write texts under bans."""
        settings = {"batch_size": STREAMS, "max_new_tokens": self.subject.tokens, "seed": seed}
        texts = [*sampler.generate_many(self.prompts(), **settings)]
        for text in texts:
            if text.error is not None:
                raise text.error
        return Counts(
            sum(len(text.tokens) for text in texts),
            sum(text.traffic.requests for text in texts),
            sum(text.traffic.received_tokens for text in texts),
            sum(text.report.violations for text in texts),
        )


def measure_endpoints(bench: Bench) -> Iterator[Result]:
    """Compare two lists on each server with the server's own streams."""
    if bench.subject.is_random:
        raise Skipped("endpoints is for models that write text, so it is not measured.")
    large = [setup._replace(texts=LARGE_TEXTS) for setup in SETUPS if setup.stretched == 1]
    for setup in large if bench.subject.is_large else SETUPS:
        with serve(bench.subject, setup) as process:
            yield from compare_with_plain(bench, Served(bench.subject, setup, process))


@contextmanager
def serve(subject: Subject, setup: Setup) -> Iterator[ServingProcess]:
    """Serve a model; raise `Skipped` if the engine is not configured."""
    model = stretch(subject.model, setup.stretched) if setup.stretched > 1 else subject.model
    with tempfile.TemporaryDirectory() as folder:
        if setup.engine == "llama.cpp":
            path = find_gguf(subject, Path(folder))
            with serve_llama_cpp(path, slots=STREAMS) as process:
                yield process
            return
        python = os.environ.get(PYTHON)
        if not python:
            raise Skipped(f"endpoints: {PYTHON} names no Python with vLLM, so vLLM is not measured.")
        model.generation_config = subject.model.generation_config
        source = replace(subject, model=model).save(Path(folder))
        dtype = ("--dtype", "bfloat16") if subject.is_large else ()
        with serve_vllm(python, source, Path(folder) / "log.txt", *dtype, slots=STREAMS) as process:
            yield process


def find_gguf(subject: Subject, folder: Path) -> Path:
    """Return a model's file for llama.cpp: a large model's own, or one that is written into this folder."""
    carried = ModelSpec(subject.name).carried
    path = None if carried is None else carried.find_gguf()
    if path is not None:
        return path
    if subject.is_large:
        raise Skipped(f"endpoints: no GGUF file of {subject.name} is known, so llama.cpp is not measured.")
    path = folder / "model.gguf"
    write_gguf(subject.model, subject.tokenizer, path)
    return path


def compare_with_plain(bench: Bench, served: Served) -> Iterator[Result]:
    """Let the contestants write in turn in each round, another one first each time."""
    contestants = {"alone": served.read_plainly}
    frequent = bench.calibrate_served(RATE)
    for name, phrases in (("no match", bench.absent[:LISTED]), ("violations", frequent)):
        contestants[name] = functools.partial(served.sample, make_sampler(bench, served, phrases))
    runs: dict[str, list[Run]] = {name: [] for name in contestants}
    for number in range(bench.race.rounds + WARM_UP):
        names = [*contestants]
        first = number % len(names)
        for name in names[first:] + names[:first]:
            runs[name].append(served.measure(contestants[name], seed=1000 * number))
    yield from report({name: laps[WARM_UP:] for name, laps in runs.items()}, served)


def make_sampler(bench: Bench, served: Served, phrases: Sequence[str]) -> EndpointSampler:
    """Return a sampler of the server."""
    return EndpointSampler(bench.sampler(phrases), Endpoint(f"{served.process.url}/v1"))


def report(runs: Mapping[str, Sequence[Run]], served: Served) -> Iterator[Result]:
    """Yield the ratios to the server alone, and the costs of a kept token."""
    for name, laps in runs.items():
        result = functools.partial(Result, served.subject.name, "endpoints")
        case = f"{served.setup.title}, {name}"
        if name == "alone":
            yield result(case, [run.speed for run in laps], "tokens/s", note=describe(laps))
            continue
        pairs = [*zip(laps, runs["alone"], strict=True)]
        goals = find_goals(name, served.setup.engine)
        speed = [own.speed / other.speed for own, other in pairs]
        yield result(f"{case}: speed", speed, "×", goals.get("speed"), note=describe(laps))
        cpu = [own.server_seconds / own.kept / (other.server_seconds / other.kept) for own, other in pairs]
        yield result(f"{case}: server CPU / kept", cpu, "×", goals.get("cpu"), is_floor=False)
        for count in ("written", "received", "requests"):
            values = [getattr(run, count) / run.kept for run in laps]
            yield result(f"{case}: {count} / kept", values, "", goals.get(count), is_floor=False)


def find_goals(name: str, engine: Engine) -> Mapping[str, float]:
    """Return the goals of a contestant by what is measured."""
    return {"speed": NO_MATCH_GOAL} if name == "no match" else GOALS[engine]


def describe(laps: Sequence[Run]) -> str:
    """Return the medians that are no ratios."""
    median = {
        name: statistics.median(1000 * getattr(run, name) / run.kept for run in laps)
        for name in ("server_seconds", "client_seconds", "violations")
    }
    return (
        f"{statistics.median(run.speed for run in laps):.0f} kept tokens/s; server "
        f"{median['server_seconds']:.2f} ms, client {median['client_seconds']:.2f} ms of CPU per kept token; "
        f"{median['violations']:.1f} violations per 1,000"
    )


BENCHMARKS: dict[str, Callable[[Bench], Iterator[Result]]] = {"endpoints": measure_endpoints}

"""Make data sets on many machines: a pipeline of Ray Data, each of whose workers holds one model.

    cluster = Cluster("some/model", bans, settings={"max_new_tokens": 300}, address="auto", workers=8)
    with open_journal("out.jsonl", {"seed": 0}) as journal:
        for record in write_records(cluster, lambda: read_prompts("prompts.jsonl"), journal):
            ...

Ray schedules, restarts dead workers, spills to disk and scales. Specs are sent in blocks, and a block returns in one
piece: if a worker dies, another one makes its block again, with the same records, since they depend on their keys.
Writes no files: the journal stays in the process that reads the prompts.
"""

from __future__ import annotations

import json
import logging
import math
import os
import pickle
import signal
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from antislop.datasets.maker import ModelRecordMaker
from antislop.datasets.pairs import PairFormat
from antislop.datasets.samples import Arm, MadeRecord, SampleSpec
from antislop.errors import InputError, first_line
from antislop.hf.pretrained import ModelSpec, load_model
from antislop.lists.ban_list import BanList
from antislop.matching.bans import Ban

BATCHES_OF_A_BLOCK = 4
"""A batch runs half empty at the end of a block: with four batches per block about a tenth of the time is lost."""

LOST_AFTER = 20.0
"""Seconds without an answer until the head of a cluster counts as lost; Ray would end the process after 60."""
WATCH_EVERY = 2.0
"""Seconds between two looks at the head."""

QUIET = {"RAY_BACKEND_LOG_LEVEL": "fatal", "RAY_USAGE_STATS_ENABLED": "0"}
"""Settings that silence Ray on the terminal and turn off its telemetry, unless the environment sets them."""


class Cluster:
    """Makes records on many machines, as a `ModelRecordMaker` does on one.

    model: the argument of `load_model`; each worker loads it for itself. batch_size: texts in flight per worker.
    workers: by default one per GPU of the cluster, or one per machine if there are no GPUs. address: of the cluster,
    "auto" or host:port; by default the cluster that the process is connected to already, or else one of this machine
    alone, which ends with the work. settings, seed, pairs, options: see `ModelRecordMaker`.
    """

    def __init__(
        self,
        model: ModelSpec | str | None,
        bans: BanList | Sequence[str | Ban],
        *,
        seed: int = 0,
        batch_size: int = 16,
        settings: dict[str, Any],
        pairs: PairFormat | None = None,
        workers: int | None = None,
        address: str | None = None,
        **options: Any,
    ) -> None:
        if workers is not None and workers < 1:
            raise InputError(f"workers is {workers}; at least 1 is expected")
        _import_ray()
        spec = model if isinstance(model, ModelSpec) else ModelSpec(model)
        is_folder = spec.name is not None and Path(spec.name).is_dir()
        self._model = replace(spec, name=str(Path(str(spec.name)).resolve())) if is_folder else spec
        self._bans = list(bans)
        self._options = {"seed": seed, "batch_size": batch_size, "settings": settings, "pairs": pairs, **options}
        self._block_size = BATCHES_OF_A_BLOCK * batch_size
        self._workers = workers
        self._address = address

    def make(self, specs: Iterable[SampleSpec], *, arm: Arm = "banned") -> Iterator[MadeRecord]:
        """Yield the records of each finished block; all specs are read before the first.

        Raises `InputError` if the cluster can't be reached, is lost, or a worker fails.
        """
        first = list(islice(specs, 1))
        if not first:
            return
        with _joining(self._address, workers=self._workers), _watching(_find_head()), _without_bars():
            crew = _find_crew(self._workers)
            blocks = _send(chain(first, specs), size=self._block_size, workers=crew.workers)
            for row in self._run(list(blocks.values()), arm, crew=crew):
                done = json.loads(row["done"])
                if isinstance(done, str):
                    raise InputError(f"a worker failed: {done}")
                if blocks.pop(row["number"], None) is not None:
                    yield from (MadeRecord(*made) for made in done)
        if blocks:
            raise InputError(f"{len(blocks):,} blocks of texts did not come back: run it again to resume")

    def _run(self, blocks: Sequence[Any], arm: Arm, *, crew: _Crew) -> Iterator[dict[str, Any]]:
        """Run the pipeline; yield a row for each block."""
        import ray.data

        data = ray.data.from_arrow_refs(blocks)
        done = data.map_batches(
            Worker,
            fn_constructor_kwargs={"model": self._model, "bans": self._bans, "arm": arm, "options": self._options},
            batch_size=None,
            batch_format="pyarrow",
            compute=ray.data.ActorPoolStrategy(size=crew.workers, max_tasks_in_flight_per_actor=1),
            **crew.share,
        )
        try:
            for table in done.iter_batches(batch_size=None, batch_format="pyarrow"):
                yield from table.to_pylist()
        except InputError:  # of `_watching`
            raise
        except Exception as error:  # Ray's have no base in common; those of the work itself are rows
            raise InputError(f"the cluster failed ({_name(error)}): run it again to resume") from error


class Worker:
    """Makes the records of blocks with its own model, in a process of the cluster.

    Never raises: an error becomes the row of a block, since Ray would return it as a page of text.
    """

    def __init__(self, *, model: ModelSpec, bans: Sequence[str | Ban], arm: Arm, options: dict[str, Any]) -> None:
        self._model = model
        self._bans = bans
        self._arm = arm
        self._options = options
        self._maker: ModelRecordMaker | None = None

    def __call__(self, block: Any) -> dict[str, list[Any]]:
        """Return (number, done) of a block; done is JSON: the fields of each `MadeRecord`, or an error."""
        number, specs = block["number"][0].as_py(), pickle.loads(block["specs"][0].as_py())
        try:
            self._maker = self._maker or ModelRecordMaker(*load_model(self._model), self._bans, **self._options)
            done: Any = [(made.record, made.pairs, made.counts) for made in self._maker.make(specs, arm=self._arm)]
        except Exception as error:  # noqa: BLE001
            done = first_line(error) if isinstance(error, ValueError) else _name(error)
        return {"number": [number], "done": [json.dumps(done)]}


def _name(error: Exception) -> str:
    return f"{type(error).__name__}: {first_line(error)}"


class _Crew(NamedTuple):
    """The number of workers, and the resources of each, in Ray's names."""

    workers: int
    share: dict[str, float]


def _find_crew(workers: int | None) -> _Crew:
    """Divide the machines of the connected cluster among the workers."""
    import ray

    gpus = int(ray.cluster_resources().get("GPU", 0))
    if gpus:
        return _Crew(workers or gpus, {"num_gpus": 1})
    cpus = [node["Resources"]["CPU"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
    workers = workers or max(1, len(cpus))
    each = math.ceil(workers / max(1, len(cpus)))
    return _Crew(workers, {"num_cpus": max(1, min(cpus, default=1) // each)})


def _send(specs: Iterable[SampleSpec], *, size: int, workers: int) -> dict[int, Any]:
    """Put blocks of specs into Ray's object store; return their references by number.

    size: limit per block; blocks are smaller if some workers would have none otherwise.
    """
    import pyarrow
    import ray

    specs = iter(specs)
    first = list(islice(specs, size * workers))
    size = min(size, math.ceil(len(first) / workers))
    specs = chain(first, specs)
    blocks: dict[int, Any] = {}
    while block := list(islice(specs, size)):
        number = len(blocks)
        blocks[number] = ray.put(pyarrow.table({"number": [number], "specs": [pickle.dumps(block)]}))
    return blocks


def _import_ray() -> Any:
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise InputError(f"Ray can't be imported ({first_line(error)}): pip install 'antislop[ray]'") from error
    return ray


@contextmanager
def _joining(address: str | None, *, workers: int | None) -> Iterator[None]:
    """Connect to a cluster for the block; one that was started here ends with it."""
    ray = _import_ray()
    if address is None and ray.is_initialized():
        yield
        return
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    own = {"num_cpus": max(os.cpu_count() or 1, workers or 1), "include_dashboard": False}
    try:
        if address is not None:
            _reach(address)
        there = own if address is None else {}
        ray.init(address=address or "local", log_to_driver=False, logging_level=logging.CRITICAL, **there)
    except (RuntimeError, ValueError, OSError, OverflowError, ImportError) as error:  # OverflowError: a port of 99999
        advice = "start it with ray start --head, or pass its address" if address else "Ray's logs are in /tmp/ray"
        raise InputError(f"no cluster at {address or 'hand'} ({first_line(error)}): {advice}") from error
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def _watching(head: str) -> Iterator[None]:
    """Raise `InputError` if the head of a cluster, host:port, does not answer for `LOST_AFTER` seconds.

    Ray itself would end the process after a minute, without a sentence. Works in the main thread, and not on Windows.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "pthread_kill"):
        yield
        return
    is_over, is_lost = threading.Event(), threading.Event()
    before = signal.getsignal(signal.SIGINT) or signal.SIG_DFL

    def respond(number: int, frame: FrameType | None) -> None:
        if is_lost.is_set():
            raise InputError(
                f"the head of the cluster, {head}, does not answer any more: start it anew, and run it again to resume"
            )
        if callable(before):
            before(number, frame)

    signal.signal(signal.SIGINT, respond)  # also where interrupts are ignored, as in a shell's background jobs
    threading.Thread(target=_watch, args=(head, is_over, is_lost), daemon=True).start()
    try:
        yield
    finally:
        is_over.set()
        signal.signal(signal.SIGINT, before)


def _find_head() -> str:
    import ray

    return str(ray.get_runtime_context().gcs_address)


def _watch(head: str, is_over: threading.Event, is_lost: threading.Event) -> None:
    """Interrupt the main thread if the head does not answer for `LOST_AFTER` seconds."""
    answered = time.monotonic()
    while not is_over.wait(WATCH_EVERY):
        try:
            _reach(head)
            answered = time.monotonic()
        except OSError:
            if time.monotonic() - answered > LOST_AFTER:
                is_lost.set()
                main = threading.main_thread().ident
                assert main is not None
                signal.pthread_kill(main, signal.SIGINT)  # ends what the thread waits for, too
                return


@contextmanager
def _without_bars() -> Iterator[None]:
    """Keep Ray Data from showing progress: callers of this module do."""
    from ray.data import DataContext

    context = DataContext.get_current()
    before, context.enable_progress_bars = context.enable_progress_bars, False
    try:
        yield
    finally:
        context.enable_progress_bars = before


def _reach(address: str) -> None:
    """Raise `OSError` if nothing listens: Ray would retry for minutes."""
    host, _, port = address.rpartition(":")
    if port.isdigit() and "://" not in address:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()

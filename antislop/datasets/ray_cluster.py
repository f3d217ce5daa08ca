"""Make data sets on many machines: a pipeline of Ray Data whose workers load one model each.

    cluster = Cluster("some/model", bans, settings={"max_new_tokens": 300}, address="auto", workers=8)
    for record in write_records(cluster, lambda: read_prompts("prompts.jsonl"), journal):
        ...

If a worker dies, another worker makes the same records again, since a record depends on its key.
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
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from types import FrameType
from typing import Any

from antislop.core.bans import Ban, BanList
from antislop.core.trace import BATCH_SIZE
from antislop.datasets.maker import EndpointMaker, ModelRecordMaker
from antislop.datasets.pairs import PairFormat
from antislop.datasets.samples import Arm, MadeRecord, RecordMaker, SampleSpec
from antislop.datasets.vllm_maker import VllmMaker
from antislop.engines.endpoint.endpoint import Endpoint
from antislop.errors import DISTRIBUTION, InputError, first_line
from antislop.files.models import ModelSpec

BATCHES_OF_A_BLOCK = 4
"""Batches per block. A batch runs half empty at the end of a block, which costs about a tenth of the time."""

LOST_AFTER = 20.0
"""Seconds without an answer after which the head of a cluster counts as lost; Ray ends the process after 60."""
WATCH_EVERY = 2.0
"""Seconds between two checks of the head."""

QUIET_ENVIRONMENT = {"RAY_BACKEND_LOG_LEVEL": "fatal", "RAY_USAGE_STATS_ENABLED": "0"}
"""Settings that silence Ray on the terminal and turn off its telemetry, unless the environment sets them."""


class Cluster:
    """Makes records on many machines, as a `ModelRecordMaker` does on one.

    model: a `ModelSpec`, or the name of a model; each worker loads the model, or with `endpoint` only its tokenizer.
    seed, settings, pairs, options: see `ModelRecordMaker`, or with `endpoint` `EndpointMaker`.
    batch_size: how many texts each worker writes at the same time.
    workers: number of workers; by default one per GPU of the cluster, or one per machine if there are no GPUs.
    address: "auto" or host:port of a cluster; by default, the cluster is that to which this process is connected, or
        else a local cluster, which is stopped at the end.
    endpoint: a server that all workers use in place of models of their own.
    vllm: arguments of `vllm.LLM`; each worker then writes with vLLM instead of transformers.
    """

    def __init__(
        self,
        model: ModelSpec | str | None,
        bans: BanList | Sequence[str | Ban],
        *,
        seed: int = 0,
        batch_size: int = BATCH_SIZE,
        settings: dict[str, Any],
        pairs: PairFormat | None = None,
        workers: int | None = None,
        address: str | None = None,
        endpoint: Endpoint | None = None,
        vllm: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        if workers is not None and workers < 1:
            raise InputError(f"workers is {workers!r}; at least 1 is expected")
        _import_ray()
        spec = model if isinstance(model, ModelSpec) else ModelSpec(model)
        if spec.name is not None and Path(spec.name).is_dir():
            spec = replace(spec, name=str(Path(spec.name).resolve()))
        options = {"seed": seed, "batch_size": batch_size, "settings": settings, "pairs": pairs, **options}
        vllm = vllm and vllm | {"model": spec.find_source()}
        self._worker = {"model": spec, "bans": list(bans), "options": options, "endpoint": endpoint, "vllm": vllm}
        self._gpus_each = (vllm or {}).get("tensor_parallel_size", 1)
        self._block_size = BATCHES_OF_A_BLOCK * batch_size
        self._workers = workers
        self._address = address

    def make(self, specs: Iterable[SampleSpec], *, arm: Arm = "banned") -> Iterator[MadeRecord]:
        """Yield the records of each finished block; all specs are read before the first record comes.

        Raises `InputError` if the cluster can't be reached, is lost, or a worker fails.
        """
        head = list(islice(specs, 1))
        if not head:
            return
        ray = _import_ray()
        with (
            _joining(self._address, workers=self._workers),
            _watching(str(ray.get_runtime_context().gcs_address)),
            _without_bars(),
        ):
            workers, share = _find_crew(self._workers, gpus_each=self._gpus_each)
            blocks = _send(chain(head, specs), size=self._block_size, workers=workers)
            for row in self._run(list(blocks.values()), arm, workers=workers, share=share):
                result = json.loads(row["done"])
                if isinstance(result, str):
                    raise InputError(f"a worker failed: {result}")
                if blocks.pop(row["number"], None) is not None:
                    yield from (MadeRecord(*fields) for fields in result)
        if blocks:
            raise InputError(f"{len(blocks):,} blocks of texts did not come back: run it again to resume")

    def _run(
        self, blocks: Sequence[Any], arm: Arm, *, workers: int, share: dict[str, float]
    ) -> Iterator[dict[str, Any]]:
        import ray.data

        data = ray.data.from_arrow_refs(blocks)
        results = data.map_batches(
            Worker,
            fn_constructor_kwargs={**self._worker, "arm": arm},
            batch_size=None,
            batch_format="pyarrow",
            compute=ray.data.ActorPoolStrategy(size=workers, max_tasks_in_flight_per_actor=1),
            **share,
        )
        try:
            for table in results.iter_batches(batch_size=None, batch_format="pyarrow"):
                yield from table.to_pylist()
        except InputError:  # of `_watching`
            raise
        except Exception as error:  # Ray's errors have no common base; a worker's error comes as a row
            raise InputError(f"the cluster failed ({_name(error)}): run it again to resume") from error


@dataclass(kw_only=True)
class Worker:
    """Makes the records of blocks of specs with a model of its own, in a process of the cluster.

    An error is returned as the row of the block: if it were raised, Ray would show a long traceback.
    """

    model: ModelSpec
    bans: Sequence[str | Ban]
    arm: Arm
    options: dict[str, Any]
    endpoint: Endpoint | None = None
    vllm: dict[str, Any] | None = None

    def __call__(self, block: Any) -> dict[str, list[Any]]:
        """Return the number of a block, and as "done" JSON: the fields of each `MadeRecord`, or a text for an error."""
        number, specs = block["number"][0].as_py(), pickle.loads(block["specs"][0].as_py())
        try:
            made = self._maker.make(specs, arm=self.arm)
            result: Any = [(sample.record, sample.pairs, sample.counts) for sample in made]
        except Exception as error:  # noqa: BLE001
            result = first_line(error) if isinstance(error, ValueError) else _name(error)
        return {"number": [number], "done": [json.dumps(result)]}

    @cached_property
    def _maker(self) -> RecordMaker:
        if self.vllm is not None:
            return VllmMaker(self.vllm, self.model.load_tokenizer(), self.bans, **self.options)
        if self.endpoint is None:
            return ModelRecordMaker(*self.model.load(), self.bans, **self.options)
        return EndpointMaker(self.endpoint, self.model.load_tokenizer(), self.bans, **self.options)


def _name(error: Exception) -> str:
    return f"{type(error).__name__}: {first_line(error)}"


def _find_crew(workers: int | None, *, gpus_each: int) -> tuple[int, dict[str, float]]:
    """Return the number of workers, and the resources of each worker by Ray's names for resources."""
    import ray

    gpus = int(ray.cluster_resources().get("GPU", 0))
    if gpus:
        return workers or max(1, gpus // gpus_each), {"num_gpus": gpus_each}
    cpus = [node["Resources"]["CPU"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
    workers = workers or max(1, len(cpus))
    workers_per_machine = math.ceil(workers / max(1, len(cpus)))
    return workers, {"num_cpus": max(1, min(cpus, default=1) // workers_per_machine)}


def _send(specs: Iterable[SampleSpec], *, size: int, workers: int) -> dict[int, Any]:
    """Put blocks of up to `size` specs into Ray's object store; return their references by number.

    If there are too few specs to give each worker a block of `size`, blocks are smaller.
    """
    import pyarrow
    import ray

    specs = iter(specs)
    head = list(islice(specs, size * workers))
    size = min(size, math.ceil(len(head) / workers))
    specs = chain(head, specs)
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
        raise InputError(f"Ray can't be imported ({first_line(error)}): pip install '{DISTRIBUTION}[ray]'") from error
    return ray


@contextmanager
def _joining(address: str | None, *, workers: int | None) -> Iterator[None]:
    """Connect to a cluster within the context; stop the cluster at the end if this function started it."""
    ray = _import_ray()
    if address is None and ray.is_initialized():
        yield
        return
    for name, value in QUIET_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    local_options = {"num_cpus": max(os.cpu_count() or 1, workers or 1), "include_dashboard": False}
    try:
        if address is not None:
            _reach(address)
        options = local_options if address is None else {}
        ray.init(address=address or "local", log_to_driver=False, logging_level=logging.CRITICAL, **options)
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

    Ray itself would end the process after a minute, without a message. Works in the main thread only, not on Windows.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "pthread_kill"):
        yield
        return
    is_over, is_lost = threading.Event(), threading.Event()
    handler = signal.getsignal(signal.SIGINT) or signal.SIG_DFL

    def respond(number: int, frame: FrameType | None) -> None:
        if is_lost.is_set():
            raise InputError(
                f"the head of the cluster, {head}, does not answer: restart it, and run the command again to resume"
            )
        if callable(handler):
            handler(number, frame)

    signal.signal(signal.SIGINT, respond)  # even if interrupts are ignored, as in a shell's background jobs
    threading.Thread(target=_watch, args=(head, is_over, is_lost), daemon=True).start()
    try:
        yield
    finally:
        is_over.set()
        signal.signal(signal.SIGINT, handler)


def _watch(head: str, is_over: threading.Event, is_lost: threading.Event) -> None:
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
                signal.pthread_kill(main, signal.SIGINT)  # also ends blocking calls of the thread
                return


@contextmanager
def _without_bars() -> Iterator[None]:
    from ray.data import DataContext

    context = DataContext.get_current()
    was_enabled, context.enable_progress_bars = context.enable_progress_bars, False
    try:
        yield
    finally:
        context.enable_progress_bars = was_enabled


def _reach(address: str) -> None:
    """Raise `OSError` if nothing listens at an address; Ray would retry for minutes."""
    host, _, port = address.rpartition(":")
    if port.isdigit() and "://" not in address:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()

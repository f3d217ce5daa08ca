"""A cluster makes the rows that one process makes, whichever of its processes are killed."""

from __future__ import annotations

import json
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import antislop
from antislop import Ban, BanList
from antislop.cli.main import app
from antislop.datasets import ray_cluster
from antislop.datasets.maker import ModelRecordMaker
from antislop.datasets.ray_cluster import Cluster, Worker
from antislop.datasets.samples import MadeRecord, RecordMaker, identify, plan_samples
from antislop.datasets.writing import PairFile, write_records
from antislop.errors import InputError
from antislop.files.journal import Journal, Record, read_records
from antislop.files.models import ModelSpec
from antislop.files.prompts import Prompt
from antislop.steer.grammar.compilation import fingerprint_grammar, read_lark
from tests.support.models import build_model, build_tokenizer

without_ray = pytest.mark.skipif(
    find_spec("ray") is None,
    reason="Ray is not installed: it is too large for the test extra; pip install 'antislop-lm[ray]'",
)


def needs_ray(test: Any) -> Any:
    return pytest.mark.slow(without_ray(test))


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds workers by way of /proc")
pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own
# Read when Ray is imported. Otherwise a thread of a data set that is ending connects again after `ray.shutdown`.
os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")

BANS = BanList([Ban("ab", edges="anywhere"), Ban("c", edges="anywhere"), Ban.regex("f[ea]"), "a * b", Ban("ea")])
SETTINGS = {"max_new_tokens": 60, "do_sample": True, "top_k": 0, "suppress_tokens": [0], "pad_token_id": 1}
OPTIONS: dict[str, Any] = {"settings": SETTINGS, "batch_size": 2, "seed": 5, "pairs": "dpo"}
TEXTS = ["a b", "c", "d d d", "ef ", "g", "ha", "\udcff j", "b " * 460, "i\n"]
PROMPTS = [Prompt(f"p{i}", text, None, {"id": f"p{i}"}) for i, text in enumerate(TEXTS) if text != "\udcff j"]
BROKEN = Prompt("broken", "", None, {}, error="prompts.jsonl:7: not JSON: \udcff")
SAMPLES = 10


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("model"))
    build_model("llama").save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def single(model: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Record], list[Record]]:
    """The records that one process makes."""
    torch.set_num_threads(1)
    return write(tmp_path_factory.mktemp("single"), ModelRecordMaker(*ModelSpec(model).load(), BANS, **OPTIONS))


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A cluster of two machines, both here."""
    import ray
    from ray.cluster_utils import Cluster as Machines

    machines = Machines(initialize_head=True, head_node_args={"num_cpus": 1})
    machines.add_node(num_cpus=1)
    yield machines.address
    ray.shutdown()  # a test that failed may have left its connection, with which no machine can be removed
    machines.shutdown()


def write(
    folder: Path, maker: RecordMaker, *, after: Callable[[int], None] = lambda _: None
) -> tuple[list[Record], list[Record]]:
    """Make a data set with pairs; return records and pairs. after: is called after each record, with its number."""
    with Journal(folder / "out.jsonl", {}, identify=identify) as journal:
        pairs = PairFile(folder / "pairs.jsonl", journal, kind="dpo")
        prompts = [*PROMPTS[:2], BROKEN, *PROMPTS[2:]]
        written = write_records(maker, lambda: prompts, journal, samples=SAMPLES, arms=("plain", "banned"), pairs=pairs)
        for number, _ in enumerate(written):
            after(number)
        pairs.finish()
    return list(read_records(folder / "out.jsonl")), list(read_records(folder / "pairs.jsonl"))


def same(one: Sequence[Record], other: Sequence[Record]) -> bool:
    """Return whether rows are the same, except for their order and seconds."""
    rows = [sorted(json.dumps({**row, "seconds": 0}, sort_keys=True) for row in rows) for rows in (one, other)]
    return rows[0] == rows[1]


def find_workers() -> list[int]:
    """Return the Ray processes with models among the descendants of this process, including its cluster's."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            title = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if title.startswith(b"ray::MapWorker(MapBatches(Worker))") and os.getpid() in ancestors(int(folder.name)):
            found.append(int(folder.name))
    return found


def ancestors(pid: int) -> Iterator[int]:
    while pid > 1:
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return
        yield pid


@needs_ray
@needs_proc
def test_a_cluster_whose_workers_are_killed_makes_what_one_process_makes(
    tmp_path: Path, model: str, address: str, single: tuple[list[Record], list[Record]]
) -> None:
    killed: list[int] = []

    def kill(number: int) -> None:
        if number in (8, 40, 96, 140):
            killed.append(find_workers()[0])
            os.kill(killed[-1], signal.SIGKILL)

    records, pairs = write(tmp_path, Cluster(model, BANS, address=address, workers=2, **OPTIONS), after=kill)
    assert len(set(killed)) == 4
    assert len(records) == 2 * SAMPLES * (len(PROMPTS) + 1) == 180
    assert len(pairs) > 100
    assert same(records, single[0])
    assert same(pairs, single[1])
    errors = {record["key"]: record["error"] for record in records if record["status"] == "error"}
    assert errors == {"broken": BROKEN.error, "p7": errors["p7"]}
    assert "shorten it" in errors["p7"]


@needs_ray
def test_a_cluster_keeps_running_after_the_work_is_done_or_abandoned(model: str, address: str) -> None:
    import ray

    cluster = Cluster(model, BANS, address=address, workers=1, **OPTIONS)
    made = cluster.make(plan_samples(PROMPTS, samples=2, arm="banned"))
    next(made)
    made.close()
    assert not ray.is_initialized()
    ray.init(address=address, log_to_driver=False)
    assert len([node for node in ray.nodes() if node["Alive"]]) == 2
    assert len(list(Cluster(model, BANS, **OPTIONS).make(plan_samples(PROMPTS[:1], samples=3, arm="plain")))) == 3
    assert ray.is_initialized(), "who is connected stays so"
    ray.shutdown()


@needs_ray
def test_a_fault_of_a_worker_is_reported_in_one_sentence(tmp_path: Path, address: str) -> None:
    specs = list(plan_samples(PROMPTS, samples=1, arm="banned"))
    with pytest.raises(InputError, match=r"a worker failed: the model '.*/none' can't be loaded"):
        list(Cluster(str(tmp_path / "none"), BANS, address=address, workers=1, **OPTIONS).make(specs))


@needs_ray
@pytest.mark.parametrize("port", [1, 99999])
def test_a_missing_cluster_is_reported_in_one_sentence(model: str, port: int) -> None:
    specs = plan_samples(PROMPTS, samples=1, arm="banned")
    with pytest.raises(InputError, match=rf"no cluster at 127.0.0.1:{port} .*: start it with ray start"):
        list(Cluster(model, BANS, address=f"127.0.0.1:{port}", **OPTIONS).make(specs))


@pytest.mark.parametrize("before", [signal.default_int_handler, signal.SIG_IGN, lambda *_: None])
def test_a_crash_of_the_head_is_reported_in_one_sentence(
    before: Any, monkeypatch: pytest.MonkeyPatch, request: Any
) -> None:
    """Ray waited for a minute, and ended the process with status 1 and no message. before: the interrupt handler."""
    request.addfinalizer(partial(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, before)))
    monkeypatch.setattr(ray_cluster, "WATCH_EVERY", 0.01)
    monkeypatch.setattr(ray_cluster, "LOST_AFTER", 0.05)
    head = socket.create_server(("127.0.0.1", 0))
    name = f"127.0.0.1:{head.getsockname()[1]}"

    def lose() -> None:
        with ray_cluster._watching(name):
            head.close()
            threading.Event().wait(60)

    with pytest.raises(InputError, match=f"the head of the cluster, {name}, does not answer: restart it"):
        lose()
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupt_while_the_head_runs_stays_an_interrupt() -> None:
    with socket.create_server(("127.0.0.1", 0)) as head, pytest.raises(KeyboardInterrupt):  # noqa: SIM117
        with ray_cluster._watching(f"127.0.0.1:{head.getsockname()[1]}"):
            signal.raise_signal(signal.SIGINT)


@needs_ray
def test_without_orders_no_cluster_is_started(model: str) -> None:
    assert list(Cluster(model, BANS, address="127.0.0.1:1", **OPTIONS).make([])) == []
    with pytest.raises(ValueError, match="workers is 0"):
        Cluster(model, BANS, workers=0, **OPTIONS)


@needs_ray
def test_a_command_that_was_killed_with_its_cluster_resumes(tmp_path: Path, model: str) -> None:
    rows = [{"id": f"r{i}", "prompt": text} for i, text in enumerate(["a b", "c", "d d d", " "] * 6)]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "bans.txt").write_text("c\nab\n")
    common = ["dataset", str(tmp_path / "prompts.jsonl"), "--model", model, "--bans", str(tmp_path / "bans.txt")]
    common += ["--n", "10", "--max-new-tokens", "100", "--batch-size", "2"]

    def arguments(name: str, *more: str) -> list[str]:
        return [*common, "-o", str(tmp_path / f"{name}.jsonl"), "--pairs", str(tmp_path / f"{name}.pairs"), *more]

    def count() -> int:
        return (tmp_path / "ray.jsonl").read_bytes().count(b"\n") if (tmp_path / "ray.jsonl").exists() else 0

    command = [sys.executable, "-m", "antislop", *arguments("ray", "--engine", "ray", "--workers", "2")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    while count() < 50 and process.poll() is None:
        time.sleep(0.05)
    process.kill()
    said = process.communicate()[1]
    assert 50 <= count() < 240, said
    done = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1, done.stderr  # some failed
    assert "resuming" in done.stderr
    assert "Traceback" not in done.stderr
    assert "60 failed" in done.stderr
    assert CliRunner().invoke(app, arguments("single")).exit_code == 1
    for name in ("jsonl", "pairs"):
        one, other = (list(read_records(tmp_path / f"{run}.{name}")) for run in ("ray", "single"))
        assert one and same(one, other)


def test_bans_are_sent_to_workers(model: str) -> None:
    assert list(pickle.loads(pickle.dumps(BANS))) == list(BANS)
    every = [*antislop.default_bans(), *antislop.constructions(), Ban.tokens([1, 2]), Ban.words(["a", "b"], gap=1)]
    assert pickle.loads(pickle.dumps(every)) == every


def test_a_worker_that_has_no_model_says_so(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    worker = Worker(model=ModelSpec(str(tmp_path / "none")), bans=BANS, arm="banned", options=OPTIONS)
    row = worker(pyarrow.table({"number": [3], "specs": [pickle.dumps([])]}))
    assert row["number"] == [3]
    assert "can't be loaded" in json.loads(row["done"][0])


def test_a_worker_makes_the_pairs_of_its_texts(model: str) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    specs = list(plan_samples(PROMPTS[:1], samples=2, arm="banned"))
    options = {**OPTIONS, "settings": {**SETTINGS, "max_new_tokens": 20}, "seed": 9}
    worker = Worker(model=ModelSpec(model), bans=list(BANS), arm="banned", options=options)
    row = worker(pyarrow.table({"number": [0], "specs": [pickle.dumps(specs)]}))
    there = [MadeRecord(*made) for made in json.loads(row["done"][0])]
    here = list(ModelRecordMaker(*ModelSpec(model).load(), BANS, **options).make(specs))
    assert sum(len(made.pairs) for made in here) > 0
    assert sum(made.counts["continued_tokens"] for made in there if made.pairs) > 5
    for name in ("pairs", "counts"):
        assert [getattr(made, name) for made in there] == [getattr(made, name) for made in here]


def test_a_worker_follows_the_grammar_and_pairs_of_sentences_are_refused(model: str) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("llguidance", reason="llguidance is not installed")
    grammar = read_lark('start: /[abd]+/ "h"')
    specs = list(plan_samples(PROMPTS[:2], samples=3, arm="banned"))
    options = {**OPTIONS, "settings": {**SETTINGS, "max_new_tokens": 40}, "pairs": None, "grammar": grammar}
    worker = Worker(model=ModelSpec(model), bans=list(BANS), arm="banned", options=options)
    row = worker(pyarrow.table({"number": [0], "specs": [pickle.dumps(specs)]}))
    there = [MadeRecord(*made).record for made in json.loads(row["done"][0])]
    assert same(
        there, [made.record for made in ModelRecordMaker(*ModelSpec(model).load(), BANS, **options).make(specs)]
    )
    for record in there:
        is_whole = re.fullmatch("[abd]+h", record["response"].replace(" ", "")) is not None
        assert record["status"] == ("ok" if is_whole else "cut") and record["grammar"] == fingerprint_grammar(grammar)
    assert "ok" in {record["status"] for record in there}
    with pytest.raises(InputError, match="make pairs of the format tokens"):
        ModelRecordMaker(*ModelSpec(model).load(), BANS, **{**options, "pairs": "dpo"})


def test_without_ray_one_sentence_says_what_to_install(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    result = CliRunner().invoke(app, ["dataset", "x.txt", "-o", "y.jsonl", "--model", model, "--engine", "ray"])
    assert result.exit_code == 2
    assert "pip install 'antislop-lm[ray]'" in result.output

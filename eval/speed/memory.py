"""The benchmarks of memory and of a cold start, each run in a process of its own, which runs this file too:

python -m eval.speed.memory text MODEL TOKENS SEED [PHRASES.json]
python -m eval.speed.memory batch MODEL ROWS STEPS [banned]
python -m eval.speed.memory start MODEL CLOCK [banned]
"""

from __future__ import annotations

import ctypes
import functools
import gc
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers

from antislop import AntiSlop, BanList, constructions, default_bans, loops
from eval.speed.measuring import PROMPTS, Result, Skipped, Subject, load, timed, widen

if TYPE_CHECKING:
    from eval.speed.cases import Bench

TOKENS = 1000
LISTED = 10_000
RUNS = 3  # each in a process of its own
RATE = 10  # violations per 1,000 kept tokens
START = 16  # tokens that the prompt may have
GOAL = 1.05
CLEAR = Path("/proc/self/clear_refs")
VOCAB = 151_936
BATCHES = {1: (400, 8.0), 16: (100, 40.0), 64: (60, 150.0)}  # rows: steps, and megabytes above generate at the most
LARGE_BATCHES = {1: (40, 25.0), 8: (40, 60.0), 16: (40, 100.0)}  # the same of a large model, with its own vocabulary
READY, HELD = 2.0, 150.0  # seconds until a sampler is made, and megabytes that it holds, at the most


def measure_memory(bench: Bench) -> Iterator[Result]:
    """Compare the peak resident memory of a long run under a long list, some of it violated, with `generate`'s."""
    tokens = min(TOKENS, bench.subject.positions - START)
    often = bench.calibrate(RATE, bench.contestant, [100], tries=1)
    ours, theirs = [], []
    with tempfile.TemporaryDirectory() as folder:
        phrases = Path(folder) / "phrases.json"
        phrases.write_text(json.dumps([*often, *bench.absent[:LISTED]]), encoding="utf-8")
        for seed in bench.short_race.seeds[:RUNS]:
            theirs.append(_run("text", bench.subject.name, str(tokens), str(seed)))
            ours.append(_run("text", bench.subject.name, str(tokens), str(seed), str(phrases)))
    mine, other = ({key: statistics.median(run[key] for run in runs) for key in runs[0]} for runs in (ours, theirs))
    yield Result(
        bench.subject.name,
        "memory",
        f"{tokens:,} tokens, {LISTED:,} phrases / generate",
        [own["peak"] / run["peak"] for own, run in zip(ours, theirs, strict=True)],
        "×",
        GOAL,
        is_floor=False,
        note=f"{mine['peak']:.0f} and {other['peak']:.0f} MB at the peak, of which {mine['loaded']:.0f} and "
        f"{other['loaded']:.0f} MB before the run; {mine['violations']:.0f} violations",
        figures={**mine, **{f"generate_{key}": value for key, value in other.items()}},
    )


def measure_batch_memory(bench: Bench) -> Iterator[Result]:
    """Compare the peak of batches under all bundled bans, in a large vocabulary, with `generate`'s."""
    subject = bench.subject
    if not (subject.name == "tiny" or subject.is_large) or not CLEAR.exists():
        raise Skipped("the memory of batches is measured with the bundled model and with large ones, on Linux.")
    vocab = int(subject.model.config.vocab_size) if subject.is_large else VOCAB
    for rows, (steps, goal) in (LARGE_BATCHES if subject.is_large else BATCHES).items():
        ours, plain = (_run("batch", _name(subject), str(rows), str(steps), *banned) for banned in (["banned"], []))
        yield Result(
            subject.name,
            "batch memory",
            f"{rows} × {vocab:,} tokens, list, constructions, loops: above generate",
            [ours["used"] - plain["used"]],
            "MB",
            goal,
            is_floor=False,
            note=f"generate uses {plain['used']:.0f} MB; {steps} steps, {ours['violations']:.0f} violations",
            figures=ours,
        )


def measure_start(bench: Bench) -> Iterator[Result]:
    """Time the first sampler of a new process, from a loaded tokenizer to the first token, and weigh the sampler."""
    if not CLEAR.exists():
        raise Skipped("the memory that a sampler holds is measured on Linux.")
    start = functools.partial(_run, "start", _name(bench.subject), bench.race.clock)
    pairs = [(start("banned"), start()) for _ in range(RUNS)]
    result = functools.partial(Result, bench.subject.name, "start", is_floor=False)
    yield result("a sampler of list, constructions, loops", [own["made"] for own, _ in pairs], "s", READY)
    more = [own["first"] - plain["first"] for own, plain in pairs]
    note = f"generate's own takes {statistics.median(plain['first'] for _, plain in pairs):.2f} s"
    yield result("its first token: above generate", more, "s", note=note)
    held = [own["held"] - plain["held"] for own, plain in pairs]
    yield result("resident memory after the first token: above generate", held, "MB", HELD)


def _name(subject: Subject) -> str:
    """Return what `load` takes in another process."""
    return str(subject.model.name_or_path) if subject.is_large else subject.name


def _run(*arguments: str) -> dict[str, float]:
    """Return the output of a run in a process of its own."""
    command = [sys.executable, "-m", "eval.speed.memory", *arguments]
    # glibc keeps freed tensors below a threshold that grows by itself: a fixed one makes the peak that of live tensors.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"} if arguments[0] != "text" else None
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    result: dict[str, float] = json.loads(done.stdout)
    return result


def _write(name: str, tokens: str, seed: str, phrases: str | None = None) -> dict[str, Any]:
    """Write one text; return the megabytes in use before it, and the peak."""
    subject = load(name, int(tokens))
    sampler = None
    if phrases is not None:
        sampler = AntiSlop(subject.tokenizer, BanList(json.loads(Path(phrases).read_text(encoding="utf-8"))))
    loaded = _peak()
    written = subject.write(int(seed), sampler)
    return {"loaded": loaded, "peak": _peak(), "violations": written.violations, "kept": len(written.tokens)}


def _write_batch(name: str, rows: str, steps: str, banned: str | None = None) -> dict[str, Any]:
    """Write a batch in a large vocabulary; return the megabytes that it used at its peak."""
    subject = load(name, int(steps))
    if not subject.is_large:
        subject = replace(subject, model=widen(subject.model, VOCAB))
    sampler = _ban_all(subject) if banned else None
    ids = subject.tokenizer([PROMPTS[0]] * int(rows), return_tensors="pt")["input_ids"]
    subject.write_rows(ids, seed=0, sampler=sampler, max_new_tokens=4)  # imports what a call imports
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what loading has freed would hide what a batch takes
    CLEAR.write_text("5", encoding="ascii")  # the peak so far becomes what is in use now
    before = _peak()
    written = subject.write_rows(ids, seed=1, sampler=sampler)
    return {"used": _peak() - before, "violations": written.violations}


def _start(name: str, clock: str, banned: str | None = None) -> dict[str, Any]:
    """Make the first sampler of this process and write a token; return the seconds of both, and the megabytes held."""
    subject = load(name, 1)
    gc.collect()
    before = _read_memory("VmRSS")
    made, sampler = timed(lambda: _ban_all(subject) if banned else None, clock)
    first, _ = timed(lambda: subject.write(0, sampler), clock)
    gc.collect()
    return {"made": made, "first": first, "held": _read_memory("VmRSS") - before}


def _ban_all(subject: Subject) -> AntiSlop:
    return AntiSlop(subject.tokenizer, default_bans() | constructions() | loops())


def _peak() -> float:
    """Return this process's peak memory in megabytes. On Linux, getrusage may report its parent's instead."""
    unit = 1 if sys.platform == "darwin" else 1024
    return _read_memory("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def _read_memory(name: str) -> float:
    """Return a figure of this process in megabytes, by Linux's name for it; 0 elsewhere."""
    status = Path("/proc/self/status")
    lines = status.read_text(encoding="utf-8").splitlines() if status.exists() else []
    return sum(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith(f"{name}:"))


BENCHMARKS: dict[str, Callable[[Bench], Iterator[Result]]] = {
    "memory": measure_memory,
    "batch-memory": measure_batch_memory,
    "start": measure_start,
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    write = {"text": _write, "batch": _write_batch, "start": _start}[sys.argv[1]]
    print(json.dumps(write(*sys.argv[2:])))

"""The benchmark of memory: the peak of a long run, each in a process of its own, which runs this file too:

python -m eval.speed.memory MODEL TOKENS SEED [PHRASES.json]
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers

from antislop import AntiSlop, BanList
from eval.speed.measuring import Result, load

if TYPE_CHECKING:
    from eval.speed.cases import Bench

TOKENS = 1000
LISTED = 10_000
RATE = 10  # violations per 1,000 kept tokens
START = 16  # tokens that the prompt may have
GOAL = 1.05


def measure_memory(bench: Bench) -> Iterator[Result]:
    """Compare the peak resident memory of a long run under a long list, some of it violated, with `generate`'s."""
    tokens = min(TOKENS, bench.subject.positions - START)
    often = bench.calibrate(RATE, bench.contestant, [100], tries=1)
    ours, theirs = [], []
    with tempfile.TemporaryDirectory() as folder:
        phrases = Path(folder) / "phrases.json"
        phrases.write_text(json.dumps([*often, *bench.absent[:LISTED]]), encoding="utf-8")
        for seed in bench.short_race.seeds:
            theirs.append(_run(bench.subject.name, str(tokens), str(seed)))
            ours.append(_run(bench.subject.name, str(tokens), str(seed), str(phrases)))
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


def _run(*arguments: str) -> dict[str, float]:
    """Return the output of a run in a process of its own."""
    command = [sys.executable, "-m", "eval.speed.memory", *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
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


def _peak() -> float:
    """Return this process's peak memory in megabytes. On Linux, getrusage may report its parent's instead."""
    status = Path("/proc/self/status")
    lines = status.read_text(encoding="utf-8").splitlines() if status.exists() else []
    own = [int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")]
    unit = 1 if sys.platform == "darwin" else 1024
    return (own[0] if own else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit) / 1e6


BENCHMARKS: dict[str, Callable[[Bench], Iterator[Result]]] = {"memory": measure_memory}

if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    print(json.dumps(_write(*sys.argv[1:])))

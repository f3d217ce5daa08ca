"""Measure the speed of the sampler against plain `model.generate`: a table for people, one JSON line for machines.

    python -m eval.speed [--model tiny stories3M random55M] [--only no-violation violations rivals compile …] [--quick]
    python -m eval.speed --profile

The status is 1 if a goal is missed beyond noise. README.md in this folder explains the measurements and their limits.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
import transformers
from rich.console import Console
from rich.table import Table

from eval.reporting import describe_conditions, find_commit
from eval.speed import batches, cases, drafts, endpoints, inside, kinds, memory, recording, server, steps
from eval.speed.cases import Bench
from eval.speed.measuring import CLOCKS, RANDOM, Race, Result, Skipped, load
from eval.speed.profiling import profile, time_outside_model

BENCHMARKS = {
    name: measure
    for module in (cases, batches, drafts, endpoints, inside, kinds, memory, recording, server, steps)
    for name, measure in module.BENCHMARKS.items()
}
PLAN = {
    "tiny": (
        *("no-violation", "violations", "compile", "first-looks", "million"),
        *("python", "steps", "batch-memory", "memory"),
    ),
    "stories3M": ("no-violation", "violations", "batches", "batch-violations", "in-flight", "kinds"),
    RANDOM: ("batches",),
}
"""What runs without --only: what has a goal and fits into half an hour. Other models run all."""
WIDTH = 170  # of a table that does not go to a terminal

console = Console(width=None if sys.stdout.isatty() else WIDTH)
log = Console(stderr=True)


def main() -> None:
    """Run what the command line asks for."""
    arguments = parse_arguments()
    if arguments.quick:
        arguments.rounds, arguments.texts, arguments.tokens = 3, 1, 60
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    race = Race(arguments.rounds, arguments.texts, arguments.clock)
    settings = {key: getattr(arguments, key) for key in ("rounds", "texts", "tokens", "clock")}
    made_with = {"machine": describe_conditions(), "commit": find_commit(), "settings": settings}
    results: list[Result] = []
    skipped: list[str] = []
    for name in arguments.model:
        try:
            bench = Bench(load(name, arguments.tokens), race, arguments.full)
        except Skipped as reason:
            skipped.append(str(reason))
            continue
        if arguments.profile:
            show_profile(bench)
            continue
        for result in run(bench, arguments.only or PLAN.get(name, list(BENCHMARKS)), skipped):
            results.append(result)
            save(results, {**made_with, "skipped": skipped}, arguments.json)
    if arguments.profile:
        return
    for sentence in skipped:
        console.print(f"Skipped: {sentence}", highlight=False)
    report(results)
    line = save(results, {**made_with, "skipped": skipped}, arguments.json)
    if arguments.json is None:
        print(line)
    sys.exit(any(result.verdict == "missed" for result in results))


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model",
        nargs="+",
        default=["tiny", "stories3M", RANDOM],
        help=f"tiny, {RANDOM}, smollm2-135m-instruct, gemma-3-270m, a model of the assets, a folder or a Hub id",
    )
    parser.add_argument(
        "--only", nargs="+", choices=list(BENCHMARKS), help="instead of those with a goal for the model"
    )
    parser.add_argument("--rounds", type=int, default=6, help="rounds; results are medians over them")
    parser.add_argument("--texts", type=int, default=3, help="texts per round and contestant")
    parser.add_argument("--tokens", type=int, default=200, help="tokens per text")
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall", help="cpu is steadier on a busy machine")
    parser.add_argument("--quick", action="store_true", help="3 rounds of one text of 60 tokens, for a look")
    parser.add_argument("--full", action="store_true", help="also what takes very long with random weights")
    parser.add_argument("--json", type=Path, help="write the JSON line to a file instead of the standard output")
    parser.add_argument("--profile", action="store_true", help="show instead where the time without violations goes")
    return parser.parse_args()


def run(bench: Bench, names: Sequence[str], skipped: list[str]) -> Iterator[Result]:
    """Yield the results of some benchmarks, and collect the reasons why others could not be run."""
    for name in names:
        log.print(f"{bench.subject.name}: {name} …")
        began = CLOCKS[bench.race.clock]()
        try:
            if bench.subject.is_random and name in cases.BENCHMARKS:
                raise Skipped(f"{name} is for models that write text, so it is not measured.")
            yield from BENCHMARKS[name](bench)
        except Skipped as reason:
            skipped.append(f"{bench.subject.name}: {reason}")
        log.print(f"    {CLOCKS[bench.race.clock]() - began:.0f} s of {bench.race.clock} time")


def save(results: Sequence[Result], made_with: dict[str, object], path: Path | None) -> str:
    """Write the JSON line of the results so far into a file, if there is one; return it."""
    line = json.dumps({**made_with, "results": [result.as_json() for result in results]}, ensure_ascii=False)
    if path is not None:
        path.write_text(line + "\n", encoding="utf-8")
    return line


def report(results: Sequence[Result]) -> None:
    """Print the table."""
    table = Table(title="Medians over the rounds")
    for column in ("model", "benchmark", "case"):
        table.add_column(column)
    for column in ("median", "noise", "goal"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("")
    table.add_column("note")
    for result in results:
        table.add_row(*result.as_row())
    console.print(table, highlight=False)


def show_profile(bench: Bench) -> None:
    """Print the time of one token outside the model's forward pass, and the functions that take it."""
    ours = bench.contestant(bench.absent[:500])
    contestants = {"generate": bench.subject.write, "antislop, 500 phrases": ours}
    console.print(time_outside_model(bench.subject, contestants, bench.race))
    for name, contestant in contestants.items():
        console.print(profile(bench.subject, name, contestant, bench.race.seeds))


if __name__ == "__main__":
    main()

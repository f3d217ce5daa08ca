"""The cost of what a call records, and of explaining it afterwards."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import get_args

import torch

from antislop import AntiSlop
from antislop.core.trace.trace import RecordLevel
from antislop.explain import ForwardResult
from eval.speed.cases import Bench
from eval.speed.measuring import Result, Subject, Written, compare, figures, timed

RATE = 10  # violations per 1,000 kept tokens
GOAL = 0.99
EXPLAINED = 20  # tokens per text whose relevance is timed


def measure_recording(bench: Bench) -> Iterator[Result]:
    """Compare all levels of recording with none, in texts with some violations, and time relevance."""
    sampler = bench.sampler(bench.frequent[RATE])
    levels = get_args(RecordLevel)
    laps = bench.race.run({level: functools.partial(_write, bench.subject, sampler, level) for level in levels})
    result = functools.partial(Result, bench.subject.name, "recording")
    step = 1 / figures(laps["none"])["tokens_per_second"]
    for level in levels[1:]:
        note = f"{1e3 / figures(laps[level])['tokens_per_second']:.2f} ms/token, {1e3 * step:.2f} without a record"
        goal = GOAL if level == "events" else None
        yield result(f'record="{level}" / "none"', compare(laps[level], laps["none"]), "×", goal, note=note)
    seconds = [_explain(bench, sampler, seed) / EXPLAINED for seed in bench.short_race.seeds]
    yield result("relevance by input_x_gradient, a token", [each / step for each in seconds], "steps")


def _write(subject: Subject, sampler: AntiSlop, level: RecordLevel, seed: int) -> Written:
    forward = _forward(subject, sampler, level, seed)
    return Written(forward.generated_token_ids[0].tolist(), forward.report.forward_passes, forward.report.violations)


def _forward(subject: Subject, sampler: AntiSlop, level: RecordLevel, seed: int) -> ForwardResult:
    ids = subject.tokenizer(subject.prompt(seed), return_tensors="pt")["input_ids"]
    torch.manual_seed(seed)
    settings = subject.settings() | {"attention_mask": torch.ones_like(ids), "record": level}
    return sampler.forward_pass(subject.model, ids, **settings)


def _explain(bench: Bench, sampler: AntiSlop, seed: int) -> float:
    """Return the seconds that the relevance of tokens spread over a text takes."""
    forward = _forward(bench.subject, sampler, "top", seed)
    places = range(0, bench.subject.tokens, bench.subject.tokens // EXPLAINED)[:EXPLAINED]
    return timed(lambda: forward.relevance_pass(places, relevance="input_x_gradient"), bench.race.clock)[0]


BENCHMARKS: dict[str, Callable[[Bench], Iterator[Result]]] = {"recording": measure_recording}

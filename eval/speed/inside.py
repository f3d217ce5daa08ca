"""Bans inside vLLM, against vLLM's own scheduler in the same process, which the Python of another environment runs."""

from __future__ import annotations

import functools
import gc
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from antislop import BanList
from antislop.core.hf.compiled_bans import CompiledBans
from antislop.core.loop.row import RowSpec
from antislop.core.loop.sampling import Policy
from antislop.engines.vllm.engine_text import EngineCallbacks, EngineText
from eval.speed.cases import Bench
from eval.speed.measuring import Result, Skipped, timed
from tests.support.vllm_offline import run_job
from tests.support.vllm_server import PYTHON

PLACES, TEXTS = 64, 256  # four times the places, so that the time in which the last texts end says little
LARGE_TEXTS = 16  # of a large model, all at once
WARM_UP = 2
LISTED = 818
RATES = {"some": 6, "many": 14}  # violations per 1,000 kept tokens of `AntiSlop`: about 10 and 26 rewinds of the engine
GOALS = {
    "again": (None, None),
    "no bans": (0.98, 1.02),
    "no match": (0.97, 1.02),
    "some": (0.90, 1.08),
    "many": (0.84, 1.14),
}
"""Kept tokens per second, and CPU time per kept token, relative to vLLM alone; "again" is a second one, for noise."""
PARTS = {
    "schedule": "schedule",
    "update_from_output": "update",
    "get_grammar_bitmask": "masks",
    "execute_model": "model",
    "sample_tokens": "sampler",
}
"""The methods of vLLM's scheduler and model runner that a step calls, and how the notes name their time."""
JUDGED_GOAL = 2.0


class Run(NamedTuple):
    """What the texts of one round cost.

    steps, steady_kept, cpu_seconds, parts: while texts still wait, so that all places are taken; the time in which the
        last texts end depends on their number. parts: seconds of CPU time by `PARTS`, and the rest.
    """

    kept: int
    rewinds: int
    seconds: float
    steps: int
    steady_kept: int
    cpu_seconds: float
    parts: dict[str, float]


def measure_inside(bench: Bench) -> Iterator[Result]:
    """Compare vLLM under bans with vLLM alone, and time the judge of a text."""
    if bench.subject.is_random:
        raise Skipped("inside is for models that write text, so it is not measured.")
    yield time_judge(bench)
    python = os.environ.get(PYTHON)
    if not python:
        raise Skipped(f"inside: {PYTHON} names no Python with vLLM, so vLLM is not measured.")
    lists = {"alone": None, "again": None, "no bans": [], "no match": bench.absent[:LISTED]}
    for name, rate in RATES.items():
        frequent = bench.calibrate_served(rate)
        lists[name] = frequent + bench.absent[: LISTED - len(frequent)]
    with tempfile.TemporaryDirectory() as folder:
        subject = bench.subject
        texts, dtype = (LARGE_TEXTS, "bfloat16") if subject.is_large else (TEXTS, "float32")
        prompts = [subject.tokenizer(subject.prompt(number))["input_ids"] for number in range(texts)]
        job = {"model": subject.save(Path(folder)), "dtype": dtype, "prompts": prompts}
        job |= {"tokens": subject.tokens, "lists": lists}
        job["rounds"] = bench.race.rounds + WARM_UP
        found = run_job(python, Path(folder), job, module=__name__)
    runs = {name: [Run(*lap) for lap in laps[WARM_UP:]] for name, laps in found.items()}
    for name, (speed, cpu) in GOALS.items():
        pairs = [*zip(runs[name], runs["alone"], strict=True)]
        result = functools.partial(Result, bench.subject.name, "inside", unit="×", note=describe(runs[name]))
        speeds = [own.kept / own.seconds / (other.kept / other.seconds) for own, other in pairs]
        yield result(f"vLLM, {name}: speed", speeds, goal=speed)
        costs = [own.cpu_seconds / own.steady_kept / (other.cpu_seconds / other.steady_kept) for own, other in pairs]
        yield result(f"vLLM, {name}: CPU / kept", costs, goal=cpu, is_floor=False)


def describe(laps: Sequence[Run]) -> str:
    """Return the medians that are no ratios."""
    speed = statistics.median(run.kept / run.seconds for run in laps)
    rewinds = statistics.median(1000 * run.rewinds / run.kept for run in laps)
    steps = statistics.median(PLACES * run.steps / run.steady_kept for run in laps)
    least = {part: min(1e6 * run.parts[part] / run.steady_kept for run in laps) for part in laps[0].parts}
    parts = ", ".join(f"{part} {cost:.0f}" for part, cost in least.items())
    return (
        f"{speed:.0f} kept tokens/s; {rewinds:.1f} rewinds per 1,000; {steps:.3f} steps of {PLACES} tokens per "
        f"{PLACES} kept; least CPU time, µs per kept token: {parts}"
    )


def time_judge(bench: Bench) -> Result:
    """Time the judge on texts that its matcher has read, in which nothing is open."""
    bans = CompiledBans.compile(BanList(bench.absent[:LISTED]), bench.subject.tokenizer)
    texts = [bench.subject.tokenizer(text)["input_ids"] for text in bench.studied]
    spec = RowSpec(
        prompt=torch.tensor([[0]]),
        matcher=bans.matcher,
        state=bans.matcher.start(),
        policy=Policy(True, "exact", "concede"),
        callbacks=EngineCallbacks(),
        max_new_tokens=bench.subject.positions,
    )
    count = sum(map(len, texts))

    def judge() -> None:
        for ids in texts:
            text = EngineText(spec)
            for token in ids:
                text.read(token)

    judge()
    costs = [1e6 * timed(judge, bench.race.clock)[0] / count for _ in range(bench.race.rounds)]
    note = f"{LISTED} phrases, {count:,} tokens"
    return Result(
        bench.subject.name, "inside", "the judge, a token", costs, "µs", JUDGED_GOAL, is_floor=False, note=note
    )


def run(job: dict[str, Any]) -> dict[str, list[Run]]:
    """Let the contestants write in turn in each round, another one first each time."""
    from vllm import LLM, SamplingParams  # in the other environment only
    from vllm.sampling_params import RequestOutputKind

    from antislop.engines.vllm import banning

    options = {"dtype": job["dtype"], "enforce_eager": True, "max_model_len": 512, "block_size": 32}
    options |= {"model": job["model"], "max_num_seqs": PLACES}
    alone, banned, again = LLM(**options), LLM(**options, **banning()), LLM(**options)
    engines = {"alone": alone, "again": again}
    spent = dict.fromkeys(PARTS.values(), 0.0)
    for llm in (alone, banned, again):
        time_parts(find_core(llm), spent)

    def write(name: str) -> Run:
        bans = job["lists"][name]
        extra = {"antislop": {"bans": bans}} if bans else None
        params = SamplingParams(temperature=1.0, max_tokens=job["tokens"], ignore_eos=True, extra_args=extra)
        params.output_kind = RequestOutputKind.FINAL_ONLY
        llm = engines.get(name, banned)
        scheduler, outputs = find_core(llm).scheduler, []
        for number, ids in enumerate(job["prompts"]):
            llm.llm_engine.add_request(str(number), {"prompt_token_ids": ids}, params)
        spent.update(dict.fromkeys(spent, 0.0))
        gc.collect()
        wall, cpu, steps = time.perf_counter(), time.process_time(), 0
        while scheduler.waiting or steps < job["tokens"] // 2:  # texts of a large model don't wait
            outputs += llm.llm_engine.step()
            steps += 1
        cpu = time.process_time() - cpu
        parts = spent | {"rest": cpu - sum(spent.values())}
        under_way = sum(request.num_output_tokens for request in scheduler.requests.values())
        steady = under_way + sum(len(output.outputs[0].token_ids) for output in outputs)
        while llm.llm_engine.has_unfinished_requests():
            outputs += llm.llm_engine.step()
        wall = time.perf_counter() - wall
        kept = sum(len(output.outputs[0].token_ids) for output in outputs)
        counts = [(output.kv_transfer_params or {}).get("antislop", {}) for output in outputs]
        rewinds = sum(count.get("rewinds", 0) for count in counts)
        return Run(kept, rewinds, wall, steps, steady, cpu, parts)

    runs: dict[str, list[Run]] = {name: [] for name in job["lists"]}
    for number in range(job["rounds"]):
        names = [*runs]
        first = number % len(names)
        for name in names[first:] + names[:first]:
            runs[name].append(write(name))
    return runs


def find_core(llm: Any) -> Any:
    """Return the part of an engine that has a scheduler and runs the model, which is in this process."""
    return llm.llm_engine.engine_core.engine_core


def time_parts(core: Any, spent: dict[str, float]) -> None:
    """Have an engine add to `spent` the CPU time that each part of its steps takes."""
    worker = core.model_executor.driver_worker
    for owner in (core.scheduler, getattr(worker, "worker", worker).model_runner):
        for method, part in PARTS.items():
            if hasattr(owner, method):
                setattr(owner, method, time_part(getattr(owner, method), part, spent))


def time_part(call: Callable[..., Any], part: str, spent: dict[str, float]) -> Callable[..., Any]:
    def timed_call(*args: Any, **kwargs: Any) -> Any:
        began = time.thread_time()
        try:
            return call(*args, **kwargs)
        finally:
            spent[part] += time.thread_time() - began

    return timed_call


BENCHMARKS: dict[str, Callable[[Bench], Iterator[Result]]] = {"inside": measure_inside}

if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(run(json.loads(Path(sys.argv[1]).read_text()))), encoding="utf-8")

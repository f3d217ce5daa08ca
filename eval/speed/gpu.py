"""Measure everything that needs a GPU, in ten minutes and without a network: a table with goals, and its JSON.

    python -m eval.speed.gpu [--minutes 10] [--out eval/results] [--model NAME_OR_PATH]
    python -m eval.speed.gpu --dry                            # tiny shapes on the CPU: whether it runs

Two models write English: the bundled one, and a bfloat16 one of the shape of Llama 3.2 1B with a vocabulary of 151,936
tokens, made by `build_llama`, for which --model takes any causal model instead. What is not measured when the share of
time of its part is over is left out, and named.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor

import antislop
from antislop import AntiSlop, BanList
from antislop.display import describe_count as count
from eval import ROOT
from eval.reporting import Table, describe_conditions, find_commit, render_table
from eval.speed.batches import PROMPTS, measure_in_flight
from eval.speed.cases import STUDIED, Bench
from eval.speed.measuring import ASSETS, Contestant, Race, Result, Subject, Written, build_llama, compare, figures, load
from eval.speed.phrases import collect_words, invent

START, POOLED, POOL_ROWS = 16, 1024, 32  # tokens of a prompt; tokens and rows of the text that prompts are cut from
LISTED, RATE = 500, 30  # phrases, and violations per 1,000 kept tokens
SHAPE = "1.2B"  # the model that another can stand in for
EAGER, COMPILED = (0.99, 0.93), (0.97, 0.93)  # of generate's speed, without violations and at `RATE`
MEMORY = {1: 8.0, 16: 40.0, 64: 150.0}  # rows: megabytes above generate
WAITS, REWIND_WAITS = 1.0, 4.0  # per step and per rewind


class Scale(NamedTuple):
    """The sizes of a run.

    shape: of `LlamaConfig`.
    held: rows whose memory is measured.
    pooled: tokens per text that prompts are cut from.
    prompts: in flight.
    """

    shape: Mapping[str, int]
    vocab: int
    dtype: torch.dtype
    rows: Sequence[int]
    held: Sequence[int]
    tokens: int
    pooled: int
    prompts: int
    rounds: int


def _name_shape(*sizes: int) -> dict[str, int]:
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    return dict(zip((*names, "max_position_embeddings"), sizes, strict=True))


FULL = Scale(
    _name_shape(2048, 8192, 16, 32, 8, 2048), 151_936, torch.bfloat16, (1, 8, 64), (1, 16, 64), 128, POOLED, PROMPTS, 12
)
DRY = Scale(_name_shape(64, 128, 2, 4, 2, 512), 9_000, torch.float32, (1, 3), (1, 16), 12, 80, 6, 1)


@dataclass(frozen=True, eq=False)
class Ready(Bench):
    """A model, with texts [rows, tokens] that it has written, and phrases made of their words that they don't contain.

    until: the time of `time.monotonic` at which the part under way should end.
    """

    pool: Tensor = None  # type: ignore[assignment]
    absent: Sequence[str] = ()  # type: ignore[assignment]
    scale: Scale = FULL

    @property
    def studied_tokens(self) -> int:
        return self.pool.shape[1]

    @property
    def studied(self) -> list[str]:  # type: ignore[override]
        return list(map(str, self.subject.tokenizer.batch_decode(self.pool[:STUDIED])))

    def until(self, moment: float) -> Ready:
        """Return the same with a time at which no further round begins."""
        return replace(self, race=replace(self.race, until=moment))

    def write_rows(self, rows: int, sampler: AntiSlop | None = None, **settings: Any) -> Contestant:
        """Return a contestant that continues as many prompts and waits for the device."""
        prompts = self.pool.repeat(-(-rows // len(self.pool)), 1)[:rows, :START].contiguous()

        def write(seed: int) -> Written:
            written = self.subject.write_rows(prompts, seed=seed, sampler=sampler, **settings)
            synchronize()
            return written

        return write


def prepare(subject: Subject, scale: Scale) -> Ready:
    """Let a model write the texts that prompts and phrases are taken from."""
    ids = torch.tensor([subject.tokenizer(subject.prompt(0))["input_ids"]] * POOL_ROWS)
    most = min(scale.pooled, subject.positions) - ids.shape[1]
    written = subject.write_rows(ids, seed=99, max_new_tokens=most)
    pool = torch.cat([ids, torch.tensor(written.tokens).view(POOL_ROWS, -1)], dim=1).to(subject.model.device)
    texts = subject.tokenizer.batch_decode(pool)
    # Phrases of two words too often occur in another text of the same model.
    phrases = invent(3 * LISTED, collect_words(texts, ASSETS), absent_from=texts)
    absent = [phrase for phrase in phrases if len(phrase.split()) > 2][:LISTED]
    race = Race(scale.rounds, texts=1, clock="wall", warm_up=0)
    return Ready(subject, race, pool=pool, absent=absent, scale=scale)


def measure_rows(ready: Ready, until: float, *, static: bool = False) -> Iterator[Result]:
    """Compare batches with `generate`: a list that never matches, and one that is violated often."""
    settings = {"cache_implementation": "static"} if static else {}
    sizes = ready.scale.rows[:2] if static else ready.scale.rows
    often = ready.calibrate(RATE, lambda own: ready.write_rows(sizes[-1], ready.sampler(own)), (100,), tries=2)
    for number, rows in enumerate(sizes):
        now = time.monotonic()
        race = replace(ready.race, until=now + (until - now) / (len(sizes) - number))
        lists = {"never": ready.absent, "often": [*often, *ready.absent]}
        samplers = {"generate": None, "again": None} | {name: ready.sampler(own) for name, own in lists.items()}
        contestants = {name: ready.write_rows(rows, sampler, **settings) for name, sampler in samplers.items()}
        for write in contestants.values():
            write(0), write(1)
        graphs = count_graphs()
        laps = race.run(contestants)
        plain, again = laps["generate"], compare(laps["again"], laps["generate"])
        part = "compiled" if static else "eager"
        more = f"; {count_graphs() - graphs} compilations in the timed rounds" if static else ""
        told = f"{len(plain)} of {race.rounds} rounds{more}"
        speed = f"{figures(plain)['tokens_per_second']:.0f} tokens/s; {told}"
        yield Result(ready.subject.name, part, f"{count(rows, 'row')}, generate / generate", again, "×", note=speed)
        for name, goal in zip(("never", "often"), COMPILED if static else EAGER, strict=True):
            cost = figures(laps[name])
            same = all(mine.texts == other.texts for mine, other in zip(laps[name], plain, strict=True))
            note = f"{cost['violations_per_1000']:.1f} violations per 1,000{', the same texts' if same else ''}; {told}"
            ratios = compare(laps[name], plain)
            case = f"{count(rows, 'row')}, {name} violated / generate"
            yield Result(ready.subject.name, part, case, ratios, "×", goal, note=note, figures=cost)


def measure_memory(ready: Ready, until: float) -> Iterator[Result]:
    """Compare the peak of the device's memory with that of `generate`, under all bundled bans."""
    every = BanList([*antislop.default_bans(), *antislop.constructions(), *antislop.loops()])
    for rows in ready.scale.held:
        check_time(until, f"the memory of {count(rows, 'row')}")
        peaks = {}
        for name, sampler in {"ours": ready.sampler(every), "generate": None}.items():
            write = ready.write_rows(rows, sampler)
            write(0)
            peaks[name] = [measure_peak(partial(write, seed)) for seed in (1, 2)]
        above = [own - max(peaks["generate"]) for own in peaks["ours"]]
        note = f"generate's own {max(peaks['generate']):.0f} MB; the larger of two texts"
        case = f"{count(rows, 'row')}, list, constructions, loops: above generate"
        yield Result(ready.subject.name, "memory", case, [max(above)], "MB", MEMORY[rows], is_floor=False, note=note)


def measure_waits(ready: Ready, until: float) -> Iterator[Result]:
    """Count how often the host waits for the device, per step and per rewind, by torch's own warnings."""
    often = ready.calibrate(RATE, lambda own: ready.write_rows(8, ready.sampler(own)), (100,), tries=1)
    result = partial(Result, ready.subject.name, "waits", unit="", is_floor=False)
    for rows in ready.scale.rows:
        check_time(until, f"the waits of {count(rows, 'row')}")
        ends, per_step, base = (4, ready.scale.tokens), 0.0, 0.0
        for name, sampler in {"generate": None, "never violated": ready.sampler(ready.absent)}.items():
            short, long = (count_waits(ready.write_rows(rows, sampler, max_new_tokens=end))[0] for end in ends)
            per_step = (long - short) / (ends[1] - ends[0])
            base = short - ends[0] * per_step  # of a call
            goal = None if sampler is None else WAITS
            yield result(f"{count(rows, 'row')}, {name}, per step", [per_step], goal=goal)
        follow = ready.subject.follow(ready.write_rows(rows, ready.sampler(often)), "wall")
        waits, written = count_waits(follow)
        more = (waits - base - per_step * written.calls) / max(1, written.violations)
        note = count(written.violations, "rewind")
        yield result(f"{count(rows, 'row')}, per rewind", [more], goal=REWIND_WAITS, note=note)


def check_time(until: float, what: str) -> None:
    if time.monotonic() > until:
        raise TimeoutError(f"the time was over before {what}")


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def measure_peak(work: Callable[[], object]) -> float:
    """Return the megabytes of the device that some work needs at its peak; 0 without a GPU."""
    if not torch.cuda.is_available():
        work()
        return 0.0
    gc.collect()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    return (torch.cuda.max_memory_allocated() - before) / 1e6


def count_waits(write: Contestant) -> tuple[int, Written]:
    """Return how often the host waits for the device while a batch is written, and the batch; 0 without a GPU."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if torch.cuda.is_available():
            torch.cuda.set_sync_debug_mode("warn")
        try:
            written = write(1)
        finally:
            if torch.cuda.is_available():
                torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing CUDA" in str(each.message) for each in caught), written


def count_graphs() -> int:
    """Return how many graphs torch has compiled so far."""
    import torch._dynamo.utils

    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


Part = Callable[[Ready, float], Iterator[Result]]
PARTS: Sequence[tuple[str, str, Part, float]] = (
    (SHAPE, "eager", measure_rows, 0.33),
    (SHAPE, "memory", measure_memory, 0.08),
    (SHAPE, "waits", measure_waits, 0.05),
    (SHAPE, "compiled", partial(measure_rows, static=True), 0.23),
    ("tiny", "eager", measure_rows, 0.09),
    (SHAPE, "in flight", lambda ready, until: measure_in_flight(ready.until(until), ready.scale.prompts), 0.12),
)
"""Model, name, what measures it, and its share of the time. A tenth is left for last rounds, which may take longer."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; return 1 if a goal is missed beyond noise, or a part fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--out", type=Path, help="a folder for gpu.json and gpu.md; eval/results unless --dry")
    parser.add_argument(
        "--model", default=SHAPE, help=f"any causal model's folder or id, in place of the {SHAPE} shape"
    )
    parser.add_argument("--dry", action="store_true", help="tiny shapes on the CPU, to see whether it runs")
    asked = parser.parse_args(arguments)
    if not (asked.dry or torch.cuda.is_available()):
        parser.error("torch finds no GPU: --dry runs tiny shapes on the CPU")
    transformers.logging.set_verbosity_error()
    scale, device, out = (DRY, "cpu", asked.out) if asked.dry else (FULL, "cuda", asked.out or ROOT / "eval/results")
    began, seconds, spent = time.monotonic(), 60 * asked.minutes, 0.0
    results: list[Result] = []
    left_out: list[str] = []
    readies: dict[str, Ready] = {}
    for place, name, measure, share in PARTS:
        model = asked.model if place == SHAPE else place
        spent += share
        until = began + spent * seconds
        print(f"{time.monotonic() - began:5.0f} s  {model}: {name}", file=sys.stderr)
        try:
            check_time(until, name)
            if model not in readies:
                readies[model] = prepare(load_subject(model, scale, device), scale)
            for result in measure(readies[model], until):
                results.append(result)
                report(results, left_out, out, minutes=asked.minutes)
        except TimeoutError as error:
            left_out.append(f"{model}, {name}: {error}")
        except Exception as error:  # noqa: BLE001  # the other parts are worth their time
            left_out.append(f"{model}, {name}: {type(error).__name__}: {error}")
            traceback.print_exc()
    print(report(results, left_out, out, minutes=asked.minutes))
    return int(not asked.dry and (bool(left_out) or any(result.verdict == "missed" for result in results)))


def load_subject(name: str, scale: Scale, device: str) -> Subject:
    if name == "tiny":
        model, tokenizer = antislop.tiny_model()
        return Subject(name, model.to(device), tokenizer, scale.tokens)
    if name != SHAPE:
        subject = load(name, scale.tokens, dtype=scale.dtype)
        return replace(subject, model=subject.model.to(device))
    model, tokenizer = build_llama(scale.shape, vocab=scale.vocab, dtype=scale.dtype, device=device)
    return Subject(name, model, tokenizer, scale.tokens)


def report(results: Sequence[Result], left_out: Sequence[str], folder: Path | None, *, minutes: float) -> str:
    """Write the results so far into a folder; return the table."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "a CPU, which says nothing about a GPU"
    made_with = {"device": device, "minutes": minutes, **describe_conditions(), "commit": find_commit()}
    rows = [result.as_row() for result in results]
    table = render_table(Table("", ("model", "part", "case", "median", "noise", "goal", "", "note"), rows))
    parts = [f"# Speed on {device}", table, *(f"Left out: {each}" for each in left_out)]
    parts.append("\n".join(f"- {name}: {value}" for name, value in made_with.items()))
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        line = {"made_with": made_with, "left_out": left_out, "results": [result.as_json() for result in results]}
        (folder / "gpu.json").write_text(json.dumps(line, indent=1) + "\n", encoding="utf-8")
        (folder / "gpu.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return "\n\n".join(parts)


if __name__ == "__main__":
    sys.exit(main())

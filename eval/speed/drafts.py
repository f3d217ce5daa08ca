"""The benchmarks of drafts: tokens from an assistant, from a look-up in the prompt, or from the rest of a ban."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from antislop import AntiSlop
from eval.speed.cases import Bench, describe
from eval.speed.measuring import Contestant, Lap, Result, Subject, Written, compare, figures, stretch

LISTED = 500
SHORT = 64  # tokens per text of random weights
START, PARAGRAPH, TIMES = 16, 60, 4  # tokens of a prompt, of a paragraph, and how often that is repeated
LOOKED_UP = 10
STRETCHED = (3, 8)  # how many times the layers of its assistant a model has
ROWS, DRAFTED = (1, 8, 16), 5  # of a batch, and tokens per draft
GREEDY: dict[str, Any] = {"do_sample": False, "temperature": None, "top_k": None}


def measure_drafts(bench: Bench) -> Iterator[Result]:
    """Compare drafts with and without bans, one text at a time, and those of an assistant in a batch."""
    yield from _measure_assistants(bench)
    yield from _measure_batches(bench)
    yield from _measure_lookup(bench)


def _measure_assistants(bench: Bench) -> Iterator[Result]:
    """Compare with transformers' assisted generation: the model as its own assistant, and its lower half."""
    model, sampler = bench.subject.model, bench.sampler(bench.absent[:LISTED])
    layers = model.config.num_hidden_layers // 2
    ways: Mapping[str, dict[str, Any]] = {
        "the model its own assistant": {"assistant_model": model},
        f"exit after {layers} layers": {"assistant_early_exit": layers},
    }
    for name, settings in ways.items():
        contestants = {
            "generate": _contestant(bench, None, **settings),
            "ours": _contestant(bench, sampler, **settings),
            "plain": _contestant(bench, None),
        }
        laps = bench.short_race.run(contestants)
        note = f"{_accepted(laps['ours'])}; generate so {_times(laps, 'generate')} as fast as plain"
        yield Result(
            bench.subject.name,
            "drafts",
            f"{name} / generate's",
            compare(laps["ours"], laps["generate"]),
            "×",
            1.0,
            note=f"{describe(figures(laps['ours']))}; {note}",
            figures=figures(laps["ours"]),
        )


def _measure_batches(bench: Bench) -> Iterator[Result]:
    """Compare one text and batches with an assistant and without; the model writes what the assistant writes.

    One text is also compared with transformers' assisted generation, which takes no batches.
    """
    if bench.subject.is_random or bench.subject.model.config.model_type != "llama":  # other layers have other names
        return
    sampler, pool, assistant = bench.sampler(bench.absent[:LISTED]), bench.pool, deepcopy(bench.subject.model)
    assistant.generation_config.update(assistant_confidence_threshold=0.0, num_assistant_tokens=DRAFTED)
    for times, rows in itertools.product(STRETCHED, ROWS):
        subject = replace(bench.subject, model=stretch(assistant, times))

        def write(
            seed: int, rows: int = rows, subject: Subject = subject, ours: AntiSlop | None = sampler, **settings: Any
        ) -> Written:
            ids = pool[seed % (len(pool) - rows) :][:rows, :START]
            return subject.write_rows(ids, seed=seed, sampler=ours, max_new_tokens=SHORT, **settings)

        drafted = functools.partial(write, assistant_model=assistant)
        contestants = {"plain": write, "drafted": drafted}
        if rows == 1:
            contestants["assisted"] = functools.partial(drafted, ours=None)
        laps = bench.short_race.run(contestants)
        passes = {name: sum(lap.forward_passes for lap in laps[name]) for name in laps}
        yield Result(
            bench.subject.name,
            "drafts",
            f"{rows} rows, an assistant at 1/{times} of the layers / without",
            compare(laps["drafted"], laps["plain"]),
            "×",
            note=f"{passes['drafted']} of {passes['plain']} forward passes; {_accepted(laps['drafted'])}",
            figures=figures(laps["drafted"]),
        )
        if rows == 1:
            case = f"an assistant at 1/{times} of the layers / generate's"
            yield Result(bench.subject.name, "drafts", case, compare(laps["drafted"], laps["assisted"]), "×", 1.0)


def _measure_lookup(bench: Bench) -> Iterator[Result]:
    """Compare greedy prompt lookup in a prompt that repeats a paragraph four times."""
    sampler = bench.sampler(bench.absent[:LISTED])
    looking = {**GREEDY, "prompt_lookup_num_tokens": LOOKED_UP}
    make = functools.partial(_contestant, bench, is_repeating=True)
    contestants = {
        "generate": make(None, **GREEDY),
        "ours": make(sampler, **GREEDY),
        "looking up": make(sampler, **looking),
        "generate, looking up": make(None, **looking),
    }
    laps = bench.short_race.run(contestants)
    result = functools.partial(Result, bench.subject.name, "drafts", unit="×")
    own = laps["looking up"]
    same = all(mine.texts == other.texts for mine, other in zip(own, laps["generate"], strict=True))
    note = f"{_accepted(own)}; {'the same texts' if same else 'not the same texts'} as generate's"
    yield result("prompt lookup / ours without", compare(own, laps["ours"]), goal=1.3, note=note, figures=figures(own))
    note = f"which is {_times(laps, 'generate, looking up')} as fast as without"
    yield result("prompt lookup / generate's", compare(own, laps["generate, looking up"]), goal=1.0, note=note)


def _contestant(bench: Bench, sampler: AntiSlop | None, *, is_repeating: bool = False, **settings: Any) -> Contestant:
    """Return a contestant that continues one of the model's texts, or a paragraph that is repeated several times."""
    subject = bench.subject
    most = min(subject.tokens, SHORT) if subject.is_random else subject.tokens

    @functools.cache
    def paragraph(row: int) -> Tensor:
        """The greedy text after the prompt, which the model most likely repeats if the prompt is repeated."""
        ids = bench.pool[row : row + 1, :START]
        written = subject.write_rows(ids, seed=0, max_new_tokens=PARAGRAPH - START, **GREEDY)
        return torch.cat([ids, torch.tensor([written.tokens])], dim=1)

    def write(seed: int) -> Written:
        ids = bench.pool[seed % len(bench.pool) :][:1, :START]
        if is_repeating:
            ids = torch.cat([paragraph(seed % len(bench.pool)).repeat(1, TIMES), ids], dim=1)
        tokens = min(most, subject.positions - ids.shape[1])
        return subject.write_rows(ids, seed=seed, sampler=sampler, max_new_tokens=tokens, **settings)

    return write


def _accepted(laps: Sequence[Lap]) -> str:
    return f"{sum(lap.accepted for lap in laps) / sum(lap.kept for lap in laps):.0%} of the tokens drafted"


def _times(laps: Mapping[str, Sequence[Lap]], name: str) -> str:
    plain = "plain" if "plain" in laps else "generate"
    return f"{figures(laps[name])['tokens_per_second'] / figures(laps[plain])['tokens_per_second']:.2f} times"


BENCHMARKS: dict[str, Callable[[Bench], Iterator[Result]]] = {"drafts": measure_drafts}

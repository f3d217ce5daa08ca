"""The benchmarks of a decoding step of 64 rows: the Python in it, and lists against none in a larger vocabulary."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import cycle, islice
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from transformers.modeling_outputs import CausalLMOutputWithPast

from antislop import AntiSlop, BanList, constructions, default_bans, loops
from antislop.core.hf.private import CACHE
from eval.speed.cases import Bench
from eval.speed.measuring import ASSETS, Contestant, Result, Skipped, Written, figures, widen
from eval.speed.phrases import collect_words, invent

ROWS = 64
START = 8  # tokens of a prompt
STEPS = 96
LISTED = 500
PYTHON = 5.0  # µs per row and step
VOCAB = 16_384
WIDE_STEPS = 40  # of the larger vocabulary, which are slow
GOALS = {"no bans": 1.0, "bundled list": 1.03, "bundled list, constructions, loops": 1.10}


def measure_python(bench: Bench) -> Iterator[Result]:
    """Time a batch that writes known text while model, softmax and multinomial return at once."""
    if bench.subject.is_random:
        raise Skipped("python is for models that write text, so it is not measured.")
    texts = _known_texts(bench)
    samplers = {"generate": None, "no phrases": bench.sampler([])}
    read = bench.subject.tokenizer.batch_decode(texts)
    samplers[f"{LISTED} phrases"] = bench.sampler(invent(LISTED, collect_words(read, ASSETS), absent_from=read))
    race = replace(bench.short_race, rounds=3 * bench.race.rounds, warm_up=2)
    laps = race.run({name: _stubbed(bench, texts, sampler) for name, sampler in samplers.items()})
    for name, own in laps.items():
        yield Result(
            bench.subject.name,
            "python",
            f"{name}: {ROWS} rows, no violation",
            [1e6 / lap.decoding_speed for lap in own],
            "µs",
            goal=None if name == "generate" else PYTHON,
            is_floor=False,
            note="per row and step" if name != "generate" else "per row and step, for comparison",
        )


def _known_texts(bench: Bench) -> Tensor:
    """Return ids [rows, tokens] of the model's own texts, each row from another place."""
    ids = torch.cat([own[:: START + STEPS] for own in bench.pool.unfold(1, START + STEPS, 1)])
    return torch.stack(list(islice(cycle(ids), ROWS)))


def _stubbed(bench: Bench, texts: Tensor, sampler: AntiSlop | None) -> Contestant:
    """Return a contestant whose model, softmax and multinomial cost nothing, and which writes these texts."""
    subject, prompts, wanted = bench.subject, texts[:, :START].contiguous(), texts[:, START:]

    forward, logits = subject.model.forward, torch.zeros(ROWS, 1, 1)

    @functools.wraps(forward)  # generate reads its signature
    def answer(*, input_ids: Tensor, **arguments: Any) -> CausalLMOutputWithPast:
        if input_ids.shape[1] > 1:  # the prompts
            return forward(input_ids=input_ids, **arguments)
        return CausalLMOutputWithPast(logits=logits, **{CACHE: arguments[CACHE]})

    def write(seed: int) -> Written:
        written = subject.write_rows(prompts, seed=seed, sampler=sampler, max_new_tokens=STEPS)
        if written.tokens != wanted.flatten().tolist():
            raise RuntimeError("other texts than multinomial returned: the loop draws in another way")
        return written

    def write_stubbed(seed: int) -> Written:
        draws = iter(wanted.split(1, dim=1))

        def draw(probs: Tensor, **_: Any) -> Tensor:  # noqa: ARG001
            return next(draws)

        with (
            mock.patch.object(subject.model, "forward", answer),
            mock.patch.object(torch, "softmax", lambda scores, **_: scores),
            mock.patch.object(torch.nn.functional, "softmax", lambda scores, **_: scores),
            mock.patch.object(torch, "multinomial", draw),
        ):
            return subject.follow(write, bench.race.clock)(seed)

    return write_stubbed


def measure_steps(bench: Bench) -> Iterator[Result]:
    """Compare the time per step of 64 rows with that of `generate`, with real bans, some of which are violated."""
    if bench.subject.is_random:
        raise Skipped("steps is for models that write text, so it is not measured.")
    subject = replace(bench.subject, model=widen(bench.subject.model, VOCAB))
    prompts = _known_texts(bench)[:, :START].contiguous()
    every = BanList([*default_bans(), *constructions(), *loops()])
    samplers = dict(
        zip(GOALS, (AntiSlop(subject.tokenizer, bans) for bans in ([], default_bans(), every)), strict=True)
    )

    def make(sampler: AntiSlop | None) -> Contestant:
        write = functools.partial(subject.write_rows, prompts, sampler=sampler, max_new_tokens=WIDE_STEPS)
        return subject.follow(lambda seed: write(seed=seed), bench.race.clock)

    laps = bench.short_race.run({"generate": make(None)} | {name: make(own) for name, own in samplers.items()})
    for name, goal in GOALS.items():
        cost = figures(laps[name])
        yield Result(
            subject.name,
            "steps",
            f"{ROWS} × {VOCAB:,} tokens, {name} / generate",
            [own.step_seconds / plain.step_seconds for own, plain in zip(laps[name], laps["generate"], strict=True)],
            "×",
            goal,
            is_floor=False,
            note=f"{1e3 * laps['generate'][0].step_seconds:.0f} ms per step of generate; "
            f"{cost['violations_per_1000']:.1f} violations per 1,000",
            figures=cost,
        )


BENCHMARKS: dict[str, Callable[[Bench], Iterator[Result]]] = {"python": measure_python, "steps": measure_steps}

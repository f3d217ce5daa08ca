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

from antislop import AntiSlop
from eval.speed.cases import Bench
from eval.speed.measuring import ASSETS, Contestant, Result, Skipped, Written
from eval.speed.phrases import collect_words, invent

ROWS = 64
START = 8  # tokens of a prompt
STEPS = 96
LISTED = 500
PYTHON = 5.0  # µs per row and step


def measure_python(bench: Bench) -> Iterator[Result]:
    """Time a batch that writes known text while model, softmax and multinomial return at once."""
    if bench.subject.is_random:
        raise Skipped("most of its ids have no text: the Python of a step is not measured.")
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
        return CausalLMOutputWithPast(logits=logits, past_key_values=arguments["past_key_values"])

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


BENCHMARKS: dict[str, Callable[[Bench], Iterator[Result]]] = {"python": measure_python}

"""How often the host waits for an accelerator, and how many kernels it starts, per step and per rewind.

The device is a pretend one: see tests/support/pretend_device.py, of which this file also tests what it refuses.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase, StoppingCriteriaList, set_seed

import antislop
from antislop import AntiSlop, Ban
from antislop.core.loop.engine import PART
from antislop.core.loop.protocols import send
from tests.support import pretend_device
from tests.support.controllers import MaskingController
from tests.support.pretend_device import RunApart
from tests.support.processors import Never

STEPS: dict[str, Any] = {"max_new_tokens": 16, "do_sample": True, "suppress_tokens": [0, 1, 2]}
COMMON = ("the", "a", "was", "had", "her", "his", "of", "and", "in", "it was", "of the", "in the")


@cache
def tiny() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    model, tokenizer = antislop.tiny_model()
    return model.to("pretend"), tokenizer


def mask_of(ids: Tensor, *, is_padded: bool = False) -> Tensor:
    mask = torch.ones_like(ids)
    mask[::2, :2] = 1 - is_padded
    return mask


def run_generate(ids: Tensor, is_padded: bool = False, **options: Any) -> int:
    tiny()[0].generate(ids, attention_mask=mask_of(ids, is_padded=is_padded), **{**STEPS, **options})
    return 0


def run_sampler(ids: Tensor, bans: Sequence[Any] = ("zzzz",), is_padded: bool = False, **options: Any) -> int:
    model, tokenizer = tiny()
    options = {**STEPS, **options, "attention_mask": mask_of(ids, is_padded=is_padded)}
    out = AntiSlop(tokenizer, bans).generate(model, ids, **options, return_dict_in_generate=True)
    return out.report.rewinds


def run_in_flight(ids: Tensor, bans: Sequence[Any] = ("zzzz",), **options: Any) -> int:
    model, tokenizer = tiny()
    sampler = AntiSlop(tokenizer, bans)
    done = sampler.generate_many(model, list(ids), batch_size=len(ids), seed=2, **{**STEPS, **options})
    return sum(each.report.rewinds for each in done)


RUNS: dict[str, Callable[..., int]] = {
    "generate": run_generate,
    "generate, greedy": partial(run_generate, do_sample=False),
    "generate, repetition penalty": partial(run_generate, repetition_penalty=1.2),
    "generate, padded": partial(run_generate, is_padded=True),
    "generate, static cache": partial(run_generate, cache_implementation="static"),
    "sampled": run_sampler,
    "padded": partial(run_sampler, is_padded=True),
    "static cache": partial(run_sampler, cache_implementation="static"),
    "greedy": partial(run_sampler, do_sample=False),
    "in flight": run_in_flight,
    "top tokens recorded": partial(run_sampler, record="top"),
    "all tokens recorded": partial(run_sampler, record="full"),
    "a controller": partial(run_sampler, controller=MaskingController()),
    "repetition penalty": partial(run_sampler, repetition_penalty=1.2),
    "a criterion": partial(run_sampler, stopping_criteria=StoppingCriteriaList([Never()])),
    "stop strings": partial(run_sampler, stop_strings=["~"]),
    "sampled, with bans": partial(run_sampler, bans=COMMON),
    "greedy, with bans": partial(run_sampler, bans=COMMON, do_sample=False),
    "sampled, with weights": partial(run_sampler, bans=[Ban(phrase, weight=0.5) for phrase in COMMON]),
    "static cache, with bans": partial(run_sampler, bans=COMMON, cache_implementation="static"),
    "in flight, with bans": partial(run_in_flight, bans=COMMON),
}


@cache
def count(name: str, rows: int) -> tuple[pretend_device.Count, int]:
    """Return what happened on the device, and the number of rewinds."""
    model, tokenizer = tiny()
    ids = tokenizer(["The old house at the edge of the village"] * rows, return_tensors="pt")["input_ids"].to("pretend")
    set_seed(6)
    prompts = math.ceil(ids.numel() / PART) if "in flight" in name else 1
    with pretend_device.counted(model, prompts=prompts) as counts:
        return counts, RUNS[name](ids)


def measure_costs(name: str, rows: int) -> tuple[tuple[float, float], str]:
    """Return waits, kernels outside the model, both per step or per rewind, and the places of the waits."""
    counts, rewinds = count(name, rows)
    if rewinds == 0:
        waits, _, kernels = counts.per_step
    else:
        without, _ = count(name.partition(",")[0], rows)
        waits, _, kernels = counts.per_rewind(rewinds, without=without.per_step)
    return (waits, kernels), counts.describe()


ROWS = (1, 8, 64)
COSTS: dict[str, tuple[tuple[float, float], ...]] = {
    "generate": ((1, 44), (1, 44), (1, 44)),  # not ours, but what ours are held against
    "generate, greedy": ((1, 27), (1, 27), (1, 27)),
    "generate, repetition penalty": ((1, 53), (1, 53), (1, 53)),
    "generate, padded": ((2, 46), (2, 46), (2, 46)),  # transformers asks the mask whether it masks anything
    "generate, static cache": ((1, 51), (1, 52), (1, 52)),
    "sampled": ((1, 23), (1, 26), (1, 26)),
    "greedy": ((1, 8), (1, 11), (1, 11)),
    "padded": ((1, 24), (1, 27), (1, 27)),
    "static cache": ((1, 24), (1, 28), (1, 28)),
    "in flight": ((1, 17), (1, 20), (1, 20)),
    "top tokens recorded": ((1, 37), (1, 40), (1, 40)),
    "all tokens recorded": ((1, 37), (1, 40), (1, 40)),
    "a controller": ((1, 34), (1, 65), (1, 289)),
    "repetition penalty": ((1, 33), (1, 37), (1, 37)),
    "a criterion": ((2, 27), (2, 31), (2, 31)),  # two copies: of what a criterion of the caller's saw, and answered
    "stop strings": ((1, 23), (1, 26), (1, 26)),
    "sampled, with bans": ((2, 2), (2, 36), (2, 33)),
    "greedy, with bans": ((1, 1), (1, 1), (1, 1)),
    "sampled, with weights": ((3, 3), (2, 29), (4, 39)),
    "static cache, with bans": ((2, 6), (2, 39), (2, 40)),
    "in flight, with bans": ((3, 3), (3, 25), (3.1, 25)),  # three for a rewind, and some for texts that end
}
"""At each number of `ROWS`: the most waits of the host, and kernels outside the model, per step; with bans, per rewind.

A kernel is an operation of torch on the device; `multinomial` counts as the 13 that it is made of on CUDA, too.
"""


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", COSTS)
def test_the_host_waits_no_more_often_than_is_held(accelerator: RunApart, name: str, rows: int) -> None:
    (waits, kernels), places = accelerator(measure_costs, name, rows)
    most_waits, most_kernels = COSTS[name][ROWS.index(rows)]
    assert waits <= most_waits and kernels <= most_kernels, f"{waits} waits, {kernels} kernels; of a step:\n{places}"


# -- whether the pretend device can be believed ------------------------------------------------------------------------


MIXED: dict[str, Callable[[Tensor, Tensor], object]] = {
    "a sum": lambda here, there: here + there,
    "a list": lambda here, there: torch.cat([here, there]),
    "another device": lambda here, there: there + there.to("pretend:1"),
    "a condition": lambda here, there: torch.where(here > 0, there, there),
    "written": lambda here, there: torch.add(there, there, out=here),
    "numpy": lambda here, there: there.numpy(),
    "a generator": lambda here, there: torch.multinomial(there, 1, generator=torch.Generator()),
    "pinned memory": lambda here, there: here.pin_memory(),
}
COUNTED: dict[str, tuple[Callable[[Tensor], object], tuple[int, int, int]]] = {
    "a kernel": (lambda x: x + torch.ones(()), (0, 0, 1)),
    "a view": (lambda x: x.view(-1)[1:].T, (0, 0, 0)),
    "a number": (lambda x: float(x[0]), (1, 0, 0)),
    "a list": (lambda x: x.tolist(), (1, 0, 0)),
    "a shape": (lambda x: x.nonzero(), (1, 0, 1)),
    "a mask": (lambda x: x[x > 0], (1, 0, 3)),
    "an index": (lambda x: x[[1, 0]], (1, 0, 1)),
    "an upload": (lambda x: torch.tensor([1.0], device=x.device), (1, 0, 0)),
    "sent": (lambda x: send(torch.tensor([1.0]), x.device), (0, 1, 0)),
    "a copy": (lambda x: x.clone(), (0, 0, 1)),
    "a draw": (lambda x: torch.multinomial(x[None], 1), (0, 0, 13)),
}


def mix(name: str) -> str:
    here = torch.ones(3)
    try:
        return f"works: {MIXED[name](here, here.to('pretend'))}"
    except (RuntimeError, TypeError) as error:
        return str(error)


@pytest.mark.parametrize("name", MIXED)
def test_what_an_accelerator_refuses_is_refused(accelerator: RunApart, name: str) -> None:
    message = accelerator(mix, name)
    assert re.search("at least two devices|can't convert|generator|getPinnedMemoryAllocator", message), message


def count_one(name: str) -> tuple[int, int, int]:
    tensor = torch.ones(3).to("pretend")
    with pretend_device.counted(torch.nn.Identity()) as counts:
        COUNTED[name][0](tensor)
    return counts.steps[0].counts


@pytest.mark.parametrize("name", COUNTED)
def test_waits_and_kernels_are_counted(accelerator: RunApart, name: str) -> None:
    assert accelerator(count_one, name) == COUNTED[name][1]


def compute_at(device: str, seed: int) -> list[Tensor]:
    """Compute with views, in place, and with gradients."""
    x = torch.randn((4, 6), generator=torch.Generator().manual_seed(seed)).to(device).requires_grad_()
    y = (x.T @ x).softmax(-1) + torch.outer(x[0], x[1]).clamp(min=0)
    y.pow(2).sum().backward()
    z = y.detach().clone()
    z[1:3, ::2] = z[0, :3]
    z.view(-1)[::5] *= -1
    z.masked_fill_(z < -0.5, 7.0).index_add_(0, torch.tensor([0, 2], device=device), z[3:5].clone())
    wide = torch.empty(0, device=device)
    torch.cumsum(z, 0, out=wide)
    copied = copy.deepcopy(z)
    z.zero_()
    results = (copied, wide, x.grad, *copied.topk(2), wide.sort(descending=True)[0], wide.unfold(0, 2, 2))
    return [result.cpu() for result in results]


@pytest.mark.parametrize("seed", range(3))
def test_kernels_compute_what_they_compute_on_the_cpu(accelerator: RunApart, seed: int) -> None:
    for ours, expected in zip(accelerator(compute_at, "pretend", seed), compute_at("cpu", seed), strict=True):
        assert torch.allclose(ours, expected)

"""A text whose states are NaN fails alone, whatever the cache and whoever asked for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from antislop import AntiSlop
from antislop.core.hf.model import TransformersModel
from antislop.core.loop.sampling import Sampling
from antislop.core.trace.events import Settled
from antislop.serve.backend import BackendError, GenerationRequest
from antislop.serve.local import LocalBackend
from tests.support.batches import COMMON, TOKENIZER
from tests.support.depth import first_quick, in_turn
from tests.support.families import build
from tests.support.models import VOCABULARY, poisoned

BAD = TOKENIZER("j")["input_ids"][0]
"""The token that turns all states after it to NaN."""

Texts: TypeAlias = dict[int, list[int] | None]
"""Generated tokens by the number of a prompt; None if it failed."""
Door: TypeAlias = Callable[[PreTrainedModel, Sequence[list[int]]], Texts]

KINDS = {
    "growing": "llama",
    "sliding windows": "mistral",
    "both": "gemma3",
    "chunks": "llama4",
    "latent": "deepseek-v3",
    "convolutions": "lfm2",
    "recurrent only": "mamba2",
    "recurrent and growing": "qwen3-next",
    "both in one layer": "falcon-h1",
}


def make_prompts() -> list[list[int]]:
    """Long and short prompts; every third one is broken: by its last, only, first or middle token."""
    generator = torch.Generator().manual_seed(7)
    lengths = [40, 2, 25, 3, 13, 2, 30, 5]
    good = [torch.randint(2, VOCABULARY, (length,), generator=generator).tolist() for length in lengths]
    good = [[token for token in prompt if token != BAD] for prompt in good]
    bad = [[5, 6] * 20 + [BAD], [BAD], [BAD, *[7, 8] * 15], [4] * 30 + [BAD] + [3] * 4]
    return [prompt for i in range(4) for prompt in (bad[i], *good[2 * i : 2 * i + 2])]


PROMPTS = make_prompts()
BROKEN = {number for number, prompt in enumerate(PROMPTS) if BAD in prompt}


def write_many(batch_size: int, **options: Any) -> Door:
    def write(model: PreTrainedModel, prompts: Sequence[list[int]]) -> Texts:
        chosen = [number for number, prompt in enumerate(PROMPTS) if prompt in prompts]
        settings = {"max_new_tokens": 14, "do_sample": True, "suppress_tokens": [BAD], "batch_size": batch_size}
        done = AntiSlop(TOKENIZER, COMMON, **options).generate_many(model, prompts, seeds=chosen, **settings)
        return {chosen[each.number]: each.tokens if each.error is None else None for each in done}

    return write


def serve(model: PreTrainedModel, prompts: Sequence[list[int]]) -> Texts:
    """One text after another beside two long ones, so that no place leaves the batch before the next text takes it."""

    async def write(backend: LocalBackend, prompt: list[int], *, seed: int, length: int = 14) -> list[int] | None:
        bias = {BAD: -100.0, 1: -100.0}
        request = GenerationRequest(
            prompt=prompt, bans=backend.bans, max_new_tokens=length, sampling=Sampling(), seed=seed, logit_bias=bias
        )
        try:
            events = [event async for event in backend.write(request)]
        except BackendError:
            return None
        return [token for event in events if isinstance(event, Settled) for token in event.tokens]

    async def write_all() -> Texts:
        backend, texts = LocalBackend(model, TOKENIZER, bans=COMMON, batch_size=3, max_model_len=400), Texts()
        beside = asyncio.gather(*(write(backend, [3, 4], seed=90 + i, length=150) for i in range(2)))
        for number, prompt in enumerate(PROMPTS):
            if prompt in prompts:
                texts[number] = await write(backend, prompt, seed=number)
        await beside
        await backend.close(timeout=60)
        return texts

    return asyncio.run(asyncio.wait_for(write_all(), timeout=120))


DOORS: dict[str, Door] = {
    "one place": write_many(1),
    "two places": write_many(2),
    "a place each": write_many(16),
    "server": serve,
}


@pytest.mark.parametrize(("kind", "door"), first_quick(in_turn(KINDS, list(DOORS), each=2), 3))
def test_a_broken_text_fails_alone(kind: str, door: str) -> None:
    model, write = build(KINDS[kind]), DOORS[door]
    expected = write(model, [prompt for number, prompt in enumerate(PROMPTS) if number not in BROKEN])
    with poisoned(model, BAD):
        texts = write(model, PROMPTS)
    assert texts == {**expected, **dict.fromkeys(BROKEN)}


@torch.no_grad()
@pytest.mark.parametrize("kind", ["growing", "both"])
def test_a_rewind_leaves_nothing_of_broken_tokens(kind: str) -> None:
    """Another row has read more, so that the rewound one moves."""
    model = build(KINDS[kind])
    language_model = TransformersModel(model)
    texts = torch.randint(2, BAD, (2, 24), generator=torch.Generator().manual_seed(1))

    def read(texts: Tensor) -> Tensor:
        cache = language_model.new_cache(2)
        language_model.forward(texts[:, :3], cache)
        for place in range(3, 18):
            language_model.forward(texts[:, place : place + 1], cache)
        length = cache.rewind(0, 2)
        steps = [torch.stack([texts[0, :6][length + i, None], texts[1, 18 + i, None]]) for i in range(3)]
        return torch.stack([language_model.forward(step, cache)[:, -1] for step in steps])

    expected = read(texts)
    with poisoned(model, BAD):
        broken = texts.clone()
        broken[0, 8:12] = BAD
        assert torch.allclose(read(broken), expected, atol=1e-5)

"""Prompts are read by the same kernels as in `generate`; on a GPU, decoding has kernels of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel, set_seed

from antislop import AntiSlop
from tests.support.ban_cases import anywhere
from tests.support.families import build
from tests.support.models import build_tokenizer

TOKENIZER = build_tokenizer()
SAMPLER = AntiSlop(TOKENIZER, [anywhere(a + b) for a in "acegi" for b in "bdfhj"])
PROMPTS = torch.tensor([[4, 8, 3, 30, 22], [9, 11, 2, 6, 13]])
SETTINGS: dict[str, Any] = {"max_new_tokens": 12, "do_sample": True, "suppress_tokens": [0, 1]}
Passes = list[tuple[int, bool]]


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> tuple[PreTrainedModel, Passes, list[bool]]:
    """Return a model, for each forward its tokens per row and if it was in decode mode, and the current mode."""
    model, passes, is_decoding = build("mixtral"), [], [False]

    @contextmanager
    def decode_mode() -> Iterator[None]:
        assert not is_decoding[0], "entered twice"
        is_decoding[0] = True
        try:
            yield
        finally:
            is_decoding[0] = False

    def note(_: object, __: object, kwargs: dict[str, Any]) -> None:
        passes.append((kwargs["input_ids"].shape[1], is_decoding[0]))

    monkeypatch.setattr(model, "_optimize_model_for_decode", decode_mode)
    model.register_forward_pre_hook(note, with_kwargs=True)
    set_seed(0)
    return model, passes, is_decoding


def complete(model: PreTrainedModel) -> None:
    SAMPLER.generate(model, PROMPTS, attention_mask=torch.ones_like(PROMPTS), **SETTINGS)


def stream(model: PreTrainedModel) -> None:
    list(SAMPLER.stream(model, PROMPTS[:1], **SETTINGS))


def close_a_stream(model: PreTrainedModel) -> None:
    pieces = SAMPLER.stream(model, PROMPTS[:1], **SETTINGS)
    next(pieces)
    pieces.close()  # type: ignore[attr-defined]


def in_flight(model: PreTrainedModel) -> None:
    assert len(list(SAMPLER.generate_many(model, [*PROMPTS, *PROMPTS], batch_size=2, **SETTINGS))) == 4


def close_a_flight(model: PreTrainedModel) -> None:
    texts = SAMPLER.generate_many(model, [*PROMPTS, *PROMPTS], batch_size=2, **SETTINGS)
    next(texts)
    texts.close()  # type: ignore[attr-defined]


def plain(model: PreTrainedModel) -> None:
    model.generate(PROMPTS, attention_mask=torch.ones_like(PROMPTS), **SETTINGS)


@pytest.mark.parametrize("run", [plain, complete, stream, close_a_stream, in_flight, close_a_flight])
def test_prompts_are_not_read_in_the_mode_of_decoding(
    run: Callable[[PreTrainedModel], None], watched: tuple[PreTrainedModel, Passes, list[bool]]
) -> None:
    model, passes, is_decoding = watched
    run(model)
    length = PROMPTS.shape[1]  # a rewound row may read a few tokens at once, too
    assert {is_decoded for queries, is_decoded in passes if queries >= length} == {False}
    assert {is_decoded for queries, is_decoded in passes if queries == 1} == {True}
    assert is_decoding == [False]

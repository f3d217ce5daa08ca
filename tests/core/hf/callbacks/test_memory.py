"""Processors that remember the text: each text is as if read anew, or the processor is refused by name.

The oracle is a new processor of the same kind that reads the kept text from its beginning: its scores are those that
the text was drawn from.
"""

from __future__ import annotations

import hashlib
import random
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor, nn
from transformers import PreTrainedModel

from antislop.core.hf.callbacks import memory
from antislop.core.hf.callbacks.memory import STRETCH, Replayed
from antislop.errors import InputError
from tests.support.depth import DEPTH
from tests.support.models import VOCABULARY, build_model
from tests.support.processors import BANS, PROMPTS, TOKENIZER, sample

SEEDS = 2 * DEPTH
START = PROMPTS.shape[1]
Processor = Callable[[Tensor, Tensor], Tensor]


def shift(scores: Tensor, number: int) -> Tensor:
    """Scores that a number, kept from call to call, decides."""
    places = torch.arange(VOCABULARY)
    return scores - 2.0 * ((places + number) % 3 == 0).float()


class Keeping:
    """A processor with a state in an attribute; `step` changes it by a token and returns a number of it."""

    def __init__(self, state: Any, step: Callable[[Any, int], int]) -> None:
        self.state = state
        self.step = step
        self.tokenizer = TOKENIZER

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        return shift(scores, self.step(self.state, int(ids[0, -1])))

    process = __call__


class Slotted:
    """A processor without a `__dict__`."""

    __slots__ = ("total",)

    def __init__(self) -> None:
        self.total = 0

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        self.total += int(ids[0, -1])
        return shift(scores, self.total)


class Module(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(1))

    def forward(self, ids: Tensor, scores: Tensor) -> Tensor:
        self.total += ids[0, -1]
        return shift(scores, int(self.total))


def in_a_cell() -> Processor:
    total = 0

    def process(ids: Tensor, scores: Tensor) -> Tensor:
        nonlocal total
        total += int(ids[0, -1])
        return shift(scores, total)

    return process


def in_a_list_of_a_closure() -> Processor:
    seen: list[int] = []
    return lambda ids, scores: shift(scores, append(seen, int(ids[0, -1])))


def in_an_attribute_of_a_function() -> Processor:
    def process(ids: Tensor, scores: Tensor) -> Tensor:
        process.total += int(ids[0, -1])  # type: ignore[attr-defined]
        return shift(scores, process.total)  # type: ignore[attr-defined]

    process.total = 0  # type: ignore[attr-defined]
    return process


def append(state: Any, token: int) -> int:
    state.append(token)
    return sum(state)


def count(state: Any, token: int) -> int:
    state.total += token
    return int(state.total)


def append_inside(state: Any, token: int) -> int:
    return append(state.lists[0], token)


def add(state: Any, token: int) -> int:
    state += token
    return int(state[0])


RIGHT: dict[str, Callable[[], Processor]] = {
    "a list": lambda: Keeping([], append),
    "an object": lambda: Keeping(SimpleNamespace(lists=([1], TOKENIZER)), append_inside),
    "a deque": lambda: Keeping(deque([1], maxlen=3), append),
    "a tensor": lambda: Keeping(torch.zeros(1), add),
    "an array": lambda: Keeping(np.zeros(1), add),
    "random numbers": lambda: Keeping(random.Random(1), lambda state, _: state.randrange(9)),
    "an iterator": lambda: Keeping(iter([*range(999)]), lambda state, _: next(state)),
    "slots": Slotted,
    "a module": Module,
    "a method": lambda: Keeping([], append).process,
    "a partial": lambda: partial(Keeping([], append).process),
    "a cell": in_a_cell,
    "a list of a closure": in_a_list_of_a_closure,
    "an attribute of a function": in_an_attribute_of_a_function,
}

TOTAL = 0


def in_a_global() -> Processor:
    global TOTAL
    TOTAL = 0

    def process(ids: Tensor, scores: Tensor) -> Tensor:
        global TOTAL
        TOTAL += int(ids[0, -1])
        return shift(scores, TOTAL)

    return process


def in_a_class() -> Processor:
    class Counting:
        total = 0

        def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
            type(self).total += int(ids[0, -1])
            return shift(scores, self.total)

    return Counting()


ELSEWHERE = {"a global": in_a_global, "a class": in_a_class}


def generate_numbers() -> Iterator[int]:
    yield from range(10_000)


def make_grammar_matcher() -> Any:
    llguidance = pytest.importorskip("llguidance", reason="llguidance is not installed")
    hf = pytest.importorskip("llguidance.hf")
    grammar = llguidance.LLMatcher.grammar_from_regex("[a-z ]*")
    return llguidance.LLMatcher(hf.from_tokenizer(TOKENIZER), grammar)


NOT_COPIED: dict[str, tuple[Callable[[], Any], str]] = {
    "a generator": (generate_numbers, "generator"),
    "a hash": (hashlib.sha256, "HASH"),
    "a matcher of a grammar": (make_grammar_matcher, "LLMatcher"),
}


@pytest.fixture(scope="module")
def llama() -> PreTrainedModel:
    return build_model("llama")


def replay(processor: Processor, out: Any) -> list[Tensor]:
    """The scores of a new processor that reads the kept text."""
    return [processor(out.sequences[:, : START + step], logits) for step, logits in enumerate(out.logits)]


@pytest.mark.parametrize("where", RIGHT)
def test_a_memory_is_rewound(llama: PreTrainedModel, where: str) -> None:
    """Drafts that are read ahead are forgotten, too."""
    make, rewinds = RIGHT[where], 0
    for seed in range(SEEDS):
        drafts = {"prompt_lookup_num_tokens": 3} if seed % 2 else {}
        settings: dict[str, Any] = {"output_scores": True, "output_logits": True, "top_k": 0, "max_new_tokens": 16}
        out = sample(llama, make(), seed=seed, bans=BANS, **settings, **drafts)
        rewinds += out.report.rewinds
        for scores, expected in zip(out.scores, replay(make(), out), strict=True):
            assert torch.allclose(scores, expected, atol=1e-4)
    assert rewinds


MOVES = st.lists(st.tuples(st.booleans(), st.integers(0, 2 * STRETCH)), max_size=8)


@given(where=st.sampled_from([*RIGHT]), moves=MOVES, size=st.sampled_from([1, memory.STRETCH_BYTES]))
def test_after_any_rewinds_it_answers_as_one_that_reads_the_kept_text(
    where: str, moves: list[tuple[bool, int]], size: int
) -> None:
    """However many tokens are written, withdrawn and settled between two calls."""
    with patch.object(memory, "STRETCH_BYTES", size):
        check_moves(where, moves)


def check_moves(where: str, moves: list[tuple[bool, int]]) -> None:
    replayed, kept, settled = Replayed(RIGHT[where](), is_alone=True), list[int](), 0
    blank, answer = torch.zeros(1, VOCABULARY), torch.zeros(0)
    for writes, count in [*moves, (True, 1)]:
        if writes:
            for number in range(count):
                kept.append((number * 7 + count) % 10)
                answer = replayed(torch.tensor([kept]), blank)
            settled = max(settled, len(kept) - STRETCH)
            replayed.settle(settled)
        else:
            del kept[max(settled, len(kept) - count) :]
            replayed.keep(len(kept))
    naive = RIGHT[where]()
    expected = [naive(torch.tensor([kept[: length + 1]]), blank) for length in range(len(kept))]
    assert torch.equal(answer, expected[-1])


def test_calls_with_large_scores_are_not_kept_for_long() -> None:
    """Of a text of which two tokens are open: 33 tensors of a step, once, for a processor without a memory."""
    replayed, scores = Replayed(lambda _, scores: scores + 1, is_alone=True), torch.zeros(1, 2**18)
    most = 0
    for length in range(1, 60):
        replayed(torch.zeros((1, length), dtype=torch.long), scores)
        replayed.settle(length - 2)
        kept = [each for arguments, answer in replayed._calls for each in (*arguments, answer)]
        most = max(most, sum(each.shape == scores.shape for each in kept))
    assert 4 <= most <= 8


def refuse(llama: PreTrainedModel, make: Callable[[], Processor], message: str, *, rows: int) -> None:
    """Each text that has a rewind is refused by name, and there is one."""
    refused = 0
    for seed in range(SEEDS + 2):
        error, rewinds = try_to_write(llama, make, rows=rows, seed=seed)
        assert error or not rewinds
        assert not error or re.search(message, error)
        refused += bool(error)
    assert refused


def try_to_write(llama: PreTrainedModel, make: Callable[[], Processor], *, rows: int, seed: int) -> tuple[str, int]:
    """The error, "" if there is none, and the rewinds of a text."""
    try:
        out = sample(llama, make(), rows=rows, seed=seed, bans=BANS)
    except InputError as error:
        return str(error), 0
    return "", out.report.rewinds


@pytest.mark.parametrize("where", ["a list", "slots", "a partial", "a cell", "a global"])
def test_in_a_batch_it_is_refused_by_name(llama: PreTrainedModel, where: str) -> None:
    make = {**RIGHT, **ELSEWHERE}[where]
    refuse(llama, make, r"(test_memory|functools)\.\S+ (changes with|gave another answer)", rows=3)


@pytest.mark.parametrize("where", ELSEWHERE)
def test_a_memory_that_is_not_found_is_refused_by_name(llama: PreTrainedModel, where: str) -> None:
    refuse(llama, ELSEWHERE[where], r"test_memory\.\S+ gave another answer", rows=1)


@pytest.mark.parametrize("where", NOT_COPIED)
def test_what_can_not_be_copied_is_refused_before_any_token(llama: PreTrainedModel, where: str) -> None:
    make, kind = NOT_COPIED[where]
    calls: list[Any] = []
    processor = Keeping(make(), lambda _, token: len(calls))
    handle = llama.register_forward_pre_hook(lambda *_: calls.append(1))
    with pytest.raises(InputError, match=rf"test_memory\.Keeping can't be copied .*{kind}.* rewind\(row, length\)"):
        sample(llama, processor, bans=["zz"])
    handle.remove()
    assert calls == []


def test_models_tokenizers_and_what_threads_share_are_not_copied(llama: PreTrainedModel) -> None:
    """A rewind leaves them as they are, also inside of others, and the processor itself."""
    shared = (TOKENIZER, llama, threading.Event(), threading.Lock())
    owner = Keeping(SimpleNamespace(shared=shared, decode=TOKENIZER.decode, total=0), count)
    owner.state.owner = owner
    replayed = Replayed(owner, is_alone=True)
    for length in (1, 2):
        replayed(torch.full((1, length), 7), torch.zeros(1, VOCABULARY))
    replayed.keep(1)
    assert owner.state.total == 7
    assert all(now is before for now, before in zip(owner.state.shared, shared, strict=True))
    assert owner.state.decode.__self__ is TOKENIZER
    assert owner.state.owner is owner


def test_a_processor_may_store_what_it_needs_at_its_first_call(llama: PreTrainedModel) -> None:
    """In new attributes and new items of a dict; also in a batch."""
    rewinds = 0
    for seed in range(4):
        processor = Keeping({}, lambda state, _: state.setdefault("mask", 3))
        out = sample(llama, processor, rows=3, seed=seed, bans=BANS)
        rewinds += out.report.rewinds
    assert rewinds

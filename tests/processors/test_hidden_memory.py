"""Processors that remember the text where it is hard to see: each text is as if read anew, or the processor is refused.

The oracle is a new processor of the same kind that reads the kept text from its beginning: its scores are those that
the text was drawn from.
"""

from __future__ import annotations

import array
import ctypes
import functools
import hashlib
import io
import itertools
import os
import random
import re
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers.decoders import DecodeStream
from torch import Tensor, nn
from transformers import PreTrainedModel

from tests.processors.test_processors import BANS, PROMPTS, TOKENIZER, sample
from tests.support.models import VOCABULARY, build_model

DEPTH = int(os.environ.get("ANTISLOP_TEST_DEPTH", "1"))
SEEDS = 2 * DEPTH
START = PROMPTS.shape[1]
Processor = Callable[[Tensor, Tensor], Tensor]


def shift(scores: Tensor, number: int) -> Tensor:
    """Scores that a number, kept from call to call, decides."""
    places = torch.arange(VOCABULARY)
    return scores - 2.0 * ((places + number) % 3 == 0).float()


# -- in closures and functions ----------------------------------------------------------------------------------------


def in_a_cell() -> Processor:
    total = 0

    def process(ids: Tensor, scores: Tensor) -> Tensor:
        nonlocal total
        total += int(ids[0, -1])
        return shift(scores, total)

    return process


def in_a_list_of_a_closure() -> Processor:
    seen: list[int] = []

    def process(ids: Tensor, scores: Tensor) -> Tensor:
        seen.append(int(ids[0, -1]))
        return shift(scores, sum(seen))

    return process


def in_a_default() -> Processor:
    def process(ids: Tensor, scores: Tensor, seen: dict[str, int] = {"total": 0}) -> Tensor:  # noqa: B006
        seen["total"] += int(ids[0, -1])
        return shift(scores, seen["total"])

    return make_function(process)


def make_function(process: Any) -> Processor:
    process.__defaults__ = ({"total": 0},)
    return process  # type: ignore[no-any-return]


def in_an_attribute_of_a_function() -> Processor:
    def process(ids: Tensor, scores: Tensor) -> Tensor:
        process.total += int(ids[0, -1])  # type: ignore[attr-defined]
        return shift(scores, process.total)  # type: ignore[attr-defined]

    process.total = 0  # type: ignore[attr-defined]
    return process


def in_a_partial() -> Processor:
    class Keeper:
        def __init__(self) -> None:
            self.seen = np.zeros(1, dtype=int)

        def process(self, factor: int, ids: Tensor, scores: Tensor) -> Tensor:
            self.seen += factor * int(ids[0, -1])
            return shift(scores, int(self.seen[0]))

    return functools.partial(Keeper().process, 2)


# -- in what all share ------------------------------------------------------------------------------------------------

SEEN: dict[str, int] = {}
TOTAL = 0


def in_a_global_dict() -> Processor:
    SEEN.clear()

    def process(ids: Tensor, scores: Tensor) -> Tensor:
        SEEN["total"] = SEEN.get("total", 0) + int(ids[0, -1])
        return shift(scores, SEEN["total"])

    return process


def in_a_global_number() -> Processor:
    global TOTAL
    TOTAL = 0
    return Adding()


def add(number: int) -> int:
    global TOTAL
    TOTAL += number
    return TOTAL


class Adding:
    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        return shift(scores, add(int(ids[0, -1])))


def in_a_class() -> Processor:
    class Counting:
        total = 0

        def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
            type(self).total += int(ids[0, -1])
            return shift(scores, self.total)

    return Counting()


# -- in objects written in C ------------------------------------------------------------------------------------------


def keep(make_state: Callable[[], Any], step: Callable[[Any, int], int]) -> Callable[[], Processor]:
    """A processor with a state of some type; `step` changes the state by a token and returns a number of it."""

    def make() -> Processor:
        state = make_state()

        class Keeping:
            def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
                return shift(scores, step(state, int(ids[0, -1])))

        return Keeping()

    return make


def write(buffer: Any, token: int) -> int:
    buffer[0] = (buffer[0] + token) % 100
    return int(buffer[0])


def write_value(number: Any, token: int) -> int:
    number.value = (number.value + token) % 100
    return int(number.value)


def rotate(queue: deque[int], token: int) -> int:
    queue.rotate(token)
    return queue[0]


def hash_on(digest: Any, token: int) -> int:
    digest.update(bytes([token]))
    return int(digest.digest()[0])


def append(file: Any, token: int) -> int:
    file.write(chr(token))
    return sum(map(ord, file.getvalue()))


def scan(scanner: Any, token: int) -> int:
    match = scanner.search()
    return match.start() if match else -1


def decode(stream: Any, token: int) -> int:
    return len(stream.step(TOKENIZER.backend_tokenizer, token) or "")


def generate_numbers() -> Iterator[int]:
    yield from range(10_000)


class Module(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(1))

    def forward(self, ids: Tensor, scores: Tensor) -> Tensor:
        self.total += ids[0, -1]
        return shift(scores, int(self.total))


RIGHT: dict[str, Callable[[], Processor]] = {
    "a cell": in_a_cell,
    "a list of a closure": in_a_list_of_a_closure,
    "a default": in_a_default,
    "an attribute of a function": in_an_attribute_of_a_function,
    "a partial": in_a_partial,
    "a global dict": in_a_global_dict,
    "a global number": in_a_global_number,
    "a class": in_a_class,
    "a module": Module,
    "bytes": keep(lambda: bytearray(1), write),
    "an array": keep(lambda: array.array("i", [0]), write),
    "a buffer of ctypes": keep(lambda: (ctypes.c_int * 1)(), write),
    "a number of ctypes": keep(ctypes.c_int, write_value),
    "a deque": keep(lambda: deque(range(30)), rotate),
    "a generator of random": keep(lambda: random.Random(1), lambda state, _: state.randrange(9)),
    "a generator of numpy": keep(lambda: np.random.default_rng(1), lambda state, _: int(state.integers(9))),
    "an old generator of numpy": keep(lambda: np.random.RandomState(1), lambda state, _: int(state.randint(9))),
}
REFUSED: dict[str, tuple[Callable[[], Processor], str]] = {
    "count": (keep(itertools.count, lambda state, _: next(state)), "keeps a count"),
    "cycle": (keep(lambda: itertools.cycle(range(5)), lambda state, _: next(state)), "keeps a cycle"),
    "a list's iterator": (keep(lambda: iter([*range(99)]), lambda state, _: next(state)), "keeps a list_iterator"),
    "a deque's iterator": (keep(lambda: iter(deque(range(99))), lambda state, _: next(state)), "deque_iterator"),
    "a generator": (keep(generate_numbers, lambda state, _: next(state)), "keeps a generator"),
    "a hash": (keep(hashlib.sha256, hash_on), r"keeps a _hashlib\.HASH, whose memory can't be read"),
    "a file in memory": (keep(io.StringIO, append), "keeps a StringIO, which can't be rewound"),
    "a scanner": (keep(lambda: re.compile("a").scanner("ba" * 99), scan), r"keeps a _?s?re\.SRE_Scanner"),  # type: ignore[attr-defined]
    "a stream of tokenizers": (keep(DecodeStream, decode), r"keeps a \S*DecodeStream, whose memory can't be read"),
}


@pytest.fixture(scope="module")
def llama() -> PreTrainedModel:
    return build_model("llama")


def replay(processor: Processor, out: Any) -> list[Tensor]:
    """The scores of a new processor that reads the kept text."""
    return [processor(out.sequences[:, : START + step], logits) for step, logits in enumerate(out.logits)]


@pytest.mark.parametrize("place", RIGHT)
def test_memory_that_is_found_is_rewound(llama: PreTrainedModel, place: str) -> None:
    """Drafts that are read ahead are forgotten, too."""
    make, rewinds = RIGHT[place], 0
    for seed in range(SEEDS):
        drafts = {"prompt_lookup_num_tokens": 3} if seed % 2 else {}
        settings: dict[str, Any] = {"output_scores": True, "output_logits": True, "top_k": 0, "max_new_tokens": 16}
        out = sample(llama, make(), seed=seed, bans=BANS, **settings, **drafts)
        rewinds += out.report.rewinds
        for scores, expected in zip(out.scores, replay(make(), out), strict=True):
            assert torch.allclose(scores, expected, atol=1e-4)
    assert rewinds


def try_to_write(llama: PreTrainedModel, make: Callable[[], Processor], *, rows: int, seed: int) -> tuple[str, int]:
    """The error, "" if there is none, and the rewinds of a text."""
    try:
        out = sample(llama, make(), rows=rows, seed=seed, bans=BANS)
    except ValueError as error:
        return str(error), 0
    return "", out.report.rewinds


def refuse(llama: PreTrainedModel, make: Callable[[], Processor], message: str, *, rows: int) -> None:
    """Each text that has a rewind is refused by name, and there is one."""
    refused = 0
    for seed in range(SEEDS + 2):
        error, rewinds = try_to_write(llama, make, rows=rows, seed=seed)
        assert error or not rewinds
        assert not error or re.search(message, error)
        refused += bool(error)
    assert refused


@pytest.mark.parametrize("place", [*RIGHT, *REFUSED])
def test_in_a_batch_it_is_refused_by_name(llama: PreTrainedModel, place: str) -> None:
    make = RIGHT[place] if place in RIGHT else REFUSED[place][0]
    refuse(llama, make, r"(test_hidden_memory|functools)\.\S+ (changes with|keeps a|returned other)", rows=3)


@pytest.mark.parametrize("place", REFUSED)
def test_memory_that_can_not_be_read_is_refused_by_name(llama: PreTrainedModel, place: str) -> None:
    make, message = REFUSED[place]
    refuse(llama, make, rf"test_hidden_memory\.Keeping .*{message}", rows=1)


@pytest.mark.parametrize("place", REFUSED)
def test_without_a_rewind_it_is_called_as_generate_calls_it(llama: PreTrainedModel, place: str) -> None:
    make, _ = REFUSED[place]
    assert torch.equal(sample(llama, make(), bans=["zz"]).sequences, sample(llama, make()).sequences)


def test_a_matcher_of_a_grammar_that_is_not_wrapped_is_refused(llama: PreTrainedModel) -> None:
    llguidance = pytest.importorskip("llguidance", reason="llguidance is not installed")
    hf = pytest.importorskip("llguidance.hf")
    grammar = llguidance.LLMatcher.grammar_from_regex("[a-z ]*")
    matcher = llguidance.LLMatcher(hf.from_tokenizer(TOKENIZER), grammar)
    make = keep(matcher.deep_copy, lambda state, token: state.try_consume_tokens([token]))
    refuse(llama, make, r"Keeping keeps a builtins\.LLMatcher, whose memory can't be read", rows=1)

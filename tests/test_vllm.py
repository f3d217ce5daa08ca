"""The logits processor for vLLM follows vLLM's batch. This needs no vLLM; `tests/engines` has the real one."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st

from antislop.errors import InputError
from antislop.vllm import FirstTokenBias

VOCABULARY, ROWS = 6, 4
CONFIG = SimpleNamespace(model_config=SimpleNamespace(get_vocab_size=lambda: VOCABULARY))


class Direction(Enum):
    """vLLM's `MoveDirectionality`."""

    UNIDIRECTIONAL = auto()
    SWAP = auto()


@dataclass
class BatchUpdate:
    """vLLM's class of this name: what changed since the last step, to be read in this order."""

    removed: list[int] = field(default_factory=list)
    added: list[tuple[int, Any, list[int] | None, list[int]]] = field(default_factory=list)
    moved: list[tuple[int, int, Direction]] = field(default_factory=list)
    batch_size: int = ROWS


@dataclass
class Entered:
    """A request in the naive batch, which is a list of them."""

    bias: dict[int, float]
    output: list[int]

    def expected(self) -> list[float]:
        return [0.0 if self.output else self.bias.get(token, 0.0) for token in range(VOCABULARY)]


def params(**extra_args: Any) -> SimpleNamespace:
    return SimpleNamespace(extra_args=extra_args or None)


biases = st.dictionaries(st.integers(0, VOCABULARY + 1), st.integers(-9, 9).map(float), max_size=3)
rows = st.integers(0, ROWS - 1)


@given(data=st.data())
def test_each_request_is_biased_until_it_has_output_wherever_vllm_moves_it(data: st.DataObject) -> None:
    processor = FirstTokenBias(CONFIG, torch.device("cpu"), False)
    batch: list[Entered | None] = [None] * ROWS
    for _ in range(data.draw(st.integers(1, 6), label="steps")):
        update = BatchUpdate(removed=data.draw(st.lists(rows, unique=True), label="removed"))
        for row in update.removed:
            batch[row] = None
        for row in data.draw(st.lists(rows, unique=True), label="added"):
            bias, preempted = data.draw(biases), data.draw(st.sampled_from([[], [], [3]]))
            batch[row] = entered = Entered(bias, list(preempted))
            arguments = {"first_ids": list(bias), "first_bias": list(bias.values())} if bias else {}
            update.added.append((row, params(**arguments), None, entered.output))
        for source, target in data.draw(st.lists(st.tuples(rows, rows).filter(lambda ab: ab[0] != ab[1]), max_size=3)):
            direction = data.draw(st.sampled_from(Direction))
            update.moved.append((source, target, direction))
            replaced, batch[target] = batch[target], batch[source]
            batch[source] = replaced if direction is Direction.SWAP else None
        is_unchanged = not (update.removed or update.added or update.moved)
        processor.update_state(None if is_unchanged else update)
        logits = processor.apply(torch.zeros(ROWS, VOCABULARY))
        assert logits.tolist() == [[0.0] * VOCABULARY if entered is None else entered.expected() for entered in batch]
        for entered in batch:
            if entered is not None and data.draw(st.booleans(), label="writes"):
                entered.output.append(0)


def test_a_bias_is_added_to_what_other_processors_left() -> None:
    processor = FirstTokenBias(CONFIG, torch.device("cpu"), False)
    processor.update_state(BatchUpdate(added=[(1, params(first_ids=[2, 99], first_bias=[-1000, 5]), None, [])]))
    logits = processor.apply(torch.ones(2, VOCABULARY))
    assert logits.tolist() == [[1.0] * VOCABULARY, [1.0, 1.0, -999.0, 1.0, 1.0, 1.0]]
    assert not processor.is_argmax_invariant()


@pytest.mark.parametrize(
    "extra_args",
    [None, {}, {"other": 1}, {"first_ids": [], "first_bias": []}, {"first_ids": [5], "first_bias": [-1]}],
    ids=str,
)
def test_requests_without_these_arguments_and_with_both_are_accepted(extra_args: Any) -> None:
    FirstTokenBias.validate_params(SimpleNamespace(extra_args=extra_args))


@pytest.mark.parametrize(
    ("ids", "bias", "sentence"),
    [
        ([1], None, "two lists of the same length"),
        (None, [1.0], "two lists of the same length"),
        ([1, 2], [1.0], "two lists of the same length"),
        (1, 1.0, "two lists of the same length"),
        ([-1], [1.0], "contains -1"),
        (["1"], [1.0], "contains '1'"),
        ([True], [1.0], "contains True"),
        ([1, 1], [1.0, 2.0], "a token twice"),
        ([1], [float("nan")], "contains nan"),
        ([1], [float("-inf")], "contains -inf"),
        ([1], [1e39], r"contains 1e\+39"),
        ([1], ["1"], "contains '1'"),
    ],
)
def test_arguments_that_cannot_be_used_are_refused_with_a_sentence(ids: Any, bias: Any, sentence: str) -> None:
    arguments = {name: value for name, value in (("first_ids", ids), ("first_bias", bias)) if value is not None}
    with pytest.raises(InputError, match=f"vllm_xargs: .*{sentence}"):
        FirstTokenBias.validate_params(params(**arguments))

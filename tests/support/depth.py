"""How much the tests try: ANTISLOP_TEST_DEPTH is 1 by default, 0.25 for quick tests in `make`, 10 in a thorough run."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from itertools import cycle, islice, product
from typing import Any, TypeVar
from zlib import crc32

import pytest

T = TypeVar("T")
U = TypeVar("U")

SHARE = float(os.environ.get("ANTISLOP_TEST_DEPTH", "1"))
DEPTH = max(1, int(SHARE))
"""Factor on numbers of cases, which only grow."""

TURN, TURNS = map(int, os.environ.get("ANTISLOP_TEST_TURN", "0/1").split("/"))
"""Of each slow test only one of so many cases runs, beginning with which."""


def sample_size(number: int) -> int:
    """Scale a number of samples by the depth; a quarter of them sees only deviations twice as large."""
    return max(1, round(number * SHARE))


def in_turn(cases: Iterable[T], options: Sequence[U], *, each: int = 1, depth: int = DEPTH) -> list[tuple[T, U]]:
    """Give each case one or more of the options, in turn; every case gets every option if depth is above 1."""
    if depth > 1:
        return list(product(cases, options))
    turns = cycle(options)
    return [(case, option) for case in cases for option in islice(turns, each)]


def is_in_turn(test: str, case: int, cases: int) -> bool:
    """Return whether a case of a slow test runs in this turn: at least one does, and each does in one of `TURNS`.

    The first case differs between tests, so that a family of models that one test leaves out is in another.
    """
    return case % TURNS == (TURN + crc32(test.encode())) % min(TURNS, cases)


def quick_if(is_quick: bool) -> tuple[pytest.MarkDecorator, ...]:
    """Return the marks of a case that is quick, or slow."""
    return () if is_quick else (pytest.mark.slow,)


def first_quick(cases: Iterable[Any], count: int = 1) -> list[Any]:
    """Return the cases of a test, of which the first ones are quick. Cases of several arguments are tuples."""
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=quick_if(number < count))
        for number, case in enumerate(cases)
    ]

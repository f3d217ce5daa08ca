"""Fewer cases by default, each option among them; every combination if ANTISLOP_TEST_DEPTH is above 1."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import cycle, islice, product
from typing import TypeVar

from tests.conftest import DEPTH

T = TypeVar("T")
U = TypeVar("U")


def in_turn(cases: Iterable[T], options: Sequence[U], *, each: int = 1, depth: int = DEPTH) -> list[tuple[T, U]]:
    """Give each case one or more of the options, in turn; every case gets every option if depth is above 1."""
    if depth > 1:
        return list(product(cases, options))
    turns = cycle(options)
    return [(case, option) for case in cases for option in islice(turns, each)]

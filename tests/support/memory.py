"""Objects that are alive."""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch


def find_tensors(size: int) -> list[torch.Tensor]:
    """Return the tensors that have a dimension of this size."""
    gc.collect()
    # By type: `isinstance` would ask deprecated objects of torch for their class, which warns.
    return [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor) and size in thing.shape]


def count_left(kind: type, work: Callable[[], object]) -> int:
    """Return how many more objects of a type there are after some work, if the collector of cycles does not run.

    The result of the work is alive meanwhile.
    """
    gc.collect()
    gc.disable()
    try:
        before = sum(type(thing) is kind for thing in gc.get_objects())
        result = work()
        after = sum(type(thing) is kind for thing in gc.get_objects())
        del result
    finally:
        gc.enable()
    return after - before

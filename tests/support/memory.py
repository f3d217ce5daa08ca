"""Tensors that are alive."""

from __future__ import annotations

import gc

import torch


def find_tensors(size: int) -> list[torch.Tensor]:
    """Return the tensors that have a dimension of this size."""
    gc.collect()
    # By type: `isinstance` would ask deprecated objects of torch for their class, which warns.
    return [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor) and size in thing.shape]

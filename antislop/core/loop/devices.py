"""Tensors on the way from the host to a device."""

from __future__ import annotations

import torch
from torch import Tensor


def send(numbers: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to a device, from the host without waiting for the work queued there."""
    is_pinned = numbers.device.type == "cpu" and device.type == "cuda"
    return numbers.pin_memory().to(device, non_blocking=True) if is_pinned else numbers.to(device)

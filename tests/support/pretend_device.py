"""A pretend accelerator, for what can be known without one: where tensors lie, and what the host waits for.

Its device is called "pretend". pretend_device.cpp, which this module compiles, says what it is. It says nothing of
times, nor of what runs on CUDA only: pinned memory, fused attention, graphs.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import torch
from torch import nn

from antislop.core.loop.protocols import send

DEVICE = "pretend"
SOURCE = Path(__file__).with_suffix(".cpp")
COMPILER = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
RunApart = Callable[..., Any]
"""Calls a function with arguments, in another process, and returns its result."""
_Listener = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p)


@cache
def load() -> ctypes.CDLL:
    """Add the device to torch, in this process for good."""
    torch.utils.rename_privateuse1_backend(DEVICE)
    library = ctypes.CDLL(str(build()))
    torch._register_device_module(
        DEVICE,
        SimpleNamespace(
            is_available=lambda: True,
            device_count=lambda: 2,
            current_device=lambda: 0,
            _is_in_bad_fork=lambda: False,
            manual_seed_all=lambda seed: [library.seed(index, ctypes.c_uint64(seed)) for index in range(2)],
            get_rng_state=lambda device: torch.ops.pretend.get_state(torch.device(DEVICE, device).index),
            set_rng_state=lambda state, device: torch.ops.pretend.set_state(torch.device(DEVICE, device).index, state),
        ),
    )
    library.register_hooks()
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    return library


def build() -> Path:
    """Compile the device, which takes 10 seconds unless it was done before, and return the library."""
    key = hashlib.sha256(SOURCE.read_bytes() + torch.__version__.encode()).hexdigest()[:16]
    library = Path(tempfile.gettempdir()) / f"antislop-pretend-device-{key}.so"
    if not library.exists():
        root = Path(torch.__file__).parent
        unfinished = library.with_suffix(f".{os.getpid()}")  # another process may build it, too
        headers = [f"-isystem{root / 'include'}", f"-isystem{root / 'include/torch/csrc/api/include'}"]
        links = [f"-L{root / 'lib'}", "-lc10", "-ltorch_cpu", "-ltorch"]
        options = ["-O1", "-w", "-shared", "-fPIC", "-std=c++20"]
        assert COMPILER is not None, "no compiler of C++ was found"
        subprocess.run([COMPILER, *options, *headers, str(SOURCE), "-o", str(unfinished), *links], check=True)
        unfinished.replace(library)
    return library


@contextmanager
def process() -> Iterator[RunApart]:
    """Start a process that has the device, and yield what runs a function of a module there."""
    build()  # here, so that an error is shown
    with ProcessPoolExecutor(1, get_context("spawn"), initializer=load) as executor:
        yield lambda function, *arguments: executor.submit(function, *arguments).result()


@contextmanager
def shared_numbers() -> Iterator[None]:
    """Have texts drawn as on the CPU, so that they can be compared.

    Otherwise the device has global random numbers of its own, as any accelerator has.
    """
    load().share_numbers(True)
    try:
        yield
    finally:
        load().share_numbers(False)


@dataclass
class Step:
    """What happened between the ends of two forward passes, each with its place in the code.

    waits: scalars, shapes and tensors that the host reads, and tensors that it writes other than by `send`.
    sent: tensors that `antislop.core.loop.protocols.send` writes, which on CUDA waits for nothing.
    kernels: those outside the model.
    """

    waits: list[str] = field(default_factory=list)
    sent: list[str] = field(default_factory=list)
    kernels: list[str] = field(default_factory=list)

    @property
    def counts(self) -> tuple[int, int, int]:
        return len(self.waits), len(self.sent), len(self.kernels)


@dataclass
class Count:
    """What happened on the device, by step: the first one ends with the first forward pass.

    prompts: as in `counted`.
    """

    prompts: int
    steps: list[Step] = field(default_factory=lambda: [Step()])

    @property
    def inner(self) -> list[Step]:
        """The steps between the second token's and the last two."""
        return self.steps[self.prompts + 1 : -2]

    @property
    def per_step(self) -> tuple[int, ...]:
        """The commonest number of waits, tensors sent and kernels of a step, each for itself."""
        counts = zip(*(step.counts for step in self.inner), strict=True)
        return tuple(Counter(numbers).most_common(1)[0][0] for numbers in counts)

    def per_rewind(self, rewinds: int, *, without: tuple[int, ...]) -> tuple[float, ...]:
        """The same for each rewind; `without` rewinds, each step has these numbers."""
        counts = zip(*(step.counts for step in self.inner), without, strict=True)
        return tuple((sum(numbers) - usual * len(numbers)) / rewinds for *numbers, usual in counts)

    def describe(self, kind: str = "waits", limit: int = 20) -> str:
        """Return how often each place occurs per step, the commonest first."""
        places = Counter(place for step in self.inner for place in getattr(step, kind))
        return "\n".join(f"{number / len(self.inner):8.2f}  {place}" for place, number in places.most_common(limit))


@contextmanager
def counted(model: nn.Module, *, prompts: int = 1, depth: int = 1) -> Iterator[Count]:
    """Count what the host waits for, and the kernels that it starts outside the model.

    prompts: forward passes that read prompts, after which the steps begin.
    depth: how many frames each place names, from the inside.
    """
    count, inside = Count(prompts), 0

    def note(kind: bytes, name: bytes) -> None:
        if inside and kind == b"kernel":
            return
        step, frame = count.steps[-1], sys._getframe(1)
        place = f"{_describe(frame, depth)}  {name.decode().removeprefix('aten::')}"
        if kind == b"kernel":
            step.kernels.append(place)
        else:
            (step.sent if kind == b"upload" and _is_sent(frame) else step.waits).append(place)

    def enter(*_: Any) -> None:
        nonlocal inside
        inside += 1

    def leave(*_: Any) -> None:
        nonlocal inside
        inside -= 1
        count.steps.append(Step())

    listener = _Listener(note)
    hooks = [model.register_forward_pre_hook(enter), model.register_forward_hook(leave, always_call=True)]
    load().listen(listener)
    try:
        yield count
    finally:
        load().listen(None)
        for hook in hooks:
            hook.remove()


def _describe(frame: FrameType | None, depth: int) -> str:
    places: list[str] = []
    while frame is not None and len(places) < depth:
        path = frame.f_code.co_filename
        if ("/torch/" not in path and "antislop" in path) or "/transformers/" in path:
            places.append(f"{'/'.join(Path(path).parts[-2:])}:{frame.f_lineno} {frame.f_code.co_name}")
        frame = frame.f_back
    return " < ".join(places)


def _is_sent(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_name != "send":
        frame = frame.f_back
    return frame is not None and frame.f_code is send.__code__

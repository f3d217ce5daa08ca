"""Detect the changes that a call makes to an object of the user's, and undo them.

A stopping criterion may keep a flag for each row, counters, or parts of the text, in attributes, lists and objects of
its own. Only the changes of the call itself are undone: a flag that another thread sets to cancel the run stays set.
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Iterator, Sequence, Sized
from enum import Enum
from functools import partial
from logging import Logger
from operator import is_
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

Result = TypeVar("Result")

LIMIT = 10_000
"""Objects that may be compared at each call."""

_ATOMS = (type(None), bool, int, float, complex, str, bytes)
# These don't remember the text, and some are large.
_CONSTANTS = (
    *(type, ModuleType, BuiltinFunctionType, Enum, Logger, io.IOBase),
    *(PreTrainedTokenizerBase, torch.nn.Module, torch.Generator, torch.dtype, torch.device),
)
_LIBRARIES = ("abc", "builtins", "collections", "functools", "numpy", "torch", "transformers", "types")
_ABSENT = object()


def is_of_transformers(processor: Callable[..., Any]) -> bool:
    """Return whether a processor is one of transformers' own, which depend on ids and scores alone."""
    return type(processor).__module__.startswith("transformers.")


def memory_of(processor: Callable[..., Any]) -> dict[str, tuple[int, int]]:
    """Return the identity and size of each attribute of a processor, which change if it is bound anew or grows."""
    attributes: dict[str, Any] = getattr(processor, "__dict__", {})
    return {name: (id(value), len(value) if isinstance(value, Sized) else 0) for name, value in attributes.items()}


def refuse_memory(processor: Callable[..., Any], *, before: dict[str, tuple[int, int]]) -> None:
    """Raise `ValueError` for a processor whose attributes change from call to call; a first call may set some up."""
    if memory_of(processor) != before:
        raise ValueError(
            f"{type(processor).__name__} changes with every call, and a rewind would not change it back: "
            "make its scores depend on the ids and scores alone"
        )


class MemoryChange(NamedTuple):
    """The contents of an object before a call: all of them, or only the attributes that the call changed."""

    where: Any
    before: Any


class Memory:
    """Everything mutable that can be reached from an object: attributes, containers, tensors, closures.

    Raises `ValueError` for an iterator, which can't be rewound, and for more than 10,000 objects.
    """

    def __init__(self, owner: Callable[..., Any]) -> None:
        self._owner = owner
        self._shared = _class_containers(type(owner))
        self._contents: dict[int, tuple[Any, Any]] = {}
        self._look()

    def watch(self, call: Callable[[], Result]) -> tuple[Result, list[MemoryChange]]:
        """Return the result of a call, and the changes that it made."""
        self._look()  # changes by others in the meantime are not the call's
        result = call()
        return result, self._look()

    def has_rewritten(self, changes: Sequence[MemoryChange]) -> bool:
        """Return whether the changes are to anything but new attributes, which a first call may set up."""
        return any(
            not isinstance(c.before, dict) or any(value is not _ABSENT for value in c.before.values()) for c in changes
        )

    def undo(self, changes: Sequence[MemoryChange]) -> None:
        """Undo the changes of a call."""
        for where, before in reversed(changes):
            _restore(where, before)

    def _look(self) -> list[MemoryChange]:
        """Return the changes since the last look, and remember the present contents."""
        changes = [
            MemoryChange(where, difference)
            for where, before in self._contents.values()
            if (difference := _compare(where, before)) is not None
        ]
        if changes or not self._contents:  # else the same objects can be reached as before
            self._contents = self._find()
        return changes

    def _find(self) -> dict[int, tuple[Any, Any]]:
        """Return all objects that can be reached and be changed, by identity, with their contents."""
        reached: dict[int, tuple[Any, Any]] = {}
        pending: list[Any] = [self._owner, *self._shared]
        while pending:
            value = pending.pop()
            if type(value) in _ATOMS or id(value) in reached or isinstance(value, _CONSTANTS):
                continue
            if isinstance(value, Iterator):
                raise ValueError(
                    f"{name_of(self._owner)} keeps a {type(value).__name__}, which can't be rewound: keep a list and "
                    "an index, or give it a method rewind(row, length)"
                )
            reached[id(value)] = value, _copy(value)
            pending.extend(_children(value))
            if len(reached) > LIMIT:
                raise ValueError(
                    f"{name_of(self._owner)} holds more than {LIMIT} objects, too many to find the changes that a "
                    "rewind must undo: keep fewer in it, or give it a method rewind(row, length)"
                )
        return reached


def name_of(function: object) -> str:
    """Return the name of a criterion or processor of the user's for a message."""
    named = function if hasattr(function, "__name__") else type(function)
    return f"{named.__module__}.{named.__name__}"


def _copy(value: Any) -> Any:
    """Return the contents of an object, one level deep; slots and cells as dicts."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, (list, deque)):
        return list(value)
    if isinstance(value, dict):
        return dict(value)
    if isinstance(value, (set, bytearray, np.ndarray)):
        return value.copy()
    return {name: _read(value, name) for name in _slots(type(value))}


def _children(value: Any) -> Iterator[Any]:
    """Yield the objects that an object refers to, its attributes as the dict that holds them."""
    if isinstance(value, (list, deque, tuple, set, frozenset)):
        yield from value
    elif isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, FunctionType):
        yield from (*(value.__closure__ or ()), *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
    elif isinstance(value, MethodType):
        yield value.__self__
    elif isinstance(value, partial):
        yield from (value.func, value.args, value.keywords)
    if isinstance(attributes := getattr(value, "__dict__", None), dict) and not isinstance(value, Tensor):
        yield attributes
    yield from (_read(value, name) for name in _slots(type(value)))


def _read(value: Any, name: str) -> Any:
    try:
        return getattr(value, name)
    except (AttributeError, ValueError):  # an empty slot, an empty cell
        return _ABSENT


def _slots(kind: type) -> tuple[str, ...]:
    """Return the names of attributes that lie in slots, or in a closure's cell."""
    if kind is CellType:
        return ("cell_contents",)
    if kind.__module__.partition(".")[0] in _LIBRARIES:
        return ()
    slots = (vars(base).get("__slots__", ()) for base in kind.__mro__)
    names = (name for declared in slots for name in ((declared,) if isinstance(declared, str) else declared))
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


def _class_containers(kind: type) -> list[Any]:
    """Return the containers that all instances share."""
    bases = (base for base in kind.__mro__ if base.__module__.partition(".")[0] not in _LIBRARIES)
    return [value for base in bases for value in vars(base).values() if isinstance(value, (list, dict, set, deque))]


def _compare(where: Any, before: Any) -> Any:
    """Return the contents to restore, of dicts and attributes those that differ; None if nothing has changed."""
    if isinstance(where, (list, deque, dict)) and _holds(where, before):
        return None
    after = _copy(where)
    if isinstance(where, Tensor):
        return None if torch.equal(after, before) else before
    if isinstance(where, np.ndarray):
        return None if np.array_equal(after, before) else before
    if isinstance(where, (set, bytearray)):
        return None if after == before else before
    if isinstance(after, list):
        return None if _are_same(after, before) else before
    earlier = ((name, before.get(name, _ABSENT)) for name in {**before, **after})
    return {name: value for name, value in earlier if not _are_same([value], [after.get(name, _ABSENT)])} or None


def _holds(where: Any, before: Any) -> bool:
    """Return whether a container holds the same objects as before."""
    if len(where) != len(before):
        return False
    if isinstance(where, dict):
        return all(map(is_, where, before)) and all(map(is_, where.values(), before.values()))
    return all(map(is_, where, before))


def _are_same(after: Sequence[Any], before: Sequence[Any]) -> bool:
    """Return whether two sequences hold the same objects, or equal numbers and texts."""
    if len(after) != len(before):
        return False
    if all(map(is_, after, before)):
        return True
    pairs = zip(after, before, strict=True)
    return all(a is b or (type(a) is type(b) and type(a) in _ATOMS and a == b) for a, b in pairs)


@torch.no_grad()
def _restore(where: Any, before: Any) -> None:
    if isinstance(where, Tensor):
        where.copy_(before)
    elif isinstance(where, (list, bytearray)):
        where[:] = before
    elif isinstance(where, np.ndarray):
        where[...] = before
    elif isinstance(where, set):
        where.clear()
        where.update(before)
    elif isinstance(where, deque):
        where.clear()
        where.extend(before)
    elif isinstance(where, dict):
        for name, value in before.items():
            if value is _ABSENT:
                dict.pop(where, name, None)
            else:
                dict.__setitem__(where, name, value)
    else:
        for name, value in before.items():
            if value is _ABSENT:
                object.__delattr__(where, name)
            else:
                object.__setattr__(where, name, value)

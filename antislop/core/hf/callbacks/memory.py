"""What a processor or criterion of the caller's remembers: copied before a call, put back when the text rewinds.

Its attributes are copied, and a function's closure. What it keeps in globals or classes is not found here: at the first
rewinds it is called a second time, and refused if the answer differs.
"""

from __future__ import annotations

import io
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from functools import partial
from operator import is_
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from antislop.errors import InputError, first_line

Result = TypeVar("Result")

LIMIT = 10_000
"""Objects in a memory; to compare more at each call would take too long."""

_ABSENT = object()  # the value of an attribute that does not exist
_ATOMS = (type(None), bool, int, float, complex, str, bytes)
_SHARED = (
    *(PreTrainedTokenizerBase, Tokenizer, PreTrainedModel, torch.nn.Parameter, torch.Generator, ModuleType),
    *(type(threading.Lock()), type(threading.RLock()), threading.Condition, threading.Event, queue.Queue, io.IOBase),
)
"""Types of objects that are not copied: they are large and constant, or shared with other code, as locks are."""


class TooLarge(InputError):
    """Raised for an object that holds too many others to compare them at each call."""


class MemoryChange(NamedTuple):
    """What a call changed.

    before: copies of all attributes before the call.
    names: the attributes that the call changed.
    has_rewritten: whether it changed more than it added, in attributes or dicts, as a first call may do.
    """

    before: dict[str | int, Any]
    names: set[str | int]
    has_rewritten: bool


class ObjectMemory:
    """The attributes of an object, or of the object that a method belongs to; of a function, its closure too.

    Raises `InputError` for what can't be copied, and `TooLarge` for more than 10,000 objects.
    """

    def __init__(self, owner: Callable[..., Any]) -> None:
        self._name = name_of(owner)
        self._owner: Any = owner
        while isinstance(self._owner, (MethodType, partial)):
            self._owner = self._owner.__self__ if isinstance(self._owner, MethodType) else self._owner.func
        self._latest = self._copy(_read(self._owner))

    def watch(self, call: Callable[[], Result]) -> tuple[Result, MemoryChange]:
        # Others may change the object between two calls, by a flag that cancels the run for instance: a call is not
        # blamed for these changes.
        state = _read(self._owner)
        if not is_same(state, self._latest):
            self._latest = self._copy(state)
        before = self._latest
        result = call()
        now = _read(self._owner)
        names = {name for name in {**before, **now} if not is_same(now.get(name, _ABSENT), before.get(name, _ABSENT))}
        has_rewritten = any(name in before and not _is_extended(now.get(name), before[name]) for name in names)
        return result, MemoryChange(before, names, has_rewritten)

    def undo(self, changes: Sequence[MemoryChange]) -> None:
        """Undo the changes of the latest calls, the earliest first."""
        if not (changed := {name for change in changes for name in change.names}):
            return
        now, before = _read(self._owner), changes[0].before
        # What no call has changed stays, also where something that one has changed refers to it.
        kept = [
            pair for name in before.keys() & now.keys() - changed for pair in match_copy(now[name], before[name]) or ()
        ]
        restored = self._copy(before, kept)
        for name in changed:
            _write(self._owner, name, restored.get(name, _ABSENT))

    def _copy(self, state: dict[str | int, Any], kept: Sequence[tuple[Any, Any]] = ()) -> dict[str | int, Any]:
        """Copy a state; instead of the second object of each pair in `kept`, the copy contains the first one."""
        memo = {id(copy): value for value, copy in kept}
        try:
            return deepcopy(state, {**memo, **_make_memo(state, self._name), id(self._owner): self._owner})
        except TooLarge:
            raise
        except Exception as error:
            raise InputError(
                f"{self._name} can't be copied ({first_line(error)}), so a rewind can't undo what it changes in "
                "itself: give it a method rewind(row, length), see antislop.Rewindable"
            ) from error


class WatchedProcessor:
    """Calls a processor that is not `Rewindable`, and keeps what each call changed in it.

    memory: of the processor; None if it holds more than 10,000 objects: their changes are not found.
    has_changed: whether the first call rewrote what was there, or a later call changed anything.
    """

    def __init__(self, processor: Callable[..., Any]) -> None:
        self.processor = processor
        self.__name__ = getattr(processor, "__name__", type(processor).__name__)
        self.__module__ = getattr(processor, "__module__", type(processor).__module__)
        self.has_changed = False
        self.memory: ObjectMemory | None = None
        with suppress(TooLarge):
            self.memory = ObjectMemory(processor)
        self._forgotten = 0  # calls whose changes were dropped
        self._changes: list[MemoryChange] = []  # of the calls after them

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if self.memory is None:
            return self.processor(input_ids, scores)  # type: ignore[no-any-return]
        result, change = self.memory.watch(lambda: self.processor(input_ids, scores))
        is_first = not (self._forgotten or self._changes)
        self.has_changed |= change.has_rewritten if is_first else bool(change.names)
        self._changes.append(change)
        return result  # type: ignore[no-any-return]

    def undo(self, calls: int) -> None:
        """Undo the changes of all but the first `calls` calls."""
        if self.memory is not None:
            kept = max(calls - self._forgotten, 0)
            self.memory.undo(self._changes[kept:])
            del self._changes[kept:]

    def settle(self, calls: int) -> None:
        """Drop the changes of the first `calls` calls, which are never undone."""
        count = max(min(calls - self._forgotten, len(self._changes)), 0)
        self._forgotten += count
        del self._changes[:count]


def match_copy(value: Any, copy: Any) -> list[tuple[Any, Any]] | None:
    """Return the parts of a value with the parts of its copy; None if the two differ, or can't be compared."""
    pending, pairs = [(value, copy)], dict[tuple[int, int], tuple[Any, Any]]()
    while pending:
        now, before = pending.pop()
        if now is before or (id(now), id(before)) in pairs:
            continue
        pairs[id(now), id(before)] = now, before  # kept, so that their ids stay theirs
        if type(now) is not type(before):
            return None
        if isinstance(now, (*_ATOMS, set, frozenset)):
            is_equal = now == before
        elif isinstance(now, Tensor):
            is_equal = (now.device, now.dtype) == (before.device, before.dtype) and torch.equal(now, before)
        elif isinstance(now, np.ndarray):
            is_equal = np.array_equal(now, before)
        else:
            parts, copied = _list_parts(now), _list_parts(before)
            if parts is None or copied is None or len(parts) != len(copied):
                return None
            if not all(map(is_, parts, copied)):  # mostly they are: deepcopy leaves numbers and texts as they are
                pending.extend(zip(parts, copied, strict=True))
            continue
        if not is_equal:
            return None
    return list(pairs.values())


def is_same(value: Any, copy: Any) -> bool:
    return match_copy(value, copy) is not None


def _is_extended(value: Any, copy: Any) -> bool:
    are_dicts = isinstance(value, dict) and isinstance(copy, dict)
    return are_dicts and all(key in value and is_same(value[key], item) for key, item in copy.items())


def is_stateless(processor: Callable[..., Any]) -> bool:
    """Return whether a processor depends on ids and scores alone, as transformers' own and this package's do."""
    is_known = type(processor).__module__.startswith(("transformers.", "antislop.core.hf.callbacks.samplers"))
    return is_known and all(map(is_stateless, getattr(processor, "after", ())))


def name_of(function: object) -> str:
    named = function if hasattr(function, "__name__") else type(function)
    return f"{named.__module__}.{named.__name__}"


def _read(owner: Any) -> dict[str | int, Any]:
    """Return attributes by name, and the variables of a function's closure by index."""
    state: dict[str | int, Any] = dict(getattr(owner, "__dict__", {}))
    for kind in type(owner).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(owner, name):
                state[name] = getattr(owner, name)
    if isinstance(owner, FunctionType):
        for index, cell in enumerate(owner.__closure__ or ()):
            try:
                state[index] = cell.cell_contents
            except ValueError:  # not assigned yet
                continue
    return state


def _write(owner: Any, name: str | int, value: Any) -> None:
    if isinstance(name, int):
        cell = owner.__closure__[name]
        if value is _ABSENT:
            del cell.cell_contents
        else:
            cell.cell_contents = value
    elif value is _ABSENT:
        object.__delattr__(owner, name)
    else:
        object.__setattr__(owner, name, value)


def _make_memo(state: dict[str | int, Any], owner: str) -> dict[int, Any]:
    """Return by id what `deepcopy` takes as it is: shared objects, and copies of tensors that it would refuse."""
    memo, seen, pending = dict[int, Any](), dict[int, Any](), list[Any]([state])
    while pending:
        value = pending.pop()
        if isinstance(value, (*_ATOMS, np.ndarray, type, FunctionType)) or id(value) in seen:
            continue
        seen[id(value)] = value
        if len(seen) > LIMIT:
            raise TooLarge(
                f"{owner} holds more than {LIMIT} objects, too many to find the changes that a rewind must undo: keep "
                "fewer in it, or give it a method rewind(row, length)"
            )
        if isinstance(value, _SHARED) and not isinstance(value, (io.StringIO, io.BytesIO)):
            memo[id(value)] = value
        elif isinstance(value, Tensor):
            if not value.is_leaf:  # deepcopy refuses those with a history of gradients
                memo[id(value)] = value.detach().clone()
        else:
            pending.extend(_list_parts(value) or ())
    return memo


def _list_parts(value: Any) -> Sequence[Any] | None:
    """Return the parts of a value that `deepcopy` would copy; None if it copies nothing of it, or can't."""
    if type(value) in (list, tuple):
        return value  # type: ignore[no-any-return]
    if type(value) is dict:
        return [*value, *value.values()]
    if isinstance(value, (type, FunctionType)):
        return None
    try:
        reduced = value.__reduce_ex__(4)
    except Exception:  # noqa: BLE001  (classes of the caller's may raise anything)
        return None
    if isinstance(reduced, str):
        return (reduced,)
    return [list(part) if isinstance(part, Iterator) else part for part in reduced]

"""Processors and criteria that remember the text, with a method `rewind` or without.

A callback without `rewind` is handled by `Replayed`. It copies the callback's attributes, or the variables of its
closure, before the text begins and then every few calls. At a rewind, it puts a copy back and repeats the calls after
that copy, up to the end of the kept text. State in globals, classes or libraries is not copied: a callback that answers
a repeated call differently is refused.
"""

from __future__ import annotations

import io
import pickle
import queue
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache, partial
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from antislop.core.hf.refusals import refusal
from antislop.core.loop.forced import LookAhead
from antislop.errors import SharingError, first_line

STRETCH = 16
"""Calls between two copies of a callback's state; a rewind repeats at most so many calls."""
STRETCH_BYTES = 2**20
"""Bytes of recorded calls after which the next copy is made; if a copy is larger, its size is the limit instead."""
_SHARED = (
    *(PreTrainedTokenizerBase, Tokenizer, PreTrainedModel, torch.nn.Parameter, torch.Generator, io.IOBase),
    *(ModuleType, type, FunctionType, type(cache(len)), weakref.ref),
    *(type(threading.Lock()), type(threading.RLock()), threading.Condition, threading.Event, queue.Queue),
)
"""Types of objects that are never copied: they are large and constant, or, like locks, shared with other code."""


@runtime_checkable
class Rewindable(Protocol):
    """A logits processor or stopping criterion that remembers the text, such as one with a grammar's matcher.

    As in `generate`, it is called once per position, in order, with all rows of its batch. After `rewind(row, length)`
    the next call shows the row with `length + 1` generated tokens. A finished row is filled with the pad token, and not
    rewound below its end. A row that was rewound further than another is also shown with pad tokens for a while.
    """

    def rewind(self, row: int, length: int) -> None:
        """Forget all but the first `length` generated tokens of row `row` of the batch."""


@runtime_checkable
class Recognizer(Rewindable, Protocol):
    """A `Rewindable` processor, such as a grammar, that allows only certain whole texts; bans then force no text."""

    def accepts(self, tokens: Sequence[int]) -> bool:
        """Return whether these generated tokens are one of the allowed whole texts."""

    def look_ahead(self, row: int, tokens: Sequence[int]) -> LookAhead | None:
        """Return the state of the grammar after these tokens, which reads on by characters; None if it can't."""


@runtime_checkable
class Followable(Rewindable, Protocol):
    """A `Rewindable` processor that several calls or texts may share: each gets its own processor from `follow`."""

    def follow(self) -> Rewindable:
        """Return a new processor for one call of `generate`, or for one text of `generate_many`."""


class _Copy(NamedTuple):
    calls: int  # number of calls before the copy
    pickled: bytes
    parts: list[Any]  # beside the bytes: shared objects, and copies of tensors


class Replayed:
    """A processor or criterion of the caller, wrapped so that it can be made to forget its latest calls.

    is_alone: whether all calls are about one text, or one batch in step. If not, no call is forgotten; calls are only
        checked. Raises `InputError` if the state of the callback can't be copied.
    """

    def __init__(self, callback: Callable[..., Any], *, is_alone: bool) -> None:
        self.callback: Any = callback
        self._owner: Any = callback
        self.__name__ = getattr(callback, "__name__", type(callback).__name__)
        self.__module__ = getattr(callback, "__module__", type(callback).__module__)
        while isinstance(self._owner, MethodType | partial):
            self._owner = self._owner.__self__ if isinstance(self._owner, MethodType) else self._owner.func
        self._is_alone = is_alone
        self._calls: list[tuple[tuple[Any, ...], Any]] = []  # arguments and answers since the first copy
        self._copies = [self._copy(0)]

    def __call__(self, *arguments: Any) -> Any:
        given = tuple(map(_clone, arguments))  # copies, since some callbacks write into their arguments
        answer = self.callback(*arguments)
        call = given, _clone(answer)
        if not self._is_alone:
            if not self._calls:  # the state after the first call counts, which may store what later calls need
                self._copies = [self._copy(0)]
            self._calls[1:] = [call]
            return answer
        self._calls.append(call)
        calls, latest = self._copies[0].calls + len(self._calls), self._copies[-1]
        stretch = self._calls[latest.calls - calls :]
        kept = sum(_size([*arguments, answer]) for arguments, answer in stretch)
        if len(stretch) >= STRETCH or kept >= max(STRETCH_BYTES, len(latest.pickled) + _size(latest.parts)):
            self._copies.append(self._copy(calls))
        return answer

    @property
    def has_changed(self) -> bool:
        """Whether the state of the callback differs from the latest copy of it."""
        before, now = self._copies[-1], self._copy(0)
        return before.pickled != now.pickled or not all(map(_is_same, before.parts, now.parts))

    def keep(self, calls: int) -> None:
        """Forget all but the first `calls` calls. Raises `InputError` if repeating one of these fails or differs."""
        first = self._copies[0].calls
        if self._is_alone:
            del self._calls[max(calls - first, 0) :]
            while len(self._copies) > 1 and self._copies[-1].calls >= calls:
                self._copies.pop()
            state = _Unpickler(self._copies[-1]).load()
            for name in {**_read(self._owner), **state}:
                is_cell = isinstance(name, int)
                place, own_name = (self._owner.__closure__[name], "cell_contents") if is_cell else (self._owner, name)
                if name in state:  # `object`, since a module or a frozen dataclass has a setter of its own
                    object.__setattr__(place, own_name, state[name])
                else:
                    object.__delattr__(place, own_name)
        for arguments, answer in self._calls[self._copies[-1].calls - first :]:
            try:
                repeated = self.callback(*map(_clone, arguments))
            except Exception as error:
                raise refusal("withheld memory", name=name_of(self), fault=f"raised {type(error).__name__}") from error
            one, two = (torch.as_tensor(each).float() for each in (repeated, answer))
            if one.shape != two.shape or not torch.allclose(one, two, rtol=1e-3, atol=1e-4, equal_nan=True):
                raise refusal("withheld memory", error=SharingError, name=name_of(self), fault="gave another answer")

    def settle(self, calls: int) -> None:
        """Drop copies and recorded calls that are needed only to forget one of the first `calls` calls."""
        while len(self._copies) > 1 and self._copies[1].calls <= calls:
            del self._calls[: self._copies[1].calls - self._copies[0].calls]
            del self._copies[0]

    def _copy(self, calls: int) -> _Copy:
        pickler = _Pickler(self._owner)
        try:
            pickler.dump(_read(self._owner))
        except Exception as error:
            raise refusal("memory without a copy", name=name_of(self), reason=first_line(error)) from error
        return _Copy(calls, pickler.file.getvalue(), [part for _, _, part in pickler.parts.values()])


class _Pickler(pickle.Pickler):
    """Pickle an object without its tensors and shared objects; `deepcopy` would need to know those beforehand."""

    def __init__(self, owner: Any) -> None:
        self.file = io.BytesIO()
        super().__init__(self.file)
        self.parts: dict[int, tuple[int, Any, Any]] = {}  # by id: number, object (so that its id stays its own), clone
        self._owner = owner

    def persistent_id(self, value: Any) -> int | None:
        is_left_out = value is self._owner or isinstance(value, (Tensor, *_SHARED))
        if not is_left_out or isinstance(value, io.StringIO | io.BytesIO):
            return None
        return self.parts.setdefault(id(value), (len(self.parts), value, _clone(value)))[0]


class _Unpickler(pickle.Unpickler):
    def __init__(self, copy: _Copy) -> None:
        super().__init__(io.BytesIO(copy.pickled))
        self._parts = list(map(_clone, copy.parts))  # clones, since the same copy may be put back several times

    def persistent_load(self, number: int) -> Any:
        return self._parts[number]


def _clone(value: Any) -> Any:
    is_tensor = isinstance(value, Tensor) and not isinstance(value, _SHARED)
    return value.detach().clone() if is_tensor else value


def _size(values: Iterable[Any]) -> int:
    return sum(value.nbytes for value in values if isinstance(value, Tensor))


def _is_same(one: Any, two: Any) -> bool:
    are_tensors = isinstance(one, Tensor) and isinstance(two, Tensor)
    return one is two or (are_tensors and one.dtype == two.dtype and torch.equal(one, two))


def _read(owner: Any) -> dict[str | int, Any]:
    """Return the attributes of an object by name, and the variables of a function's closure by index."""
    slots = [vars(kind).get("__slots__", ()) for kind in type(owner).__mro__]
    names = [name for each in slots for name in ([each] if isinstance(each, str) else each)]
    state: dict[str | int, Any] = {n: getattr(owner, n) for n in names if n[:2] != "__" and hasattr(owner, n)}
    state |= getattr(owner, "__dict__", {})
    for index, cell in enumerate(getattr(owner, "__closure__", None) or ()):
        with suppress(ValueError):  # a variable that is not assigned yet
            state[index] = cell.cell_contents
    return state


def name_of(function: object) -> str:
    named = function if hasattr(function, "__name__") else type(function)
    return f"{named.__module__}.{named.__name__}"

"""Processors and criteria that remember the text: those that can be rewound, and those that can't.

Those without a method `rewind` are called again for the kept text after a rewind. What one of them remembers in
attributes, or in its closure, is copied before its text begins and once per stretch of calls. At a rewind, a copy is
put back, and the calls after the copy are made again, up to the end of the kept text. What it keeps in globals, classes
or libraries is not copied: a processor is refused if it answers one of these calls in another way than before.
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

from antislop.core.loop.forced import LookAhead
from antislop.errors import InputError, SharingError, first_line

STRETCH = 16
"""Calls between two copies: at most so many are made again at a rewind."""
STRETCH_BYTES = 2**20
"""Bytes of kept calls after which a copy is made; a copy that is larger than this raises the limit to its size."""
_SHARED = (
    *(PreTrainedTokenizerBase, Tokenizer, PreTrainedModel, torch.nn.Parameter, torch.Generator, io.IOBase),
    *(ModuleType, type, FunctionType, type(cache(len)), weakref.ref),
    *(type(threading.Lock()), type(threading.RLock()), threading.Condition, threading.Event, queue.Queue),
)
"""Types of objects that are not copied: they are large and constant, or shared with other code, as locks are."""


@runtime_checkable
class Rewindable(Protocol):
    """A logits processor or stopping criterion that remembers the text, such as one with a grammar's matcher.

    It is called once per position, in order, with all rows of its batch, as by `generate`. After `rewind(row, length)`
    the next call shows the row with `length + 1` generated tokens. Finished rows are filled with the pad token, and not
    rewound below their end; so is a row that was rewound by more tokens than another, until it is rewound again.
    """

    def rewind(self, row: int, length: int) -> None:
        """Forget all but the first `length` generated tokens of a row of the batch."""


@runtime_checkable
class Recognizer(Rewindable, Protocol):
    """A `Rewindable` processor that allows certain whole texts only, as a grammar does: nothing is forced beside it."""

    def accepts(self, tokens: Sequence[int]) -> bool:
        """Return whether generated tokens are such a text."""

    def look_ahead(self, row: int, tokens: Sequence[int]) -> LookAhead | None:
        """Return what reads characters after the first tokens of a row; None if nothing does."""


@runtime_checkable
class Followable(Rewindable, Protocol):
    """A `Rewindable` processor that any number of texts may share."""

    def follow(self) -> Rewindable:
        """Return the processor that follows one call, or one text of `generate_many`."""


class _Copy(NamedTuple):
    calls: int  # that were made before
    pickled: bytes
    parts: list[Any]  # beside the bytes: shared objects, and copies of tensors


class Replayed:
    """A callback of the caller's that can forget its latest calls.

    is_alone: whether all calls are about one text, or one batch in step. If not, none is forgotten.

    Raises `InputError` if what it remembers can't be copied.
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
        given = tuple(map(_clone, arguments))  # since some write into their arguments
        answer = self.callback(*arguments)
        call = given, _clone(answer)
        if not self._is_alone:
            if not self._calls:  # the first call may store what the others need
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
        """Whether anything that is copied differs from the latest copy."""
        before, now = self._copies[-1], self._copy(0)
        return before.pickled != now.pickled or not all(map(_is_same, before.parts, now.parts))

    def keep(self, calls: int) -> None:
        """Forget all but the first `calls` calls. Raises `InputError` if a call fails or differs now."""
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
                raise InputError(describe(self, f"raised {type(error).__name__}")) from error
            one, two = (torch.as_tensor(each).float() for each in (repeated, answer))
            if one.shape != two.shape or not torch.allclose(one, two, rtol=1e-3, atol=1e-4, equal_nan=True):
                raise SharingError(describe(self, "gave another answer"))

    def settle(self, calls: int) -> None:
        """Drop what would be needed to forget one of the first `calls` calls."""
        while len(self._copies) > 1 and self._copies[1].calls <= calls:
            del self._calls[: self._copies[1].calls - self._copies[0].calls]
            del self._copies[0]

    def _copy(self, calls: int) -> _Copy:
        pickler = _Pickler(self._owner)
        try:
            pickler.dump(_read(self._owner))
        except Exception as error:
            raise InputError(
                f"{name_of(self)} can't be copied ({first_line(error)}), so a rewind can't undo what it changes in "
                "itself: give it a method rewind(row, length), see antislop.Rewindable"
            ) from error
        return _Copy(calls, pickler.file.getvalue(), [part for _, _, part in pickler.parts.values()])


class _Pickler(pickle.Pickler):
    """Sets shared objects and tensors apart. A `deepcopy` would have to be told what is shared before it begins."""

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
        self._parts = list(map(_clone, copy.parts))  # the copy may be put back again

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
    """Return attributes by name, and the variables of a function's closure by index."""
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


def describe(callback: object, fault: str) -> str:
    return (
        f"{name_of(callback)} {fault} when it was called again for a text that it had seen: it remembers what it does "
        "not show, and tokens are withdrawn here. Keep that in its own attributes, or give it a method "
        "rewind(row, length), see antislop.Rewindable, or make it depend on its arguments alone"
    )

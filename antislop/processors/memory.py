"""Detect the changes that a call makes to an object of the user's, and undo them.

A stopping criterion may keep a flag for each row, counters, or parts of the text, in attributes, lists and objects of
its own. Only the changes of the call itself are undone: a flag that another thread sets to cancel the run stays set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import Any, NamedTuple, TypeVar

from antislop.processors.contents import (
    ABSENT,
    ATOMS,
    compare,
    copy_contents,
    is_constant,
    is_readable,
    list_children,
    package_of,
    restore,
)

Result = TypeVar("Result")

LIMIT = 10_000
"""Objects that may be compared at each call."""


def is_of_transformers(processor: Callable[..., Any]) -> bool:
    """Return whether a processor is one of transformers' own, which depend on ids and scores alone."""
    return type(processor).__module__.startswith("transformers.")


class TooLarge(ValueError):
    """Raised for an object that refers to too many others to look at all of them after each call."""


class MemoryChange(NamedTuple):
    """The contents of an object before a call: all of them, or only the attributes that the call changed."""

    where: Any
    before: Any


class Memory:
    """Everything mutable that can be reached from an object: attributes, containers, tensors, closures, globals.

    hidden: the type of an object that can be reached and whose memory can't be read, if there is one.

    Raises `ValueError` for an iterator, which can't be rewound, and `TooLarge` for more than 10,000 objects.
    """

    def __init__(self, owner: Callable[..., Any]) -> None:
        self._owner = owner
        self._package = package_of(owner if isinstance(owner, FunctionType) else type(owner))
        self.hidden: type | None = None
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
            not isinstance(c.before, dict) or any(value is not ABSENT for value in c.before.values()) for c in changes
        )

    def undo(self, changes: Sequence[MemoryChange]) -> None:
        """Undo the changes of a call."""
        for where, before in reversed(changes):
            restore(where, before)

    def _look(self) -> list[MemoryChange]:
        """Return the changes since the last look, and remember the present contents."""
        changes = [
            MemoryChange(where, difference)
            for where, before in self._contents.values()
            if (difference := compare(where, before)) is not None
        ]
        if changes or not self._contents:  # else the same objects can be reached as before
            self._contents = self._find()
        return changes

    def _find(self) -> dict[int, tuple[Any, Any]]:
        """Return all objects that can be reached and be changed, by identity, with their contents."""
        reached: dict[int, tuple[Any, Any]] = {}
        pending: list[Any] = [self._owner]
        while pending:
            value = pending.pop()
            if type(value) in ATOMS or id(value) in reached or is_constant(value, package=self._package):
                continue
            if not isinstance(value, type) and not is_readable(type(value)):
                self.hidden = type(value)
            if isinstance(value, Iterator):
                raise ValueError(
                    f"{name_of(self._owner)} keeps a {type(value).__name__}, which can't be rewound: keep a list and "
                    "an index, or give it a method rewind(row, length)"
                )
            reached[id(value)] = value, copy_contents(value)
            pending.extend(list_children(value))
            if len(reached) > LIMIT:
                raise TooLarge(
                    f"{name_of(self._owner)} holds more than {LIMIT} objects, too many to find the changes that a "
                    "rewind must undo: keep fewer in it, or give it a method rewind(row, length)"
                )
        return reached


def describe_hidden(owner: object, kind: type) -> str:
    """Return a sentence about a processor or criterion that keeps an object whose memory can't be read."""
    return (
        f"{name_of(owner)} keeps a {kind.__module__}.{kind.__qualname__}, whose memory can't be read and rewound: give "
        "it a method rewind(row, length), see antislop.Rewindable, or make it depend on the text alone"
    )


def name_of(function: object) -> str:
    """Return the name of a criterion or processor of the user's for a message."""
    named = function if hasattr(function, "__name__") else type(function)
    return f"{named.__module__}.{named.__name__}"

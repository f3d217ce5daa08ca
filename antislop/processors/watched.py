"""A logits processor of the user's that is not `Rewindable`: its changes to itself are found, and undone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from antislop.processors.memory import Memory, MemoryChange, TooLarge, describe_hidden, name_of

ADVICE = (
    "give it a method rewind(row, length), see antislop.Rewindable, or make its scores depend on the ids and scores "
    "alone"
)


class WatchedProcessor:
    """Calls a processor, and keeps what each call changed in it: `undo` brings it back.

    is_too_large: whether it refers to so many objects that its changes are not found.
    """

    def __init__(self, processor: Callable[..., Any]) -> None:
        self.processor = processor
        self.__name__ = getattr(processor, "__name__", type(processor).__name__)
        self.__module__ = getattr(processor, "__module__", type(processor).__module__)
        self.is_too_large = False
        self._fault = ""
        self._has_changed = False
        self._memory: Memory | None = None
        self._calls: list[list[MemoryChange]] = []
        self._called = False
        self._settled = 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Call the processor."""
        if not self._called:
            self._memory = self._read()
        is_first, self._called = not self._called, True
        if self._memory is None:
            return self.processor(input_ids, scores)  # type: ignore[no-any-return]
        result, changes = self._memory.watch(lambda: self.processor(input_ids, scores))
        self._note_hidden(self._memory)
        self._has_changed |= bool(changes) and (not is_first or self._memory.has_rewritten(changes))
        self._calls.append(changes)
        return result  # type: ignore[no-any-return]

    def undo(self, calls: int) -> None:
        """Undo the changes of all but the first `calls` calls."""
        while self._memory is not None and len(self._calls) > calls:
            self._memory.undo(self._calls.pop())

    def settle(self, calls: int) -> None:
        """Forget the changes of the first `calls` calls, which are never undone."""
        while self._settled < min(calls, len(self._calls)):
            self._calls[self._settled] = []
            self._settled += 1

    def refuse(self, *, is_alone: bool) -> None:
        """Raise `ValueError` if the processor can't be rewound. is_alone: whether it sees one row of one text."""
        if self._fault:
            raise ValueError(self._fault)
        if self._has_changed and not is_alone:
            raise ValueError(
                f"{name_of(self)} changes with its calls: it remembers the text, and other texts are written at the "
                f"same time. Pass one prompt at a time, or {ADVICE}"
            )

    def _read(self) -> Memory | None:
        try:
            memory = Memory(self.processor)
        except TooLarge:
            self.is_too_large = True
            return None
        except ValueError as error:
            self._fault = str(error)
            return None
        self._note_hidden(memory)
        return memory

    def _note_hidden(self, memory: Memory) -> None:
        if memory.hidden is not None and not self._fault:
            self._fault = describe_hidden(self, memory.hidden)

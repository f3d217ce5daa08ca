"""Protocols of logits processors and stopping criteria that remember the text and can be rewound."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from antislop.core.loop.forced import LookAhead


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

"""The interface of searches that read a text piece by piece.

Places are numbers of characters, counted back from the end of the text read so far, 1 being the last character. The
same piece read in the same state therefore always has the same result.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, TypeVar

S = TypeVar("S")


class Hit(NamedTuple):
    """An occurrence that the latest piece completed.

    pattern: index of the pattern. start_back, end_back: places of the first and the last character.
    """

    pattern: int
    start_back: int
    end_back: int


class PieceResult(NamedTuple):
    """The hits of one piece, and the places at which incomplete occurrences begin.

    Of several incomplete phrases the longest is enough: a rewind to its start withdraws the others too.
    """

    hits: tuple[Hit, ...] = ()
    open: tuple[int, ...] = ()


class TextSearch(ABC, Generic[S]):
    """A search for patterns of one kind. Its states are values: to rewind, use an earlier one.

    start: the state before any text.
    """

    start: S

    @abstractmethod
    def __init__(self, patterns: Sequence[Any]) -> None: ...

    @abstractmethod
    def read(self, state: S, piece: str, *, final: bool = False) -> tuple[S, PieceResult]:
        """Read one more piece; `final` also decides what depends on the text ending here."""

    @abstractmethod
    def forget(self, state: S) -> S:
        """Return the state after the same text, of which no character can belong to a later hit."""

    def begin(self) -> None:
        """Begin a text that is unrelated to earlier ones."""
        return

    @property
    def slow(self) -> Sequence[int]:
        """The patterns that are no longer searched for because they took too long."""
        return ()

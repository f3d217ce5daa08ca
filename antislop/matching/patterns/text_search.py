"""The interface of searches that read a text piece by piece.

Places are numbers of characters, counted back from the end of the text read so far, 1 being the last character. The
same piece read in the same state therefore always has the same result.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

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

    def restore(self) -> None:
        """Search for the slow patterns again."""
        return


class FoldTrack(Protocol[S]):
    """The patterns of a search that compare under the same folding."""

    def read(self, state: S, piece: str, *, final: bool) -> tuple[S, PieceResult]:
        """Read one more piece."""


T = TypeVar("T", bound=FoldTrack[Any])


class TrackSearch(TextSearch[tuple[S, ...]], Generic[S, T]):
    """A search in up to two tracks: the patterns that compare letters as they are, and all others.

    Its state is a tuple of the states of its tracks.
    """

    def __init__(self, patterns: Sequence[Any], *, build: Callable[..., T], start: S) -> None:
        numbers: dict[bool, list[int]] = {False: [], True: []}
        for number, pattern in enumerate(patterns):
            numbers[pattern.case_sensitive].append(number)
        self._tracks = [build(patterns, ids, case_sensitive=case) for case, ids in numbers.items() if ids]
        self.start = (start,) * len(self._tracks)

    def read(self, state: tuple[S, ...], piece: str, *, final: bool = False) -> tuple[tuple[S, ...], PieceResult]:
        """Read one more piece; `final` also reads the end of the text, which closes words."""
        if len(self._tracks) == 1:  # almost always
            track_state, result = self._tracks[0].read(state[0], piece, final=final)
            return (track_state,), result
        after: list[S] = []
        hits: list[Hit] = []
        open_: list[int] = []
        for track, before in zip(self._tracks, state, strict=True):
            track_state, result = track.read(before, piece, final=final)
            after.append(track_state)
            hits.extend(result.hits)
            open_.extend(result.open)
        return tuple(after), PieceResult(tuple(hits), tuple(open_))

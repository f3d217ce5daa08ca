"""Compile phrases into automata and read text with them, piece by piece.

It knows neither weights nor tokens: a pattern is its index, and where something stands is a number of characters
counted back from the end of what was read, so that the same piece read in the same situation says the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol, TypeAlias

from antislop.automaton import ROOT, Automaton
from antislop.folding import BOUNDARY, START, Context, Edges, fold, fold_phrase

SHORT = 40  # characters
_fold_again = lru_cache(maxsize=1 << 15)(fold)  # for short pieces: tokens come again and again


class Phrase(Protocol):
    """What a pattern is made of."""

    @property
    def phrase(self) -> str: ...
    @property
    def case_sensitive(self) -> bool: ...
    @property
    def edges(self) -> Edges: ...


class Hit(NamedTuple):
    """A pattern that the latest piece completed: its first and its last character, counted back from the end of the
    text so far, 1 being the last character read.
    """

    pattern: int
    first: int
    last: int


class Reading(NamedTuple):
    """What one piece brought: hits, and where patterns in the making begin, counted back as in `Hit`.

    Of the phrases in the making the longest is enough: whoever goes back to where it begins can go on from there.
    """

    hits: tuple[Hit, ...] = ()
    open: tuple[int, ...] = ()


class Standing(NamedTuple):
    """Where one track stands. starts: per beginning of a pattern that may go on, its first character, counted back."""

    context: Context = START
    state: int = ROOT
    starts: tuple[int, ...] = ()
    last: int = 0  # the last symbol's character, counted back; 0 where nothing is in the making


Place: TypeAlias = tuple[Standing, ...]
"""Where reading stands; a value to keep and to go on from, any number of times."""


class _Track:
    """The patterns that compare under one kind of folding."""

    def __init__(self, phrases: Sequence[Phrase], ids: Sequence[int], *, case_sensitive: bool) -> None:
        symbols = [fold_phrase(phrases[i].phrase, case_sensitive=case_sensitive, edges=phrases[i].edges) for i in ids]
        self.case_sensitive = case_sensitive
        self.automaton = Automaton(symbols)
        self.ids = ids
        # A boundary has the place of the character after it: it may stand for a hit's first character, not its last.
        self.spans = [(len(s), int(s.endswith(BOUNDARY))) for s in symbols]

    def read(self, before: Standing, piece: str, *, final: bool) -> tuple[Standing, Reading]:
        """Read one more piece."""
        fold_piece = _fold_again if len(piece) < SHORT else fold
        folded = fold_piece(piece, context=before.context, case_sensitive=self.case_sensitive, final=final)
        automaton, state, size = self.automaton, before.state, len(piece)
        known = dict(zip(automaton.depths[state], before.starts, strict=True))

        def find_start(depth: int, read: int) -> int:
            """Return where the symbol that stands `depth` before the next one came from, of which `read` are read."""
            return size - folded.origins[read - depth] if read >= depth else size + known[depth - read]

        hits = []
        for index, symbol in enumerate(folded.symbols):
            state = automaton.step(state, symbol)
            for match in automaton.matches[state]:
                length, closed = self.spans[match]
                last = size - folded.origins[index - closed] if index >= closed else size + before.last
                hits.append(Hit(self.ids[match], find_start(length, index + 1), last))
        starts = tuple(find_start(depth, len(folded.symbols)) for depth in automaton.depths[state])
        last = 0 if not starts else size - folded.origins[-1] if folded.symbols else size + before.last
        return Standing(folded.context, state, starts, last), Reading(tuple(hits), starts[:1])


class Patterns:
    """Phrases, compiled. Folding to the same symbols, two phrases are both found."""

    def __init__(self, phrases: Sequence[Phrase]) -> None:
        kinds = ((kind, [i for i, p in enumerate(phrases) if p.case_sensitive is kind]) for kind in (False, True))
        self._tracks = [_Track(phrases, ids, case_sensitive=kind) for kind, ids in kinds if ids]
        self.start: Place = (Standing(),) * len(self._tracks)

    def read(self, place: Place, piece: str, *, final: bool = False) -> tuple[Place, Reading]:
        """Read one more piece; `final` also reads the end of the text, which closes words."""
        after: list[Standing] = []
        hits: list[Hit] = []
        open_: list[int] = []
        for track, standing in zip(self._tracks, place, strict=True):
            standing, reading = track.read(standing, piece, final=final)
            after.append(standing)
            hits.extend(reading.hits)
            open_.extend(reading.open)
        return tuple(after), Reading(tuple(hits), tuple(open_))

    def endings(self, place: Place, count: int) -> list[str]:
        """Return what is missing of up to `count` patterns, as text under folding: those of which most was read."""
        track, standing = max(
            zip(self._tracks, place, strict=True), key=lambda pair: len(pair[0].automaton.prefix(pair[1].state))
        )
        return [ending.replace(BOUNDARY, "") for ending in track.automaton.endings(standing.state, count)]

    def forget(self, place: Place) -> Place:
        """Return a place with the same text behind it, of which nothing counts as part of a pattern."""
        return tuple(Standing(standing.context) for standing in place)

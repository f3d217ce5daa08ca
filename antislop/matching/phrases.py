"""Compile phrases into automata and read text with them, piece by piece.

It knows neither weights nor tokens: a pattern is its index, and where something stands is a number of characters
counted back from the end of what was read, so that the same piece read in the same situation says the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from operator import sub
from typing import NamedTuple, Protocol, TypeAlias

from antislop.matching.automaton import ROOT, Automaton
from antislop.matching.folding import BOUNDARY, START, Context, Edges, fold, fold_phrase

SHORT = 40  # characters
_WIDTH = 2  # characters of a string for one gap: white space of millions of characters folds to one symbol
_BASE = 0x110000
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
    start_back: int
    end_back: int


class PieceResult(NamedTuple):
    """What one piece brought: hits, and where patterns in the making begin, counted back as in `Hit`.

    Of the phrases in the making the longest is enough: whoever goes back to where it begins can go on from there.
    """

    hits: tuple[Hit, ...] = ()
    open: tuple[int, ...] = ()


class PhraseState(NamedTuple):
    """The state of one track.

    start_back, end_back: characters of the first and the last symbol of the longest incomplete phrase, counted back
        from the end of the text; 0 if there is none.
    gaps: distances between the characters of its symbols. It is a string because strings are copied and hashed far
        faster than tuples, so that the length of a phrase hardly matters.
    """

    context: Context = START
    state: int = ROOT
    start_back: int = 0
    end_back: int = 0
    gaps: str = ""


PhraseStates: TypeAlias = tuple[PhraseState, ...]
"""Where reading stands; a value to keep and to go on from, any number of times."""


def _measure_gaps(origins: Sequence[int]) -> str:
    """Return the distances between characters, none negative, as a string."""
    return "".join(chr(gap % _BASE) + chr(gap // _BASE) for gap in map(sub, origins[1:], origins))


def _step_back(standing: PhraseState, count: int) -> int:
    """Return the character of the symbol `count` symbols back, 1 being the last one, counted back."""
    gaps = standing.gaps[len(standing.gaps) - _WIDTH * (count - 1) :]
    if len(gaps) == len(standing.gaps):
        return standing.start_back
    return standing.end_back + sum(map(ord, gaps[::2])) + _BASE * sum(map(ord, gaps[1::2]))


class _Track:
    """The patterns that compare under one kind of folding."""

    def __init__(self, phrases: Sequence[Phrase], ids: Sequence[int], *, case_sensitive: bool) -> None:
        symbols = [fold_phrase(phrases[i].phrase, case_sensitive=case_sensitive, edges=phrases[i].edges) for i in ids]
        self.case_sensitive = case_sensitive
        self.automaton = Automaton(symbols)
        self.ids = ids
        # A boundary has the place of the character after it: it may stand for a hit's first character, not its last.
        self.spans = [(len(s), int(s.endswith(BOUNDARY))) for s in symbols]

    def read(self, before: PhraseState, piece: str, *, final: bool) -> tuple[PhraseState, PieceResult]:
        """Read one more piece."""
        fold_piece = _fold_again if len(piece) < SHORT else fold
        folded = fold_piece(piece, context=before.context, case_sensitive=self.case_sensitive, final=final)
        automaton, state, size = self.automaton, before.state, len(piece)

        def find_start(depth: int, read: int) -> int:
            """Return the character of the symbol `depth` before the next one, of which `read` are in the piece."""
            return size - folded.origins[read - depth] if read >= depth else size + _step_back(before, depth - read)

        hits = []
        for index, symbol in enumerate(folded.symbols):
            state = automaton.step(state, symbol)
            for match in automaton.matches[state]:
                length, closed = self.spans[match]
                last = size - folded.origins[index - closed] if index >= closed else size + before.end_back
                hits.append(Hit(self.ids[match], find_start(length, index + 1), last))
        length = automaton.longest[state]
        if not length:
            return PhraseState(folded.context, state), PieceResult(tuple(hits))
        first = find_start(length, len(folded.symbols))
        last = size - folded.origins[-1] if folded.symbols else size + before.end_back
        new = folded.origins[-length:] if length <= len(folded.symbols) else [-before.end_back, *folded.origins]
        gaps = before.gaps + _measure_gaps(new)
        gaps = gaps[len(gaps) - _WIDTH * (length - 1) :]
        return PhraseState(folded.context, state, first, last, gaps), PieceResult(tuple(hits), (first,))


class Patterns:
    """Phrases, compiled. Folding to the same symbols, two phrases are both found."""

    def __init__(self, phrases: Sequence[Phrase]) -> None:
        kinds = ((kind, [i for i, p in enumerate(phrases) if p.case_sensitive is kind]) for kind in (False, True))
        self._tracks = [_Track(phrases, ids, case_sensitive=kind) for kind, ids in kinds if ids]
        self.start: PhraseStates = (PhraseState(),) * len(self._tracks)

    def read(self, place: PhraseStates, piece: str, *, final: bool = False) -> tuple[PhraseStates, PieceResult]:
        """Read one more piece; `final` also reads the end of the text, which closes words."""
        after: list[PhraseState] = []
        hits: list[Hit] = []
        open_: list[int] = []
        for track, standing in zip(self._tracks, place, strict=True):
            standing, reading = track.read(standing, piece, final=final)
            after.append(standing)
            hits.extend(reading.hits)
            open_.extend(reading.open)
        return tuple(after), PieceResult(tuple(hits), tuple(open_))

    def endings(self, place: PhraseStates, count: int) -> list[str]:
        """Return what is missing of up to `count` patterns, as text under folding: those of which most was read."""
        track, standing = max(
            zip(self._tracks, place, strict=True), key=lambda pair: len(pair[0].automaton.prefix(pair[1].state))
        )
        return [ending.replace(BOUNDARY, "") for ending in track.automaton.endings(standing.state, count)]

    def forget(self, place: PhraseStates) -> PhraseStates:
        """Return a place with the same text behind it, of which nothing counts as part of a pattern."""
        return tuple(PhraseState(standing.context) for standing in place)

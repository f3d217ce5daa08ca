"""Compile phrases into automata and read text with them, piece by piece.

Everything that looks for bans, in a text or in a stream of tokens, looks through here. It knows neither weights
nor tokens: a pattern is its index, a place is a number of symbols counted back from the end of what was read.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol

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


class Mark(NamedTuple):
    """A symbol: `back` symbols before the end of what one track has read, 1 being the last."""

    track: int
    back: int


class Hit(NamedTuple):
    """A pattern that the latest piece completed, from its first to its last character."""

    pattern: int
    first: Mark
    last: Mark


class Place(NamedTuple):
    """Where reading stands; a value to keep and to go on from, any number of times."""

    contexts: tuple[Context, ...]
    states: tuple[int, ...]


class Reading(NamedTuple):
    """What one piece brought: `origins` per track as in `Folded`, and where patterns in the making begin."""

    place: Place
    origins: tuple[list[int], ...]
    hits: tuple[Hit, ...]
    open: tuple[Mark, ...]


class _Track:
    """The patterns that compare under one kind of folding."""

    def __init__(self, phrases: Sequence[Phrase], ids: Sequence[int], *, case_sensitive: bool) -> None:
        symbols = [fold_phrase(phrases[i].phrase, case_sensitive=case_sensitive, edges=phrases[i].edges) for i in ids]
        self.case_sensitive = case_sensitive
        self.automaton = Automaton(symbols)
        self.ids = ids
        # A boundary has the place of the character after it: it may stand for a hit's first character, not its last.
        self.spans = [(len(s), int(s.endswith(BOUNDARY))) for s in symbols]


class Patterns:
    """Phrases, compiled. Folding to the same symbols, two phrases are both found."""

    def __init__(self, phrases: Sequence[Phrase]) -> None:
        kinds = ((kind, [i for i, p in enumerate(phrases) if p.case_sensitive is kind]) for kind in (False, True))
        self._tracks = [_Track(phrases, ids, case_sensitive=kind) for kind, ids in kinds if ids]
        self.start = Place((START,) * len(self._tracks), (ROOT,) * len(self._tracks))

    def read(self, place: Place, piece: str, *, final: bool = False, begun: int = 0) -> Reading:
        """Read one more piece; `final` also reads the end of the text, which closes words; `begun` as in `fold`."""
        contexts, states, origins, hits = [], [], [], []
        fold_piece = _fold_again if len(piece) < SHORT else fold
        unfinished: list[Mark] = []
        for number, (track, context, state) in enumerate(zip(self._tracks, *place, strict=True)):
            folded = fold_piece(piece, context=context, case_sensitive=track.case_sensitive, final=final, begun=begun)
            automaton, total = track.automaton, len(folded.symbols)
            for index, symbol in enumerate(folded.symbols):
                state = automaton.step(state, symbol)
                for match in automaton.matches[state]:
                    length, closed = track.spans[match]
                    rest = total - index
                    hits.append(Hit(track.ids[match], Mark(number, rest - 1 + length), Mark(number, rest + closed)))
            unfinished.extend(Mark(number, depth) for depth in automaton.depths[state])
            contexts.append(folded.context)
            states.append(state)
            origins.append(folded.origins)
        after = Place(tuple(contexts), tuple(states))
        return Reading(after, tuple(origins), tuple(hits), tuple(unfinished))

    def endings(self, place: Place, count: int) -> list[str]:
        """Return what is missing of up to `count` patterns, as text under folding: those of which most was read."""
        longest = max(
            zip(self._tracks, place.states, strict=True), key=lambda pair: len(pair[0].automaton.prefix(pair[1]))
        )
        track, state = longest
        return [ending.replace(BOUNDARY, "") for ending in track.automaton.endings(state, count)]

    def forget(self, place: Place) -> Place:
        """Return a place with the same text behind it, of which nothing counts as part of a pattern."""
        return Place(place.contexts, (ROOT,) * len(self._tracks))

"""Search for phrases, compiled into automata over folded symbols. Knows neither weights nor tokens."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from operator import sub
from typing import NamedTuple, Protocol, TypeAlias

from antislop.matching.automaton import ROOT, Automaton
from antislop.matching.folding import BOUNDARY, START, Context, Edges, fold, fold_phrase
from antislop.matching.patterns.text_search import Hit, PieceResult, TrackSearch

SHORT = 40  # characters
_WIDTH = 2  # characters of a string for one gap: white space of millions of characters folds to one symbol
_BASE = 0x110000
_fold_again = lru_cache(maxsize=1 << 15)(fold)  # for short pieces: the same tokens recur


class PhraseLike(Protocol):
    """A pattern that is compiled to a phrase, such as a `Phrase`."""

    @property
    def text(self) -> str: ...
    @property
    def case_sensitive(self) -> bool: ...
    @property
    def edges(self) -> Edges: ...


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
"""The states of all tracks; a value to continue from any number of times."""


def _measure_gaps(origins: Sequence[int]) -> str:
    """Return the distances between characters, none negative, as a string."""
    return "".join(chr(gap % _BASE) + chr(gap // _BASE) for gap in map(sub, origins[1:], origins))


def _step_back(state: PhraseState, count: int) -> int:
    """Return the place of the character of the symbol `count` symbols back, 1 being the last one."""
    gaps = state.gaps[len(state.gaps) - _WIDTH * (count - 1) :]
    if len(gaps) == len(state.gaps):
        return state.start_back
    return state.end_back + sum(map(ord, gaps[::2])) + _BASE * sum(map(ord, gaps[1::2]))


class _PhraseTrack:
    """The phrases that compare under the same folding."""

    def __init__(self, phrases: Sequence[PhraseLike], ids: Sequence[int], *, case_sensitive: bool) -> None:
        symbols = [fold_phrase(phrases[i].text, case_sensitive=case_sensitive, edges=phrases[i].edges) for i in ids]
        self.case_sensitive = case_sensitive
        self.automaton = Automaton(symbols)
        self.ids = ids
        # A boundary has the place of the character after it, which may begin a hit but never ends one.
        self.spans = [(len(s), int(s.endswith(BOUNDARY))) for s in symbols]

    def read(self, before: PhraseState, piece: str, *, final: bool) -> tuple[PhraseState, PieceResult]:
        """Read one more piece."""
        fold_piece = _fold_again if len(piece) < SHORT else fold
        folded = fold_piece(piece, context=before.context, case_sensitive=self.case_sensitive, final=final)
        automaton, state, size = self.automaton, before.state, len(piece)

        def find_start(depth: int, read: int) -> int:
            """Return the place of the symbol `depth` before the next one, of which `read` are in the piece."""
            return size - folded.origins[read - depth] if read >= depth else size + _step_back(before, depth - read)

        hits = []
        for index, symbol in enumerate(folded.symbols):
            state = automaton.step(state, symbol)
            for match in automaton.matches[state]:
                length, closed = self.spans[match]
                end_back = size - folded.origins[index - closed] if index >= closed else size + before.end_back
                hits.append(Hit(self.ids[match], find_start(length, index + 1), end_back))
        length = automaton.longest[state]
        if not length:
            return PhraseState(folded.context, state), PieceResult(tuple(hits))
        start_back = find_start(length, len(folded.symbols))
        end_back = size - folded.origins[-1] if folded.symbols else size + before.end_back
        origins = folded.origins[-length:] if length <= len(folded.symbols) else [-before.end_back, *folded.origins]
        gaps = before.gaps + _measure_gaps(origins)
        gaps = gaps[len(gaps) - _WIDTH * (length - 1) :]
        return PhraseState(folded.context, state, start_back, end_back, gaps), PieceResult(tuple(hits), (start_back,))


class PhraseSearch(TrackSearch[PhraseState, _PhraseTrack]):
    """Phrases, compiled. Two phrases that fold to the same symbols are both found."""

    def __init__(self, patterns: Sequence[PhraseLike]) -> None:
        super().__init__(patterns, build=_PhraseTrack, start=PhraseState())

    def find_endings(self, state: PhraseStates, count: int) -> list[str]:
        """Return the folded rest of up to `count` incomplete phrases, of which the longest part was read."""
        track, longest = max(
            zip(self._tracks, state, strict=True), key=lambda pair: len(pair[0].automaton.prefix(pair[1].state))
        )
        return [ending.replace(BOUNDARY, "") for ending in track.automaton.endings(longest.state, count)]

    def forget(self, state: PhraseStates) -> PhraseStates:
        return tuple(PhraseState(track_state.context) for track_state in state)

"""Phrases, compared under folding, and their search: automata over folded symbols."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import sub
from typing import Any, ClassVar, NamedTuple, TypeAlias, get_args

from antislop.errors import BanError
from antislop.matching.automaton import ROOT, Automaton
from antislop.matching.folding import BOUNDARY, START, Context, Edges, find_words, fold, fold_phrase
from antislop.matching.patterns.pattern import (
    Fault,
    Pattern,
    PatternMatch,
    PieceResult,
    TrackSearch,
    check_switch,
    check_text,
    has_wildcard,
    read_stars,
    write_stars,
)

SHORT_PIECE = 40
"""Characters of the longest piece whose folding is remembered: the same tokens recur."""
_WIDTH = 2  # characters of a string for one gap: white space of millions of characters folds to one symbol
_BASE = 0x110000
_FEW_LETTERS = 2
_MARKS = {"-": "every dash, the hyphen of “well-known” too", "'": "every apostrophe", '"': "every double quote"}
_fold_again = lru_cache(maxsize=1 << 15)(fold)


class PhraseState(NamedTuple):
    """The state of one track.

    start_back, end_back: places of the longest incomplete phrase; 0 if there is none.
    gaps: distances between the characters of its symbols, as a string: these copy and hash far faster than tuples.
    """

    context: Context = START
    state: int = ROOT
    start_back: int = 0
    end_back: int = 0
    gaps: str = ""


PhraseStates: TypeAlias = tuple[PhraseState, ...]


def _measure_gaps(origins: Sequence[int]) -> str:
    return "".join(chr(gap % _BASE) + chr(gap // _BASE) for gap in map(sub, origins[1:], origins))


def _step_back(state: PhraseState, count: int) -> int:
    gaps = state.gaps[len(state.gaps) - _WIDTH * (count - 1) :]
    if len(gaps) == len(state.gaps):
        return state.start_back
    return state.end_back + sum(map(ord, gaps[::2])) + _BASE * sum(map(ord, gaps[1::2]))


class _PhraseTrack:
    def __init__(self, phrases: Sequence[Phrase], ids: Sequence[int], *, case_sensitive: bool) -> None:
        symbols = [phrases[i].find_symbols(case_sensitive=case_sensitive) for i in ids]
        self.case_sensitive = case_sensitive
        self.automaton = Automaton(symbols)
        self.ids = ids
        # A boundary has the place of the character after it, which may begin a match but never ends one.
        self.spans = [(len(s), int(s.endswith(BOUNDARY))) for s in symbols]

    def read(self, before: PhraseState, piece: str, *, final: bool) -> tuple[PhraseState, PieceResult]:
        fold_piece = _fold_again if len(piece) < SHORT_PIECE else fold
        folded = fold_piece(piece, context=before.context, case_sensitive=self.case_sensitive, final=final)
        automaton, state, size = self.automaton, before.state, len(piece)

        def find_start(depth: int, read: int) -> int:
            """Return the place of the symbol `depth` before the next one, of which `read` are in the piece."""
            return size - folded.origins[read - depth] if read >= depth else size + _step_back(before, depth - read)

        matches = []
        for index, symbol in enumerate(folded.symbols):
            state = automaton.step(state, symbol)
            for match in automaton.matches[state]:
                length, closed = self.spans[match]
                end_back = size - folded.origins[index - closed] if index >= closed else size + before.end_back
                matches.append(PatternMatch(self.ids[match], find_start(length, index + 1), end_back))
        length = automaton.longest[state]
        if not length:
            return PhraseState(folded.context, state), PieceResult(tuple(matches))
        start_back = find_start(length, len(folded.symbols))
        end_back = size - folded.origins[-1] if folded.symbols else size + before.end_back
        origins = folded.origins[-length:] if length <= len(folded.symbols) else [-before.end_back, *folded.origins]
        gaps = before.gaps + _measure_gaps(origins)
        gaps = gaps[len(gaps) - _WIDTH * (length - 1) :]
        after = PhraseState(folded.context, state, start_back, end_back, gaps)
        return after, PieceResult(tuple(matches), (start_back,))


class PhraseSearch(TrackSearch[PhraseState, _PhraseTrack]):
    def __init__(self, patterns: Sequence[Phrase]) -> None:
        super().__init__(patterns, build=_PhraseTrack, start=PhraseState())

    def find_endings(self, state: PhraseStates, count: int) -> list[str]:
        """Return the folded rests of up to `count` phrases: those of which the most was read."""
        track, longest = max(
            zip(self._tracks, state, strict=True), key=lambda pair: len(pair[0].automaton.prefix(pair[1].state))
        )
        return [ending.replace(BOUNDARY, "") for ending in track.automaton.endings(longest.state, count)]

    def forget(self, state: PhraseStates) -> PhraseStates:
        return tuple(PhraseState(track_state.context) for track_state in state)


@dataclass(frozen=True, slots=True)
class Phrase(Pattern):
    """A phrase; white space, quotes, dashes and canonically equivalent characters compare as in `folding`.

    text: compared as it is, a `*` too.
    case_sensitive: compare letters as they are.
    edges: "word" if the phrase must not touch other letters or digits.
    """

    kind: ClassVar[str] = "phrase"
    constructor: ClassVar[str] = "Ban"
    is_literal: ClassVar[bool] = True
    search = PhraseSearch

    text: str
    case_sensitive: bool = False
    edges: Edges = "word"

    def __post_init__(self) -> None:
        check_text(self.text)
        check_switch("case_sensitive", self.text, self.case_sensitive)
        if self.edges not in get_args(Edges):
            raise BanError(f"the edges of {self.text!r} are {self.edges!r}; they are 'word' or 'anywhere'")

    @property
    def arguments(self) -> str:
        return repr(write_stars(self.text))

    @property
    def key(self) -> Hashable:
        return self.find_symbols(case_sensitive=self.case_sensitive), self.case_sensitive

    def find_symbols(self, *, case_sensitive: bool) -> str:
        return fold_phrase(self.text, case_sensitive=case_sensitive, edges=self.edges)

    def find_samples(self, *, widest_gap: int) -> list[str]:  # noqa: ARG002
        return [self.text] if self.edges == "word" else []

    def list_spellings(self) -> list[str]:
        if self.edges != "word":
            return []
        text = self.text
        curly = text.replace("'", "’").replace('"', "”")
        spellings = [text, curly, text.replace("’", "'"), text.replace(" ", "\n")]
        if not self.case_sensitive:
            spellings += [text.lower(), text.upper(), text[:1].upper() + text[1:]]
        return list(dict.fromkeys(spellings))

    def find_faults(self) -> Iterator[Fault]:
        symbols = fold_phrase(self.text).replace(BOUNDARY, "")
        letters, mark = symbols.replace(" ", ""), symbols.strip(" ")
        if len(letters) <= _FEW_LETTERS and letters.isalnum() and find_words(letters, is_in_word=False)[1]:
            count = "one letter" if len(letters) == 1 else f"{len(letters)} letters"
            where = "occurs inside many words" if self.edges == "anywhere" else "means many things"
            yield Fault("short", f"has only {count} and {where}", "write the longer phrase it is from")
        elif mark in _MARKS:
            fix = f"write it as a regex, {self.text.strip()}, which compares characters as they are"
            yield Fault("common", f"hits {_MARKS[mark]}", fix)


def read_phrase(text: Any) -> tuple[type[Pattern], Any]:
    r"""Return the kind and the text of a phrase as people write it: a wildcard with a `*`, where `\*` is the character.

    >>> read_phrase(r"\*sighs\*")
    (<class 'antislop.matching.patterns.phrase.Phrase'>, '*sighs*')
    """
    if not isinstance(text, str) or "*" not in text:
        return Phrase, text
    if not has_wildcard(text):
        return Phrase, read_stars(text)
    from antislop.matching.patterns.words import Wildcard  # most lists have none

    return Wildcard, text

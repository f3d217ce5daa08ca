"""Search only those parts of a long text in which a ban can occur, at the speed of compiled code.

A text is reduced to bytes, in which a compiled search finds literals: byte strings that every match of a pattern
contains. Only the passages around literals are searched exactly, from a stop (a symbol where that can begin) to a stop.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from ahocorasick_rs import BytesAhoCorasick, Implementation
from numpy.typing import NDArray

from antislop.core.bans.folding import BOUNDARY, EXTENDING, NO_EDGES, SENTENCE_ENDS, SHORT_PIECE, fold, is_in_run
from antislop.core.bans.patterns.pattern import FILLER, Pattern, PatternMatch, PieceResult, TextSearch
from antislop.core.bans.units import ABBREVIATIONS

_SPACE, _END = b" ."
_RUN = 0xC0
"""The lowest byte for the symbols of `is_in_run`, after which borders depend on earlier symbols, too."""
# A full stop after an abbreviation ends no sentence. Bytes beyond ASCII may be letters, and count as such.
_SHORT = b"|".join((rb"[a-z\x80-\xff]", *map(str.encode, ABBREVIATIONS[1:])))
_SENTENCE_END = re.compile(rb"(?<![0-9a-z\x80-\xff])(?:%b)\.|(\.)" % _SHORT)
_ASCII_ENDS = str.maketrans(dict.fromkeys("!?", "."))
_IS_WORD = np.array([code < 128 and chr(code).isalnum() for code in range(256)])
_IOTA = "ι"  # the only symbol that both a letter and a combining mark, U+0345, fold to
_UNKNOWN = 255
MAX_WAITING = 1 << 14
"""Characters without a stop after which the exact search takes over."""
LONG_LITERAL = 256
"""If a literal has more bytes than this, an automaton is used that is built in linear time, but searches slower."""


class Reduced(NamedTuple):
    """A text as bytes.

    origins: for each byte, the index of its character in the text; never decreasing.
    others: at index i, how many of the text's first i characters are not ASCII.
    """

    data: NDArray[np.uint8]
    origins: NDArray[np.intp]
    others: NDArray[np.intp]

    @property
    def size(self) -> int:
        return len(self.others) - 1


class _Reduction:
    """A table from characters to bytes; a character is added when it first occurs.

    A byte stands for a folded symbol: an ASCII symbol for itself, a full stop for any end of a sentence, one of 64
    bytes from `_RUN` on for a symbol of `is_in_run`, and one of 64 others for the rest. Edges of words and combining
    marks, which may move, are left out. So if a text contains a phrase, the reduced text contains the reduced phrase.
    """

    def __init__(self) -> None:
        self._counts = np.full(0x110000, _UNKNOWN, np.uint8)
        self._first = np.zeros(0x110000, np.intp)
        self._bytes = np.zeros(0, np.uint8)
        self._lock = Lock()

    def reduce(self, text: str) -> Reduced:
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        counts = self._counts[codes]
        if (counts == _UNKNOWN).any():
            self._learn(np.unique(codes[counts == _UNKNOWN]).tolist())
            counts = self._counts[codes]
        if (counts == 1).all():
            origins, data = np.arange(len(codes)), self._bytes[self._first[codes]]
        else:
            origins = np.repeat(np.arange(len(codes)), counts)
            ends = np.cumsum(counts, dtype=np.intp)
            data = self._bytes[np.arange(len(origins)) + np.repeat(self._first[codes] - ends + counts, counts)]
        is_space = data == _SPACE
        is_repeated = is_space[1:] & is_space[:-1]
        if is_repeated.any():
            kept = np.concatenate(([True], ~is_repeated))
            data, origins = data[kept], origins[kept]  # white space in a row is one byte
        others = np.zeros(len(codes) + 1, np.intp)
        if not text.isascii():
            np.cumsum(codes > 127, out=others[1:])
        return Reduced(data, origins, others)

    def _learn(self, codes: Sequence[int]) -> None:
        with self._lock:
            known = bytearray(self._bytes.tobytes())
            first, counts = [], []
            for code in codes:
                symbols = fold(chr(code), final=True).symbols
                kept = (symbol for symbol in symbols if symbol not in (BOUNDARY, _IOTA) and not EXTENDING.match(symbol))
                data = bytes(map(_to_byte, kept))
                first.append(len(known))
                counts.append(len(data))
                known += data
            self._bytes = np.frombuffer(bytes(known), np.uint8)
            self._first[codes] = first
            self._counts[codes] = counts  # last: another thread may read meanwhile


def _to_byte(symbol: str) -> int:
    if symbol in SENTENCE_ENDS:
        return _END
    if symbol.isascii() or symbol == "ı":  # İ, i, I and ı are one byte, whatever the language
        return ord("i" if symbol == "ı" else symbol)
    return (_RUN if is_in_run(symbol) else 0x80) | (ord(symbol) & 0x3F)


_REDUCTION = _Reduction()


def find_literal(pattern: Pattern) -> bytes:
    """Return the longest byte string that every reduced occurrence of a pattern contains; b"" if none is known."""
    symbols = pattern.find_symbols("turkish" if pattern.language else "caseless") or ""
    parts = [part.translate(NO_EDGES) for part in ([symbols] if pattern.is_literal else symbols.split(FILLER))]
    reduced = (  # ASCII almost always, which is far faster
        part.translate(_ASCII_ENDS).encode() if part.isascii() else _REDUCTION.reduce(part).data.tobytes()
        for part in parts
    )
    return max((each.strip() for each in reduced), key=len)


class PrefilterState(NamedTuple):
    """The state of a `Prefilter` after some text.

    text: the undecided end of the text; its first character is a stop.
    is_first: True if `text` is still the whole text, which does not begin with a stop.
    exact: the state of the exact search, while this reads all of the text; else None.
    """

    text: str = ""
    is_first: bool = True
    exact: Any = None


class Prefilter(TextSearch[PrefilterState]):
    """A search for phrases or words with the same matches as the exact search, but often a longer undecided end."""

    def __init__(self, patterns: Sequence[Pattern], search: type[TextSearch[Any]]) -> None:
        self._exact = search(patterns)
        literals = list(map(find_literal, patterns))
        self._finds_all = bool(literals) and all(literals)
        self._longest = max(map(len, literals), default=0)
        # The default searches up to ten times as fast, but is built in quadratic time if a literal repeats itself.
        implementation = Implementation.ContiguousNFA if self._longest > LONG_LITERAL else None
        self._automaton = BytesAhoCorasick(literals if self._finds_all else [], implementation=implementation)
        self._waiting = MAX_WAITING + 4 * self._longest
        self._is_phrases = all(pattern.is_literal for pattern in patterns)
        symbols = [_find_plain_symbols(pattern, literal) for pattern, literal in zip(patterns, literals, strict=True)]
        self._is_plain = np.array([each != "" for each in symbols])
        self._opens = np.array([each.startswith(BOUNDARY) for each in symbols])
        self._closes = np.array([each.endswith(BOUNDARY) for each in symbols])
        self._read_again = lru_cache(maxsize=1 << 14)(self._search_after)  # the same words recur
        self.start = PrefilterState(exact=None if self._finds_all else self._exact.start)

    @staticmethod
    def takes(pattern: Pattern) -> bool:
        return find_literal(pattern) != b""

    def read(self, state: PrefilterState, piece: str, *, final: bool = False) -> tuple[PrefilterState, PieceResult]:
        if state.exact is not None:  # the exact search reads on until nothing is open
            exact, result = self._exact.read(state.exact, piece, final=final)
            if self._finds_all and piece and piece[-1].isascii() and not result.open:
                return PrefilterState(piece[-1], False), result
            return PrefilterState(exact=exact), result
        text = state.text + piece
        reduced = _REDUCTION.reduce(text)
        # The stops: for phrases, all symbols after which the borders are known; for sequences of words, which lie
        # within a sentence, the ends of sentences.
        data = reduced.data.tobytes()
        is_stop = (reduced.data != _SPACE) & (reduced.data < _RUN)
        sentences = [end.start(1) for end in _SENTENCE_END.finditer(data) if end[1]]
        ends = is_stop if self._is_phrases else np.array(sentences, np.intp)
        stops = reduced.origins[ends]
        decided = len(text) if final else self._find_decided(reduced, stops)
        # The literals that begin up to `decided`: (pattern, begin, end) in bytes.
        places = np.array(self._automaton.find_matches_as_indexes(data, overlapping=True), np.intp).reshape(-1, 3)
        first = reduced.origins[places[:, 1]]
        places = places[(first <= decided) & ((first > 0) | state.is_first)]
        is_sure, plain = self._read_plainly(reduced, places)
        matches = list[PatternMatch]()
        for begin, end in _find_passages(reduced, stops, places[~is_sure], is_first=state.is_first):
            read = self._read_again if end - begin < SHORT_PIECE else self._search_after
            found = read(text[begin] if begin >= 0 else "", text[begin + 1 : end], final and end == len(text))
            # Matches that begin after `decided` are dropped: the next call finds them again.
            matches += [match.shift(len(text) - end) for match in found if end - match.start_back <= decided]
        matches += plain.difference(matches)
        rest = PrefilterState(text[decided:], False) if decided >= 0 else state._replace(text=text)
        if len(rest.text) > self._waiting:
            exact, result = self._catch_up(rest)
            return PrefilterState(exact=exact), PieceResult((*matches, *result.matches), result.open)
        return rest, PieceResult(tuple(matches), (len(rest.text),) if rest.text else ())

    def forget(self, state: PrefilterState) -> PrefilterState:
        exact = self._catch_up(state)[0] if state.exact is None else state.exact
        return PrefilterState(exact=self._exact.forget(exact))

    def _catch_up(self, state: PrefilterState) -> tuple[Any, PieceResult]:
        """Let the exact search read the undecided end; return its state after the text, and the matches there."""
        begun = self._exact.start if state.is_first else self._begin(state.text[:1])
        return self._exact.read(begun, state.text[not state.is_first :])

    def _begin(self, stop: str) -> Any:
        """Return the state of the exact search after a stop, with no match begun."""
        return self._exact.forget(self._exact.read(self._exact.start, stop)[0])

    def _find_decided(self, reduced: Reduced, stops: NDArray[np.intp]) -> int:
        """Return the last stop such that each occurrence that begins before the stop is complete, or -1."""
        if not len(stops) or not self._is_phrases:
            return int(stops[-1]) if len(stops) else -1
        open_ = int(np.searchsorted(reduced.origins, stops[-1])) - self._longest + 1
        last = int(np.searchsorted(stops, reduced.origins[open_])) - 1 if open_ > 0 else -1
        return int(stops[last]) if last >= 0 else -1

    def _read_plainly(self, reduced: Reduced, places: NDArray[np.intp]) -> tuple[NDArray[np.bool_], set[PatternMatch]]:
        """Return which places the ASCII around them decides without the exact search, and the matches there."""
        number, begin, end = places.T
        data = np.concatenate(([_SPACE], reduced.data, [_SPACE]))  # the byte before `begin` is data[begin]
        origins = np.concatenate(([0], reduced.origins, [reduced.size - 1]))
        others = reduced.others[origins[end + 1] + 1] - reduced.others[origins[begin]]
        is_sure = self._is_plain[number] & (others == 0)
        is_within = (self._opens[number] & _IS_WORD[data[begin]]) | (self._closes[number] & _IS_WORD[data[end + 1]])
        is_match = is_sure & ~is_within
        starts, ends = reduced.size - origins[begin + 1][is_match], reduced.size - origins[end][is_match]
        return is_sure, set(map(PatternMatch, number[is_match].tolist(), starts.tolist(), ends.tolist()))

    def _search_after(self, stop: str, passage: str, final: bool) -> Sequence[PatternMatch]:
        begun = self._begin(stop) if stop else self._exact.start
        return self._exact.read(begun, passage, final=final)[1].matches


def _find_plain_symbols(pattern: Pattern, literal: bytes) -> str:
    """Return the symbols of a phrase if its literal decides on matches in ASCII text (but for word edges), else ""."""
    symbols = pattern.find_symbols("caseless") or ""
    if not pattern.is_literal or pattern.folding != "caseless" or _END in literal:
        return ""
    return symbols if symbols.translate(NO_EDGES).encode(errors="replace") == literal else ""


def _find_passages(
    reduced: Reduced, stops: NDArray[np.intp], places: NDArray[np.intp], *, is_first: bool
) -> Iterator[tuple[int, int]]:
    """Yield (begin, end) of the passages around literals, adjoining passages as one: each from a stop to a stop."""
    first, last = reduced.origins[places[:, 1]], reduced.origins[places[:, 2] - 1]
    stops = np.concatenate(([-1 if is_first else 0], stops, [reduced.size - 1]))
    begins = stops[np.searchsorted(stops, first) - 1]
    ends = stops[np.searchsorted(stops[:-1], last, side="right")] + 1
    begin, end = -1, -1
    for next_begin, next_end in sorted(set(zip(begins.tolist(), ends.tolist(), strict=True))):
        if next_begin >= end - 1:
            if end > 0:
                yield begin, end
            begin = next_begin
        end = max(end, next_end)
    if end > 0:
        yield begin, end

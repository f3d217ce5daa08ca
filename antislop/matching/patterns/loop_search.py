"""Search a text for passages that repeat.

The state keeps the end of the folded text, and how long its longest suffix is that occurred before: only while that is
long can a loop be near. Periods are looked for in the text itself, where the suffix occurred last, so that nothing is
counted for each of them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from operator import sub
from typing import NamedTuple, Protocol

from antislop.matching.folding import BOUNDARY, START, Context, fold
from antislop.matching.patterns.text_search import Hit, PieceResult, TextSearch
from antislop.matching.patterns.word_search import SENTENCE_ENDS

ROOM = 8
"""Characters of a repetition that may stay, by default, if no sentence or line begins in it."""
STEP = 8  # symbols that are read at once while no loop is near
BLOCK = 512  # symbols that a state keeps of its own; the others are shared with earlier states
SHORT = 40  # characters
_MAX_GAP = 0x10FFFF  # white space of more characters counts as so many

_SENTENCE = re.compile("[sS]")
_WORD = re.compile("[sSwW]")
_LETTERS = "aSW"


class LoopLike(Protocol):
    """What is searched for, such as a `Loop`."""

    @property
    def copies(self) -> int: ...
    @property
    def min_characters(self) -> int: ...
    @property
    def max_period(self) -> int: ...


class Symbols(NamedTuple):
    """Folded symbols, without the edges of words.

    marks: for each, whether a sentence (s) or a word (w) begins there, spaces and quotes before it included; a capital
        if the symbol is a letter. Any other letter is an a. gaps: for each, the characters from the place of the symbol
        before it to its own.
    """

    text: str = ""
    marks: str = ""
    gaps: str = ""

    def keep(self, count: int) -> Symbols:
        """Return the last symbols."""
        return Symbols(self.text[-count:], self.marks[-count:], self.gaps[-count:])

    def measure(self, start: int, end: int) -> int:
        """Return the characters from the place of one symbol to that of another."""
        gaps = self.gaps[start + 1 : end + 1]
        wide = gaps.replace("\1", "")
        return len(gaps) - len(wide) + sum(map(ord, wide))


class Track(NamedTuple):
    """The state of one pattern.

    length: of the longest suffix that occurred before, `distance` symbols earlier. since: symbols after the last loop.
    """

    length: int = 0
    distance: int = 0
    since: int = 0


class LoopState(NamedTuple):
    """The state of a search: the end of the text, of which `new` follows `old`, and the states of the patterns.

    seam: see `_mark`. end_back: place of the last symbol.
    """

    tracks: tuple[Track, ...]
    context: Context = START
    seam: str = "s"
    old: Symbols = Symbols()
    new: Symbols = Symbols()
    end_back: int = 0


class LoopSearch(TextSearch[LoopState]):
    """Loops, compiled. Loops of one pattern don't overlap."""

    def __init__(self, patterns: Sequence[LoopLike]) -> None:
        self._trackers = [_Tracker(pattern) for pattern in patterns]
        self._kept = max(tracker.kept for tracker in self._trackers)
        self.start = LoopState((Track(),) * len(self._trackers))

    def read(self, state: LoopState, piece: str, *, final: bool = False) -> tuple[LoopState, PieceResult]:
        """Read one more piece; `final` also reads combining marks that wait for another character."""
        fold_piece = _fold_again if len(piece) < SHORT else _fold
        context, seam, text, marks, gaps, first, last = fold_piece(piece, state.context, state.seam, final)
        size, old, new, end_back = len(piece), state.old, state.new, len(piece) + state.end_back
        if text:
            gaps = chr(min(first + state.end_back, _MAX_GAP)) + gaps
            new, end_back = Symbols(new.text + text, new.marks + marks, new.gaps + gaps), size - last
        symbols = Symbols(old.text + new.text, old.marks + new.marks, old.gaps + new.gaps)
        end = len(symbols.text)
        tracks, hits, open_ = [], [], [back for _, _, back in context.marks]
        for number, (tracker, before) in enumerate(zip(self._trackers, state.tracks, strict=True)):
            track, found, opened = tracker.read(before, symbols, begun=end - len(text))
            tracks.append(track)
            for start, after in found:
                places = (end_back + symbols.measure(place, end - 1) for place in (start, after - 1))
                hits.append(Hit(number, *places))
            if opened < end:
                open_.append(end_back + symbols.measure(opened, end - 1))
        if len(new.text) > BLOCK:
            old, new = symbols.keep(self._kept), Symbols()
        return LoopState(tuple(tracks), context, seam, old, new, end_back), PieceResult(tuple(hits), tuple(open_))

    def forget(self, state: LoopState) -> LoopState:
        return LoopState(self.start.tracks, state.context)


class _Tracker:
    """Follows one pattern. Places are indices of symbols."""

    def __init__(self, pattern: LoopLike) -> None:
        self._copies = pattern.copies
        self._repeats = pattern.copies - 1
        self._min_period = -(-pattern.min_characters // pattern.copies)
        self._max_period = pattern.max_period
        self._room = min(ROOM, pattern.min_characters // 2)
        self._near = self._repeats * self._min_period  # symbols of the shortest occurrence
        self.kept = (pattern.copies + 1) * pattern.max_period + 2 * self._room

    def read(self, track: Track, symbols: Symbols, *, begun: int) -> tuple[Track, list[tuple[int, int]], int]:
        """Read the symbols from `begun` on; return the loops that they complete, and the first open place."""
        length, distance, since = track
        loops = []
        end, size = begun, len(symbols.text)
        while end < size:
            step = min(STEP, size - end)
            if min(length, since) + step >= self._near:
                step = 1
            end, since = end + step, since + step
            length, distance = self._extend(symbols.text, end, step, length, distance)
            if min(length, since) >= self._near:
                start = self._find_loop(symbols, end, length, since)
                if start is not None:
                    loops.append((start, end))
                    since = 0
        opened = self._find_start(symbols.marks, end - length, end - since, self._min_period)
        return Track(length, distance, since), loops, opened

    def _extend(self, text: str, end: int, step: int, length: int, distance: int) -> tuple[int, int]:
        """Return the length of the longest suffix that occurred before, and how many symbols earlier."""
        if distance and text[end - step : end] == text[end - step - distance : end - distance]:
            return min(length + step, self.kept), distance
        shortest, longest, distance = 0, min(length + step, end), 0
        while shortest < longest:
            middle = (shortest + longest + 1) // 2
            begin = max(0, end - middle - self._max_period)
            place = text.find(text[end - middle : end], begin, max(0, end - self._min_period))
            if place < 0:
                longest = middle - 1
            else:
                shortest, distance = middle, end - middle - place
        return shortest, distance

    def _find_loop(self, symbols: Symbols, end: int, length: int, since: int) -> int | None:
        """Return where the loop with the shortest passage begins that the symbol before `end` completes."""
        text, repeats = symbols.text, self._repeats
        last_letter = max(symbols.marks.rfind(letter, 0, end) for letter in _LETTERS)
        shortest = max(self._min_period, end - last_letter)
        longest = min(length, since, self._max_period * repeats) // repeats
        suffix = text[end - self._near : end]
        while shortest <= longest:
            place = text.rfind(suffix, max(0, end - self._near - longest), end - shortest)
            if place < 0:
                return None
            period = end - self._near - place
            if self._copies * period > end:
                return None
            if text[end - repeats * period : end] == text[end - self._copies * period : end - period]:
                run = self._find_run(text, end, since, period)
                start = self._find_start(symbols.marks, run, end - since, period)
                if start < end:
                    return start
            shortest = period + 1
        return None

    def _find_run(self, text: str, end: int, since: int, period: int) -> int:
        """Return where the symbols begin to equal those one period earlier, as far back as that matters."""
        run = end - self._repeats * period
        least = max(period, end - since - self._room - period)
        while run > least and text[run - 1] == text[run - 1 - period]:
            run -= 1
        return run

    def _find_start(self, marks: str, run: int, floor: int, period: int) -> int:
        """Return where the second copy begins in a repetition that begins at `run`; it may be past the end."""
        first = max(run, floor)
        start = max(first, run + self._room + period)  # a passage without a word that begins
        for kind, place in ((_SENTENCE, first), (_WORD, max(first, run + self._room))):
            if match := kind.search(marks, place, start):
                start = match.start()
        return start


def _fold(piece: str, context: Context, seam: str, final: bool) -> tuple[Context, str, str, str, str, int, int]:
    """Return the context and the seam after a piece, and its symbols: text, marks, gaps, first and last origin."""
    folded = fold(piece, context=context, final=final)
    marks, origins, edges = [], [], 0
    for symbol, origin in zip(folded.symbols, folded.origins, strict=True):
        if symbol == BOUNDARY:
            edges += 1
            continue
        if seam or edges == 2 or not symbol.isalpha():
            mark, seam = _mark(symbol, seam, is_line=symbol == " " and piece[origin] in "\n\r", is_word=edges == 2)
        else:
            mark = "a"
        marks.append(mark)
        origins.append(origin)
        edges = 0
    gaps = "".join(chr(min(gap, _MAX_GAP)) for gap in map(sub, origins[1:], origins))
    first, last = (origins[0], origins[-1]) if origins else (0, 0)
    return folded.context, seam, folded.symbols.replace(BOUNDARY, ""), "".join(marks), gaps, first, last


def _mark(symbol: str, seam: str, *, is_line: bool, is_word: bool) -> tuple[str, str]:
    """Return the mark of a symbol, and the seam after it.

    seam: what came since the last letter or digit: s or w if the next one begins a sentence or a word, a full stop if a
        space is still missing for that. is_word: whether a word begins without a space.
    """
    if symbol == " ":
        seam = "s" if is_line or seam in ("s", ".") else "w"
        return seam, seam
    if symbol in SENTENCE_ENDS:
        return ".", "." if symbol in ".!?" else "s"
    if not symbol.isalnum():
        return seam if seam in ("s", "w") else ".", seam
    mark = seam if seam in ("s", "w") else "w" if is_word else ""
    if symbol.isalpha():
        return mark.upper() or "a", ""
    return mark or ".", ""


_fold_again = lru_cache(maxsize=1 << 15)(_fold)  # the same tokens recur

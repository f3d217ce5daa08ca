"""Find loops: passages that are written several times in a row, whatever they say.

The state keeps the end of the folded text, and the length of its longest suffix that occurred before. Only while this
suffix is long can a loop be near: then the place where it occurred last shows how long the passage may be.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import sub
from typing import ClassVar, NamedTuple

import regex

from antislop.core.bans.folding import BOUNDARY, SENTENCE_ENDS, SHORT_PIECE, START, Context, fold
from antislop.core.bans.patterns.near import HEAD, NearTrack, NearTracker
from antislop.core.bans.patterns.pattern import PatternMatch, PieceResult, Repetition, TextSearch, check_number
from antislop.core.bans.refusals import sentence
from antislop.errors import BanError

COPIES, MIN_LENGTH, MAX_PASSAGE, SIMILARITY = 3, 40, 1000, 80
"""Defaults of the options of a loop."""
MAX_COPIES = 1000
MAX_CHARACTERS = 100_000
"""Characters of all copies together, and so of the text that a search keeps."""

_TEXT = regex.compile(r"a passage \d+ times in a row|")
MIN_OFFSET = 8
"""An occurrence begins with a word only after so many characters of a repetition; with a sentence or line, anywhere."""
_STEP = 8  # symbols that are read at once while no loop is near
_BLOCK = 256  # symbols that a state keeps of its own; the others are shared with earlier states
_MAX_GAP = 0x10FFFF  # white space of more characters counts as so many

LONG = 5
"""Copies without a letter, or that are not equal, need this many times `min_length` characters together."""
MAX_WHITE = 40
"""Characters of white space in a row that compare as one space; each further character counts as a sign."""

_WHITE = re.compile(r"\s+")
_WHITE_SIGN = "\u2423"
# For reversed text: a sign that neither draws rules and tables nor separates numbers, or an operator after a number.
_SIGN = re.compile(r"""[^\w\s\-=_*#~+|:.,;'"`()\[\]{}<>/\\^&%$·•\u2500-\u259f]|[=*+/^] ?\d""")

_SENTENCE = re.compile("[sS]")
_WORD = re.compile("[sSwW]")
_LETTERS = "aSW"


class Symbols(NamedTuple):
    """Folded symbols, without the edges of words.

    marks: a character for each symbol: S or W for the first letter of a sentence or a word; s or w for what stands
        before that letter (spaces, quotes) or for a digit in its place; a for other letters; a full stop for the rest.
    gaps: a character for each symbol; its code is the number of characters from the symbol before.
    """

    text: str = ""
    marks: str = ""
    gaps: str = ""

    def measure(self, start: int, end: int) -> int:
        gaps = self.gaps[start + 1 : end + 1]
        wide = gaps.replace("\1", "")
        return len(gaps) - len(wide) + sum(map(ord, wide))


class Track(NamedTuple):
    """The state of the search for one pattern.

    length, distance: the length of the text's longest suffix that occurred before, and how many symbols earlier.
    since: number of symbols after the last loop of equal copies.
    near: the state of the search for copies that are not equal.
    """

    length: int = 0
    distance: int = 0
    since: int = 0
    near: NearTrack = NearTrack()


class LoopState(NamedTuple):
    """The state of a search for loops after some text.

    seam: what the next letter begins; see `_mark`.
    white: number of white-space characters at the end of the text, up to `MAX_WHITE`.
    old, new: the kept end of the text; `new` follows `old`.
    end_back: place of the last symbol, counted back from the end of the text.
    total: number of symbols read so far.
    """

    tracks: tuple[Track, ...]
    context: Context = START
    seam: str = "s"
    white: int = 0
    old: Symbols = Symbols()
    new: Symbols = Symbols()
    end_back: int = 0
    total: int = 0


class LoopSearch(TextSearch[LoopState]):
    def __init__(self, patterns: Sequence[Loop]) -> None:
        self._trackers = [_Tracker(pattern) for pattern in patterns]
        self._kept = max(tracker.kept for tracker in self._trackers)
        self.start = LoopState((Track(),) * len(self._trackers))

    def read(self, state: LoopState, piece: str, *, final: bool = False) -> tuple[LoopState, PieceResult]:
        fold_piece = _fold_again if len(piece) < SHORT_PIECE else _fold
        white, context, seam, text, marks, gaps, first, last = fold_piece(
            piece, state.context, state.seam, state.white, final
        )
        size, old, new, end_back = len(piece), state.old, state.new, len(piece) + state.end_back
        if text:
            gaps = chr(min(first + state.end_back, _MAX_GAP)) + gaps
            new, end_back = Symbols(new.text + text, new.marks + marks, new.gaps + gaps), size - last
        symbols = Symbols(old.text + new.text, old.marks + new.marks)  # and gaps where something is measured
        end, total = len(symbols.text), state.total + len(text)
        tracks, matches, open_ = [], [], [back for _, _, back in context.marks] if context.marks else []
        is_full = len(new.text) > _BLOCK
        for number, (tracker, before) in enumerate(zip(self._trackers, state.tracks, strict=True)):
            track, found, opened = tracker.read(before, symbols, begun=end - len(text), total=total)
            tracks.append(track)
            if (found or opened < end or is_full) and not symbols.gaps:
                symbols = Symbols(symbols.text, symbols.marks, old.gaps + new.gaps)
            for start, stop in found:
                places = (end_back + symbols.measure(place, end - 1) for place in (start, stop - 1))
                matches.append(PatternMatch(number, *places))
            if opened < end:
                open_.append(end_back + symbols.measure(opened, end - 1))
        if is_full:
            old, new = Symbols(*(each[-self._kept :] for each in symbols)), Symbols()
        after = LoopState(tuple(tracks), context, seam, white, old, new, end_back, total)
        return after, PieceResult(tuple(matches), tuple(open_))

    def forget(self, state: LoopState) -> LoopState:
        return LoopState(self.start.tracks, state.context, white=state.white, end_back=state.end_back)


class _Tracker:
    def __init__(self, pattern: Loop) -> None:
        self._copies = pattern.copies
        self._repeats = pattern.copies - 1
        self._min_period = -(-pattern.min_length // pattern.copies)
        self._max_passage = pattern.max_passage
        self._room = min(MIN_OFFSET, pattern.min_length // 2)
        self._near = self._repeats * self._min_period  # symbols of the shortest occurrence
        self._long = LONG * pattern.min_length
        self._near_copies = NearTracker(
            copies=pattern.copies + 1,
            least=self._long,
            most=(pattern.copies + 1) * pattern.max_passage,
            shortest=self._min_period,
            longest=pattern.max_passage,
            similarity=pattern.similarity,
        )
        self.kept = max((pattern.copies + 1) * pattern.max_passage, self._long) + 2 * self._room

    def read(
        self, track: Track, symbols: Symbols, *, begun: int, total: int
    ) -> tuple[Track, list[tuple[int, int]], int]:
        """Return the loops that the symbols from `begun` on complete, and where the first incomplete one begins.

        total: number of symbols read so far, of which `symbols` are the last.
        """
        length, distance, since, near = track
        loops = []
        end, size = begun, len(symbols.text)
        while end < size:
            step = min(_STEP, size - end)
            if min(length, since) + step >= self._near:
                step = 1
            end, since = end + step, since + step
            length, distance = self._extend(symbols, end, step, length, distance)
            if min(length, since) >= self._near:
                start = self._find_loop(symbols, end, length, since)
                if start is not None:
                    loops.append((start, end))
                    since = 0
        # A distance of 0 means that no loop can begin in the suffix; see `_extend`.
        opened = self._find_start(symbols.marks, end - length, end - since, self._min_period) if distance else end
        heads = symbols.marks[begun - HEAD + 1 if begun > HEAD else 0 : end - HEAD + 1]
        if near.candidates or loops or "S" in heads or (near.is_alike and "S" in symbols.marks[begun:]):
            near, others, held = self._near_copies.read(near, symbols.text, symbols.marks, begun, total - end, loops)
            loops, opened = loops + others, min(opened, held)
        return Track(length, distance, since, near), loops, opened

    def _extend(self, symbols: Symbols, end: int, step: int, length: int, distance: int) -> tuple[int, int]:
        """Return the length of the longest suffix that occurred before, and the distance to that occurrence.

        If no loop can begin in that suffix, return an upper limit of its length, and 0 as the distance.
        """
        text, room = symbols.text, self._room
        if distance and text[end - step : end] == text[end - step - distance : end - distance]:
            return min(length + step, self.kept), distance  # the text goes on as it did after that occurrence
        shortest, longest, distance = 0, min(length + step, end), 0
        begin, stop = end - self._max_passage, max(0, end - self._min_period)
        # Without a sentence in the last `room` symbols, no occurrence begins there: one look-up may then show that no
        # longer suffix occurred before.
        if self._near > room < end and not _SENTENCE.search(symbols.marks, end - room, end):
            if longest > room:
                place = text.find(text[end - room - 1 : end], begin - room - 1 if begin > room else 0, stop)
                shortest, distance = (0, 0) if place < 0 else (room + 1, end - room - 1 - place)
            if not shortest:
                return min(longest, room), 0
        while shortest < longest:  # by bisection: where a suffix occurs, so does each shorter one
            middle = (shortest + longest + 1) // 2
            place = text.find(text[end - middle : end], begin - middle if begin > middle else 0, stop)
            if place < 0:
                longest = middle - 1
            else:
                shortest, distance = middle, end - middle - place
        return shortest, distance

    def _find_loop(self, symbols: Symbols, end: int, length: int, since: int) -> int | None:
        """Return the start of the loop that ends at `end`, with the shortest passage; None if no loop ends there."""
        text, repeats = symbols.text, self._repeats
        letter = end - max(symbols.marks.rfind(letter, 0, end) for letter in _LETTERS)
        distinct = letter
        if letter > self._long:  # a passage without a letter needs a sign that is not of a rule, a table or a list
            sign = _SIGN.search(text[max(0, end - self._max_passage) : end][::-1])
            distinct = min(letter, sign.end() if sign else end + 1)
        shortest = max(self._min_period, distinct)
        longest = min(length, since, self._max_passage * repeats) // repeats
        suffix = text[end - self._near : end]
        while shortest <= longest:
            place = text.rfind(suffix, max(0, end - self._near - longest), end - shortest)
            if place < 0:
                return None
            period = end - self._near - place
            if self._copies * period > end:
                return None
            same = repeats * period if period >= letter else max(repeats * period, self._long - period)
            if since >= same and text[end - same : end] == text[end - same - period : end - period]:
                run, least = end - repeats * period, max(period, end - since - self._room - period)
                while run > least and text[run - 1] == text[run - 1 - period]:
                    run -= 1  # to where the symbols begin to equal those one period earlier
                start = self._find_start(symbols.marks, run, end - since, period)
                if start < end:
                    return start
            shortest = period + 1
        return None

    def _find_start(self, marks: str, run: int, floor: int, period: int) -> int:
        """Return where, in a repetition from `run` on, the occurrence begins (see `Loop`); may be past the end."""
        first = max(run, floor)
        start = max(first, run + self._room + period)  # if no word begins in the passage
        if match := _SENTENCE.search(marks, first, start):
            start = match.start()
        word = max(first, run + self._room)
        if word < len(marks) and (match := _WORD.search(marks, word, start)):
            start = match.start()
        return start


def _show_white(piece: str, white: int) -> tuple[int, str]:
    """Return how much white space ends the text after a piece, and the piece with signs for what exceeds `MAX_WHITE`.

    white: number of white-space characters before the piece, up to `MAX_WHITE`.
    """

    def show(run: re.Match[str]) -> str:
        room = MAX_WHITE if run.start() else MAX_WHITE - white
        return run[0][:room].ljust(len(run[0]), _WHITE_SIGN)

    after = len(piece) - len(piece.rstrip())
    if after == len(piece):
        after += white
    return min(after, MAX_WHITE), _WHITE.sub(show, piece) if white + len(piece) > MAX_WHITE else piece


def _fold(
    piece: str, context: Context, seam: str, white: int, final: bool
) -> tuple[int, Context, str, str, str, str, int, int]:
    """Fold a piece. Return white, context and seam after it, and its text, marks, gaps, first and last origin."""
    white, piece = _show_white(piece, white)
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
    return white, folded.context, seam, folded.symbols.replace(BOUNDARY, ""), "".join(marks), gaps, first, last


def _mark(symbol: str, seam: str, *, is_line: bool, is_word: bool) -> tuple[str, str]:
    """Return the mark of a symbol, and the seam after it.

    seam: s or w if the next letter or digit begins a sentence or a word; a full stop if it does so after a space.
    is_word: whether the symbol begins a word without a space before it.
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


@dataclass(frozen=True, slots=True)
class Loop(Repetition):
    """Any passage that is written several times in a row, compared after folding (without case, for instance).

    Equal copies are a loop once the folded text ends with `copies` copies of a passage of up to `max_passage`
    characters that have at least `min_length` characters together. A passage without a letter needs `LONG` times
    `min_length`, and a sign other than those of rules, tables and numbers. The shortest such passage counts.

    Copies with other words are a loop if they are whole sentences, `copies` + 1 of them, `LONG` times `min_length` long
    together: in each copy, up to 100 - `similarity` percent of the words may differ from the copy before. In an
    unfinished copy, this counts for its words so far, and one more word may differ. A passage with signs of code or
    markup is no loop then. The occurrence begins with the second copy; with the third one if the copies are single
    sentences whose first two have the same first word, but not the same `HEAD` characters.

    With equal copies, the repetition is all text up to the loop's end that equals the text one passage earlier. The
    occurrence begins with its first sentence or line, or with its first word after `MIN_OFFSET` characters, whichever
    comes first: so the first copy stays whole. The repetition of a further loop begins after this occurrence.

    text: a name that is made from `copies`.
    """

    kind: ClassVar[str] = "loop"
    constructor: ClassVar[str] = "Ban.loop"
    search = LoopSearch

    text: str = ""
    copies: int = COPIES
    min_length: int = MIN_LENGTH
    max_passage: int = MAX_PASSAGE
    similarity: int = SIMILARITY

    def __post_init__(self) -> None:
        name = f"a passage {self.copies} times in a row"
        if not isinstance(self.text, str) or not _TEXT.fullmatch(self.text):
            raise BanError(f"a loop has no text of its own, but {self.text!r} came: write {name!r}, or Ban.loop()")
        for option, least in (("copies", 2), ("min_length", 1), ("max_passage", 1), ("similarity", 50)):
            value = getattr(self, option)
            check_number(option, name, value)
            if value < least:
                raise BanError(f"{option} of a loop is {value}; it is a whole number, {least} or more")
        if self.similarity > 100:
            raise BanError(f"similarity of a loop is {self.similarity}; it is a percentage, 100 or less")
        if self.copies > MAX_COPIES or self.copies * self.max_passage > MAX_CHARACTERS:
            raise BanError(sentence("long loop", copies=self.copies, passage=self.max_passage, most=MAX_CHARACTERS))
        if self.min_length > self.copies * self.max_passage:
            raise BanError(sentence("short loop", copies=self.copies, passage=self.max_passage, least=self.min_length))
        object.__setattr__(self, "text", name)

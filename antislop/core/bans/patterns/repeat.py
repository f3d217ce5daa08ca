"""Find repeats: sequences of words that were written before, in the text or in the prompt.

Sequences are compared by their hashes of 64 bits: two different sequences with the same hash are met once in 10^9 texts
of 32,000 words. All states of a text share one record of where its sequences stand. Nothing is ever removed from the
record: after a rewind, the search goes on from an earlier state, which ignores what was recorded later.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import inf
from typing import ClassVar, Literal, NamedTuple, get_args

from antislop.core.bans.folding import BOUNDARY, SHORT_PIECE, START, Context, fold
from antislop.core.bans.patterns.pattern import PatternMatch, PieceResult, Repetition, TextSearch, check_number
from antislop.errors import BanError

RepeatOf = Literal["text", "prompt", "both"]
"""Where the words of a repeat were written before: in the generated text, in the prompt, or in either of them."""

WORDS = 8
"""Default number of words of a repeat."""
MAX_WORDS = 1000

_OF: dict[RepeatOf, str] = {"text": "the text", "prompt": "the prompt", "both": "the prompt or the text"}
_TEXT = re.compile(rf"\d+ words of ({'|'.join(_OF.values())}) again|")
_RUN = 1 << 32  # number of places for the words of one run
_BEGINNING = 32  # first letters of an unfinished word that decide whether it may repeat an earlier word


class _WordPart(NamedTuple):
    """The part of a word that a piece contains.

    start, end: indices in the piece of the part's first and last character; end is None if it has none.
    is_open: whether the word may continue in the next piece.
    """

    text: str
    start: int
    end: int | None
    is_open: bool


@dataclass(eq=False)
class _Record:
    """A record of where sequences of words stand, in a text and in all that was withdrawn from it.

    The words are in runs: a run has words that were written one after the other, and a different word after a rewind
    begins a new run. Word i of run r is at the place r * _RUN + i.

    places: by the hash of a sequence, its last word's place. runs: for each word, the hash of the sequence up to it.
    """

    places: dict[int, int] = field(default_factory=dict)
    runs: list[list[int]] = field(default_factory=lambda: [[]])


class _Path(NamedTuple):
    """The places in a record that belong to one text: from edges[0] to edges[1], …, from edges[-1] to its end."""

    record: _Record
    edges: tuple[int, ...] = (0,)

    def extend(self, end: int, sequence: int) -> tuple[_Path, int]:
        """Return the path with one more word, and its new end. sequence: hash of the words up to and with this word."""
        record, edges = self
        number, index = divmod(end, _RUN)
        run = record.runs[number]
        if index == len(run):
            run.append(sequence)
        elif run[index] != sequence:  # a different text was recorded after this place, so a new run begins
            edges, end = (*edges, end, len(record.runs) * _RUN), len(record.runs) * _RUN
            record.runs.append([sequence])
            return _Path(record, edges), end + 1
        return self, end + 1

    def find(self, key: int, end: int) -> bool:
        """Return whether a sequence, by its hash `key`, stands in the path before the place `end`."""
        record, edges = self
        while (place := record.places.get(key)) is not None:
            if place < end and bisect_right(edges, place) % 2:
                return True
            key += 1  # the entry is of another text: this text's would be at the next free key
        return False

    def add(self, key: int, place: int) -> bool:
        """Add a sequence that ends at the path's last place; return whether it also stands at an earlier place."""
        record, edges = self
        while (other := record.places.setdefault(key, place)) != place:
            if other < place and bisect_right(edges, other) % 2:
                return True
            key += 1
        return False


class RepeatTrack(NamedTuple):
    """The state of a search for repeats, as far as it concerns whole words.

    path: the recorded words of this text; None if nothing was recorded.
    end: the place after the last recorded word.
    adds: how many of the next words will be recorded.
    recorded: how many of the latest words may be in recorded sequences; -1 within a word that may not.
    since: how many of the latest words may be in an occurrence; -1 within a word that may not.
    length: at most so many of the latest words were also written before, in a row.
    """

    path: _Path | None = None
    end: int = 0
    adds: float = 0
    recorded: int = 0
    since: int = 0
    length: int = 0

    def measure(self, word: str) -> int:
        """Return the `length` with an unfinished word; 0 if no earlier word begins so, or it can't be in a repeat."""
        if self.since < 0 or self.path is None or not self.path.find(hash(word[:_BEGINNING]), self.end):
            return 0
        return self.length + 1


class RepeatState(NamedTuple):
    """The state of a search for repeats. Places are indices into the text.

    word: the folded part of the current word that was read; None outside of words.
    end: place of the word's latest character.
    words: the latest complete words.
    starts: places at which the latest words begin, the current word included.
    size: number of characters read so far.
    """

    track: RepeatTrack
    context: Context = START
    word: str | None = None
    end: int = 0
    words: tuple[str, ...] = ()
    starts: tuple[int, ...] = ()
    size: int = 0


class RepeatSearch(TextSearch[RepeatState]):
    def __init__(self, patterns: Sequence[Repeat]) -> None:
        (pattern,) = patterns
        self._words, self._of = pattern.words, pattern.of
        # (length, words) of the sequences that are looked up, the longest first: if the latest `length` words were
        # written before, the latest `words` words may be part of a repeat. More lengths would delay streams less, but
        # take more memory.
        self._sizes = sorted({pattern.words: pattern.words, 2: max(2, pattern.words - 1)}.items(), reverse=True)
        self.start = RepeatState(RepeatTrack(adds=0 if self._of == "prompt" else inf))

    @property
    def prompt_start(self) -> RepeatState:
        return RepeatState(RepeatTrack(adds=0 if self._of == "text" else inf))

    def read(self, state: RepeatState, piece: str, *, final: bool = False) -> tuple[RepeatState, PieceResult]:
        track, context, word, end, words, starts, before = state
        split = _split_again if len(piece) < SHORT_PIECE else _split
        context, parts = split(piece, context, word is not None, final)
        size = before + len(piece)
        matches: tuple[PatternMatch, ...] = ()
        for text, first, last, is_open in parts:
            if word is None:
                word, starts = "", (*starts[1 - self._words :], before + first)
            word, end = word + text, end if last is None else before + last
            if is_open:
                break
            words, word = (*words[1 - self._words :], word), None
            track, is_complete = self._follow(track, words)
            if is_complete:
                matches = (*matches, PatternMatch(0, size - starts[0], size - end))
        length = track.length if word is None else track.measure(word)
        result = PieceResult(matches, (size - starts[-length],) if length else ())
        return RepeatState(track, context, word, end, words, starts, size), result

    def forget(self, state: RepeatState) -> RepeatState:
        return state._replace(track=state.track._replace(since=0 if state.word is None else -1, length=0))

    def restart(self, state: RepeatState) -> RepeatState:
        path, end, adds, *_ = state.track
        return RepeatState(RepeatTrack(path, end, adds), size=state.size)

    def leave_prompt(self, state: RepeatState, *, drops_space: bool) -> RepeatState:  # noqa: ARG002
        in_word = state.word is not None  # a word that began in the prompt belongs to the prompt
        if self._of == "text":
            return state._replace(track=RepeatTrack(adds=inf, recorded=-1 if in_word else 0))
        if self._of == "prompt":
            return state._replace(track=state.track._replace(adds=int(in_word)))
        return state

    def _follow(self, track: RepeatTrack, words: tuple[str, ...]) -> tuple[RepeatTrack, bool]:
        """Return the track after one more word, the last of `words`, and whether this word completes an occurrence."""
        path, end, left, recorded, since, length = track
        recorded, since = recorded + 1, since + 1
        if recorded < 1 or (path is None and not left):
            return RepeatTrack(path, end, left, recorded, since), False
        path, row = path or _Path(_Record()), words[-recorded:]
        if left:
            path, end = path.extend(end, hash(row))
            left, known = left - 1, self._find_length(row, path.add, end - 1)
        else:
            known = self._find_length(row, path.find, end)
        length = min(length + 1, since, known)
        if length == self._words:
            return RepeatTrack(path, end, left, recorded), True
        return RepeatTrack(path, end, left, recorded, since, length), False

    def _find_length(self, words: tuple[str, ...], stands: Callable[[int, int], bool], place: int) -> int:
        """Return how many of the latest words may also stand, in a row, before an earlier `place`.

        stands: returns whether a sequence, by its hash, stands before the place; may also add it. With a sequence, its
            shorter ends and all beginnings of its last word were added, too, so that the search can stop early.
        """
        for size, length in self._sizes:
            if size <= len(words) and stands(hash(words[-size:]), place):
                return length
        word = words[-1][:_BEGINNING]
        if stands(hash(word), place):
            return 1
        for end in range(len(word) - 1, 0, -1):
            if stands(hash(word[:end]), place):
                break
        return 0


def _split(piece: str, context: Context, in_word: bool, final: bool) -> tuple[Context, tuple[_WordPart, ...]]:
    """Return the context of folding after a piece, and the parts of words in the piece.

    in_word: whether a word of the text before may continue; then the first part is its rest, which may be empty.
    """
    folded = fold(piece, context=context, final=final)
    parts, place, origins = [], 0, folded.origins
    for text in folded.symbols.split(BOUNDARY):
        end = place + len(text)
        if in_word:
            first, last = (origins[place], origins[end - 1]) if text else (0, None)
            is_open = end == len(origins)
            if folded.signs and not is_open:
                last = max([*origins[place:end], *(sign for sign in folded.signs if sign < origins[end])], default=None)
            parts.append(_WordPart(text, first, last, is_open))
        place, in_word = end + 1, not in_word
    return folded.context, tuple(parts)


_split_again = lru_cache(maxsize=1 << 15)(_split)  # the same tokens recur


@dataclass(frozen=True, slots=True)
class Repeat(Repetition):
    """Any words that were written before, in the text or the prompt. Case and the signs between words are ignored.

    An occurrence is `words` words in a row that were written in a row before; both places may overlap. No sequence
    extends across a special token. After an occurrence, the next one may begin with the next word.

    A word is a run of letters and digits, or one character in scripts without spaces.

    text: a name that is made from the options.
    of: where the words were written before. The prompt is all text before the generated text, earlier turns included;
        `BanList.find` reads a text without a prompt, so there a repeat of the prompt never occurs.
    """

    kind: ClassVar[str] = "repeat"
    constructor: ClassVar[str] = "Ban.repeat"
    search = RepeatSearch

    text: str = ""
    words: int = WORDS
    of: RepeatOf = "text"

    @property
    def group(self) -> Hashable:
        return self

    def __post_init__(self) -> None:
        if self.of not in get_args(RepeatOf):
            raise BanError(f"a repeat is of 'text', 'prompt' or 'both', not of {self.of!r}: pass one of these")
        name = f"{self.words} words of {_OF[self.of]} again"
        if not isinstance(self.text, str) or not _TEXT.fullmatch(self.text):
            raise BanError(f"a repeat has no text of its own, but {self.text!r} came: write {name!r}, or Ban.repeat()")
        check_number("words", name, self.words)
        if not 2 <= self.words <= MAX_WORDS:
            raise BanError(f"words of a repeat is {self.words}; it is a whole number from 2 to {MAX_WORDS:,}")
        object.__setattr__(self, "text", name)

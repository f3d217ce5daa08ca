"""Fold text so that what reads the same compares the same.

Case, canonical equivalence, quotes, dashes, white space and zero-width characters are folded away, and the
edges of words become symbols of their own. It knows nothing of bans or tokens; it works on any cutting of a
text into pieces and remembers in a `Context` what the next piece depends on.

Folding is the Unicode canonical caseless match (D145, https://www.unicode.org/versions/Unicode16.0.0/core-spec/chapter-3/)
with the replacements below.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from itertools import accumulate
from typing import Literal, NamedTuple

import regex

Edges = Literal["word", "anywhere"]

BOUNDARY = "\0"  # stands between a letter or digit and anything else, and at both ends of a text

_ALIKE = str.maketrans(
    dict.fromkeys("\u2018\u2019\u201a\u201b\u02bc\u2032", "'")
    | dict.fromkeys("\u201c\u201d\u201e\u201f\u2033", '"')
    | dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-")
    | {"\u2026": "...", BOUNDARY: "\ufffd"}
)
# Zero-width space, joiners, direction marks, word joiner, byte order mark, soft hyphen, variation selectors.
_INVISIBLE = regex.compile(r"[\u200b-\u200f\u2060\ufeff\u00ad\ufe00-\ufe0f]")
# Scripts written without spaces: every character may begin or end a word.
_UNSPACED = regex.compile(r"[\p{scx=Han}\p{scx=Hiragana}\p{scx=Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]")
_ASCII_WORD = re.compile(r"[0-9A-Za-z]+")
_WHITE = re.compile(r"\s+")

_OTHER, _WORD, _SPACE, _ATTACHED, _MARK = range(5)


class _Piece(NamedTuple):
    symbols: str
    kind: int
    order: int  # canonical combining class, 0 for what does not move


class Context(NamedTuple):
    """What folding the next piece of a text depends on.

    `marks` are combining marks that may still change places, each with its combining class and its place, counted back
    from the end of the text so far: 1 is the last character.
    """

    last: int = _OTHER
    marks: tuple[tuple[int, str, int], ...] = ()


class Folded(NamedTuple):
    """Symbols and, for each, its origin: an index into the piece, or -n for the n-th character before it."""

    symbols: str
    origins: list[int]
    context: Context


START = Context()


class _Table(dict[str, tuple[_Piece, ...]]):
    """Character -> what it folds to, worked out at first sight."""

    def __init__(self, *, case_sensitive: bool) -> None:
        self.case_sensitive = case_sensitive

    def __missing__(self, char: str) -> tuple[_Piece, ...]:
        parts = "" if _INVISIBLE.match(char) else unicodedata.normalize("NFD", char)
        pieces = self[char] = tuple(piece for part in parts for piece in self._pieces(part))
        return pieces

    def _pieces(self, char: str) -> Iterator[_Piece]:
        symbols = char if self.case_sensitive else unicodedata.normalize("NFD", char.casefold())
        order = unicodedata.combining(char)
        if order:
            yield _Piece(symbols, _MARK, order)
        elif char.isspace():
            yield _Piece(" ", _SPACE, 0)
        elif unicodedata.category(char).startswith("M"):
            yield _Piece(symbols, _ATTACHED, 0)
        else:
            for symbol in symbols.translate(_ALIKE):  # U+02BC is a letter, the apostrophe it stands for is none
                is_word = symbol.isalnum() and not _UNSPACED.match(symbol)
                yield _Piece(symbol, _WORD if is_word else _OTHER, 0)


_TABLES = {case_sensitive: _Table(case_sensitive=case_sensitive) for case_sensitive in (False, True)}


def fold(text: str, *, context: Context = START, case_sensitive: bool = False, final: bool = False) -> Folded:
    """Fold one piece of a text; `final` also brings out what waits for a character that will not come.

    >>> fold("A  Testament", final=True).symbols.replace(BOUNDARY, "|")
    '|a| |testament|'
    """
    table = _TABLES[case_sensitive]
    symbols: list[str] = []
    origins: list[int] = []
    last, marks = context.last, [(order, mark, -back) for order, mark, back in context.marks]

    def emit(characters: str, origin: int) -> None:
        symbols.append(characters)
        origins.extend([origin] * len(characters))

    def settle_marks() -> None:
        marks.sort(key=lambda waiting: waiting[0])
        # Whoever ends at a mark ends no earlier than the marks that moved in front of it.
        for (_, mark, _), origin in zip(marks, accumulate((mark[2] for mark in marks), max), strict=True):
            emit(mark, origin)
        marks.clear()

    for index, char in enumerate(text):
        for characters, kind, order in table[char]:
            if kind == _MARK:
                marks.append((order, characters, index))
                continue
            if marks:
                settle_marks()
            if kind == _ATTACHED:
                emit(characters, index)
                continue
            if (kind == _WORD) != (last == _WORD):
                emit(BOUNDARY, index)
            if kind != _SPACE or last != _SPACE:
                emit(characters, index)
            last = kind
    if final:
        settle_marks()
        if last == _WORD:
            emit(BOUNDARY, len(text))
        return Folded("".join(symbols), origins, START)
    waiting = tuple((order, mark, len(text) - origin) for order, mark, origin in marks)
    return Folded("".join(symbols), origins, Context(last, waiting))


def is_unspaced(symbol: str) -> bool:
    """Tell whether a symbol belongs to a script that is written without spaces between words."""
    return symbol > "\u0dff" and _UNSPACED.match(symbol) is not None


def fold_phrase(phrase: str, *, case_sensitive: bool = False, edges: Edges = "word") -> str:
    """Fold a whole phrase into the symbols that a text must hold for the phrase to stand in it."""
    if phrase.isascii():
        cased = (phrase if case_sensitive else phrase.lower()).translate(_ALIKE)
        symbols = _ASCII_WORD.sub(rf"{BOUNDARY}\g<0>{BOUNDARY}", _WHITE.sub(" ", cased))
    else:
        symbols = fold(phrase, case_sensitive=case_sensitive, final=True).symbols
    return symbols if edges == "word" else symbols.strip(BOUNDARY)

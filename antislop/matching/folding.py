"""Fold text so that spellings that read the same compare as equal.

This is the Unicode canonical caseless match (D145, https://www.unicode.org/versions/Unicode16.0.0/core-spec/chapter-3/)
with the replacements below; the edges of words become symbols. What is compared as it is written keeps all but its
canonical decomposition and invisible characters. A text may come in any pieces: a `Context` carries what the next one
depends on.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from itertools import accumulate
from typing import Literal, NamedTuple, get_args

import regex

Edges = Literal["word", "anywhere"]
Folding = Literal["caseless", "cased", "written"]
"""Without the case of letters, with it, or as it is written: with every kind of dash, quote and white space, too."""

BOUNDARY = "\0"  # at both ends of a word, which is a run of letters and digits
SENTENCE_ENDS = frozenset(".!?。！？｡؟۔।॥།။។։።")

_ALIKE = str.maketrans(
    dict.fromkeys("\u2018\u2019\u201a\u201b\u02bc\u2032", "'")
    | dict.fromkeys("\u201c\u201d\u201e\u201f\u2033", '"')
    | dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-")
    | {"\u2026": "...", BOUNDARY: "\ufffd"}
)
# Zero-width space, joiners, direction marks, embeddings and isolates, word joiner, invisible operators, byte order
# mark, soft hyphen, variation selectors, and tatweel, the stroke that makes Arabic words longer.
_INVISIBLE = regex.compile(
    r"[\u200b-\u200f\u061c\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff\u00ad\ufe00-\ufe0f\U000e0100-\U000e01ef\u0640]"
)
# Scripts written without spaces: every character is a word, except digits, which form numbers.
_UNSPACED = regex.compile(r"(?!\p{Nd})[\p{scx=Han}\p{scx=Hiragana}\p{scx=Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]")
# Letters in Unicode that belong to the letter before: "am" of Thai and Lao, the sound marks of halfwidth Japanese.
CLINGING = frozenset("\u0e33\u0eb3\uff9e\uff9f")
_ASCII_EDGE = re.compile(r"(?<![0-9A-Za-z])(?=[0-9A-Za-z])|(?<=[0-9A-Za-z])(?![0-9A-Za-z])")
_WHITE = re.compile(r"\s+")

_OTHER, _WORD, _SINGLE, _SPACE, _ATTACHED, _MARK = range(6)  # _SINGLE: a character that is a word
_WORDS = (_WORD, _SINGLE)


class _Piece(NamedTuple):
    symbols: str
    kind: int
    order: int  # canonical combining class, 0 for what does not move


class Context(NamedTuple):
    """The state of folding between two pieces of a text.

    marks: (combining class, mark, place) of combining marks that may still move. A place is counted back from the end
        of the text so far; 1 is the last character.
    """

    last: int = _OTHER
    marks: tuple[tuple[int, str, int], ...] = ()


class Folded(NamedTuple):
    """Symbols, and for each the index of its character; -n for the n-th before the piece."""

    symbols: str
    origins: list[int]
    context: Context


START = Context()
IN_WORD = Context(_WORD)


class _FoldingTable(dict[str, tuple[_Piece, ...]]):
    def __init__(self, folding: Folding) -> None:
        self.folding = folding

    def __missing__(self, char: str) -> tuple[_Piece, ...]:
        parts = "" if _INVISIBLE.match(char) else unicodedata.normalize("NFD", char)
        pieces = self[char] = tuple(piece for part in parts for piece in self._pieces(part))
        return pieces

    def _pieces(self, char: str) -> Iterator[_Piece]:
        symbols = unicodedata.normalize("NFD", char.casefold()) if self.folding == "caseless" else char
        order = unicodedata.combining(char)
        if self.folding == "written":
            yield _Piece(symbols.replace(BOUNDARY, "\ufffd"), _MARK if order else _OTHER, order)
        elif order:
            yield _Piece(symbols, _MARK, order)
        elif char.isspace():
            yield _Piece(" ", _SPACE, 0)
        elif unicodedata.category(char).startswith("M") or char in CLINGING:
            yield _Piece(symbols, _ATTACHED, 0)
        else:
            for symbol in symbols.translate(_ALIKE):  # U+02BC is a letter, the apostrophe it folds to is not
                kind = _OTHER if not symbol.isalnum() else _SINGLE if _UNSPACED.match(symbol) else _WORD
                yield _Piece(symbol, kind, 0)


_TABLES = {folding: _FoldingTable(folding) for folding in get_args(Folding)}


def fold(text: str, *, context: Context = START, folding: Folding = "caseless", final: bool = False) -> Folded:
    """Fold one piece of a text; `final` also emits the marks that wait for another character.

    >>> fold("A  Testament", final=True).symbols.replace(BOUNDARY, "|")
    '|a| |testament|'
    """
    table = _TABLES[folding]
    symbols: list[str] = []
    origins: list[int] = []
    last, marks = context.last, [(order, mark, -back) for order, mark, back in context.marks]

    def emit(characters: str, origin: int) -> None:
        symbols.append(characters)
        origins.extend([origin] * len(characters))

    def settle_marks() -> None:
        marks.sort(key=lambda waiting: waiting[0])
        # A phrase that ends at a mark ends no earlier than the marks that moved in front of it.
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
            if not kind == last == _WORD:
                emit(BOUNDARY * ((last in _WORDS) + (kind in _WORDS)), index)
            if kind != _SPACE or last != _SPACE:
                symbols.append(characters)  # one symbol
                origins.append(index)
            last = kind
    if final:
        settle_marks()
        if last in _WORDS:
            emit(BOUNDARY, len(text))
        return Folded("".join(symbols), origins, START)
    waiting = tuple((order, mark, len(text) - origin) for order, mark, origin in marks)
    return Folded("".join(symbols), origins, Context(last, waiting))


def fold_word(text: str, *, last: int, folding: Folding = "caseless") -> str | None:
    """Return the symbols of a word of ASCII, with or without a space before it, as `fold` does; None for all else.

    Most tokens are such words, and this is several times as fast. last: of the context.
    """
    word = text.removeprefix(" ")
    if folding == "written" or not (word.isascii() and word.isalnum()):
        return None
    if folding == "caseless":
        word = word.lower()
    edge = BOUNDARY if last in _WORDS else ""
    if len(word) < len(text):
        return None if last == _SPACE else f"{edge} {BOUNDARY}{word}"
    return word if last == _WORD else f"{edge}{BOUNDARY}{word}"


def find_words(text: str, *, is_in_word: bool) -> tuple[list[int], bool]:
    """Return the indices at which words begin, and whether the piece ends in one that may continue.

    >>> find_words("go on 東京", is_in_word=True)
    ([3, 6, 7], False)
    """
    begins = []
    for index, char in enumerate(text):
        for _, kind, _ in _TABLES["caseless"][char]:
            if kind == _SINGLE or (kind == _WORD and not is_in_word):
                begins.append(index)
            if kind not in (_ATTACHED, _MARK):
                is_in_word = kind == _WORD
    return begins, is_in_word


def fold_phrase(phrase: str, *, folding: Folding = "caseless", edges: Edges = "word") -> str:
    """Return a phrase's symbols as they occur in a folded text."""
    if phrase.isascii() and folding != "written":
        cased = (phrase.lower() if folding == "caseless" else phrase).translate(_ALIKE)
        symbols = _ASCII_EDGE.sub(BOUNDARY, _WHITE.sub(" ", cased))
    else:
        symbols = fold(phrase, folding=folding, final=True).symbols
    return symbols if edges == "word" else symbols.strip(BOUNDARY)

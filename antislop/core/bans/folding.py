"""Fold text so that spellings that read the same compare as equal.

This is the Unicode canonical caseless match (D145, https://www.unicode.org/versions/Unicode16.0.0/core-spec/chapter-3/)
with the replacements below. Folded text also has symbols for the edges of words and, where phrases are searched for,
for the borders of what a reader takes for one character (an emoji, a flag, a Hangul syllable). Text folded "as written"
is only decomposed, and loses its invisible characters. A text may come in any pieces: a `Context` carries what folding
the next piece depends on.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from itertools import accumulate
from typing import Literal, NamedTuple, get_args

import regex

Edges = Literal["word", "anywhere"]
Folding = Literal["caseless", "lined", "cased", "written", "signed", "turkish"]
"""Ignore case, and vowel signs of Arabic and Hebrew; tell line feeds from spaces; compare case; or also compare each
kind of dash, quote and space; ignore case alone; or do so as in Turkish, where i and İ are one letter, ı and I another.
"""
SHORT_PIECE = 40
"""Searches remember their results for pieces of fewer characters than this, since the same tokens recur."""

BOUNDARY = "\0"  # at both ends of a word, which is a run of letters and digits
BORDER = "\2"  # around an emoji, after a Hangul syllable, and where a word may begin after what is written onto it
EDGES = BOUNDARY + BORDER
NO_EDGES = str.maketrans("", "", EDGES)
SENTENCE_ENDS = frozenset(".!?。！？｡؟۔।॥།။។։።")
APOSTROPHES = "\u2018\u2019\u201a\u201b\u02bc\u2032"

_ALIKE = str.maketrans(
    dict.fromkeys(APOSTROPHES, "'")
    | dict.fromkeys("\u201c\u201d\u201e\u201f\u2033", '"')
    | dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-")
    | {"\u2026": "..."}
    | dict.fromkeys(EDGES, "\ufffd")
)
# Zero-width space, joiners, direction marks, embeddings and isolates, word joiner, invisible operators, byte order
# mark, soft hyphen, variation selectors, and tatweel, the stroke that makes Arabic words longer.
INVISIBLE = re.compile(  # four times as fast here as `regex`
    r"[\u200b-\u200f\u061c\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff\u00ad\ufe00-\ufe0f\U000e0100-\U000e01ef\u0640]"
)
# Vowel signs: Arabic ones, from fathatan to sukun, and Hebrew points. Words are mostly written without them.
SIGNS = re.compile("[\u064b-\u0652\u0670\u05b0-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7]")
_TURKISH = {ord("I"): "ı", ord("İ"): "i"}
_UNREAD = {"caseless": SIGNS, "turkish": re.compile("\u0307")}  # the dot that `str.lower` leaves of İ
# Scripts written without spaces: every character is a word, except digits, which form numbers.
_UNSPACED = regex.compile(r"(?!\p{Nd})[\p{scx=Han}\p{scx=Hiragana}\p{scx=Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]")
# Signs that extend the character before them: marks, Thai and Lao "am", halfwidth Japanese sound marks, skin tones.
EXTENDING = regex.compile(r"[\p{M}\p{GCB=Extend}\p{GCB=SpacingMark}]")
_ASCII_EDGE = re.compile(r"(?<![0-9A-Za-z])(?=[0-9A-Za-z])|(?<=[0-9A-Za-z])(?![0-9A-Za-z])")
_WHITE = re.compile(r"\s+")

# The kinds of symbols; _FLAG to _LETTER number the groups of `_KINDS`. The state of folding is mostly the latest kind.
_OTHER, _FLAG, _EMOJI, _LEAD, _TAIL, _PREFIX, _LETTER, _WORD, _SINGLE, _SPACE = range(10)
_ATTACHED, _KEYCAP, _MARK, _JOINER = range(10, 14)  # what extends the character before it
_JOINED, _PAIR = range(14, 16)  # states only: after an emoji and a joiner, and after a flag
_KINDS = regex.compile(
    r"(\p{RI})|((?!\w)\p{ExtPict})"
    r"|(\p{GCB=L})|([\p{GCB=V}\p{GCB=T}])"  # the parts of a Hangul syllable
    # Letters that Arabic and Hebrew write onto the next word: articles, prepositions, conjunctions.
    r"|([\u0648\u0641\u0628\u0643\u0644\u0627\u05de\u05e9\u05d4\u05d5\u05db\u05dc\u05d1])|([\p{Arab}\p{Hebr}])"
)
# Such letters may stand before a phrase whose first Arabic or Hebrew word has four letters or more, and particles after
# one whose last Korean word has two syllables or more: added to shorter words, they mostly make other words.
_OPEN = regex.compile(rf"\A{BOUNDARY}(?={BORDER}(?:\w\p{{M}}*{BORDER}?){{4}})|(?<=\w{BORDER}\w+{BORDER}){BOUNDARY}\Z")

_BEGINS = dict.fromkeys((_LEAD, _TAIL, _WORD, _SINGLE), BOUNDARY) | dict.fromkeys((_FLAG, _EMOJI), BORDER)
_BEGINS |= dict.fromkeys((_PREFIX, _LETTER), BOUNDARY + BORDER)
_ENDS = dict.fromkeys((_PREFIX, _LETTER, _WORD, _SINGLE), BOUNDARY) | dict.fromkeys((_LEAD, _TAIL), BORDER + BOUNDARY)
_ENDS |= dict.fromkeys((_FLAG, _PAIR, _EMOJI, _JOINED), BORDER)


def _step(last: int, kind: int) -> tuple[str, int]:
    """Return the edges to write before a symbol of a `kind` in the state `last`, and the state after the symbol."""
    if kind >= _ATTACHED:
        after = {(_EMOJI, _JOINER): _JOINED, (_WORD, _KEYCAP): _SINGLE, (_FLAG, kind): _PAIR, (_JOINED, kind): _PAIR}
        return "", after.get((last, kind), last)
    if last == kind == _FLAG:
        return "", _PAIR
    if (last, kind) in ((_JOINED, _EMOJI), (_LEAD, _LEAD), (_LEAD, _TAIL), (_TAIL, _TAIL)):
        return "", kind
    if (last, kind) == (_TAIL, _LEAD):
        return BORDER, kind
    if last in (_PREFIX, _LETTER, _WORD) and kind in (_PREFIX, _LETTER, _WORD):
        in_run = last == _PREFIX and kind != _WORD  # among the prefixes that begin a word, or right after them
        return BORDER if in_run else "", kind if in_run or kind == _WORD else _LETTER
    return _ENDS.get(last, "") + _BEGINS.get(kind, ""), kind


_STEPS = {(last, kind): _step(last, kind) for last in range(_PAIR + 1) for kind in range(_JOINER + 1)}


class _Piece(NamedTuple):
    symbols: str
    kind: int
    order: int  # canonical combining class, 0 for what does not move


class Context(NamedTuple):
    """The state of folding between two pieces of a text.

    marks: (combining class, mark, place counted back from the end of the text, from 1) of marks that may still move.
    """

    last: int = _OTHER
    marks: tuple[tuple[int, str, int], ...] = ()


class Folded(NamedTuple):
    """A folded piece. origins: each symbol's character, as an index in the piece; -n is the n-th before the piece.

    signs: the places of marks without a symbol that came to rest in this piece: a match takes in those behind it.
    """

    symbols: str
    origins: list[int]
    context: Context
    signs: list[int]


START = Context()
IN_WORD = Context(_WORD)


class _FoldingTable(dict[str, tuple[_Piece, ...]]):
    def __init__(self, folding: Folding, borders: Edges | None) -> None:
        self.folding = folding
        self._known = {None: _OTHER, "anywhere": _TAIL, "word": _LETTER}[borders]  # the last kind to distinguish
        self["\u200d"] = (_Piece("", _JOINER, 0),)

    def __missing__(self, char: str) -> tuple[_Piece, ...]:
        composed = char.translate(_TURKISH) if self.folding == "turkish" else char
        parts = "" if INVISIBLE.match(char) else unicodedata.normalize("NFD", composed)
        pieces = self[char] = tuple(piece for part in parts for piece in self._pieces(part))
        return pieces

    def _pieces(self, char: str) -> Iterator[_Piece]:
        symbols = unicodedata.normalize("NFD", char.casefold()) if self.folding not in ("cased", "written") else char
        if order := unicodedata.combining(char):
            unread = _UNREAD.get(self.folding)
            yield _Piece("" if unread and unread.match(char) else symbols, _MARK, order)
        elif EXTENDING.match(char):
            yield _Piece(symbols, _KEYCAP if char == "\u20e3" else _ATTACHED, 0)
        elif self.folding == "written":
            yield _Piece("\ufffd" if char in EDGES else char, self._find_kind(char), 0)
        elif char.isspace():
            yield _Piece("\n", _OTHER, 0) if char == "\n" and self.folding == "lined" else _Piece(" ", _SPACE, 0)
        else:
            for symbol in symbols.translate(_ALIKE):  # U+02BC is a letter, the apostrophe it folds to is not
                yield _Piece(symbol, self._find_kind(symbol), 0)

    def _find_kind(self, symbol: str) -> int:
        match = _KINDS.match(symbol)
        kind = (match.lastindex or _OTHER) if match else _OTHER
        kind = kind if kind <= self._known else _OTHER
        if self.folding == "written" or not symbol.isalnum():
            return kind if kind in (_FLAG, _EMOJI) else _OTHER
        return _SINGLE if _UNSPACED.match(symbol) else kind or _WORD


_TABLES = {
    (folding, borders): _FoldingTable(folding, borders)
    for folding in get_args(Folding)
    for borders in (None, *get_args(Edges))
}


def fold(
    text: str,
    *,
    context: Context = START,
    folding: Folding = "caseless",
    borders: Edges | None = None,
    final: bool = False,
) -> Folded:
    """Fold one piece of a text. final: the text ends here, so that waiting marks and the last edge are emitted, too.

    borders: the `edges` of the phrases to compare with; they need borders between characters. None emits no borders.

    >>> fold("A  Testament", final=True).symbols.replace(BOUNDARY, "|")
    '|a| |testament|'
    """
    table = _TABLES[folding, borders]
    symbols: list[str] = []
    origins: list[int] = []
    last, marks = context.last, [(order, mark, -back) for order, mark, back in context.marks]
    signs: list[int] = []

    for index, char in enumerate(text):
        for characters, kind, order in table[char]:
            if marks and kind < _MARK:
                _settle_marks(marks, symbols, origins, signs)
            if kind == last == _SPACE:
                continue
            if not kind == last == _WORD:
                edges, last = _STEPS[last, kind]
                symbols.append(edges)
                origins += [index] * len(edges)
            if kind == _MARK:
                marks.append((order, characters, index))
            elif kind != _JOINER:
                symbols.append(characters)  # one symbol
                origins.append(index)
    if final:
        _settle_marks(marks, symbols, origins, signs)
        edges = _STEPS[last, _OTHER][0]
        symbols.append(edges)
        origins += [len(text)] * len(edges)
        return Folded("".join(symbols), origins, START, signs)
    waiting = tuple((order, mark, len(text) - origin) for order, mark, origin in marks)
    return Folded("".join(symbols), origins, Context(last, waiting), signs)


def _settle_marks(marks: list[tuple[int, str, int]], symbols: list[str], origins: list[int], signs: list[int]) -> None:
    """Append the waiting combining marks to the symbols, in canonical order."""
    marks.sort(key=lambda waiting: waiting[0])
    # Marks that are sorted behind a later mark get its place, so that a match which ends with them includes it.
    for (_, mark, _), origin in zip(marks, accumulate((mark[2] for mark in marks), max), strict=True):
        symbols.append(mark)
        (origins if mark else signs).extend([origin] * max(1, len(mark)))
    marks.clear()


def fold_word(text: str, *, last: int, folding: Folding = "caseless") -> str | None:
    """Return the symbols that `fold` has for an ASCII word with or without a space before it; None for other texts.

    Most tokens are such words, and this is several times as fast as `fold`. last: the `Context.last` before the word.
    """
    word = text.removeprefix(" ")
    if folding in ("written", "turkish") or not (word.isascii() and word.isalnum()):
        return None
    if folding != "cased":
        word = word.lower()
    if len(word) < len(text):
        return None if last == _SPACE else f"{_STEPS[last, _SPACE][0]} {BOUNDARY}{word}"
    return word if last == _WORD else _STEPS[last, _WORD][0] + word


def find_words(text: str, *, is_in_word: bool) -> tuple[list[int], bool]:
    """Return the indices at which words begin in a piece, and whether the next piece may continue the last word.

    is_in_word: whether the text before the piece ends within a word.

    >>> find_words("go on 東京", is_in_word=True)
    ([3, 6, 7], False)
    """
    begins = []
    for index, char in enumerate(text):
        for _, kind, _ in _TABLES["caseless", None][char]:
            if kind == _SINGLE or (kind == _WORD and not is_in_word):
                begins.append(index)
            if kind < _ATTACHED:
                is_in_word = kind == _WORD
    return begins, is_in_word


def compose(text: str) -> str:
    """Return a text for display, with composed letters and no invisible characters, that folds to the same symbols."""
    return text if text.isascii() else unicodedata.normalize("NFC", INVISIBLE.sub("", text))


def is_in_run(symbol: str) -> bool:
    """Return whether the borders after a symbol depend on the symbols before it, too: in a run of flags or letters."""
    match = _KINDS.match(symbol)
    return match is not None and match.lastindex in (_FLAG, _PREFIX, _LETTER)


def fold_phrase(phrase: str, *, folding: Folding = "caseless", edges: Edges = "word", borders: bool = False) -> str:
    """Return a phrase's symbols as a folded text has them. borders: the text was folded with `borders=edges`."""
    if phrase.isascii() and folding in ("caseless", "cased"):
        cased = (phrase.lower() if folding == "caseless" else phrase).translate(_ALIKE)
        symbols = _ASCII_EDGE.sub(BOUNDARY, _WHITE.sub(" ", cased))
    else:
        symbols = fold(phrase, folding=folding, borders=edges if borders else None, final=True).symbols
        symbols = _OPEN.sub("", symbols)
    return symbols if edges == "word" else symbols.strip(BOUNDARY)


def fold_text(text: str, *, folding: Folding = "caseless") -> str:
    """Return the folded symbols of a text, without the edges of its words.

    >>> fold_text("It’s  A—cat")
    "it's a-cat"
    """
    return fold_phrase(text, folding=folding).replace(BOUNDARY, "")

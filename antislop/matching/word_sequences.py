"""Find sequences of words with gaps while a text is being written.

Works on folded symbols, word by word: a word is known when it ends. All ways to read a sequence are followed at once
and the first that is complete is the hit, at the end of its last word; each place where a sequence may begin has at
most one. A sequence lies within one sentence; punctuation and white space inside of it don't matter. In scripts
without spaces each character is a word. Knows nothing of bans or tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import chain
from typing import NamedTuple

import regex

from antislop.data import FOLDER
from antislop.files import read_text
from antislop.matching.folding import BOUNDARY, START, Context, fold, fold_phrase
from antislop.matching.phrases import Hit, PieceResult

SENTENCE_ENDS = frozenset(".!?。！？｡؟۔।॥།။។։።")
_CONTRACTED = frozenset(["could", "would", "should", "might", "must", "need"])  # with n't; the others are stop words


_ANY = "\ua66e"  # a letter that nobody writes: stands for "*" while a phrase is folded
_FORGOTTEN = "\ufffd"  # stands for the part of a word in which nothing may begin
_WORD = regex.compile(rf"{BOUNDARY}([^{BOUNDARY}]+){BOUNDARY}")


@cache
def stop_words() -> frozenset[str]:
    """Load the English function words that lists of word sequences leave out."""
    lines = read_text(FOLDER / "stop_words.txt").splitlines()
    return frozenset(line for line in lines if not line.startswith("#"))


class Item(NamedTuple):
    """One word of a sequence, folded, `*` standing for any letters, and how many others may stand before it."""

    word: str
    least: int = 0
    most: int = 0


def split_words(phrase: str, *, gap: int, is_wildcard: bool, case_sensitive: bool = False) -> list[Item]:
    """Return the items of a sequence that is written as words with spaces between.

    gap: how many other words may stand between two of them, or in the place of a lone `*`, which is at least one.
    Raises `ValueError` for a sequence without a word, and for one that begins or ends with a gap.

    >>> split_words("a * of emotion*", gap=3, is_wildcard=True)
    [Item(word='a', least=0, most=0), Item(word='of', least=1, most=3), Item(word='emotion*', least=0, most=0)]
    """
    items: list[Item] = []
    usual = 0 if is_wildcard else gap
    least, most = 0, usual
    for part in phrase.split():
        if is_wildcard and part == "*":
            least, most = least + 1, most + gap
            continue
        words = _split_part(part, case_sensitive=case_sensitive, is_wildcard=is_wildcard)
        if words:
            items += [Item(words[0], least, most), *map(Item, words[1:])]
            least, most = 0, usual
    if not items:
        raise ValueError(f"{phrase!r} holds no word: name one, with a letter or digit")
    if least or items[0].least:
        raise ValueError(f"{phrase!r} begins or ends with a gap: leave out the * there")
    return [items[0]._replace(most=0), *items[1:]]


def _split_part(part: str, *, case_sensitive: bool, is_wildcard: bool) -> list[str]:
    """Return the folded words of a part without spaces."""
    symbols = fold_phrase(part.replace("*", _ANY) if is_wildcard else part, case_sensitive=case_sensitive)
    return [word.replace(_ANY, "*") for word in _WORD.findall(symbols)]


class _Partial(NamedTuple):
    """A sequence that has begun: the item that comes next, words since the last one, and where its first stands."""

    sequence: int
    item: int
    gap: int
    first: int


class SequenceState(NamedTuple):
    """Where reading stands. Places are characters counted back from the end of what was read."""

    context: Context = START
    word: str | None = None  # folded, as far as it was read; None outside of words
    first: int = 0  # of the word's characters
    last: int = 0
    joint: str = ""  # what was read since the last word ended
    partials: tuple[_Partial, ...] = ()


class Sequences:
    """Sequences of items, compiled: those that compare under one kind of folding.

    skipping: those in which stop words count as no words.
    """

    def __init__(
        self,
        sequences: Sequence[Sequence[Item]],
        *,
        skipping: frozenset[int] = frozenset(),
        case_sensitive: bool = False,
    ) -> None:
        self._sequences = sequences
        self._skipping = skipping
        self._case_sensitive = case_sensitive
        self._beginning: dict[str, list[int]] = {}
        self._prefixes: set[str] = {""}
        self._globs: dict[str, list[str]] = {}
        self._beginning_with_glob: list[int] = []
        for number, items in enumerate(sequences):
            for item in items:
                if "*" in item.word:
                    self._globs[item.word] = item.word.split("*")
            self._add_beginning(number, items[0].word)

    def _add_beginning(self, number: int, word: str) -> None:
        if word in self._globs:
            self._beginning_with_glob.append(number)
            return
        for form in (word, word + "n") if number in self._skipping and word in _CONTRACTED else (word,):
            self._beginning.setdefault(form, []).append(number)
            self._prefixes.update(form[:end] for end in range(len(form)))
            self._prefixes.add(form)

    def read(self, state: SequenceState, piece: str, *, final: bool = False) -> tuple[SequenceState, PieceResult]:
        """Read one more piece; `final` also reads the end of the text, which closes words."""
        folded = fold(piece, context=state.context, case_sensitive=self._case_sensitive, final=final)
        word, first, last, joint = state.word, -state.first, -state.last, state.joint
        partials = {partial._replace(first=-partial.first) for partial in state.partials}
        hits: list[Hit] = []
        size = len(piece)
        for symbol, origin in zip(folded.symbols, folded.origins, strict=True):
            if symbol == BOUNDARY and word is None:
                word, first = "", origin
            elif word is not None and symbol != BOUNDARY:
                word, last = word + symbol, origin
            elif word is not None:
                partials, done = self._advance(partials, word, first, is_counted=joint != "'")
                hits += [Hit(partial.sequence, size - partial.first, size - last) for partial in done]
                word, joint = None, ""
            else:
                joint += symbol
                if symbol in SENTENCE_ENDS:
                    partials = set()
        open_ = [size - partial.first for partial in partials]
        if word is not None and (word in self._prefixes or self._beginning_with_glob):
            open_.append(size - first)
        standing = sorted(partial._replace(first=size - partial.first) for partial in partials)
        after = SequenceState(folded.context, word, size - first, size - last, joint[:2], tuple(standing))
        return after, PieceResult(tuple(hits), tuple(open_))

    def forget(self, state: SequenceState) -> SequenceState:
        """Return a state with the same text behind it, of which nothing counts as part of a sequence."""
        return state._replace(word=state.word and _FORGOTTEN, partials=())

    def _advance(
        self, partials: set[_Partial], word: str, first: int, *, is_counted: bool
    ) -> tuple[set[_Partial], list[_Partial]]:
        """Return the sequences that go on after a word that begins at `first`, and those that it completes."""
        beginning = chain(self._beginning.get(word, ()), self._beginning_with_glob)
        if word.startswith(_FORGOTTEN):
            beginning = chain()
        going_on, done = set(), {}
        for partial in chain(partials, (_Partial(number, 0, 0, first) for number in beginning)):
            number, index, gap, start = partial
            items = self._sequences[number]
            item = items[index]
            if gap >= item.least and self._matches(item.word, word, number):
                if index + 1 == len(items):
                    done[number, start] = partial
                else:
                    going_on.add(_Partial(number, index + 1, 0, start))
            gap += is_counted and not (number in self._skipping and word in stop_words())
            if index and gap <= item.most:
                going_on.add(partial._replace(gap=gap))
        return {partial for partial in going_on if (partial.sequence, partial.first) not in done}, list(done.values())

    def _matches(self, wanted: str, word: str, number: int) -> bool:
        if parts := self._globs.get(wanted):
            return _fits(parts, word)
        return word == wanted or (number in self._skipping and wanted in _CONTRACTED and word == wanted + "n")


def _fits(parts: Sequence[str], word: str) -> bool:
    """Return whether a word has these parts, in order, first and last at its ends, and any letters between them.

    The leftmost place is always a good one for the next part, so that this takes no more time than reading the word.
    """
    first, *middle, last = parts
    at, end = len(first), len(word) - len(last)
    if end < at or not (word.startswith(first) and word.endswith(last)):
        return False
    for part in middle:
        at = word.find(part, at, end) + len(part)
        if at < len(part):
            return False
    return True

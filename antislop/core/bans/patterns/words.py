"""The kinds `Wildcard` and `Words`: sequences of words within a sentence, with gaps between them; and their search.

A word is compared, folded, when it ends. All ways to match a sequence are followed at once; from each start, the first
way that becomes complete is the match. In scripts without spaces, each character is a word.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from typing import ClassVar, NamedTuple

import regex

from antislop.core.bans.folding import BOUNDARY, SENTENCE_ENDS, START, Context, Folding, fold, fold_phrase
from antislop.core.bans.patterns import pattern as shared
from antislop.core.bans.patterns.pattern import DOTLESS, FILLER, Pattern, PatternMatch, PieceResult, TextSearch
from antislop.core.bans.units import is_abbreviation
from antislop.data import FOLDER
from antislop.errors import BanError
from antislop.files.disk import read_text

_CONTRACTED = frozenset(["could", "would", "should", "might", "must", "need"])  # other verbs with n't are stop words
_FORGOTTEN = "\ufffd"  # replaces the part of a word before `forget`: no sequence may begin with this word
_WORD = regex.compile(rf"{BOUNDARY}([^{BOUNDARY}]+){BOUNDARY}")


@cache
def stop_words() -> frozenset[str]:
    """Load the stop words: English function words, which published lists of n-grams leave out."""
    lines = read_text(FOLDER / "stop_words.txt").splitlines()
    return frozenset(line for line in lines if not line.startswith("#"))


class Item(NamedTuple):
    """A folded word of a sequence, with `*` for any letters, and how many other words may stand before the word."""

    word: str
    min_gap: int = 0
    max_gap: int = 0


def split_words(text: str, *, gap: int, has_stars: bool, folding: Folding = "caseless") -> list[Item]:
    """Return the items of a sequence that is written as words with spaces between.

    gap: the maximum number of other words between two neighboring words.
    has_stars: other words may stand only where there is a lone `*`; each `*` is one to `gap` words.

    >>> split_words("a * of emotion*", gap=3, has_stars=True)[1:]
    [Item(word='of', min_gap=1, max_gap=3), Item(word='emotion*', min_gap=0, max_gap=0)]
    """
    items: list[Item] = []
    default_gap = 0 if has_stars else gap
    min_gap, max_gap = 0, default_gap
    for part in (shared.read_stars(text, wildcard=FILLER) if has_stars else text).split():
        if has_stars and part == FILLER:
            min_gap, max_gap = min_gap + 1, max_gap + gap
            continue
        symbols = fold_phrase(part, folding=folding)
        words = [word.replace(FILLER, "*") for word in _WORD.findall(symbols)]
        if words:
            items += [Item(words[0], min_gap, max_gap), *map(Item, words[1:])]
            min_gap, max_gap = 0, default_gap
    literally = r", or write \* for the character" if has_stars else ""
    if not items:
        raise BanError(f"{text!r} contains no word: name one, with a letter or digit{literally}")
    if min_gap or items[0].min_gap:
        raise BanError(f"{text!r} begins or ends with a gap: leave out the * there{literally}")
    return [items[0]._replace(max_gap=0), *items[1:]]


class _Partial(NamedTuple):
    sequence: int
    item: int
    gap: int
    start_back: int


class SequenceState(NamedTuple):
    """The state of one track after some text.

    word: the folded part of the current word that was read; None outside of words.
    start_back, end_back: the places of this word's first and latest character.
    joint: the first symbols after the last word.
    is_short: whether the last word may be an abbreviation, after which a full stop ends no sentence.
    """

    context: Context = START
    word: str | None = None
    start_back: int = 0
    end_back: int = 0
    joint: str = ""
    is_short: bool = False
    partials: tuple[_Partial, ...] = ()


class _WordTrack:
    def __init__(self, sequences: Sequence[WordSequence], ids: Sequence[int], folding: Folding) -> None:
        self._sequences = {number: sequences[number].items for number in ids}
        self._skipping = frozenset(number for number in ids if sequences[number].skip_stop_words)
        self._folding = folding
        self._beginning: dict[str, list[int]] = {}
        self._prefixes: set[str] = {""}
        self._globs: dict[str, list[str]] = {}
        self._beginning_with_glob: list[int] = []
        for number, items in self._sequences.items():
            self._globs |= {item.word: item.word.split("*") for item in items if "*" in item.word}
            word = items[0].word
            if word in self._globs:
                self._beginning_with_glob.append(number)
                continue
            for form in (word, word + "n") if number in self._skipping and word in _CONTRACTED else (word,):
                self._beginning.setdefault(form, []).append(number)
                self._prefixes.update(form[:end] for end in range(len(form) + 1))

    def read(self, state: SequenceState, piece: str, *, final: bool) -> tuple[SequenceState, PieceResult]:
        folded = fold(piece, context=state.context, folding=self._folding, final=final)
        # Within the piece, places are indices into it, negative for characters before it.
        word, start, end, joint = state.word, -state.start_back, -state.end_back, state.joint
        is_short = state.is_short
        partials = {partial._replace(start_back=-partial.start_back) for partial in state.partials}
        matches: list[PatternMatch] = []
        size = len(piece)
        for symbol, origin in zip(folded.symbols, folded.origins, strict=True):
            if symbol == BOUNDARY and word is None:
                word, start = "", origin
            elif word is not None and symbol != BOUNDARY:
                word, end = word + symbol, origin
            elif word is not None:
                end = max([end, *(sign for sign in folded.signs if sign < origin)])
                # What follows an apostrophe, such as the t of "don't", does not count as a word of a gap.
                partials, complete = self._advance(partials, word, start, is_counted=joint != "'")
                matches += [
                    PatternMatch(partial.sequence, size - partial.start_back, size - end) for partial in complete
                ]
                is_short = joint != "'" and is_abbreviation(word.casefold())
                word, joint = None, ""
            else:
                joint += symbol
                if symbol in SENTENCE_ENDS and not (joint == "." and is_short):
                    partials = set()
        open_ = [size - partial.start_back for partial in partials]
        if word is not None and (word in self._prefixes or self._beginning_with_glob):
            open_.append(size - start)
        waiting = sorted(partial._replace(start_back=size - partial.start_back) for partial in partials)
        after = SequenceState(folded.context, word, size - start, size - end, joint[:2], is_short, tuple(waiting))
        return after, PieceResult(tuple(matches), tuple(open_))

    def _advance(
        self, partials: set[_Partial], word: str, start: int, *, is_counted: bool
    ) -> tuple[set[_Partial], list[_Partial]]:
        beginning = chain(self._beginning.get(word, ()), self._beginning_with_glob)
        if word.startswith(_FORGOTTEN):
            beginning = chain()  # no sequence may begin with this word
        continuing, complete = set(), {}
        for partial in chain(partials, (_Partial(number, 0, 0, start) for number in beginning)):
            number, index, gap, origin = partial
            items = self._sequences[number]
            item = items[index]
            if gap >= item.min_gap and self._matches(item.word, word, number):
                if index + 1 == len(items):
                    complete[number, origin] = partial
                else:
                    continuing.add(_Partial(number, index + 1, 0, origin))
            gap += is_counted and not (number in self._skipping and word in stop_words())
            if index and gap <= item.max_gap:
                continuing.add(partial._replace(gap=gap))
        # Once a sequence is complete, all other ways to match it from the same start are given up.
        incomplete = {partial for partial in continuing if (partial.sequence, partial.start_back) not in complete}
        return incomplete, list(complete.values())

    def _matches(self, item: str, word: str, number: int) -> bool:
        if parts := self._globs.get(item):
            return _fits(parts, word)
        return word == item or (number in self._skipping and item in _CONTRACTED and word == item + "n")


class WordSearch(TextSearch[tuple[SequenceState, ...]]):
    def __init__(self, patterns: Sequence[WordSequence]) -> None:
        self._tracks = shared.make_tracks(patterns, _WordTrack)
        self.start = (SequenceState(),) * len(self._tracks)

    def read(
        self, state: tuple[SequenceState, ...], piece: str, *, final: bool = False
    ) -> tuple[tuple[SequenceState, ...], PieceResult]:
        tracks = zip(self._tracks, state, strict=True)
        read = [track.read(before, piece, final=final) for track, before in tracks]
        matches = chain.from_iterable(result.matches for _, result in read)
        open_ = chain.from_iterable(result.open for _, result in read)
        return tuple(after for after, _ in read), PieceResult(tuple(matches), tuple(open_))

    def forget(self, state: tuple[SequenceState, ...]) -> tuple[SequenceState, ...]:
        return tuple(track_state._replace(word=track_state.word and _FORGOTTEN, partials=()) for track_state in state)


def _fits(parts: Sequence[str], word: str) -> bool:
    """Return whether a word consists of these parts, in order, with any letters between them."""
    prefix, *middle, suffix = parts
    index, end = len(prefix), len(word) - len(suffix)
    if end < index or not (word.startswith(prefix) and word.endswith(suffix)):
        return False
    for part in middle:  # the leftmost place is enough
        index = word.find(part, index, end) + len(part)
        if index < len(part):
            return False
    return True


@dataclass(frozen=True, slots=True)
class WordSequence(Pattern):
    """Words in order: the base class of `Wildcard` and `Words`, whose texts are written in different ways.

    case_sensitive: compare the case of letters.
    gap: the maximum number of other words in a gap.
    language: as for a phrase.
    """

    has_stars: ClassVar[bool] = False
    search = WordSearch

    text: str
    case_sensitive: bool = False
    gap: int = 0
    language: str = ""
    items: tuple[Item, ...] = field(init=False, repr=False, compare=False, default=())

    def __post_init__(self) -> None:
        shared.check_text(self.text)
        shared.check_switch("case_sensitive", self.text, self.case_sensitive)
        shared.check_number("gap", self.text, self.gap)
        shared.settle_language(self, ignores_case=not self.case_sensitive)
        items = split_words(self.text, gap=self.gap, has_stars=self.has_stars, folding=self.folding)
        object.__setattr__(self, "items", tuple(items))

    @property
    def skip_stop_words(self) -> bool:
        return False

    @property
    def widest_gap(self) -> int:
        return max(item.max_gap for item in self.items)

    @property
    def key(self) -> Hashable:
        return WordSequence, self.items, self.skip_stop_words, self.folding

    def find_symbols(self, folding: Folding) -> str:
        if self.language and folding != "turkish":
            return self.find_symbols("turkish").translate(DOTLESS)
        items = split_words(self.text, gap=self.gap, has_stars=self.has_stars, folding=folding)
        words = (item.word.replace("*", FILLER) for item in items)
        return FILLER.join(f"{BOUNDARY}{word}{BOUNDARY}" for word in words)

    def find_samples(self, *, widest_gap: int) -> list[str]:
        uncounted = ["the"] * (widest_gap + 1) if self.skip_stop_words else []
        shortest, longest = list[str](), list[str]()
        for item in self.items:
            word = item.word.replace("*", FILLER)
            shortest += [*[FILLER] * item.min_gap, word]
            longest += [*[FILLER] * item.max_gap, *uncounted, word]
        return [" ".join(shortest), " ".join(longest)]


@dataclass(frozen=True, slots=True)
class Wildcard(WordSequence):
    r"""A phrase in which a `*` in a word stands for any letters, and a lone `*` for one to `gap` words.

    `\*` stands for the character `*`. Like all punctuation, it is not compared between words.
    """

    kind: ClassVar[str] = "wildcard"
    constructor: ClassVar[str] = "Ban.wildcard"
    has_stars: ClassVar[bool] = True

    gap: int = shared.WILDCARD_GAP


@dataclass(frozen=True, slots=True)
class Words(WordSequence):
    """Words in this order, with up to `gap` other words between two neighbors.

    skip_stop_words: don't count articles, pronouns, auxiliaries and the like as other words.
    """

    kind: ClassVar[str] = "words"
    constructor: ClassVar[str] = "Ban.words"

    skip_stop_words: bool = False

    def __post_init__(self) -> None:
        shared.check_switch("skip_stop_words", self.text, self.skip_stop_words)
        WordSequence.__post_init__(self)

    @property
    def arguments(self) -> str:
        return repr(self.text.split())

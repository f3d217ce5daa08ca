"""Phrases, compared under folding, and their search: automata over folded symbols.

An `Automaton` finds many strings at once (Aho-Corasick, doi 10.1145/360825.360855) and is built while it runs. Each
node is a prefix of patterns, stored as a range of the sorted patterns, which is found by bisection when a text first
reaches the node. So compiling only sorts the patterns, and only visited nodes take memory.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from operator import sub
from typing import Any, ClassVar, NamedTuple, TypeAlias, get_args

from antislop.core.bans import folding as folds
from antislop.core.bans.folding import EDGES, IN_WORD, SHORT_PIECE, START, Context, Edges, Folding
from antislop.core.bans.patterns import pattern as shared
from antislop.core.bans.patterns.pattern import DOTLESS, Fault, Pattern, PatternMatch, PieceResult, TextSearch
from antislop.core.bans.patterns.words import Wildcard
from antislop.errors import BanError

_FEW_LETTERS = 2
_MARKS = {
    "-": "every hyphen, that of “well-known” too",
    "–": "every en dash, that of “1990–1995” too",
    "'": "every straight apostrophe, that of “don't” too",
    "’": "every curly apostrophe, that of “don’t” too",
    '"': "every straight double quote",
}


class TrieNode(dict[str, "TrieNode"]):
    """The longest prefix of a pattern with which a text ends. `node[symbol]` is the node after one more symbol.

    Nodes are compared by identity. To rewind, use an earlier node.

    automaton: the automaton to which the node belongs.
    depth: number of symbols of the prefix.
    low, high: the range of the sorted patterns that begin with the prefix.
    fallback: the node of the next shorter prefix with which the text ends; None at the root.
    matches: (pattern, length) of each whole pattern with which the text ends, longest first.
    longest: length of the longest incomplete pattern with which the text ends.
    width: `longest` without the symbols that stand for no character: the edges of words.
    """

    __slots__ = ("automaton", "depth", "fallback", "high", "longest", "low", "matches", "width")
    __eq__ = object.__eq__
    __hash__ = object.__hash__  # type: ignore[assignment]  # that of a dict is None

    def __init__(
        self, automaton: Automaton, depth: int, low: int, high: int, width: int, fallback: TrieNode | None
    ) -> None:
        self.automaton = automaton
        self.depth = depth
        self.low = low
        self.high = high
        self.fallback = fallback
        self.matches: tuple[tuple[int, int], ...] = fallback.matches if fallback is not None else ()
        self.longest = depth
        self.width = width

    def __missing__(self, symbol: str) -> TrieNode:
        path = [self]  # the nodes that lack the symbol, from here to the first shorter prefix that has it
        while (fallback := path[-1].fallback) is not None and symbol not in fallback:
            path.append(fallback)
        after = self.automaton.root if fallback is None else fallback[symbol]
        for node in reversed(path):
            after = node[symbol] = self.automaton.extend(node, symbol, after)
        return after


class Automaton:
    """An automaton that finds several strings, the patterns, at once.

    placeless: symbols that stand for no character of a text.
    root: the node before the first symbol of a text.
    nodes: the nodes that texts have reached.

    >>> automaton = Automaton(["she", "he", "hers"])
    >>> node = automaton.root
    >>> for symbol in "she":
    ...     node = node[symbol]
    >>> node.matches, node.longest
    (((0, 3), (1, 2)), 2)
    """

    def __init__(self, patterns: Sequence[str], *, placeless: str = "") -> None:
        self._placeless = placeless
        self._ids = array("I", sorted(range(len(patterns)), key=patterns.__getitem__))
        self._sorted = [patterns[i] for i in self._ids]
        self.root = TrieNode(self, 0, 0, len(patterns), 0, None)
        self.nodes = [self.root]

    def forget(self) -> None:
        """Drop all nodes but the root; nodes that a caller keeps can still be used."""
        for node in self.nodes:
            node.clear()
        self.nodes = [self.root]

    def prefix(self, node: TrieNode) -> str:
        return self._sorted[node.low][: node.depth] if node.depth else ""

    def extend(self, node: TrieNode, symbol: str, fallback: TrieNode) -> TrieNode:
        """Add and return the node of a node's prefix and one more symbol; return `fallback` if no pattern begins so."""
        patterns, low, high, depth = self._sorted, node.low, node.high, node.depth
        if low == high:  # the root, if there are no patterns
            return fallback
        first = patterns[low][depth : depth + 1]
        last = first if low + 1 == high else patterns[high - 1][depth : depth + 1]
        if not first <= symbol <= last:
            return fallback
        if first < last:
            prefix = patterns[low][:depth]
            if first < symbol:
                low = bisect_left(patterns, prefix + symbol, low, high)
            if symbol < last:
                high = bisect_left(patterns, prefix + chr(ord(symbol) + 1), low, high)
            if low == high:
                return fallback
        width = node.width + (symbol not in self._placeless)
        after = TrieNode(self, depth + 1, low, high, width, fallback)
        prefix = patterns[low]
        if len(prefix) == depth + 1:  # patterns equal to the prefix sort before all longer ones
            equal = bisect_left(patterns, prefix + "\0", low, high)
            after.matches = (*((pattern, depth + 1) for pattern in self._ids[low:equal]), *fallback.matches)
            if equal == high:
                after.longest, after.width = fallback.longest, fallback.width
        self.nodes.append(after)
        return after


# -- phrases ----------------------------------------------------------------------------------------------------------


PhraseState: TypeAlias = tuple[Context, TrieNode, tuple[int, ...] | None]
"""The state of one track: (context of folding, node of the automaton, gaps).

gaps: for each symbol of the longest incomplete phrase, the number of characters from there to the next symbol; for the
    last symbol, to the end of the text. None in the regular case, which is almost every case: each symbol stands for
    one character, and an edge for none.
"""
PhraseStates: TypeAlias = tuple[PhraseState, ...]


class _FoldedPiece(NamedTuple):
    """A folded piece of a text; fields as in `Folded`. origins: None if each symbol, edges aside, is one character."""

    symbols: str
    context: Context
    origins: Sequence[int] | None = None
    signs: Sequence[int] = ()


def _fold_piece(piece: str, context: Context, folding: Folding, edges: Edges, final: bool) -> _FoldedPiece:
    if not (final or context.marks):
        word = folds.fold_word(piece, last=context.last, folding=folding)
        if word is not None:
            return _FoldedPiece(word, IN_WORD)
    symbols, origins, after, signs = folds.fold(piece, context=context, folding=folding, borders=edges, final=final)
    size = len(piece)
    is_regular = not context.marks and sum(_find_regular_gaps(symbols)) == size == len({size, *origins}) - 1
    return _FoldedPiece(symbols, after, None if is_regular else origins, signs)


_fold_again = lru_cache(maxsize=1 << 16)(_fold_piece)


def _find_regular_gaps(symbols: str) -> tuple[int, ...]:
    return tuple([int(symbol not in EDGES) for symbol in symbols])


class _PhraseTrack:
    def __init__(self, phrases: Sequence[Phrase], ids: Sequence[int], folding: Folding, edges: Edges) -> None:
        self._folding, self._edges = folding, edges
        symbols = [phrases[i].find_symbols(folding) for i in ids]
        self.automaton = Automaton(symbols, placeless=EDGES)
        self.ids = ids

    def read(self, before: PhraseState, piece: str, final: bool) -> tuple[PhraseState, tuple[PatternMatch, ...]]:
        context, node, gaps = before
        fold_piece = _fold_again if len(piece) < SHORT_PIECE else _fold_piece
        folded = symbols, context, origins, _ = fold_piece(piece, context, self._folding, self._edges, final)
        for symbol in symbols:
            node = node[symbol]
            if node.matches:
                return self._read_places(before, folded, len(piece))
        if node.longest and (gaps is not None or origins is not None):
            return self._read_places(before, folded, len(piece))
        return (context, node, None), ()

    def _read_places(
        self, before: PhraseState, folded: _FoldedPiece, size: int
    ) -> tuple[PhraseState, tuple[PatternMatch, ...]]:
        """Read a piece in which a phrase ends, or in which symbols and characters are not one to one."""
        _, node, gaps = before
        symbols = self._find_open(node)
        gaps = gaps or _find_regular_gaps(symbols)
        earlier = list(accumulate(reversed(gaps), sub, initial=0))[:0:-1]
        regular = list(accumulate(_find_regular_gaps(folded.symbols), initial=0))[:-1]
        origins = [*earlier, *(folded.origins or regular)]
        symbols, matches = symbols + folded.symbols, []
        for index, symbol in enumerate(folded.symbols, start=len(earlier)):
            node = node[symbol]
            for phrase, length in node.matches:
                # An edge has the place of the character after it, which may begin a match but never ends one.
                last = len(symbols[: index + 1].rstrip(EDGES)) - 1
                start_back = size - origins[index + 1 - length]
                end = max([origins[last], *(sign for sign in folded.signs if sign < origins[index])])
                matches.append(PatternMatch(self.ids[phrase], start_back, size - end))
        open_ = origins[len(origins) - node.longest :]
        gaps = tuple(map(sub, [*open_[1:], size], open_))
        is_regular = gaps == _find_regular_gaps(self._find_open(node))
        return (folded.context, node, None if is_regular else gaps), tuple(matches)

    def _find_open(self, node: TrieNode) -> str:
        """Return the symbols that were read so far of the longest incomplete phrase."""
        return self.automaton.prefix(node)[node.depth - node.longest :]


class PhraseSearch(TextSearch[PhraseStates]):
    def __init__(self, patterns: Sequence[Phrase]) -> None:
        groups: dict[tuple[Folding, Edges], list[int]] = {}
        for number, phrase in enumerate(patterns):
            edges = "word" if (folding := phrase.folding) == "written" else phrase.edges  # its own edges don't matter
            groups.setdefault((folding, edges), []).append(number)
        self._tracks = [_PhraseTrack(patterns, ids, *reading) for reading, ids in groups.items()]
        self.start = tuple((START, track.automaton.root, None) for track in self._tracks)

    def read(self, state: PhraseStates, piece: str, *, final: bool = False) -> tuple[PhraseStates, PieceResult]:
        state, matches = self.read_matches(state, piece, final)
        return state, PieceResult(matches, self.find_open(state))

    def read_matches(
        self, state: PhraseStates, piece: str, final: bool = False
    ) -> tuple[PhraseStates, tuple[PatternMatch, ...]]:
        """Do what `read` does but find incomplete phrases, which saves time: `find_open` finds these."""
        if len(state) == 1:  # almost always
            after, matches = self._tracks[0].read(state[0], piece, final)
            return (after,), matches
        results = [track.read(each, piece, final) for track, each in zip(self._tracks, state, strict=True)]
        return tuple(after for after, _ in results), tuple(match for _, matches in results for match in matches)

    def find_open(self, state: PhraseStates) -> tuple[int, ...]:
        """Return the places at which the longest incomplete phrase of each track begins."""
        return tuple(filter(None, [node.width if gaps is None else sum(gaps) for _, node, gaps in state]))

    def forget(self, state: PhraseStates) -> PhraseStates:
        return tuple((context, root, None) for (context, _, _), (_, root, _) in zip(state, self.start, strict=True))

    def shrink(self) -> None:
        """Drop the nodes that texts have reached; states that a caller keeps can still be read from."""
        for track in self._tracks:
            track.automaton.forget()


@dataclass(frozen=True, slots=True)
class Phrase(Pattern):
    """A phrase. White space, quotes, dashes and canonically equivalent characters compare as the module `folding` says.

    text: the phrase, in which `*` is a character. A phrase without a letter or digit compares as it is written.
    case_sensitive: compare the case of letters.
    edges: "word" if the phrase must not touch other letters or digits, except for those that a language writes onto a
        word: Korean particles, Arabic and Hebrew articles, prepositions and conjunctions.
    line_feeds: a line feed in the phrase equals only a line feed, not other white space. Case is ignored then.
    language: "tr" or "az": İ is the capital of i, and I that of ı. Any other code changes nothing.

    An emoji, a flag or a Hangul syllable occurs only as a whole.
    """

    kind: ClassVar[str] = "phrase"
    constructor: ClassVar[str] = "Ban"
    is_literal: ClassVar[bool] = True
    search = PhraseSearch

    text: str
    case_sensitive: bool = False
    edges: Edges = "word"
    line_feeds: bool = False
    language: str = field(default="", hash=False)  # rarely given, and each match hashes its ban

    def __post_init__(self) -> None:
        shared.check_text(self.text, line_feeds=self.line_feeds is True)
        shared.check_switch("case_sensitive", self.text, self.case_sensitive)
        shared.check_switch("line_feeds", self.text, self.line_feeds)
        if self.line_feeds and self.case_sensitive:
            raise BanError(f"{self.text!r} can't have both line_feeds and case_sensitive: write a regex")
        object.__setattr__(self, "line_feeds", self.line_feeds and "\n" in self.text)  # no effect on other phrases
        shared.settle_language(self, ignores_case=not (self.case_sensitive or self.line_feeds))
        if self.edges not in get_args(Edges):
            raise BanError(f"the edges of {self.text!r} are {self.edges!r}; they are 'word' or 'anywhere'")

    @property
    def arguments(self) -> str:
        return repr(shared.write_stars(self.text))

    @property
    def is_part_of_words(self) -> bool:
        # A sign, or a character of a script without spaces, is a word by itself, and no part of a longer one.
        is_one_word = len(self.text.split()) == 1 and folds.find_words(self.text[:1], is_in_word=False)[1]
        return self.edges == "anywhere" and is_one_word

    @property
    def folding(self) -> Folding:
        # A dash, a quote or an emoji is meant as it is: "—" is not the hyphen of "well-known".
        if not shared.has_word(self.text):
            return "written"
        return "lined" if self.line_feeds else super(Phrase, self).folding

    @property
    def key(self) -> Hashable:
        return self.find_symbols(folding := self.folding), folding

    def find_symbols(self, folding: Folding) -> str:
        if self.language and folding != "turkish":
            return self.find_symbols("turkish").translate(DOTLESS)
        return folds.fold_phrase(self.text, folding=folding, edges=self.edges, borders=True)

    def find_samples(self, *, widest_gap: int) -> list[str]:  # noqa: ARG002
        return [self.text] if self.edges == "word" else []

    def list_spellings(self) -> list[str]:
        if self.edges != "word":
            return []
        if self.folding in ("written", "lined"):
            return [self.text]
        text, curly = self.text, self.text.replace("'", "’").replace('"', "”")
        spellings = [text, curly, text.replace("’", "'"), text.replace(" ", "\n")]
        if not (self.case_sensitive or self.language):
            spellings += [text.lower(), text.upper(), text[:1].upper() + text[1:]]
        return list(dict.fromkeys(spellings))

    def find_faults(self) -> Iterator[Fault]:
        letters, mark = folds.fold_text(self.text).replace(" ", ""), self.text.strip()
        if len(letters) <= _FEW_LETTERS and letters.isalnum() and folds.find_words(letters, is_in_word=False)[1]:
            count = "one letter" if len(letters) == 1 else f"{len(letters)} letters"
            where = "occurs inside many words" if self.edges == "anywhere" else "means many things"
            yield Fault("short", f"has only {count} and {where}", "write the longer phrase it is from")
        elif mark in _MARKS:
            fix = "use antislop.dashes() or --no-dashes" if mark in "-–" else "write a longer phrase"
            yield Fault("common", f"hits {_MARKS[mark]}", fix)


def read_phrase(text: Any) -> tuple[type[Pattern], Any]:
    r"""Return the kind and the text of a phrase as people write it: a `Wildcard` if it has a `*`, else a `Phrase`.

    `\*` is the character; in a phrase without a letter or digit, `*` is, too.

    >>> read_phrase(r"\*sighs\*")
    (<class 'antislop.core.bans.patterns.phrase.Phrase'>, '*sighs*')
    """
    if not isinstance(text, str) or "*" not in text:
        return Phrase, text
    if not (shared.has_wildcard(text) and shared.has_word(text)):
        return Phrase, shared.read_stars(text)
    return Wildcard, text

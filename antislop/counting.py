"""Count the words, phrases, content n-grams and regexes of many texts in bounded memory.

Texts are read twice. The first time each n-gram adds to one of a fixed number of counters, which it shares with others,
so that no count comes out too small. The second time only what may have reached the smallest count that matters is
counted, exactly. An n-gram can't be more frequent than a part of it, which keeps most chance candidates out.

Knows neither baselines nor bans. Words are those of `words.extract_words`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from antislop.sequences import SENTENCE_ENDS
from antislop.texts import Text
from antislop.words import drop_stop_words

Kind = Literal["word", "phrase", "content", "construction"]
Texts: TypeAlias = Callable[[], Iterable[Text]]
"""Texts that can be read again and again."""

PHRASE_WORDS = 5
CONTENT_WORDS = 3
GROUPS = 32
"""In how many groups of prompts occurrences are counted, for intervals."""
PROMPTS = 512
"""How many prompts are told apart in counting those of one entry."""
EXAMPLES = 3
CANDIDATES = 1 << 19
"""How many n-grams are counted exactly at most."""

_Longs: TypeAlias = npt.NDArray[np.int64]
_Hashes: TypeAlias = npt.NDArray[np.uint64]
_Flags: TypeAlias = npt.NDArray[np.bool_]

_APOSTROPHES = "\u2018\u2019\u02bc\uff07"
_TOKEN = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)?|[^\w\s]+|[\d_]+")
_HARD = re.compile(rf"[\d…{re.escape(''.join(sorted(SENTENCE_ENDS)))}]")
_WHITE = re.compile(r"\s+")
_AROUND = 60  # characters of an example on either side
_CHUNK = 2_000_000  # characters; what is counted at once
_KNOWN_TOKENS = 1 << 19
_ENOUGH = 2  # occurrences right after another word, to tell whether a word is a name
_ORDER: dict[Kind, int] = {"word": 0, "phrase": 1, "content": 2, "construction": 3}
_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.uint8)  # set in a byte
_STOP, _SOFT, _HARD_BREAK = 1, 2, 3  # kinds of tokens; 0 are content words
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2**64 over the golden ratio, https://oeis.org/A001622
_CONTENT = np.uint64(0xC2B2AE3D27D4EB4F)  # keeps content n-grams apart from phrases


class Progress(Protocol):
    """Told how far counting is: which reading, characters read in it, and how many there are, if that is known."""

    def __call__(self, reading: int, done: int, total: int | None) -> None: ...


@dataclass(frozen=True, slots=True)
class Occurrences:
    """How often something stands in texts, and where.

    prompts: how many distinct ones; where texts have more than `PROMPTS`, these are dealt into that many groups, and it
        is the number of groups: at least so many prompts.
    groups: occurrences per group of prompts, `GROUPS` of them.
    places: (number of a text, index of the first token, or of the first character of a construction), from 0.
    """

    kind: Kind
    text: str
    count: int
    texts: int
    prompts: int
    groups: _Longs
    places: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Census(Sequence[Occurrences]):
    """What was counted: everything that occurs `min_count` times from `min_prompts` prompts.

    min_count: may be larger than what was asked for, where memory did not suffice.
    group_words: words per group of prompts.
    names, counts: kind and text of each, and how often it occurs; all that is known of it comes by its index.
    proper: words that are mostly capitalised right after another word, but for function words.
    """

    texts: int
    prompts: int
    words: int
    characters: int
    min_count: int
    group_words: _Longs
    names: Sequence[tuple[Kind, str]]
    counts: Sequence[int]
    proper: frozenset[str]
    _columns: _Columns = field(repr=False)
    _rows: Sequence[int] = field(repr=False)

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, index: int) -> Occurrences: ...
    @overload
    def __getitem__(self, index: slice) -> list[Occurrences]: ...
    def __getitem__(self, index: int | slice) -> Occurrences | list[Occurrences]:
        if isinstance(index, slice):
            return [self[each] for each in range(len(self))[index]]
        columns, row = self._columns, self._rows[index]
        kind, text = self.names[index]
        return Occurrences(
            kind=kind,
            text=text,
            count=self.counts[index],
            texts=int(columns.texts[row]),
            prompts=int(np.unpackbits(columns.prompts[row]).sum()),
            groups=columns.counts[row].astype(np.int64),
            places=tuple((text, place) for text, place in columns.places[row].tolist() if text >= 0),
        )


def count(
    texts: Texts,
    *,
    patterns: Mapping[str, Any] | None = None,
    min_count: int = 5,
    min_prompts: int = 2,
    megabytes: int = 256,
    most: int | None = None,
    progress: Progress | None = None,
) -> Census:
    """Count what occurs often enough in texts, which are read twice.

    texts: a function that returns them anew at each call; a text without a prompt is its own prompt.
    patterns: compiled ones of the package `regex`, by name; they are counted as constructions, over whole texts.
    megabytes: for the counters of the first reading; a power of two, else the next smaller one.
    most: how many candidates are counted in the second, `CANDIDATES` by default; if there are more, `min_count` is
        raised until they fit.

    A phrase is 1 to 5 words with nothing but white space between them; a content n-gram is 2 or 3 content words in one
    sentence with stop words and punctuation between them. Counts are exact but for two n-grams with the same 64-bit
    hash. Holds one text at a time as a whole, and some 400 bytes for each candidate.

    >>> from antislop.texts import Text
    >>> texts = [Text("a cat, a cat", None, "1", {}), Text("A cat sat", None, "2", {})]
    >>> [(each.kind, each.text, each.count) for each in count(lambda: texts, min_count=3)]
    [('word', 'a', 3), ('word', 'cat', 3), ('phrase', 'a cat', 3)]
    """
    most = CANDIDATES if most is None else most
    codes = _Codes()
    sketch = _Sketch(megabytes)
    first = _Reading(texts, codes, progress, number=1)
    for chunk in first:
        for grams in chunk.grams():
            sketch.add(grams.hashes)
    least = sketch.find_least(min_count, most)
    second = _Reading(texts, codes, progress, number=2, total=first.characters)
    table = _Table(sketch, least=least, most=most, patterns=patterns or {})
    for chunk in second:
        table.add(chunk)
    return table.collect(second, min_prompts=min_prompts, min_count=min_count)


def cut_examples(texts: Texts, found: Iterable[Occurrences]) -> dict[tuple[Kind, str], tuple[str, ...]]:
    """Return what stands around the places of occurrences, per (kind, text), white space as single spaces."""
    wanted: dict[int, list[tuple[Occurrences, int]]] = {}
    for each in found:
        for number, place in each.places:
            wanted.setdefault(number, []).append((each, place))
    examples: dict[tuple[Kind, str], tuple[str, ...]] = {}
    last = max(wanted, default=-1)
    for number, text in enumerate(texts()):
        if number in wanted:
            tokens = 1 + max((place for each, place in wanted[number] if each.kind != "construction"), default=-1)
            starts = [match.start() for match in islice(_TOKEN.finditer(_straighten(text.text)), tokens)]
            for each, place in wanted[number]:
                start = place if each.kind == "construction" else starts[place]
                key = each.kind, each.text
                examples[key] = (*examples.get(key, ()), _cut(text.text, start, len(each.text)))
        if number == last:
            break
    return examples


def _cut(text: str, start: int, length: int) -> str:
    begin, end = max(0, start - _AROUND), start + min(length, _AROUND) + _AROUND
    begin = next((i + 1 for i in range(begin, start) if text[i].isspace()), start) if begin else 0
    return ("…" * (begin > 0)) + _WHITE.sub(" ", text[begin:end]).strip() + ("…" * (end < len(text)))


def _straighten(text: str) -> str:
    for apostrophe in _APOSTROPHES:
        text = text.replace(apostrophe, "'")
    return text


# -- Taking texts apart -----------------------------------------------------------------------------------------------


class _Codes(dict[str, int]):
    """Token -> 62 bits: a hash without regard to case, two bits of its kind, and one that says it is capitalised.

    The hash depends on nothing else, so that what is known can be forgotten.
    """

    def __missing__(self, token: str) -> int:
        if len(self) >= _KNOWN_TOKENS:
            self.clear()
        lower = token.lower()
        if token[0].isalpha():
            kind = 0 if drop_stop_words([lower]) else _STOP
        else:
            kind = _HARD_BREAK if _HARD.search(token) else _SOFT
        digest = int.from_bytes(blake2b(lower.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")
        code = self[token] = (digest >> 5 << 3) | kind << 1 | token[0].isupper()
        return code


class _Grams(NamedTuple):
    """The n-grams of one length in a chunk.

    starts: of each, the index of its first word among the words that count for its kind.
    """

    kind: Kind
    length: int
    hashes: _Hashes
    starts: _Longs


class _Chunk:
    """Some texts, taken apart. Arrays have an element for each word."""

    def __init__(self, texts: list[tuple[int, int, str]], codes: _Codes) -> None:
        self.texts = texts
        self.tokens: list[str] = []
        self.begins: list[int] = []
        for _, _, text in texts:
            self.begins.append(len(self.tokens))
            self.tokens += _TOKEN.findall(_straighten(text))
            self.tokens.append(".")  # nothing goes on from one text to the next
        coded = np.fromiter(map(codes.__getitem__, self.tokens), np.int64, len(self.tokens))
        kinds = coded >> 1 & 3
        self.at: _Longs = np.flatnonzero(kinds < _SOFT)
        self.is_capital: _Flags = (coded[self.at] & 1).astype(bool)
        self.keys: _Hashes = (coded[self.at] >> 3).astype(np.uint64)
        self.is_content: _Flags = kinds[self.at] == 0
        self.run: _Longs = np.cumsum(kinds >= _SOFT, dtype=np.int64)[self.at]
        self.sentence: _Longs = np.cumsum(kinds == _HARD_BREAK, dtype=np.int64)[self.at]
        self.is_middle: _Flags = np.diff(self.run, prepend=-1) == 0
        self.text: _Longs = np.searchsorted(np.array(self.begins), self.at, side="right") - 1
        self.content: _Longs = np.flatnonzero(self.is_content)

    def grams(self, keep: Callable[[_Hashes], _Flags] | None = None) -> Iterator[_Grams]:
        """Yield the n-grams of each kind and length; keep: which to, of those all of whose parts were kept."""
        yield from _find_grams("phrase", self.keys * _MULTIPLIER, self.run, PHRASE_WORDS, keep)
        contents = (self.keys * _MULTIPLIER)[self.content] ^ _CONTENT
        words = _find_grams("content", contents, self.sentence[self.content], CONTENT_WORDS, keep)
        yield from (grams for grams in words if grams.length > 1)

    def spell(self, kind: Kind, length: int, start: int) -> str:
        """Return the words of an n-gram."""
        words = range(start, start + length)
        if kind == "content":
            words = self.content[start : start + length]  # type: ignore[assignment]
        return " ".join(self.tokens[self.at[word]].lower() for word in words)


def _find_grams(
    kind: Kind, keys: _Hashes, runs: _Longs, most: int, keep: Callable[[_Hashes], _Flags] | None
) -> Iterator[_Grams]:
    hashes, is_kept = keys, np.ones(len(keys), bool)
    for length in range(1, most + 1):
        if length > 1:
            hashes = hashes[:-1] * _MULTIPLIER + keys[length - 1 :]
            is_kept = is_kept[:-1] & is_kept[1:] & (runs[: len(hashes)] == runs[length - 1 :])
        starts = np.flatnonzero(is_kept)
        chosen = hashes[starts]
        if keep is not None and not (kind == "content" and length == 1):
            passed = keep(chosen)
            is_kept[starts[~passed]] = False
            starts, chosen = starts[passed], chosen[passed]
        yield _Grams("word" if length == 1 else kind, length, chosen, starts)


class _Reading:
    """One reading of all texts, chunk by chunk."""

    def __init__(
        self, texts: Texts, codes: _Codes, progress: Progress | None, *, number: int, total: int | None = None
    ) -> None:
        self._source, self._codes, self._progress = texts, codes, progress
        self._number, self._total = number, total
        self.texts = self.characters = 0
        self.prompts: dict[int, int] = {}
        self.group_words: _Longs = np.zeros(GROUPS, np.int64)

    def __iter__(self) -> Iterator[_Chunk]:
        gathered: list[tuple[int, int, str]] = []
        size = 0
        for text in self._source():
            prompt = self.prompts.setdefault(hash_prompt(text), len(self.prompts))
            gathered.append((self.texts, prompt, text.text))
            self.texts += 1
            size += len(text.text)
            if size >= _CHUNK:
                yield self._take(gathered, size)
                gathered, size = [], 0
        if gathered:
            yield self._take(gathered, size)

    def _take(self, gathered: list[tuple[int, int, str]], size: int) -> _Chunk:
        chunk = _Chunk(gathered, self._codes)
        self.characters += size
        groups = np.array([prompt % GROUPS for _, prompt, _ in gathered])
        self.group_words += np.bincount(groups[chunk.text], minlength=GROUPS)
        if self._progress is not None:
            self._progress(self._number, self.characters, self._total)
        return chunk


def cut_words(text: str) -> list[str]:
    """Return the words of a phrase or a content n-gram as they were counted.

    >>> cut_words("don't look now")
    ["don't", 'look', 'now']
    """
    return text.split(" ")


def hash_prompt(text: Text) -> int:
    """Return 62 bits that tell a text's prompt apart, or the text itself where it has none."""
    mark, named = ("t", text.text) if text.prompt is None else ("p", text.prompt)
    data = (mark + named).encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little") >> 2


# -- Counting ---------------------------------------------------------------------------------------------------------


class _Sketch:
    """A fixed number of counters: an n-gram's is at least its count."""

    def __init__(self, megabytes: int) -> None:
        bits = max(4, (megabytes * (1 << 20) // 4).bit_length() - 1)
        self._shift = np.uint64(64 - bits)
        self._cells = np.zeros(1 << bits, np.uint32)

    def add(self, hashes: _Hashes) -> None:
        np.add.at(self._cells, self._locate(hashes), np.uint32(1))

    def bound(self, hashes: _Hashes) -> npt.NDArray[np.uint32]:
        """Return how often each occurs at most."""
        return self._cells[self._locate(hashes)]

    def find_least(self, wanted: int, most: int) -> int:
        """Return the smallest count, from the wanted one on, that no more than `most` counters reach."""
        top = np.zeros(1 << 16, np.int64)
        for part in np.array_split(self._cells, max(1, len(self._cells) >> 22)):
            top += np.bincount(np.minimum(part, len(top) - 1), minlength=len(top))
        reached = top[::-1].cumsum()[::-1]
        fitting = np.flatnonzero(reached[wanted:] <= most)
        return wanted + int(fitting[0]) if len(fitting) else len(top)

    def _locate(self, hashes: _Hashes) -> _Longs:
        cells: _Longs = (hashes * _MULTIPLIER >> self._shift).astype(np.int64)
        return cells


@dataclass(slots=True)
class _Columns:
    """What is known of each candidate, a row each."""

    counts: npt.NDArray[np.uint32]
    texts: npt.NDArray[np.uint32]
    prompts: npt.NDArray[np.uint8]
    places: npt.NDArray[np.int64]
    middle: npt.NDArray[np.uint32]
    capital: npt.NDArray[np.uint32]
    hashes: _Hashes
    names: list[tuple[Kind, str]] = field(default_factory=list)

    @classmethod
    def make(cls, rows: int) -> _Columns:
        return cls(
            np.zeros((rows, GROUPS), np.uint32),
            np.zeros(rows, np.uint32),
            np.zeros((rows, PROMPTS // 8), np.uint8),
            np.full((rows, EXAMPLES, 2), -1, np.int64),
            np.zeros(rows, np.uint32),
            np.zeros(rows, np.uint32),
            np.zeros(rows, np.uint64),
        )

    def arrays(self) -> tuple[npt.NDArray[Any], ...]:
        return self.counts, self.texts, self.prompts, self.places, self.middle, self.capital, self.hashes

    def grow(self, rows: int) -> _Columns:
        """Return the same with more rows."""
        larger = _Columns.make(rows)
        for old, new in zip(self.arrays(), larger.arrays(), strict=True):
            new[: len(old)] = old
        larger.names = self.names
        return larger

    def keep(self, rows: _Longs) -> None:
        """Keep some rows, in order, and empty the others."""
        fresh = _Columns.make(1)
        for array, empty in zip(self.arrays(), fresh.arrays(), strict=True):
            array[: len(rows)] = array[rows]
            array[len(rows) : len(self.names)] = empty
        self.names = [self.names[row] for row in rows]


class _Found(NamedTuple):
    """Occurrences of rows in texts of a chunk: one element for each pair. place: the first in the text."""

    rows: _Longs
    texts: _Longs
    counts: _Longs
    places: _Longs


class _Table:
    """The candidates and their exact counts."""

    def __init__(self, sketch: _Sketch, *, least: int, most: int, patterns: Mapping[str, Any]) -> None:
        self.least = least
        self._sketch, self._most, self._patterns = sketch, most, patterns
        self._fixed = len(patterns)
        self._columns = _Columns.make(max(1024, self._fixed))
        self._columns.names = [("construction", name) for name in patterns]
        self._sorted: _Hashes = np.zeros(0, np.uint64)
        self._rows: _Longs = np.zeros(0, np.int64)

    def add(self, chunk: _Chunk) -> None:
        """Count what a chunk holds."""
        for grams in chunk.grams(lambda hashes: self._sketch.bound(hashes) >= self.least):
            if len(grams.hashes):
                self._add_grams(chunk, grams)
        if self._fixed:
            self._add_patterns(chunk)
        while len(self._columns.names) - self._fixed > self._most:
            self._prune()

    def _add_grams(self, chunk: _Chunk, grams: _Grams) -> None:
        unique, first, inverse = np.unique(grams.hashes, return_index=True, return_inverse=True)
        at = self._find_rows(unique, lambda new: self._name(chunk, grams, first[new]))
        words = chunk.content[grams.starts] if grams.kind == "content" else grams.starts
        pairs = inverse * len(chunk.texts) + chunk.text[words]
        each, places, counts = np.unique(pairs, return_index=True, return_counts=True)
        texts = each % len(chunk.texts)
        tokens = chunk.at[words[places]] - np.array(chunk.begins)[texts]
        self._record(chunk, _Found(at[each // len(chunk.texts)], texts, counts, tokens))
        if grams.kind == "word":
            is_middle, is_capital = chunk.is_middle[grams.starts], chunk.is_capital[grams.starts]
            size = len(unique)
            self._columns.middle[at] += np.bincount(inverse[is_middle], minlength=size).astype(np.uint32)
            capital = np.bincount(inverse[is_middle & is_capital], minlength=size)
            self._columns.capital[at] += capital.astype(np.uint32)

    def _name(self, chunk: _Chunk, grams: _Grams, first: _Longs) -> list[tuple[Kind, str]]:
        return [(grams.kind, chunk.spell(grams.kind, grams.length, start)) for start in grams.starts[first]]

    def _find_rows(self, unique: _Hashes, name: Callable[[_Longs], list[tuple[Kind, str]]]) -> _Longs:
        """Return the row of each hash, new ones for those that have none."""
        place = np.searchsorted(self._sorted, unique)
        is_known = np.zeros(len(unique), bool)
        inside = place < len(self._sorted)
        is_known[inside] = self._sorted[place[inside]] == unique[inside]
        new = np.flatnonzero(~is_known)
        rows = np.zeros(len(unique), np.int64)
        rows[is_known] = self._rows[place[is_known]]
        begin = len(self._columns.names)
        self._columns.names += name(new)
        if len(self._columns.names) > len(self._columns.texts):
            self._columns = self._columns.grow(max(len(self._columns.names), len(self._columns.texts) * 3 // 2))
        rows[new] = np.arange(begin, len(self._columns.names))
        self._columns.hashes[begin : len(self._columns.names)] = unique[new]
        self._sorted = np.insert(self._sorted, place[new], unique[new])
        self._rows = np.insert(self._rows, place[new], rows[new])
        return rows

    def _add_patterns(self, chunk: _Chunk) -> None:
        found = []
        for row, pattern in enumerate(self._patterns.values()):
            for number, (_, _, text) in enumerate(chunk.texts):
                starts = [match.start() for match in pattern.finditer(text)]
                if starts:
                    found.append((row, number, len(starts), starts[0]))
        if found:
            self._record(chunk, _Found(*np.array(found, np.int64).T))

    def _record(self, chunk: _Chunk, found: _Found) -> None:
        columns, rows = self._columns, found.rows
        numbers = np.array([number for number, _, _ in chunk.texts])[found.texts]
        prompts = np.array([prompt for _, prompt, _ in chunk.texts])[found.texts]
        np.add.at(columns.counts, (rows, prompts % GROUPS), found.counts.astype(np.uint32))
        bits = prompts % PROMPTS
        np.bitwise_or.at(columns.prompts, (rows, bits // 8), (1 << bits % 8).astype(np.uint8))
        begins = np.flatnonzero(np.diff(rows, prepend=-1))  # of each row's texts, which come in a row
        rank = np.arange(len(rows)) - np.repeat(begins, np.diff(begins, append=len(rows)))
        slot = np.minimum(columns.texts[rows], EXAMPLES) + rank
        free = slot < EXAMPLES
        columns.places[rows[free], slot[free]] = np.stack([numbers[free], found.places[free]], axis=1)
        np.add.at(columns.texts, rows, np.uint32(1))

    def _prune(self) -> None:
        """Raise the smallest count until a quarter of the candidates is gone, and forget them."""
        columns, size = self._columns, len(self._columns.names)
        bounds = self._sketch.bound(columns.hashes[self._fixed : size])
        self.least = max(self.least + 1, int(np.quantile(bounds, 0.25)) + 1)
        kept = np.flatnonzero(bounds >= self.least) + self._fixed
        columns.keep(np.concatenate([np.arange(self._fixed), kept]))
        hashes = columns.hashes[self._fixed : len(columns.names)]
        order = np.argsort(hashes)
        self._sorted, self._rows = hashes[order], order + self._fixed

    def collect(self, reading: _Reading, *, min_prompts: int, min_count: int) -> Census:
        """Return what is frequent enough, by kind and then as first seen."""
        columns, size = self._columns, len(self._columns.names)
        totals = columns.counts[:size].sum(axis=1, dtype=np.int64)
        prompts = _BITS[columns.prompts[:size]].sum(axis=1)
        least = np.where(np.arange(size) < self._fixed, min_count, self.least)
        rows = np.flatnonzero((totals >= least) & (prompts >= min_prompts)).tolist()
        rows.sort(key=lambda row: _ORDER[columns.names[row][0]])
        return Census(
            texts=reading.texts,
            prompts=len(reading.prompts),
            words=int(reading.group_words.sum()),
            characters=reading.characters,
            min_count=self.least,
            group_words=reading.group_words,
            names=[columns.names[row] for row in rows],
            counts=totals[rows].tolist(),
            proper=frozenset(self._find_proper()),
            _columns=columns,
            _rows=rows,
        )

    def _find_proper(self) -> list[str]:
        columns = self._columns
        rows = np.flatnonzero((columns.middle >= _ENOUGH) & (2 * columns.capital > columns.middle))
        return drop_stop_words(columns.names[row][1] for row in rows)

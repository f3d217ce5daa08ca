"""Count the words, phrases, content n-grams and regexes of many texts in bounded memory.

Texts are read twice. The first time each n-gram adds to one of a fixed number of counters, which it shares with others,
so that no count is too low. The second time only n-grams whose counter reached the smallest count that matters are
counted, exactly. An n-gram can't be more frequent than a part of it, which excludes most chance candidates.

Knows neither baselines nor bans.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from antislop.metrics.segmentation import drop_stop_words
from antislop.profiles.count_min import Sketch
from antislop.profiles.ngrams import (
    GROUPS,
    TOKEN,
    Chunk,
    Codes,
    Grams,
    Hashes,
    Kind,
    Longs,
    Progress,
    Reading,
    Texts,
    straighten,
)

PROMPTS = 512
"""How many prompts are told apart in counting those of one entry."""
EXAMPLES = 3
CANDIDATES = 1 << 19
"""How many n-grams are counted exactly at most."""


_WHITE = re.compile(r"\s+")
_AROUND = 60  # characters of an example on either side
_ENOUGH = 2  # occurrences right after another word, to tell whether a word is a name
_ORDER: dict[Kind, int] = {"word": 0, "phrase": 1, "content": 2, "construction": 3}
_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.uint8)  # set in a byte


@dataclass(frozen=True, slots=True)
class Occurrences:
    """The occurrences of an entry in texts.

    prompts: the number of distinct ones; of more than `PROMPTS`, which share that many groups, the number of groups,
        a lower bound.
    groups: occurrences per group of prompts, `GROUPS` of them.
    places: (number of a text, index of the first token, or of the first character of a construction), from 0.
    """

    kind: Kind
    text: str
    count: int
    texts: int
    prompts: int
    groups: Longs
    places: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Census(Sequence[Occurrences]):
    """Everything that occurs at least `min_count` times in texts to at least `min_prompts` prompts.

    min_count: larger than requested if memory did not suffice.
    group_words: words per group of prompts.
    names, counts: kind and text of each, and how often it occurs; all that is known of it comes by its index.
    proper: words that are mostly capitalized right after another word, except function words.
    """

    texts: int
    prompts: int
    words: int
    characters: int
    min_count: int
    group_words: Longs
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

    >>> from antislop.records.texts import Text
    >>> texts = [Text("a cat, a cat", None, "1", {}), Text("A cat sat", None, "2", {})]
    >>> [(each.kind, each.text, each.count) for each in count(lambda: texts, min_count=3)]
    [('word', 'a', 3), ('word', 'cat', 3), ('phrase', 'a cat', 3)]
    """
    most = CANDIDATES if most is None else most
    codes = Codes()
    sketch = Sketch(megabytes)
    first = Reading(texts, codes, progress, number=1)
    for chunk in first:
        for grams in chunk.grams():
            sketch.add(grams.hashes)
    least = sketch.find_min_count(min_count, most)
    second = Reading(texts, codes, progress, number=2, total=first.characters)
    table = _Table(sketch, least=least, most=most, patterns=patterns or {})
    for chunk in second:
        table.add(chunk)
    return table.collect(second, min_prompts=min_prompts, min_count=min_count)


def cut_examples(texts: Texts, found: Iterable[Occurrences]) -> dict[tuple[Kind, str], tuple[str, ...]]:
    """Return the text around the places of occurrences by (kind, text), white space as single spaces."""
    wanted: dict[int, list[tuple[Occurrences, int]]] = {}
    for each in found:
        for number, place in each.places:
            wanted.setdefault(number, []).append((each, place))
    examples: dict[tuple[Kind, str], tuple[str, ...]] = {}
    last = max(wanted, default=-1)
    for number, text in enumerate(texts()):
        if number in wanted:
            tokens = 1 + max((place for each, place in wanted[number] if each.kind != "construction"), default=-1)
            starts = [match.start() for match in islice(TOKEN.finditer(straighten(text.text)), tokens)]
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


@dataclass(slots=True)
class _Columns:
    """The counts of all candidates, a row each."""

    counts: npt.NDArray[np.uint32]
    texts: npt.NDArray[np.uint32]
    prompts: npt.NDArray[np.uint8]
    places: npt.NDArray[np.int64]
    middle: npt.NDArray[np.uint32]
    capital: npt.NDArray[np.uint32]
    hashes: Hashes
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

    def keep(self, rows: Longs) -> None:
        """Keep some rows, in order, and empty the others."""
        fresh = _Columns.make(1)
        for array, empty in zip(self.arrays(), fresh.arrays(), strict=True):
            array[: len(rows)] = array[rows]
            array[len(rows) : len(self.names)] = empty
        self.names = [self.names[row] for row in rows]


class _Found(NamedTuple):
    """Occurrences of rows in texts of a chunk: one element for each pair. place: the first in the text."""

    rows: Longs
    texts: Longs
    counts: Longs
    places: Longs


class _Table:
    """The candidates and their exact counts."""

    def __init__(self, sketch: Sketch, *, least: int, most: int, patterns: Mapping[str, Any]) -> None:
        self.least = least
        self._sketch, self._most, self._patterns = sketch, most, patterns
        self._fixed = len(patterns)
        self._columns = _Columns.make(max(1024, self._fixed))
        self._columns.names = [("construction", name) for name in patterns]
        self._sorted: Hashes = np.zeros(0, np.uint64)
        self._rows: Longs = np.zeros(0, np.int64)

    def add(self, chunk: Chunk) -> None:
        """Count what a chunk holds."""
        for grams in chunk.grams(lambda hashes: self._sketch.bound(hashes) >= self.least):
            if len(grams.hashes):
                self._add_grams(chunk, grams)
        if self._fixed:
            self._add_patterns(chunk)
        while len(self._columns.names) - self._fixed > self._most:
            self._prune()

    def _add_grams(self, chunk: Chunk, grams: Grams) -> None:
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

    def _name(self, chunk: Chunk, grams: Grams, first: Longs) -> list[tuple[Kind, str]]:
        return [(grams.kind, chunk.spell(grams.kind, grams.length, start)) for start in grams.starts[first]]

    def _find_rows(self, unique: Hashes, name: Callable[[Longs], list[tuple[Kind, str]]]) -> Longs:
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

    def _add_patterns(self, chunk: Chunk) -> None:
        found = []
        for row, pattern in enumerate(self._patterns.values()):
            for number, (_, _, text) in enumerate(chunk.texts):
                starts = [match.start() for match in pattern.finditer(text)]
                if starts:
                    found.append((row, number, len(starts), starts[0]))
        if found:
            self._record(chunk, _Found(*np.array(found, np.int64).T))

    def _record(self, chunk: Chunk, found: _Found) -> None:
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
        """Raise the smallest count until a quarter of the candidates is dropped."""
        columns, size = self._columns, len(self._columns.names)
        bounds = self._sketch.bound(columns.hashes[self._fixed : size])
        self.least = max(self.least + 1, int(np.quantile(bounds, 0.25)) + 1)
        kept = np.flatnonzero(bounds >= self.least) + self._fixed
        columns.keep(np.concatenate([np.arange(self._fixed), kept]))
        hashes = columns.hashes[self._fixed : len(columns.names)]
        order = np.argsort(hashes)
        self._sorted, self._rows = hashes[order], order + self._fixed

    def collect(self, reading: Reading, *, min_prompts: int, min_count: int) -> Census:
        """Return the frequent candidates, by kind and then by first occurrence."""
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

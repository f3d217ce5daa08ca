"""Count the words, phrases, content n-grams and regexes of many texts in bounded memory.

The first reading adds each n-gram to one of a fixed number of counters, which are never too low, but may be too high,
since n-grams share them. The second reading counts exactly each n-gram for which its own counter and the counters of
its parts reached the minimum count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from antislop.core.bans import compose
from antislop.files.texts import AnyText, cut
from antislop.measure.blocks import Longs, count_up, cut_blocks
from antislop.measure.languages import ENGLISH, Language
from antislop.measure.profiles import ngrams
from antislop.measure.profiles.ngrams import Chunk, Hashes, Kind, Reading, Texts
from antislop.measure.slop import PatternSearch
from antislop.measure.words import straighten

PROMPT_CLASSES = 512  # prompts are counted modulo this number, so exactly up to this many prompts
EXAMPLES_PER_ENTRY = 3
COUNTER_MEGABYTES = 64  # by default
MAX_CANDIDATES = 200_000  # n-grams that are counted exactly
FULL_COUNTER = (1 << 16) - 1

_AROUND = 60  # characters of an example on either side
_MARGIN = 3 * _AROUND  # characters that are read on either side of an example
_ENOUGH = 2  # a word needs so many occurrences right after another word to be recognized as a name
_ORDER: dict[Kind, int] = {"word": 0, "phrase": 1, "content": 2, "construction": 3}
_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.uint8)  # set bits by byte


@dataclass(frozen=True, slots=True)
class Occurrences:
    """The occurrences of an entry in texts.

    prompts: number of distinct prompts; a lower bound if there are more than `PROMPT_CLASSES` prompts.
    groups: occurrences in each of the `PROMPT_GROUPS` groups of prompts.
    places: (number of the text, index of the first token in it, or for a construction the first character), from 0.
    """

    kind: Kind
    text: str
    count: int
    texts: int
    prompts: int
    groups: Longs
    places: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Census:
    """The entries that occur at least `min_count` times in texts to at least `min_prompts` prompts.

    `census[i]` is the `Occurrences` of the entry `names[i]`.

    min_count: larger than requested if there were too many candidates.
    group_words: number of words in each group of prompts.
    names, counts: (kind, text) of each entry, and its number of occurrences.
    proper: words that are mostly capitalized where no sentence begins, as names are.
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
    _columns: npt.NDArray[np.void] = field(repr=False)
    _rows: Sequence[int] = field(repr=False)

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[Occurrences]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, index: int) -> Occurrences:
        columns, row = self._columns, self._rows[index]
        kind, text = self.names[index]
        return Occurrences(
            kind=kind,
            text=text,
            count=self.counts[index],
            texts=int(columns["texts"][row]),
            prompts=int(np.unpackbits(columns["prompts"][row]).sum()),
            groups=columns["counts"][row].astype(np.int64),
            places=tuple((text - 1, place) for text, place in columns["places"][row].tolist() if text),
        )


def count(
    texts: Texts,
    *,
    patterns: Mapping[str, Any] | None = None,
    min_count: int = 5,
    min_prompts: int | None = None,
    megabytes: int = COUNTER_MEGABYTES,
    limit: int | None = None,
    progress: ngrams.Progress | None = None,
    language: Language = ENGLISH,
) -> Census:
    """Count the frequent entries of texts, which are read twice.

    texts: a function that returns the texts; a text without a prompt counts as an answer to a prompt of its own.
    min_count, min_prompts: rarer entries are left out. By default, `choose_min_prompts` chooses min_prompts.
    patterns: compiled patterns of the package `regex`, by name, counted as constructions.
    megabytes: memory of the counters, rounded down to a power of two.
    limit: how many candidates (400 bytes each) are counted exactly; if there are more, `min_count` is raised. By
        default `MAX_CANDIDATES` for each `COUNTER_MEGABYTES` of `megabytes`.

    An n-gram that the prompt of a text contains is not counted in that text, since the prompt asked for it.
    A phrase is 2 to 5 words separated by white space; a content n-gram is 2 or 3 content words of one sentence,
    separated by stop words and punctuation. Counts are exact unless two n-grams have the same 64-bit hash.
    """
    limit = max(1, megabytes // COUNTER_MEGABYTES) * MAX_CANDIDATES if limit is None else limit
    codes = ngrams.Codes(language)
    sketch = Sketch(megabytes)
    first_reading = Reading(texts, codes, progress, number=1)
    for chunk in first_reading:
        for grams in chunk.grams():
            sketch.add(grams.hashes)
    sketch_min_count = sketch.find_min_count(min_count, limit)
    second_reading = Reading(texts, codes, progress, number=2, total=first_reading.characters)
    table = _CountTable(sketch, min_count=sketch_min_count, limit=limit, patterns=patterns or {})
    for chunk in second_reading:
        prompts = Chunk([part._replace(content=part.asked) for part in chunk.parts], codes, before=0)
        table.add(chunk, prompts)
    return table.collect(second_reading, min_prompts=min_prompts, min_count=min_count, language=language)


def choose_min_prompts(texts: int) -> int:
    """Return 2, so that no prompt alone makes an entry, or 1 for a single text, such as a novel."""
    return min(2, texts)


def cut_examples(
    texts: Texts, occurrences: Iterable[Occurrences], *, language: Language = ENGLISH
) -> dict[tuple[Kind, str], tuple[str, ...]]:
    """Return excerpts around occurrences by (kind, text), with single spaces as white space."""
    places_by_text: dict[int, list[tuple[Occurrences, int]]] = {}
    for entry in occurrences:
        for number, place in entry.places:
            places_by_text.setdefault(number, []).append((entry, place))
    examples: dict[tuple[Kind, str], tuple[str, ...]] = {}
    for number, text in zip(range(1 + max(places_by_text, default=-1)), texts(), strict=False):
        if number in places_by_text:
            for entry, excerpt in _find_excerpts(text, places_by_text[number], language):
                key = entry.kind, entry.text
                examples[key] = (*examples.get(key, ()), excerpt)
    return examples


def _find_excerpts(
    text: AnyText, places: Iterable[tuple[Occurrences, int]], language: Language
) -> Iterator[tuple[Occurrences, str]]:
    wanted = sorted(_find_characters(text, places, language), key=itemgetter(1))
    window, start = "", 0  # a part of the text, and the number of characters before it
    for piece, _, is_last in ngrams.mark_ends(map(compose, cut_blocks(cut(text)))):
        window += piece
        while wanted and (is_last or wanted[0][1] + _MARGIN <= start + len(window)):
            entry, place = wanted.pop(0)
            place -= start  # in the window
            begin, end = max(0, place - _AROUND), place + min(len(entry.text), _AROUND) + _AROUND
            begin = next((i + 1 for i in range(begin, place) if window[i].isspace()), place) if begin else 0
            yield entry, "…" * (begin > 0) + " ".join(window[begin:end].split()) + "…" * (end < len(window))
        if not wanted:
            return
        dropped = min(len(window), max(0, wanted[0][1] - _MARGIN - start))
        window, start = window[dropped:], start + dropped


def _find_characters(
    text: AnyText, places: Iterable[tuple[Occurrences, int]], language: Language
) -> Iterator[tuple[Occurrences, int]]:
    """Yield each entry with the index of the character, instead of the token, at which its occurrence begins."""
    tokens = []
    for entry, place in places:
        if entry.kind == "construction":
            yield entry, place
        else:
            tokens.append((place, entry))
    tokens.sort(key=itemgetter(0))
    first = read = 0  # numbers of tokens and characters before the part
    for part in map(compose, cut_blocks(cut(text)) if tokens else ()):
        segmented = language.segment(part)
        starts = [match.start() for match in ngrams.TOKEN.finditer(straighten(segmented))]
        while tokens and tokens[0][0] < first + len(starts):
            place, entry = tokens.pop(0)
            start = starts[place - first]
            yield entry, read + start - segmented.count("\v", 0, start) * (segmented != part)
        if not tokens:
            return
        first, read = first + len(starts), read + len(part)


_ROW = np.dtype(
    [
        ("counts", np.uint32, ngrams.PROMPT_GROUPS),
        ("texts", np.uint32),
        ("latest", np.uint32),
        ("prompts", np.uint8, PROMPT_CLASSES // 8),
        ("places", np.uint32, (EXAMPLES_PER_ENTRY, 2)),
        ("middle", np.uint32),
        ("capital", np.uint32),
        ("hashes", np.uint64),
    ]
)
"""The counts of a candidate. Texts are numbered from 1; `latest` is the last text in which the candidate occurred."""


class _Found(NamedTuple):
    """Occurrences of rows of the table in parts of a chunk; index i of each array is about the same row and part."""

    rows: Longs
    parts: Longs
    counts: Longs
    places: Longs  # index of the first occurrence in the text


class _CountTable:
    def __init__(self, sketch: Sketch, *, min_count: int, limit: int, patterns: Mapping[str, Any]) -> None:
        self.min_count = min_count
        self._sketch, self._limit, self._patterns = sketch, limit, patterns
        self._fixed = len(patterns)
        self._columns = np.zeros(self._fixed + limit * 5 // 4, _ROW)
        self._names: list[tuple[Kind, str]] = [("construction", name) for name in patterns]
        self._sorted: Hashes = np.zeros(0, np.uint64)
        self._rows: Longs = np.zeros(0, np.int64)

    def add(self, chunk: Chunk, prompts: Chunk) -> None:
        """Count the entries of a chunk. prompts: of the chunk's parts; an n-gram of a part's prompt is left out."""
        chosen = chunk.grams(lambda hashes: self._sketch.bound(hashes) >= self.min_count)
        for grams, asked in zip(chosen, prompts.grams(), strict=True):
            is_own = ~np.isin(chunk.hash_with_parts(grams), prompts.hash_with_parts(asked))
            grams = grams._replace(hashes=grams.hashes[is_own], starts=grams.starts[is_own])
            if len(grams.hashes):
                self._add_grams(chunk, grams)
            while len(self._names) - self._fixed > self._limit:
                self._prune()
        # The constructions.
        hits: dict[tuple[int, int], list[int]] = {}
        for number, part in enumerate(chunk.parts if self._fixed else ()):
            if part.is_first:
                self._search = PatternSearch(list(self._patterns.values()))
            for start, _, row in self._search.read(part.content, is_last=part.is_last):
                hits.setdefault((row, number), []).append(start)
        if hits:
            found = [(row, number, len(starts), starts[0]) for (row, number), starts in sorted(hits.items())]
            self._record(chunk, _Found(*np.array(found, np.int64).T))

    def _add_grams(self, chunk: Chunk, grams: ngrams.Grams) -> None:
        unique, first_indices, inverse = np.unique(grams.hashes, return_index=True, return_inverse=True)
        starts = grams.starts[first_indices]
        rows = self._find_rows(
            unique, lambda new: [(grams.kind, chunk.spell(grams.kind, grams.length, at)) for at in starts[new]]
        )
        words = chunk.content[grams.starts] if grams.kind == "content" else grams.starts
        pairs = inverse * len(chunk.parts) + chunk.find_parts(grams)
        unique_pairs, places, counts = np.unique(pairs, return_index=True, return_counts=True)
        parts = unique_pairs % len(chunk.parts)
        tokens = chunk.find_places(words[places], parts)
        self._record(chunk, _Found(rows[unique_pairs // len(chunk.parts)], parts, counts, tokens))
        if grams.kind == "word":
            is_middle, is_capital = chunk.is_middle[grams.starts], chunk.is_capital[grams.starts]
            size = len(unique)
            self._columns["middle"][rows] += np.bincount(inverse[is_middle], minlength=size).astype(np.uint32)
            capital = np.bincount(inverse[is_middle & is_capital], minlength=size)
            self._columns["capital"][rows] += capital.astype(np.uint32)

    def _find_rows(self, unique: Hashes, name: Callable[[Longs], list[tuple[Kind, str]]]) -> Longs:
        places = np.searchsorted(self._sorted, unique)
        has_row = np.zeros(len(unique), bool)
        inside = places < len(self._sorted)
        has_row[inside] = self._sorted[places[inside]] == unique[inside]
        rows = np.zeros(len(unique), np.int64)
        rows[has_row] = self._rows[places[has_row]]
        new_indices = np.flatnonzero(~has_row)
        begin = len(self._names)
        self._names += name(new_indices)
        if (size := len(self._names)) > (room := len(self._columns)):
            self._columns = np.concatenate([self._columns, np.zeros(max(size - room, room // 2), _ROW)])
        rows[new_indices] = np.arange(begin, len(self._names))
        self._columns["hashes"][begin : len(self._names)] = unique[new_indices]
        self._sorted = np.insert(self._sorted, places[new_indices], unique[new_indices])
        self._rows = np.insert(self._rows, places[new_indices], rows[new_indices])
        return rows

    def _record(self, chunk: Chunk, found: _Found) -> None:
        columns, rows = self._columns, found.rows
        numbers = np.array([part.text + 1 for part in chunk.parts])[found.parts]
        prompts = np.array([part.prompt for part in chunk.parts])[found.parts]
        np.add.at(columns["counts"], (rows, prompts % ngrams.PROMPT_GROUPS), found.counts.astype(np.uint32))
        is_new = columns["latest"][rows] != numbers  # else an earlier chunk of the text counted it
        rows, numbers, prompts, places = rows[is_new], numbers[is_new], prompts[is_new], found.places[is_new]
        bits = prompts % PROMPT_CLASSES
        np.bitwise_or.at(columns["prompts"], (rows, bits // 8), (1 << bits % 8).astype(np.uint8))
        slot = np.minimum(columns["texts"][rows], EXAMPLES_PER_ENTRY) + count_up(rows)  # a row's texts are consecutive
        has_room = slot < EXAMPLES_PER_ENTRY
        columns["places"][rows[has_room], slot[has_room]] = np.stack([numbers[has_room], places[has_room]], axis=1)
        np.add.at(columns["texts"], rows, np.uint32(1))
        columns["latest"][rows] = numbers  # the last of equal rows stays

    def _prune(self) -> None:
        """Raise the minimum count so far that a quarter of the candidates, or more, is dropped."""
        columns, size = self._columns, len(self._names)
        bounds = self._sketch.bound(columns["hashes"][self._fixed : size])
        self.min_count = max(self.min_count + 1, int(np.quantile(bounds, 0.25)) + 1)
        remaining_rows = np.flatnonzero(bounds >= self.min_count) + self._fixed
        kept = np.concatenate([np.arange(self._fixed), remaining_rows])
        columns[: len(kept)] = columns[kept]
        columns[len(kept) : size] = np.zeros(1, _ROW)
        self._names = [self._names[row] for row in kept]
        hashes = columns["hashes"][self._fixed : len(kept)]
        order = np.argsort(hashes)
        self._sorted, self._rows = hashes[order], order + self._fixed

    def collect(self, reading: Reading, *, min_prompts: int | None, min_count: int, language: Language) -> Census:
        """Return the frequent candidates as a census, sorted by kind and then by first occurrence."""
        columns, size = self._columns, len(self._names)
        totals = columns["counts"][:size].sum(axis=1, dtype=np.int64)
        prompts = _BITS[columns["prompts"][:size]].sum(axis=1)
        min_counts = np.where(np.arange(size) < self._fixed, min_count, self.min_count)
        least = choose_min_prompts(reading.texts) if min_prompts is None else min_prompts
        rows = np.flatnonzero((totals >= min_counts) & (prompts >= least)).tolist()
        rows.sort(key=lambda row: _ORDER[self._names[row][0]])
        # Words that are mostly capitalized where no sentence begins are names, but where all nouns are.
        is_proper = (columns["middle"] >= _ENOUGH) & (2 * columns["capital"] > columns["middle"])
        proper = np.flatnonzero(is_proper & (language.capitals == "names"))
        return Census(
            texts=reading.texts,
            prompts=len(reading.prompts),
            words=int(reading.group_words.sum()),
            characters=reading.characters,
            min_count=self.min_count,
            group_words=reading.group_words,
            names=[self._names[row] for row in rows],
            counts=totals[rows].tolist(),
            proper=frozenset(language.drop_stop_words(self._names[row][1] for row in proper)),
            _columns=columns,
            _rows=rows,
        )


class Sketch:
    """A fixed number of counters, shared by n-grams: a counter is at least the count of each of its n-grams.

    A count-min sketch of a single row (Cormode and Muthukrishnan 2005, doi 10.1016/j.jalgor.2003.12.001).
    """

    def __init__(self, megabytes: int) -> None:
        bits = max(4, (megabytes * (1 << 20) // 2).bit_length() - 1)
        self._shift = np.uint64(64 - bits)
        self._cells = np.zeros(1 << bits, np.uint16)

    def add(self, hashes: Hashes) -> None:
        located = self._locate(hashes)
        if len(self._cells) <= 1 << 32:
            located = located.astype(np.uint32)  # sorted in half the time
        cells, counts = np.unique(located, return_counts=True)
        self._cells[cells] = np.minimum(self._cells[cells] + counts, FULL_COUNTER)

    def bound(self, hashes: Hashes) -> npt.NDArray[np.uint16]:
        return self._cells[self._locate(hashes)]

    def find_min_count(self, min_count: int, limit: int) -> int:
        """Return the smallest count, `min_count` or more, that no more than `limit` counters reach."""
        top = np.zeros(FULL_COUNTER + 1, np.int64)
        for part in np.array_split(self._cells, max(1, len(self._cells) >> 20)):
            top += np.bincount(part, minlength=len(top))
        reached = top[::-1].cumsum()[::-1]
        offsets = np.flatnonzero(reached[min_count:] <= limit)
        return min_count + int(offsets[0]) if len(offsets) else len(top)

    def _locate(self, hashes: Hashes) -> npt.NDArray[np.int64] | npt.NDArray[np.uint32]:
        cells: Longs = (hashes * ngrams.MULTIPLIER >> self._shift).astype(np.int64)
        return cells

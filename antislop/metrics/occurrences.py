"""Where bans occur in files and folders of texts: file, line and column."""

from __future__ import annotations

import os
import re
from codecs import getincrementaldecoder
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from antislop.files import PIECE, open_bytes, read_text_pieces
from antislop.lists.ban_list import BanList
from antislop.matching.bans import Ban, Match, distinct, drop_overlaps
from antislop.records.texts import read_texts

_WHITE_SPACE = re.compile(r"\s+")


class Occurrence(NamedTuple):
    """A passage that a ban forbids.

    line, column: of its first character, from 1.
    ban: the phrase, or the text of the pattern.
    text: as it is written there.
    """

    file: str
    line: int
    column: int
    ban: str
    text: str


def scan(
    sources: Iterable[str | os.PathLike[str]], bans: BanList, *, column: str | None = None
) -> Iterator[Occurrence]:
    """Yield the occurrences of bans in files, in order, while the files are read.

    Of occurrences that overlap, the first counts, and the longest of those that begin with it.

    sources: texts of UTF-8, also .gz, and folders of texts. In folders, hidden files and those that are not UTF-8 are
        left out.
    column: search this column of records instead, in .jsonl, .json, .csv and .parquet; `line` is that of the record, or
        its number, and `column` is that of the character in its text.

    Raises `InputError` for a file that can't be read.
    """
    for source in sources:
        is_folder = column is None and Path(source).is_dir()
        for path in list_texts(source)[0] if is_folder else [source]:
            file = os.fspath(path)
            if column is None:
                blocks = find_occurrences(bans, read_text_pieces(file), file=file)
            else:
                blocks = search_records(bans, file, column=column)
            yield from chain.from_iterable(blocks)


def list_texts(folder: str | os.PathLike[str]) -> tuple[list[Path], int]:
    """Return the files of a folder that are not hidden and begin as UTF-8, and the number of those that don't."""
    paths = [path for path in sorted(Path(folder).rglob("*")) if path.is_file() and not _is_hidden(path, Path(folder))]
    texts = [path for path in paths if _is_text(path)]
    return texts, len(paths) - len(texts)


def _is_hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def _is_text(path: Path) -> bool:
    """Return whether the beginning of a file is UTF-8 without null characters."""
    try:
        with open_bytes(path, unpack=False) as file:
            piece = file.read(PIECE)
        return "\0" not in getincrementaldecoder("utf-8")().decode(piece)
    except (OSError, UnicodeDecodeError):
        return False


def find_occurrences(bans: BanList, pieces: Iterable[str], *, file: str) -> Iterator[list[Occurrence]]:
    """Yield the occurrences of bans in a text that is read in pieces, in order, without overlaps."""
    window, end = Window(pieces), 0
    for result in bans.search(window):
        matches = drop_overlaps(result.matches, begin=end)
        yield [Occurrence(file, *window.locate(match.start), match.ban.text, window.cut(match)) for match in matches]
        end = matches[-1].end if matches else end
        window.drop(result.settled)


def search_records(bans: BanList, file: str, *, column: str) -> Iterator[list[Occurrence]]:
    """Yield the occurrences in each record of a file; their line is that of the record, or its number."""
    for number, text in enumerate(read_texts([file], column=column), start=1):
        line = text.place.rpartition(":")[2]
        yield [
            Occurrence(file, int(line) if line.isdecimal() else number, match.start + 1, match.ban.text, found)
            for match in drop_overlaps(bans.find(text.text))
            for found in [text.text[match.start : match.end]]
        ]


class Window:
    """The part of a text in which matches are still possible; iterating over it reads more.

    pieces: the text. `locate` and `drop` take increasing indices only.
    """

    def __init__(self, pieces: Iterable[str]) -> None:
        self._pieces = pieces
        self.text = ""
        self._start = 0  # characters before `text`
        self._counted = 0  # the index in `text` up to which lines were counted
        self._line, self._line_start = 1, 0

    def __iter__(self) -> Iterator[str]:
        for piece in self._pieces:
            self.text += piece
            yield piece

    def locate(self, index: int) -> tuple[int, int]:
        """Return the line and the column of a character, from 1."""
        end = index - self._start
        self._line += self.text.count("\n", self._counted, end)
        line_end = self.text.rfind("\n", self._counted, end)
        if line_end >= 0:
            self._line_start = self._start + line_end + 1
        self._counted = end
        return self._line, index - self._line_start + 1

    def cut(self, match: Match) -> str:
        return self.text[match.start - self._start : match.end - self._start]

    def drop(self, settled: int) -> None:
        """Forget the characters before an index."""
        self.locate(settled)
        self.text = self.text[self._counted :]
        self._start, self._counted = settled, 0


class HitContext(NamedTuple):
    """A hit, `text`, with the text around it, in which white space is single spaces."""

    file: str
    line: int
    column: int
    before: str
    text: str
    after: str


@dataclass
class HitTally:
    """The hits of a ban, and the contexts of the first ones."""

    count: int = 0
    contexts: list[HitContext] = field(default_factory=list)


@dataclass
class Trial:
    """The hits of a list in some texts.

    contexts: maximum per ban.
    hits: that don't overlap.
    """

    bans: BanList
    contexts: int
    words: int = 0
    hits: int = 0
    tallies: dict[Ban, HitTally] = field(default_factory=dict)

    def add(self, text: str, *, file: str) -> None:
        self.words += len(text.split())
        window = Window([text])
        matches = [match for step in self.bans.search(window) for match in step.matches]
        self.hits += len(drop_overlaps(matches))
        for match in matches:
            tally = self.tallies.setdefault(match.ban, HitTally())
            tally.count += 1
            if len(tally.contexts) < self.contexts:
                around = _cut_context(text, match.start, match.end)
                tally.contexts.append(HitContext(file, *window.locate(match.start), *around))

    @property
    def ranked(self) -> list[tuple[Ban, HitTally]]:
        """The bans with hits, most frequent first."""
        return sorted(self.tallies.items(), key=lambda pair: (-pair[1].count, pair[0].text))

    @property
    def unused(self) -> list[Ban]:
        return [ban for ban in distinct(self.bans) if ban not in self.tallies and ban.pattern.occurs_in_text]

    def rate(self, count: int) -> float:
        """Return a number of hits per 1,000 words."""
        return 1000 * count / max(1, self.words)


def _cut_context(text: str, start: int, end: int, *, width: int = 200) -> tuple[str, str, str]:
    parts = text[max(0, start - width) : start], text[start:end], text[end : end + width]
    text_before, hit, text_after = (_WHITE_SPACE.sub(" ", part) for part in parts)
    return text_before.lstrip(), hit, text_after.rstrip()

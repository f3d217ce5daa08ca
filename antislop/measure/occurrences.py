"""Where bans occur in files and folders of texts: file, line and column."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import inf
from pathlib import Path
from typing import NamedTuple, TypeAlias

from antislop.core.bans import BanList
from antislop.files.disk import read_text_pieces
from antislop.files.texts import list_sources, read_texts
from antislop.measure.folders import is_text, list_files

_MARK = re.compile(
    r"(?:<!--|/\*|//|--|[#%;])[ \t]{0,9}antislop:[ \t]{0,9}(off|on|ignore)(?=[ \t]{0,9}(?:[-–—:(*]|\r?$))", re.M
)
"""A comment such as `# antislop: off` up to its last word; then the comment or the line ends, or a reason begins."""
_MAX_LINE = 1 << 16
"""The longest line that is searched for marks as a whole; a longer line is searched in parts."""


class Occurrence(NamedTuple):
    """A passage that a ban forbids.

    line, column: those of the first character of the passage, from 1.
    ban: the phrase, or the text of the pattern.
    text: the passage as it is written.
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

    Of occurrences that overlap, only the first is found; of those that begin at the same character, only the longest.
    Not searched: a line with `# antislop: ignore`, and all from `<!-- antislop: off -->` to `<!-- antislop: on -->`.

    sources: files of UTF-8, also .gz, and folders of files. In folders, hidden files, links, what .gitignore files name
        and files that are not UTF-8 are left out.
    column: search this column of .jsonl, .json, .csv and .parquet files instead. `line` is then the record's line in
        the file, or else the record's number; `column` counts characters of the record's text; comments are text.

    Raises `InputError` for a file that can't be read.
    """
    for source in list_sources(sources):
        is_folder = column is None and Path(source).is_dir()
        for path in filter(is_text, list_files(source)) if is_folder else [source]:
            file = os.fspath(path)
            blocks: Iterator[Sequence[Occurrence]]
            if column is None:
                blocks = find_occurrences(bans, Window(read_text_pieces(file)), file=file)
            else:
                blocks = (line.hits for line in search_records(bans, file, column=column))
            yield from chain.from_iterable(blocks)


Keeps: TypeAlias = Callable[[Occurrence], bool]
"""A function that takes each occurrence, in order, and returns whether to keep it."""


def find_occurrences(
    bans: BanList, window: Window, *, file: str, keeps: Keeps | None = None
) -> Iterator[list[Occurrence]]:
    """Yield the occurrences of bans in a text that is read in pieces, in order, without overlaps."""
    for step in bans.search(window, overlaps=False):
        matches = (m for m in step.matches if not window.ignores(m.start, m.end))
        hits = (Occurrence(file, *window.locate(m.start), m.ban.text, window.cut(m.start, m.end)) for m in matches)
        yield list(filter(keeps, hits))  # None keeps all
        window.drop(step.settled)


def find_lines(
    bans: BanList, pieces: Iterable[str], *, file: str, context: int = 0, keeps: Keeps | None = None
) -> Iterator[list[HitLine]]:
    """Yield the lines of a text in which bans occur, and `context` lines on either side, as soon as they are known."""
    lines = _Lines(pieces, file=file, context=context)
    window = Window(lines)
    for hits in find_occurrences(bans, window, file=file, keeps=keeps):
        for hit in hits:
            lines.mark(hit)
        yield list(lines.take(before=window.line))
    yield list(lines.take(before=inf))


def search_records(bans: BanList, file: str, *, column: str, keeps: Keeps | None = None) -> Iterator[HitLine]:
    """Yield each record of a file as one line, numbered by its line in the file or by its place among the records."""
    for number, text in enumerate(read_texts([file], column=column), start=1):
        place = text.place.rpartition(":")[2]
        line = int(place) if place.isdecimal() else number
        matches = bans.find(text.text, overlaps=False)
        found = (Occurrence(file, line, m.start + 1, m.ban.text, text.text[m.start : m.end]) for m in matches)
        hits = list(filter(keeps, found))
        spans = [(hit.column - 1, hit.column - 1 + len(hit.text)) for hit in hits]
        yield HitLine(file, line, text.text.replace("\n", " "), hits, spans)


class HitLine(NamedTuple):
    """A line of a text in which bans occur, or a line near such a line.

    hits: the occurrences that begin in the line.
    spans: (start, end) of occurrences in the line, from 0; the first occurrence may have begun in an earlier line.
    """

    file: str
    line: int
    text: str
    hits: Sequence[Occurrence]
    spans: Sequence[tuple[int, int]]


class Window:
    """The part of a text in which matches are still possible; iterating over the window reads on by whole lines.

    pieces: the text. `locate`, `ignores` and `drop` take increasing indices only.
    line: the line of the index that was located last.
    """

    def __init__(self, pieces: Iterable[str]) -> None:
        self._pieces = pieces
        self.text = ""
        self._start = 0  # characters before `text`
        self._counted = 0  # the index in `text` up to which lines were counted
        self.line, self._line_start = 1, 0
        self._ignored = deque[tuple[int, float]]()  # spans in which comments switch hits off, in order

    def __iter__(self) -> Iterator[str]:
        begun = ""  # only complete lines are searched, since a mark may come behind a hit
        for piece in chain(self._pieces, [None]):
            begun += piece or ""
            end = len(begun) if piece is None or len(begun) > _MAX_LINE else begun.rfind("\n") + 1
            if end:
                lines, begun = begun[:end], begun[end:]
                self._read_marks(lines)
                self.text += lines
                yield lines

    def _read_marks(self, lines: str) -> None:
        begin, spans = self._start + len(self.text), self._ignored
        for mark in _MARK.finditer(lines) if "antislop:" in lines else ():
            is_off = bool(spans) and spans[-1][1] == inf
            if mark[1] == "on" and is_off:
                spans[-1] = spans[-1][0], begin + mark.start()
            elif mark[1] == "off" and not is_off:
                spans.append((begin + mark.start(), inf))
            elif mark[1] == "ignore" and not is_off:
                start = begin + lines.rfind("\n", 0, mark.start()) + 1
                while spans and spans[-1][0] >= start:  # what else is ignored in this line
                    spans.pop()
                spans.append((start, begin + (lines.find("\n", mark.end()) + 1 or len(lines))))

    def ignores(self, start: int, end: int) -> bool:
        """Return whether any character of a match is in a span that a comment switches off."""
        while self._ignored and self._ignored[0][1] <= start:
            self._ignored.popleft()
        return bool(self._ignored) and self._ignored[0][0] < end

    def locate(self, index: int) -> tuple[int, int]:
        """Return the line and the column of a character, from 1."""
        end = index - self._start
        self.line += self.text.count("\n", self._counted, end)
        line_end = self.text.rfind("\n", self._counted, end)
        if line_end >= 0:
            self._line_start = self._start + line_end + 1
        self._counted = end
        return self.line, index - self._line_start + 1

    def cut(self, start: int, end: int) -> str:
        return self.text[start - self._start : end - self._start]

    def drop(self, settled: int) -> None:
        """Forget the characters before an index."""
        self.locate(settled)
        self.text = self.text[self._counted :]
        self._start, self._counted = settled, 0


@dataclass
class _Lines:
    """The lines of a text that are still needed; iterating over them reads on."""

    pieces: Iterable[str]
    file: str
    context: int
    lines: deque[str] = field(default_factory=lambda: deque([""]))
    next: int = 1  # the number of the first line
    hits: dict[int, list[Occurrence]] = field(default_factory=dict)
    spans: dict[int, list[tuple[int, int]]] = field(default_factory=dict)

    def __iter__(self) -> Iterator[str]:
        for piece in self.pieces:
            begun, *others = piece.split("\n")
            self.lines[-1] += begun
            self.lines.extend(others)
            yield piece

    def mark(self, hit: Occurrence) -> None:
        start = hit.column - 1
        self.hits.setdefault(hit.line, []).append(hit)
        for number, part in enumerate(hit.text.split("\n"), start=hit.line):
            self.spans.setdefault(number, []).append((start, start + len(part)))
            start = 0

    def take(self, *, before: float) -> Iterator[HitLine]:
        """Remove the lines too far before line `before`, and yield each removed line that is near a marked hit."""
        if before == inf and not self.lines[-1]:
            self.lines.pop()  # a line feed at the end begins no line
        while self.lines and self.next + self.context < before:
            number, text = self.next, self.lines.popleft()
            if next(iter(self.spans), inf) <= number + self.context:  # spans further up were removed
                yield HitLine(self.file, number, text, self.hits.pop(number, ()), self.spans.get(number, ()))
            self.spans.pop(number - self.context, None)
            self.next += 1

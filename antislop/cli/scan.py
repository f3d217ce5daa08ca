"""The commands that search texts for bans: `scan` and `try`."""

from __future__ import annotations

import re
import sys
from bisect import bisect_right
from codecs import getincrementaldecoder
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import typer
from rich.console import Console
from rich.text import Text

from antislop.cli.options import BanOptions, LenientOption, collect_bans, load_bans
from antislop.cli.progress import ProgressBar
from antislop.cli.terminal import (
    OutputFormatOption,
    console,
    print_line,
    read_input,
    read_pieces,
    say,
    warn,
    write_json,
    write_table,
)
from antislop.display import describe_count, make_visible
from antislop.errors import InputError
from antislop.files import PIECE, open_bytes
from antislop.lists.ban_list import BanList
from antislop.lists.bundled import default_bans
from antislop.matching.bans import Ban, Match, distinct, drop_overlaps
from antislop.records.texts import read_texts
from antislop.trace.console import to_rich
from antislop.trace.text_pieces import TextPiece

SILENCE = 0.5
"""Seconds without output before the bar of a file appears."""

_WHITE_SPACE = re.compile(r"\s+")


ScanFormat = Literal["text", "json", "csv", "github"]


# -- scan -------------------------------------------------------------------------------------------------------------


def scan(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...", help="UTF-8 texts, or .gz of them, and folders of texts; - is standard input."
        ),
    ],
    *,
    bans: BanOptions,
    column: Annotated[
        str | None, typer.Option(help="Search this column of records: .jsonl, .json, .csv, .parquet, .gz of these.")
    ] = None,
    count: Annotated[bool, typer.Option("--count", "-c", help="Print file:number only.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing: the exit status is the answer.")] = False,
    output: Annotated[
        ScanFormat,
        typer.Option("--format", help="text, json or csv for programs, or github for annotations of a workflow."),
    ] = "text",
) -> int:
    """Find banned phrases in files, with the place at which each begins: file:line:column: phrase.

    In folders, hidden files and those that are not UTF-8 are left out. With --column, the line is that of the record,
    or its number, and the column that of the character in its text.

    Of phrases that overlap, the first counts, and the longest of those that begin with it.
    """
    banned = collect_bans(bans)
    search = _Search(banned, column, counts_only=count, is_quiet=quiet)
    rows = search.run(files)
    if quiet:
        deque(rows, maxlen=0)
    elif output == "github":
        _print_annotations(rows)
    else:
        columns = ("file", "count") if count else Occurrence._fields
        write_table(output, rows, columns=columns, show=_print_rows)
    return 2 if search.has_failed else int(search.found > 0)


def _list_files(names: Iterable[str]) -> Iterator[str]:
    """Yield the files, and in place of a folder the texts in it, in order."""
    for name in names:
        if not Path(name).is_dir():
            yield name
            continue
        paths = [path for path in sorted(Path(name).rglob("*")) if path.is_file() and not _is_hidden(path, Path(name))]
        texts = [path for path in paths if _is_text(path)]
        if len(texts) < len(paths):
            say(f"{name}: left out {describe_count(len(paths) - len(texts), 'file')} that can't be read as UTF-8")
        yield from map(str, texts)


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


@dataclass
class _Search:
    """A search of files: what was found so far, and whether a file could not be read."""

    bans: BanList
    column: str | None
    counts_only: bool
    is_quiet: bool
    found: int = 0
    has_failed: bool = False

    def run(self, names: Iterable[str]) -> Iterator[dict[str, Any]]:
        """Yield a row for each occurrence as it is found, or for each file."""
        for name in _list_files(names) if self.column is None else names:
            before = self.found
            try:
                for occurrences in self._search_file(name):
                    if not self.counts_only:
                        yield from (occurrence._asdict() for occurrence in occurrences)
                        sys.stdout.flush()
            except InputError as error:
                warn(str(error))
                self.has_failed = True
                continue
            if self.counts_only:
                yield {"file": _title(name), "count": self.found - before}

    def _search_file(self, name: str) -> Iterator[list[Occurrence]]:
        """Yield occurrences with a bar beside them, which is hidden where they are written to the same terminal."""
        path = Path(name)
        total = path.stat().st_size if path.is_file() and path.suffix.lower() != ".gz" else None
        hides_bar = console().is_terminal and not (self.counts_only or self.is_quiet)
        with ProgressBar(console(stderr=True), _title(name), total=total, silence=SILENCE) as bar:
            if self.column is None:
                pieces = read_pieces(name, advance=lambda length: bar.update(advance=length))
                blocks = find_occurrences(self.bans, pieces, file=_title(name))
            else:
                blocks = _search_records(self.bans, name, self.column)
            before = self.found
            for occurrences in blocks:
                if occurrences and hides_bar:
                    bar.hide()
                self.found += len(occurrences)
                yield occurrences
                bar.update(note=f"{self.found - before:,} found")


def _search_records(bans: BanList, name: str, column: str) -> Iterator[list[Occurrence]]:
    """Yield the occurrences in each record of a file; their line is that of the record, or its number."""
    for number, text in enumerate(read_texts([name], column=column), start=1):
        line = text.place.rpartition(":")[2]
        yield [
            Occurrence(name, int(line) if line.isdecimal() else number, match.start + 1, match.ban.text, found)
            for match in drop_overlaps(bans.find(text.text))
            for found in [text.text[match.start : match.end]]
        ]


def _print_rows(rows: Iterable[Mapping[str, Any]]) -> None:
    screen = console()
    line = style_line(screen)
    for row in rows:
        place = f":{row['count']}" if "count" in row else f":{row['line']}:{row['column']}: "
        screen.file.write(line.format(make_visible(row["file"]), place, make_visible(row.get("ban", ""))))


def _print_annotations(rows: Iterable[Mapping[str, Any]]) -> None:
    out = console().file
    for row in rows:
        out.write(f"{annotate(row)}\n")


def annotate(data: Mapping[str, Any]) -> str:
    """Return an occurrence, or the count of a file, as an annotation of a GitHub workflow.

    Syntax: https://docs.github.com/en/actions/reference/workflow-commands-for-github-actions

    >>> annotate({"file": "a,b.md", "line": 3, "column": 7, "ban": "a testament to", "text": "A testament to"})
    '::error file=a%2Cb.md,line=3,col=7,title=antislop::the banned phrase “a testament to”'
    """
    file, phrase = (make_visible(data.get(name, "")).replace("%", "%25") for name in ("file", "ban"))
    file = file.replace(":", "%3A").replace(",", "%2C")
    if "count" in data:
        return f"::notice file={file},title=antislop::{describe_count(data['count'], 'banned phrase')}"
    place = f"line={data['line']},col={data['column']}"
    return f"::error file={file},{place},title=antislop::the banned phrase “{phrase}”"


def _title(name: str) -> str:
    return "<stdin>" if name == "-" else name


def _line_starts(text: str) -> list[int]:
    return [0, *(match.end() for match in re.finditer("\n", text))]


def _locate(lines: Sequence[int], index: int) -> tuple[int, int]:
    """Return the line and the column of a character, counted from 1."""
    line = bisect_right(lines, index)
    return line, index - lines[line - 1] + 1


class Occurrence(NamedTuple):
    """A match of a ban. line, column: of its start, from 1."""

    file: str
    line: int
    column: int
    ban: str
    text: str


def find_occurrences(bans: BanList, pieces: Iterable[str], *, file: str) -> Iterator[list[Occurrence]]:
    """Yield the occurrences of bans in a text that is read in pieces, in order, without overlaps."""
    window, end = Window(pieces), 0
    for result in bans.search(window):
        matches = drop_overlaps(result.matches, begin=end)
        yield [Occurrence(file, *window.locate(match.start), match.ban.text, window.cut(match)) for match in matches]
        end = matches[-1].end if matches else end
        window.drop(result.settled)


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


def style_line(screen: Console) -> str:
    """Return a format string for (name, place, phrase), styled once by rich, since styling each line is slow."""
    if not screen.is_terminal:
        return "{}{}{}\n"
    name, place, phrase = "\ue000\ue001\ue002"
    with screen.capture() as captured:
        screen.print(Text.assemble((name, "magenta"), place, (phrase, "bold red")), soft_wrap=True)
    return captured.get().replace(name, "{}").replace(place, "{}").replace(phrase, "{}")


# -- try --------------------------------------------------------------------------------------------------------------


class HitContext(NamedTuple):
    """A hit, `text`, with the text around it, in which white space is single spaces."""

    file: str
    line: int
    column: int
    before: str
    text: str
    after: str


@dataclass
class _BanHits:
    """The hits of a ban, and the contexts of the first ones."""

    count: int = 0
    contexts: list[HitContext] = field(default_factory=list)


@dataclass
class _Trial:
    """The hits of a list in some texts.

    contexts: maximum per ban.
    hits: that don't overlap.
    """

    bans: BanList
    contexts: int
    words: int = 0
    hits: int = 0
    tallies: dict[Ban, _BanHits] = field(default_factory=dict)

    def add(self, name: str) -> None:
        text = read_input(name)
        self.words += len(text.split())
        lines = _line_starts(text)
        matches = self.bans.find(text)
        self.hits += len(drop_overlaps(matches))
        for match in matches:
            tally = self.tallies.setdefault(match.ban, _BanHits())
            tally.count += 1
            if len(tally.contexts) < self.contexts:
                around = _cut_context(text, match.start, match.end)
                tally.contexts.append(HitContext(_title(name), *_locate(lines, match.start), *around))

    @property
    def ranked(self) -> list[tuple[Ban, _BanHits]]:
        """The bans with hits, most frequent first."""
        return sorted(self.tallies.items(), key=lambda pair: (-pair[1].count, pair[0].text))

    @property
    def unused(self) -> list[Ban]:
        return [ban for ban in distinct(self.bans) if ban not in self.tallies and ban.pattern.occurs_in_text]

    def rate(self, count: int) -> float:
        return 1000 * count / max(1, self.words)


def try_list(
    path: Annotated[
        Path | None, typer.Argument(metavar="LIST", help="The bans to try.", show_default="the bundled list")
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="A UTF-8 text, or .gz of one; - is standard input. Repeatable."),
    ] = None,
    contexts: Annotated[int, typer.Option(min=0, help="Hits to show per ban.")] = 3,
    lenient: LenientOption = False,
    output: OutputFormatOption = "text",
) -> int:
    """Try a list on texts: the frequency and the places of each ban.

    Prints each ban that occurs with its hits, its hits per 1,000 words, and the first hits in context. A ban's hits are
    all of its own; the total counts overlapping hits once. JSON also lists the bans that don't occur.
    """
    names = text or []
    trial = _Trial(default_bans() if path is None else load_bans(path, lenient=lenient), contexts)
    if tokens := sum(not ban.pattern.occurs_in_text for ban in trial.bans):
        warn(f"{tokens:,} of the bans are token ids, which can't be found in a text: they are left out")
    with console(stderr=True).status("") as status:
        for number, name in enumerate(names, start=1):
            status.update(Text(f"reading {make_visible(_title(name))} ({number} of {len(names)})"))
            trial.add(name)
    if output == "json":
        write_json(_describe_trial(trial))
    else:
        _print_trial(trial)
    return 0


def _cut_context(text: str, start: int, end: int, *, width: int = 200) -> tuple[str, str, str]:
    parts = text[max(0, start - width) : start], text[start:end], text[end : end + width]
    text_before, hit, text_after = (_WHITE_SPACE.sub(" ", part) for part in parts)
    return text_before.lstrip(), hit, text_after.rstrip()


def _print_trial(trial: _Trial) -> None:
    screen = console()
    if trial.tallies:
        print_line(Text(f"{'hits':>8} {'per 1,000':>10}  ban", "dim"))
    for ban, tally in trial.ranked:
        weight = f"  (weight {ban.weight})" if ban.weight else ""
        figures = f"{tally.count:>8,} {trial.rate(tally.count):>10.2f}  "
        print_line(Text.assemble(figures, (ban.text, "bold"), (weight, "dim")))
        for context in tally.contexts:
            print_line(_draw_context(context, width=screen.width, is_terminal=screen.is_terminal))
    unused, total = len(trial.unused), len(distinct(trial.bans))
    summary = f"{describe_count(trial.hits, 'hit')} in {describe_count(trial.words, 'word')}, "
    summary += f"{trial.rate(trial.hits):.2f} per 1,000; {len(trial.tallies):,} of {total:,} bans hit, {unused:,} never"
    say(summary)


def _draw_context(context: HitContext, *, width: int, is_terminal: bool) -> Text:
    """Return a context as one line, with the hit highlighted on a terminal, else in brackets."""
    place = f"{'':>8} {Path(context.file).name}:{context.line}: "
    hit = context.text if is_terminal else f"[{context.text}]"
    room = max(0, width - len(place) - len(hit) - 2)
    length_before = min(len(context.before), max(room // 2, room - len(context.after)))
    text_before, text_after = (
        context.before[len(context.before) - length_before :],
        context.after[: room - length_before],
    )
    text_before = "…" * (text_before != context.before) + text_before
    text_after += "…" * (text_after != context.after)
    return Text.assemble(
        (place, "dim"),
        to_rich([TextPiece(text_before, "kept"), TextPiece(hit, "conceded"), TextPiece(text_after, "kept")]),
        overflow="ignore",
    )


def _describe_trial(trial: _Trial) -> dict[str, Any]:
    bans = [
        {
            "ban": ban.text,
            "kind": ban.pattern.kind,
            "weight": ban.weight,
            "count": tally.count,
            "per_1000_words": round(trial.rate(tally.count), 4),
            "contexts": [context._asdict() for context in tally.contexts],
        }
        for ban, tally in trial.ranked
    ]
    return {"words": trial.words, "hits": trial.hits, "bans": bans, "never": [ban.text for ban in trial.unused]}

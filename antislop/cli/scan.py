"""The command `antislop scan`: search texts for banned phrases."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote

import typer
from rich.console import Console
from rich.text import Text

from antislop.cli.options import READ_ONCE, TWO_LISTS, BanOptions, bans_nothing, collect_bans, reads_stdin
from antislop.cli.parsing import Conflicts, When
from antislop.cli.progress import ProgressBar
from antislop.cli.terminal import check_writable, console, read_input_pieces, say, warn, write_table, writing
from antislop.core.bans import BanList, Scope, read_bans
from antislop.display import describe_count, make_visible
from antislop.errors import InputError
from antislop.files.disk import read_text, replace_text
from antislop.measure.folders import is_text, list_files, read_glob
from antislop.measure.occurrences import HitLine, Occurrence, Window, find_lines, find_occurrences, search_records

SILENCE = 0.5
"""Seconds without output before a file's progress bar appears."""
MARGIN = 20
"""The fewest characters of a long line that are shown before and after a hit."""

ScanFormat = Literal["text", "json", "csv", "github", "sarif"]


class Outside(str, Enum):
    """Parts of a text that --outside leaves out, as `Scope` names them; for a list, typer's help shows `Enum`s only."""

    code = "code"
    quotes = "quotes"
    think = "think"


@dataclass(frozen=True)
class ChoiceOptions:
    """Options for which files of folders are searched, and which parts of each file."""

    glob: Annotated[
        list[str] | None,
        typer.Option("--glob", "-g", metavar="GLOB", help="In folders, search only what matches this. Repeatable."),
    ] = None
    exclude: Annotated[
        list[str] | None, typer.Option(metavar="GLOB", help="Leave out files and folders that match this. Repeatable.")
    ] = None
    outside: Annotated[
        list[Outside] | None,
        typer.Option(metavar="|".join(Outside), help="Leave out blocks of code, quotes or thoughts. Repeatable."),
    ] = None
    column: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Search this column of .jsonl, .json, .csv, .parquet, or .gz.")
    ] = None


@dataclass(frozen=True)
class ReportOptions:
    """Options for how hits are printed, and for the baseline file, whose hits are left out."""

    context: Annotated[
        int | None, typer.Option("--context", "-C", min=0, help="Show N lines around each hit as well.")
    ] = None
    count: Annotated[bool, typer.Option("--count", "-c", help="Print file:number only.")] = False
    by_ban: Annotated[bool, typer.Option(help="Print how often each ban occurs, the most frequent first.")] = False
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing: the exit status is the answer.")] = False
    stats: Annotated[bool, typer.Option(help="Say at the end how much was searched and found.")] = False
    output: Annotated[
        ScanFormat,
        typer.Option("--format", help="github: annotations of a workflow; sarif: SARIF 2.1.0, for code scanning."),
    ] = "text"
    baseline: Annotated[Path | None, typer.Option(help="Leave out hits that this file has.")] = None
    write_baseline: Annotated[Path | None, typer.Option(help="Write all hits into a file for --baseline.")] = None


CONFLICTS: Conflicts = {
    f"both a text and --bans {READ_ONCE}": When("bans", lambda o: "-" in o.files and reads_stdin(o)),
    **TWO_LISTS,
    "--no-bans leaves nothing to search for: leave it out, or add --ban PHRASE": When("no_bans", bans_nothing),
    "--glob chooses files in folders, and there is none to search: name a folder, or pass --exclude": When(
        "glob", lambda o: o.column or not any(Path(name).is_dir() for name in o.files)
    ),
    "--context has no lines to show with --column, --count, --quiet or --format: leave one of them out": When(
        "context", lambda o: o.column or o.count or o.quiet or o.output != "text"
    ),
    "--by-ban counts in all files together: leave out --count, --quiet, --context and --format github or sarif": When(
        "by_ban", lambda o: o.count or o.quiet or o.context is not None or o.output in ("github", "sarif")
    ),
    "--format sarif has the place of each hit: leave out --count": When(
        "count", lambda o: o.output == "sarif" and not o.quiet
    ),
}


def scan(
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE", help="UTF-8 texts, or .gz of them, and folders of texts; - is standard input."),
    ],
    *,
    bans: BanOptions,
    choice: ChoiceOptions,
    report: ReportOptions,
) -> int:
    """Find banned phrases in files, with the place at which each begins: file:line:column: phrase.

    On a terminal, and with -C, the text of the line is shown in place of the phrase. With --column, `line` is the
    record's line in the file, or else the record's number, and `column` counts characters of the record's text.

    In folders, hidden files, links, what .gitignore files name and files that are not UTF-8 are left out. The file of
    --bans is never searched. A GLOB is written as in .gitignore, from the current folder on; if several match, the last
    one decides.

    Of phrases that overlap, only the first is found; of those that begin at the same character, only the longest.
    """
    shows_hits = not (report.count or report.quiet or report.by_ban)
    shows_lines = shows_hits and report.output == "text" and (report.context is not None or console().is_terminal)
    if report.write_baseline is not None:
        check_writable(report.write_baseline)
    known = _Known(None if report.write_baseline else report.baseline)
    limited = read_bans(collect_bans(bans), scopes=[Scope("outside", span.value) for span in choice.outside or []])
    counts_only, around = report.count or report.quiet, (report.context or 0) if shows_lines else None
    keeps = known.keeps if report.baseline or report.write_baseline else None
    search = _Search(limited, choice.column, counts_only=counts_only, around=around, keeps=keeps)
    lists = [*(bans.bans or []), *filter(None, (report.baseline, report.write_baseline))]
    globs = [*(choice.glob or []), *(f"!{pattern}" for pattern in choice.exclude or [])]
    rows = search.run(_choose_files(search, files, globs, lists=lists))
    if report.quiet or report.write_baseline is not None:
        deque(rows, maxlen=0)  # searches the files
    else:
        lines = partial(_print_lines, report.context) if shows_lines else _print_rows
        printers: dict[str, Callable[..., None]] = {"github": partial(_print_each, annotate), "sarif": _print_sarif}
        show = printers.get(report.output, lines)
        columns: tuple[str, ...] = ("file", "count") if report.count else Occurrence._fields
        if report.by_ban:  # counts are complete only after all files are searched
            columns = ("ban", "count")
            show = partial(_print_each, lambda row: f"{row['count']:>7} {make_visible(row['ban'])}")
            rows = ({"ban": ban, "count": times} for ban, times in Counter(row["ban"] for row in rows).most_common())
        write_table(report.output, rows, columns=columns, show=show)
    if report.stats:
        places = f"{search.hit_files:,} of {describe_count(search.files, 'file')}"
        say(f"{describe_count(search.found, 'hit')} in {places}, {time.perf_counter() - search.begun:.2f} seconds")
    if report.write_baseline is not None and not search.has_failed:
        with writing(report.write_baseline):
            replace_text(report.write_baseline, "".join(f"{line}\n" for line in sorted(known.found.elements())))
        search.found = 0  # all hits are in the baseline now
    if (path := report.write_baseline or report.baseline) and not search.has_failed:
        say(f"{path}: has {describe_count(known.found.total() - search.found, 'hit')}, left out here")
    return 2 if search.has_failed else int(search.found > 0)


def _choose_files(
    search: _Search, names: Iterable[str], globs: Sequence[str], *, lists: Sequence[Path]
) -> Iterator[str]:
    """Yield the names of the files to search; in place of a folder, the text files in the folder, in order."""
    is_kept = _compile(["*", *globs])
    is_chosen = _compile(globs) if any(not pattern.startswith("!") for pattern in globs) else is_kept
    places = {path.resolve() for path in lists}
    list_names = {place.name for place in places}
    for name in names:
        path, unread, found = Path(name), 0, 0
        if search.column is not None or not path.is_dir():
            if path.resolve() in places:
                say(f"{name}: left out, since it is a list of --bans, or the baseline")
            elif is_kept(path):
                yield name
            continue
        for file in filter(is_chosen, list_files(path)):
            if file.name in list_names and file.resolve() in places:
                continue
            if is_text(file):
                found += 1
                yield str(file)
            else:
                unread += 1
        if not found:
            search.fail(f"{name}: no text in this folder is searched: check its path, and what -g and --exclude choose")
        if unread:
            say(f"{name}: left out {describe_count(unread, 'file')} that can't be read as UTF-8")


def _compile(texts: Sequence[str]) -> Callable[[Path], bool]:
    """Return a test for paths: True if the last glob that matches the path, or one of its folders, isn't negated."""
    globs = []
    for text in texts:
        if (glob := read_glob(text)) is None:
            raise InputError(f"the glob {text!r} can't match: write one as in .gitignore, *.md for instance")
        globs.append(glob)

    def chooses(path: Path) -> bool:
        parts = Path(os.path.relpath(path)).parts
        starts = [parts[:length] for length in range(1, len(parts) + 1)]
        for glob in reversed(globs):
            if any(glob.matches(start, is_folder=start != parts) for start in starts):
                return not glob.is_negated
        return False

    return chooses


@dataclass
class _Search:
    """A search of several files.

    around: lines of context before and after each hit; if None, `run` yields occurrences instead of lines.
    keeps: returns whether a hit is new, which means not in the baseline; None without a baseline.
    found: number of occurrences so far. files, hit_files: number of searched files, and of files with occurrences.
    has_failed: whether a file could not be read, or a folder contains no text.
    """

    bans: BanList
    column: str | None
    counts_only: bool
    around: int | None
    keeps: Callable[[Occurrence], bool] | None
    found: int = 0
    files: int = 0
    hit_files: int = 0
    has_failed: bool = False
    begun: float = field(default_factory=time.perf_counter)

    def run(self, names: Iterable[str]) -> Iterator[dict[str, Any]]:
        """Yield a row for each occurrence or line as it is found, or if `counts_only`, for each file.

        The progress bar is hidden at the first hit if hits are printed to a terminal.
        """
        hides_bar = console().is_terminal and not self.counts_only
        with ProgressBar(console(stderr=True), silence=SILENCE) as bar:
            for name in names:
                before, path = self.found, Path(name)
                total = path.stat().st_size if path.is_file() and path.suffix.lower() != ".gz" else None
                bar.update(title=_title(name), done=0, total=total, note="")
                try:
                    for block in self._find(name, advance=lambda length: bar.update(advance=length)):
                        if block and hides_bar:
                            bar.hide()
                        self.found += sum(len(row.hits) if isinstance(row, HitLine) else 1 for row in block)
                        if not self.counts_only:
                            yield from (row._asdict() for row in block)
                            sys.stdout.flush()
                        bar.update(note=f"{self.found - before:,} found")
                except InputError as error:
                    self.fail(str(error))
                    continue
                self.files += 1
                self.hit_files += self.found > before
                if self.counts_only:
                    yield {"file": _title(name), "count": self.found - before}

    def fail(self, sentence: str) -> None:
        warn(sentence)
        self.has_failed = True

    def _find(self, name: str, *, advance: Callable[[int], None]) -> Iterator[Sequence[Occurrence | HitLine]]:
        if self.column is not None:
            for line in search_records(self.bans, name, column=self.column, keeps=self.keeps):
                yield line.hits if self.around is None or not line.hits else [line]
            return
        pieces = read_input_pieces(name, advance=advance)
        if self.around is None:
            yield from find_occurrences(self.bans, Window(pieces), file=_title(name), keeps=self.keeps)
        else:
            yield from find_lines(self.bans, pieces, file=_title(name), context=self.around, keeps=self.keeps)


class _Known:
    """The hits of a baseline and the hits of this run, counted by file and ban, since edits change line numbers.

    If the baseline has two hits of a ban in a file, and three are found, the third is new.
    """

    def __init__(self, path: Path | None) -> None:
        advice = f"write one with --write-baseline {path}"
        self.old = Counter([] if path is None else read_text(path, advice=advice).splitlines())
        self.found = Counter[str]()

    def keeps(self, hit: Occurrence) -> bool:
        line = make_visible(f"{Path(os.path.relpath(hit.file)).as_posix()}: {hit.ban}")
        self.found[line] += 1
        return self.found[line] > self.old[line]


def _print_each(describe: Callable[[Mapping[str, Any]], str], rows: Iterable[Mapping[str, Any]]) -> None:
    console().file.writelines(f"{describe(row)}\n" for row in rows)


def _print_sarif(rows: Iterable[Mapping[str, Any]]) -> None:
    """Print SARIF 2.1.0 (https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html), all hits in one run.

    A hit's fingerprint holds its file, its ban and its number among the file's hits of this ban, but no line number.
    """
    results, numbers = list[dict[str, Any]](), Counter[tuple[str, str]]()
    for row in rows:
        file, ban = Path(row["file"]).as_posix(), make_visible(row["ban"])
        numbers[file, ban] += 1
        hit = hashlib.sha256(f"{file}\0{ban}\0{numbers[file, ban]}".encode(errors="surrogatepass")).hexdigest()
        region = {"startLine": row["line"], "startColumn": row["column"]}
        place = {"artifactLocation": {"uri": quote(os.fsencode(file))}, "region": region}
        result = {"ruleId": ban, "level": "error", "message": {"text": f"the banned phrase “{ban}”"}}
        results.append(result | {"locations": [{"physicalLocation": place}], "partialFingerprints": {"hit/v1": hit}})
    rules = [{"id": ban, "shortDescription": {"text": f"the banned phrase “{ban}”"}} for _, ban in numbers]
    driver = {"name": "antislop", "rules": [*{rule["id"]: rule for rule in rules}.values()]}
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    schema = "https://json.schemastore.org/sarif-2.1.0.json"
    console().file.write(json.dumps({"$schema": schema, "version": "2.1.0", "runs": [run]}, ensure_ascii=False) + "\n")


def _print_rows(rows: Iterable[Mapping[str, Any]]) -> None:
    screen = console()
    name, hit = _style(screen, "magenta"), _style(screen, "bold red")
    for row in rows:
        place = f":{row['count']}" if "count" in row else f":{row['line']}:{row['column']}: "
        phrase = hit.format(make_visible(row["ban"])) if "ban" in row else ""
        screen.file.write(f"{name.format(make_visible(row['file']))}{place}{phrase}\n")


def _print_lines(context: int | None, rows: Iterable[Mapping[str, Any]]) -> None:
    """Print lines with their hits marked: whole lines if `context` is given, else cut to about the terminal's width."""
    screen = console()
    name, hit, dim = (_style(screen, style) for style in ("magenta", "bold red", "dim"))
    following: tuple[str, int] | None = None
    for file, number, text, hits, spans in (row.values() for row in rows):
        if context and following not in (None, (file, number)):
            screen.file.write(dim.format("--") + "\n")
        following = file, number + 1
        place = f":{number}:{hits[0].column}: " if hits else f"-{number}- "
        room = screen.width - len(file) - len(place) if context is None else len(text)
        parts = [
            (hit if is_hit else "{}").format(make_visible(part, keep_layout=True))
            for part, is_hit in _cut_line(text.removesuffix("\r"), spans, room=room)
        ]
        screen.file.write(f"{name.format(make_visible(file))}{place}{''.join(parts)}\n")


def _cut_line(text: str, spans: Sequence[tuple[int, int]], *, room: int) -> Iterator[tuple[str, bool]]:
    """Yield (part, whether it is a hit) for each part of a line; if it exceeds `room`, text far from hits is cut."""
    margin = len(text) if len(text) <= room else max(MARGIN, (room - spans[-1][1] + spans[0][0]) // 2 - 1)
    begin = left = 0
    for start, end in spans:
        yield _cut_gap(text[begin:start], left, margin), False
        yield text[start:end], True
        begin, left = end, margin
    yield _cut_gap(text[begin:], margin, 0), False


def _cut_gap(gap: str, left: int, right: int) -> str:
    return gap if len(gap) <= left + right + 1 else f"{gap[:left]}…{gap[len(gap) - right :]}"


def annotate(data: Mapping[str, Any]) -> str:
    """Return an occurrence, or a file's number of occurrences, as an annotation of a GitHub workflow.

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


def _style(screen: Console, style: str) -> str:
    """Return a format string with {} for the text and a style's control codes around it: rich is slow for each line."""
    text = "\ue000"
    with screen.capture() as captured:
        screen.print(Text(text, style), end="")
    return captured.get().replace(text, "{}")

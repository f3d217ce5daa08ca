"""The commands that search texts for bans: `scan` and `try`."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

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
    read_input_pieces,
    say,
    warn,
    write_json,
    write_table,
)
from antislop.display import describe_count, make_visible
from antislop.errors import InputError
from antislop.lists.ban_list import BanList
from antislop.lists.bundled import default_bans
from antislop.matching.bans import distinct
from antislop.metrics.occurrences import HitContext, Occurrence, Trial, find_occurrences, list_texts, search_records
from antislop.trace.console import to_rich
from antislop.trace.text_pieces import TextPiece

SILENCE = 0.5
"""Seconds without output before the bar of a file appears."""

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
    search = _Search(collect_bans(bans), column, counts_only=count or quiet)
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
        texts, left_out = list_texts(name)
        if left_out:
            say(f"{name}: left out {describe_count(left_out, 'file')} that can't be read as UTF-8")
        yield from map(str, texts)


@dataclass
class _Search:
    """A search of several files. found: occurrences so far. has_failed: whether a file could not be read."""

    bans: BanList
    column: str | None
    counts_only: bool
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
        hides_bar = console().is_terminal and not self.counts_only
        with ProgressBar(console(stderr=True), _title(name), total=total, silence=SILENCE) as bar:
            if self.column is None:
                pieces = read_input_pieces(name, advance=lambda length: bar.update(advance=length))
                blocks = find_occurrences(self.bans, pieces, file=_title(name))
            else:
                blocks = search_records(self.bans, name, column=self.column)
            before = self.found
            for occurrences in blocks:
                if occurrences and hides_bar:
                    bar.hide()
                self.found += len(occurrences)
                yield occurrences
                bar.update(note=f"{self.found - before:,} found")


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


def style_line(screen: Console) -> str:
    """Return a format string for (name, place, phrase), styled once by rich, since styling each line is slow."""
    if not screen.is_terminal:
        return "{}{}{}\n"
    name, place, phrase = "\ue000\ue001\ue002"
    with screen.capture() as captured:
        screen.print(Text.assemble((name, "magenta"), place, (phrase, "bold red")), soft_wrap=True)
    return captured.get().replace(name, "{}").replace(place, "{}").replace(phrase, "{}")


# -- try --------------------------------------------------------------------------------------------------------------


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
    trial = Trial(default_bans() if path is None else load_bans(path, lenient=lenient), contexts)
    if tokens := sum(not ban.pattern.occurs_in_text for ban in trial.bans):
        warn(f"{tokens:,} of the bans are token ids, which can't be found in a text: they are left out")
    with console(stderr=True).status("") as status:
        for number, name in enumerate(names, start=1):
            status.update(Text(f"reading {make_visible(_title(name))} ({number} of {len(names)})"))
            trial.add(read_input(name), file=_title(name))
    if output == "json":
        write_json(_describe_trial(trial))
    else:
        _print_trial(trial)
    return 0


def _print_trial(trial: Trial) -> None:
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


def _describe_trial(trial: Trial) -> dict[str, Any]:
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

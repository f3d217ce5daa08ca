"""The command `antislop view`: the texts of a trace with what was withdrawn, and a table of bans."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from antislop.cli.terminal import check_suffix, check_writable, console, say, warn, writing_or_stdout
from antislop.core.trace import Trace
from antislop.display import describe_count, make_visible
from antislop.explain.console import ConsoleWriter
from antislop.explain.row_view import BanCounts, RowView, count_bans
from antislop.files import disk as files

MAX_INSTEAD = 3
"""The most replacements that the table lists for a ban."""


def view(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A trace, or .gz of one; - reads it from standard input.")
    ],
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a page with the alternatives of each token instead; - prints it."),
    ] = None,
) -> int:
    """Show what was withdrawn in a trace, and what came instead.

    The trace comes from `antislop generate --trace FILE`, or from `trace.save(FILE)` in Python. Prints each text with
    its withdrawn parts struck through, in brackets if that is impossible, and a table of the bans.
    """
    if html is not None:
        check_suffix(html, ".html", ".htm")
        check_writable(html, or_stdout=True)
    trace = Trace.load(sys.stdin.buffer if file == "-" else file)
    if html is None:
        _print_trace(trace, console())
    else:
        with writing_or_stdout(html) as path:
            files.replace_text(path, trace.to_html())
    for number, row in enumerate(trace.rows):
        if not row.is_finished:
            text = "the text" if len(trace.rows) == 1 else f"text {number}"
            warn(f"{text} is unfinished: the trace ends after {describe_count(len(row.tokens), 'token')}")
    return 0


def _print_trace(trace: Trace, screen: Console) -> None:
    for number in range(len(trace.rows)):
        if len(trace.rows) > 1:
            screen.rule(f"text {number}", align="left")
        page = ConsoleWriter(screen, show_withdrawn=True)
        page.write(trace.pieces(row=number))
        page.end()
        screen.print()
    counts = count_bans(RowView(row, trace.surfaces, trace.about) for row in trace.rows)
    if counts:
        screen.print(_tabulate_bans(counts))
        screen.print()
    parts = [
        *([] if len(trace.rows) == 1 else [describe_count(len(trace.rows), "text")]),
        describe_count(sum(len(row.tokens) for row in trace.rows), "token"),
        describe_count(sum(entry.rewinds for entry in counts), "rewind"),
        describe_count(sum(entry.tokens for entry in counts), "withdrawn token"),
        f"list of {describe_count(len(trace.bans), 'ban')}",
        str(trace.about["model"].get("name") or trace.about["model"].get("type")),
        *([f"seed {trace.about['seed']}"] if trace.about["settings"].get("do_sample") else []),
    ]
    say(", ".join(parts))


def _tabulate_bans(counts: list[BanCounts]) -> Table:
    """Return a table with a row for each ban; columns that are empty in all rows are left out."""
    columns = ("rewinds", "tokens", "conceded", "admitted")
    shown = [column for column in columns if any(getattr(entry, column) for entry in counts)]
    table = Table("ban", box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in shown:
        table.add_column(column, justify="right", no_wrap=True)
    if "rewinds" in shown:
        table.add_column("instead", ratio=1)
    for entry in counts:
        name = "no ban: a controller, or the batch" if entry.ban is None else entry.ban.text
        numbers = (str(getattr(entry, column) or "") for column in shown)
        often = entry.instead.most_common(MAX_INSTEAD)
        replacements = [f"{make_visible(text)!r}" + f" ({count:,})" * (count > 1) for text, count in often]
        instead = ", ".join([*replacements, *["…"] * (len(entry.instead) > MAX_INSTEAD)])
        table.add_row(Text(make_visible(name), "bold"), *numbers, *([instead] if "rewinds" in shown else []))
    return table

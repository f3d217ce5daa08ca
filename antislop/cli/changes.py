"""Changes between two profiles, as a table, as data and as a picture."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from antislop.cli.terminal import TableFormat, check_writable, console, write, write_json, writing
from antislop.display import quote_formula
from antislop.errors import InputError

if TYPE_CHECKING:
    from antislop.profiles.changes import Change


@dataclass(frozen=True)
class ComparisonOptions:
    """A comparison of two profiles instead of a profile."""

    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option(metavar="A B", help="Compare two profiles, or texts: the entries that fell, and those that rose."),
    ] = None
    output: Annotated[TableFormat, typer.Option("--format", help="The format of a comparison.")] = TableFormat.TEXT
    top: Annotated[int, typer.Option(min=1, help="Lines of a comparison per direction.")] = 15


def check_picture(out: Path) -> None:
    """Refuse a path that can't be written as a picture."""
    check_writable(out)
    if out.suffix.lower() not in (".svg", ".png", ".pdf"):
        raise InputError(f"{out}: not a format of pictures: name it .svg, .png or .pdf")
    if find_spec("matplotlib") is None:
        raise InputError("a picture needs the package matplotlib: pip install 'antislop[eval]', or leave out -o")


def write_changes(changes: Sequence[Change], options: ComparisonOptions, out: Path | None) -> None:
    """Write the most certain changes to standard output, and as a picture to `out`."""
    assert options.compare is not None
    before, after = _name_sides(*options.compare)
    top = options.top
    chosen = [*_first(changes, top, rose=False), *_first(changes, top, rose=True)]
    if options.output is TableFormat.JSON:
        write_json([change._asdict() for change in chosen])
    elif options.output is TableFormat.CSV:
        write(_to_csv(chosen))
    else:
        _print_changes(chosen, before, after)
    if out is not None:
        from antislop.evaluation.figures import save_changes

        with writing(out):
            save_changes(chosen, out, before=before, after=after, limit=top)


def _name_sides(before: Path, after: Path) -> tuple[str, str]:
    """Return the names of two files, without suffixes unless these are the only difference."""
    stems = tuple(
        re.sub(r"(?<=.)\.(jsonl?|ndjson|txt|csv|tsv|parquet)(\.gz)?$", "", path.name) for path in (before, after)
    )
    return (stems[0], stems[1]) if stems[0] != stems[1] else (before.name, after.name)


def _first(changes: Iterable[Change], top: int, *, rose: bool) -> list[Change]:
    return [change for change in changes if (change.ratio > 1) is rose][:top]


def _to_csv(changes: Iterable[Change]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    rows = [change._asdict() for change in changes]
    writer.writerow(rows[0] if rows else ["kind", "text"])
    writer.writerows(map(quote_formula, row.values()) for row in rows)
    return file.getvalue()


def _print_changes(changes: list[Change], before: str, after: str) -> None:
    for title, rose in (("fell", False), ("rose", True)):
        table = Table(title=f"What {title}, per million words", title_justify="left", box=None, pad_edge=False)
        table.add_column("", overflow="fold")
        for name in (before, after, "ratio", "95 % interval"):
            table.add_column(name, justify="right", overflow="fold")
        for change in _first(changes, len(changes), rose=rose):
            table.add_row(
                change.text if change.kind != "construction" else f"[{change.text}]",
                _show_rate(change.before, change.before_count),
                _show_rate(change.after, change.after_count),
                f"{change.ratio:.3g}",
                f"{change.low:.3g} to {change.high:.3g}",
            )
        if table.row_count:
            console().print(table)
        else:
            console().print(f"Nothing certainly {title}.")


def _show_rate(rate: float, count: int | None) -> str:
    return f"{'< ' if count is None else ''}{rate:,.1f}"

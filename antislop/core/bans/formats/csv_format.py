"""Lists of phrases in CSV, optionally with a weight or a count beside each.

Each line is a row, so that an unclosed quotation mark spoils one entry only.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import regex

from antislop.core.bans.folding import Edges
from antislop.core.bans.reading import Line, ListFormat, are_counts, attempt, is_kind, make_ban, make_phrase, to_words
from antislop.errors import BanError

PHRASES = ("phrase", "word", "ngram", "bigram", "trigram", "text", "term")
WEIGHTS = ("weight", "factor")
COUNTS = ("count", "frequency")

_SEPARATORS = "\t;,"
_WHOLE = regex.compile(r"[0-9]{1,18}")
_FRACTION = regex.compile(r"[0-9]*\.?[0-9]+(?:[eE]-?[0-9]{1,3})?")


class _CsvColumns(NamedTuple):
    """The indices of the columns.

    width: how many there are.
    are_ngrams: whether stop words were left out of phrases without a kind.
    """

    phrase: int = 0
    weights: int | None = None
    counts: int | None = None
    width: int = 2
    are_ngrams: bool = False
    kinds: int | None = None


def are_pairs(lines: Sequence[str]) -> bool:
    """Return whether all lines, names of columns aside, are a phrase and a number.

    >>> are_pairs(["delve,0.5", "a testament to,0.25"]), are_pairs(["well, well", "in May, 2020"])
    (True, False)
    """
    separator = _find_separator(lines)
    rows = (
        _split_cells(line, separator) for line in lines[bool(lines and _has_names(_split_cells(lines[0], separator))) :]
    )
    return len(lines) > 1 and all(len(row) == 2 and row[0] and _to_number(row[1]) is not None for row in rows)


def read_csv(text: str, place: str, edges: Edges) -> Iterator[Line]:
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip() and line[0] != "#"]
    separator = _find_separator([line for _, line in lines])
    rows = [(number, _split_cells(line, separator)) for number, line in lines]
    if rows and _has_names(rows[0][1]):
        (number, names), *rows = rows
        columns = _name_columns(names, [cells for _, cells in rows], f"{place}:{number}")
    else:
        are_ranks = are_counts(_to_number(cells[1]) for _, cells in rows if len(cells) == 2 and cells[1])
        columns = _CsvColumns(counts=1) if are_ranks else _CsvColumns(weights=1)
    return (_read_row(number, cells, columns, edges) for number, cells in rows)


def _find_separator(lines: Sequence[str]) -> str:
    """Return the separator that leaves a number, names of columns, or else most cells in the first line."""
    rows = {separator: _split_cells(lines[0] if lines else "", separator) for separator in _SEPARATORS}
    for separator, cells in rows.items():
        if len(cells) > 1 and (_has_names(cells) or (len(cells) == 2 and _to_number(cells[1]) is not None)):
            return separator
    return max(reversed(_SEPARATORS), key=lambda separator: len(rows[separator]))


def _split_cells(line: str, separator: str) -> list[str]:
    """Return the cells of a line; none if its quotation marks don't match."""
    try:
        cells = next(csv.reader([line], delimiter=separator, skipinitialspace=True, strict=True))
    except (csv.Error, StopIteration):
        return []
    quoted = {*line.split('"')[1:-1]}  # a set: of many cells, looking for each in the line takes quadratic time
    return [cell if cell in quoted else cell.strip() for cell in cells]


def _has_names(cells: Sequence[str]) -> bool:
    return any(cell.lower() in PHRASES for cell in cells) and all(_to_number(cell) is None for cell in cells)


def _name_columns(cells: Sequence[str], rows: Sequence[Sequence[str]], place: str) -> _CsvColumns:
    names = [cell.lower() for cell in cells]
    phrase, weight, count, kind = (_find_first(names, role) for role in (PHRASES, WEIGHTS, COUNTS, ("kind",)))
    assert phrase is not None
    if kind is not None and not all(is_kind(row[kind]) for row in rows if kind < len(row) and row[kind]):
        kind = None  # of something else
    if len(names) == 2 and weight is None and count is None and kind is None:
        raise BanError(
            f"{place}: the column {cells[1 - phrase]!r} is unknown: name it weight or count, or leave it out"
        )
    return _CsvColumns(phrase, weight, count, len(names), "gram" in names[phrase], kind)


def _find_first(names: Sequence[str], role: Sequence[str]) -> int | None:
    return next((names.index(name) for name in role if name in names), None)


def _to_number(cell: str) -> int | float | None:
    if _WHOLE.fullmatch(cell):
        return int(cell)
    cell = cell.replace(",", ".", 1)
    return float(cell) if _FRACTION.fullmatch(cell) else None


def _read_row(number: int, cells: Sequence[str], columns: _CsvColumns, edges: Edges) -> Line:
    if not cells:
        return number, BanError("its quotation marks don't match: double those that belong to the phrase")
    if len(cells) > columns.width:
        fault = f"{len(cells)} cells, and up to {columns.width} were expected"
        return number, BanError(f"{fault}: put a phrase with a comma in quotes, or name the columns in the first line")
    options: dict[str, Any] = {}
    for name, place in (("weight", columns.weights), ("count", columns.counts)):
        cell = "" if place is None or place >= len(cells) else cells[place]
        options |= {name: _to_number(cell)} if cell else {}
        if cell and options[name] is None:
            fault = f"the {name} {cell[:80]!r} is not a number from 0 on"
            return number, BanError(f"{fault}: correct it, or put it in quotes")
    phrase = cells[columns.phrase] if columns.phrase < len(cells) else ""
    if columns.kinds is not None and columns.kinds < len(cells) and cells[columns.kinds]:
        return attempt(number, make_ban, phrase, kind=cells[columns.kinds], options=options, edges=edges)
    if columns.are_ngrams:
        return attempt(number, to_words, phrase, **options)
    return attempt(number, make_phrase, phrase, edges=edges, **options)


CSV = ListFormat(
    "csv",
    lambda text: not text.is_json and are_pairs(text.lines),
    lambda text, edges: read_csv(text.text, text.place, edges),
    (".csv", ".tsv"),
)

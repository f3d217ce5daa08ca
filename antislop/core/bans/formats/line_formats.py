"""Published lists that have an entry on each line: SillyTavern's, regexes, and CSV.

SillyTavern's: free text on top, then `"quoted"` phrases, `[1, 2]` (token ids) and bare lines. A preset of its samplers,
    in JSON, has such lists under `banned_tokens` and `global_banned_tokens`.
Regexes: in quotes or not, commas after them or not, `#` comments; or a JSON list.
CSV: phrases, optionally with a weight or a count beside each. Each line is a row, so that an unclosed quotation mark
    spoils one entry only.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import regex

from antislop.core.bans.bans import Ban
from antislop.core.bans.folding import Edges
from antislop.core.bans.formats.json_formats import find_preset, find_shape, parse_entries
from antislop.core.bans.marks import BARE, REGEX, SIGNS, STRING_SIGNS, Signs, refuse_signs
from antislop.core.bans.patterns.phrase import Phrase
from antislop.core.bans.reading import (
    TOKEN_IDS,
    Line,
    ListFormat,
    ListText,
    are_counts,
    attempt,
    is_kind,
    leave_plain,
    make_ban,
    make_phrase,
    to_words,
)
from antislop.errors import BanError

# -- SillyTavern ------------------------------------------------------------------------------------------------------

_QUOTED = regex.compile(r'\s*"(.+?)"[,;]?\s*(?:(?:#|//)\s.*)?')
_NUMBER = regex.compile(r"\d+")
_LETTER = regex.compile(r"[\p{L}\p{N}]")


def _is_sillytavern(text: ListText) -> bool:
    if text.is_json:
        return find_shape(text) == "preset"
    marked = sum(map(_is_marked, text.lines))
    return marked > 0 and marked * 2 >= len(text.lines)


def _is_marked(line: str) -> bool:
    return _QUOTED.fullmatch(line) is not None or TOKEN_IDS.fullmatch(line) is not None


def _parse_sillytavern(text: ListText, edges: Edges) -> Iterator[Line]:
    if not text.is_json:
        yield from _parse_marked(text.text, edges)
        return
    lists = find_preset(text.value) or {}
    if not "".join(lists.values()).strip():
        names = " and ".join(lists) or "banned_tokens"
        raise BanError(
            f"{text.place}:1: a preset of SillyTavern with bans was expected, and {names} is empty or missing"
        )
    for key, bans in lists.items():
        number = text.text[: text.text.find(f'"{key}"')].count("\n") + 1
        yield from ((number, ban) for _, ban in _parse_marked(bans, edges))


def _parse_marked(text: str, edges: Edges) -> Iterator[Line]:
    lines = text.split("\n")
    marked = next((number for number, line in enumerate(lines) if _is_marked(line)), 0)
    # The free text on top ends with the last empty line or ruler above the first marked line.
    begin = max((number + 1 for number in range(marked) if not _LETTER.search(lines[number])), default=0)
    for number, line in enumerate(lines[begin:], start=begin + 1):
        if match := _QUOTED.fullmatch(line):
            yield attempt(number, _to_phrase, match[1], edges=edges, signs=STRING_SIGNS)
        elif TOKEN_IDS.fullmatch(line):
            yield attempt(number, _to_tokens, line.strip())
        elif line.strip() and not line.lstrip().startswith("#"):
            yield attempt(number, _to_phrase, line.strip(), edges=edges, signs=SIGNS)


def _to_phrase(text: str, *, edges: Edges, signs: Signs) -> Ban:
    refuse_signs(text, signs=signs)
    return Ban(Phrase(text, edges=edges))  # a `*` is the character


def _to_tokens(line: str) -> Ban:
    try:
        return Ban.tokens([int(number) for number in _NUMBER.findall(line)])
    except ValueError as error:  # of thousands of digits, or a BanError
        raise BanError(str(error)) from None


SILLYTAVERN = ListFormat("sillytavern", _is_sillytavern, _parse_sillytavern, (".json",), edges="anywhere")

# -- regexes ----------------------------------------------------------------------------------------------------------

_JSON_STRINGS = regex.compile(r'\s*\[\s*["\]]')
_LINE = regex.compile(r"""\s*[rR]?(?:"(.+?)"|'(.+?)'),?\s*(?:(?:#|//)\s.*)?""")
_SLASHES = regex.compile(r"/(.+)/([gimsuvy]*)[,;]?")
_CODE = regex.compile(r"""["']\s*[:,]\s*r?["']|\A(?:[\w. ]+=|[\w.]+\(|new RegExp\()\s*r?["'/]""")


def _is_regexes(text: ListText) -> bool:
    entries: Sequence[Any] = text.lines
    if text.is_json:
        if find_shape(text) != "phrases" or not isinstance(text.value, list):
            return False
        entries = leave_plain(text.value)
        if not all(isinstance(entry, str) for entry in entries):
            return False
    signs = [REGEX.search(entry) is not None for entry in entries]
    return sum(signs) * 2 > len(signs)


def _parse_regexes(text: ListText, edges: Edges) -> Iterator[Line]:
    if text.suffix == ".json" or _JSON_STRINGS.match(text.text):
        return parse_entries(text, edges, _regex_entry)
    return (attempt(number, _to_regex, _unquote(line.strip())) for number, line in text.numbered_lines)


def _regex_entry(line: int, item: object, edges: Edges) -> Line:  # noqa: ARG001
    return attempt(line, _to_regex, item) if isinstance(item, str) else attempt(line, Ban, item)


def _to_regex(text: str) -> Ban:
    """Return the ban of a regex, which may stand between slashes, with flags, as JavaScript has them."""
    for pattern in (BARE, _CODE):
        if pattern.search(text):
            raise BanError(f"{text[:80]!r} looks like a piece of a program: write the regexes alone, one per line")
    match = _SLASHES.fullmatch(text)
    flags = "".join(flag for flag in match[2] if flag in "ims") if match else ""
    return Ban.regex((f"(?{flags})" if flags else "") + match[1] if match else text)


def _unquote(line: str) -> str:
    r"""Return the regex of a line, which is JSON if it contains `\\`."""
    match = _LINE.fullmatch(line)
    if not match:
        return line
    pattern = str(match[1] or match[2])
    if "\\\\" in pattern:
        try:
            return str(json.loads(f'"{pattern}"'))
        except ValueError:
            return pattern
    return pattern


REGEXES = ListFormat("regexes", _is_regexes, _parse_regexes, (".json",))

# -- CSV --------------------------------------------------------------------------------------------------------------

_PHRASES = ("phrase", "word", "ngram", "bigram", "trigram", "text", "term")
_WEIGHTS = ("weight", "factor")
_COUNTS = ("count", "frequency")
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


def _parse_csv(text: ListText, edges: Edges) -> Iterator[Line]:
    numbered = enumerate(text.text.split("\n"), start=1)
    lines = [(number, line) for number, line in numbered if line.strip() and line[0] != "#"]
    separator = _find_separator([line for _, line in lines])
    rows = [(number, _split_cells(line, separator)) for number, line in lines]
    if rows and _has_names(rows[0][1]):
        (number, names), *rows = rows
        columns = _name_columns(names, [cells for _, cells in rows], f"{text.place}:{number}")
    else:
        are_ranks = are_counts(_to_number(cells[1]) for _, cells in rows if len(cells) == 2 and cells[1])
        columns = _CsvColumns(counts=1) if are_ranks else _CsvColumns(weights=1)
    return (_parse_row(number, cells, columns, edges) for number, cells in rows)


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
    return any(cell.lower() in _PHRASES for cell in cells) and all(_to_number(cell) is None for cell in cells)


def _name_columns(cells: Sequence[str], rows: Sequence[Sequence[str]], place: str) -> _CsvColumns:
    names = [cell.lower() for cell in cells]
    phrase, weight, count, kind = (
        next((names.index(name) for name in role if name in names), None)
        for role in (_PHRASES, _WEIGHTS, _COUNTS, ("kind",))
    )
    assert phrase is not None
    if kind is not None and not all(is_kind(row[kind]) for row in rows if kind < len(row) and row[kind]):
        kind = None  # of something else
    if len(names) == 2 and weight is None and count is None and kind is None:
        raise BanError(
            f"{place}: the column {cells[1 - phrase]!r} is unknown: name it weight or count, or leave it out"
        )
    return _CsvColumns(phrase, weight, count, len(names), "gram" in names[phrase], kind)


def _to_number(cell: str) -> int | float | None:
    if _WHOLE.fullmatch(cell):
        return int(cell)
    cell = cell.replace(",", ".", 1)
    return float(cell) if _FRACTION.fullmatch(cell) else None


def _parse_row(number: int, cells: Sequence[str], columns: _CsvColumns, edges: Edges) -> Line:
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


CSV = ListFormat("csv", lambda text: not text.is_json and are_pairs(text.lines), _parse_csv, (".csv", ".tsv"))

"""Published lists that have an entry on each line: SillyTavern's, regexes, and CSV.

SillyTavern's: free text on top, then `"quoted"` phrases, `[1, 2]` (token ids) and bare lines.
Regexes: in quotes or not, commas after them or not, `#` comments.
CSV: phrases, and beside each what an object would say about it. Each line is a row, so that an unclosed quotation mark
    spoils one entry only.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from typing import Any

import regex

from antislop.core.bans.bans import Ban
from antislop.core.bans.folding import Edges
from antislop.core.bans.marks import (
    BARE,
    NO_ENTRY,
    SIGNS,
    STRING_SIGNS,
    Signs,
    is_remark,
    looks_like_regex,
    refuse_signs,
)
from antislop.core.bans.patterns.phrase import Phrase
from antislop.core.bans.reading import (
    COUNT_KEYS,
    PHRASE_KEYS,
    TOKEN_IDS,
    WEIGHT_KEYS,
    Line,
    ListText,
    are_counts,
    attempt,
    is_kind,
    list_keys,
    read_object,
    refuse_ones,
)
from antislop.errors import BanError

# -- SillyTavern ------------------------------------------------------------------------------------------------------

_QUOTED = regex.compile(r'\s*"(.+?)"[,;]?\s*(?:(?:#|//)\s.*)?')
_NUMBER = regex.compile(r"\d+")
_LETTER = regex.compile(r"[\p{L}\p{N}]")


def is_sillytavern(text: ListText) -> bool:
    marked = sum(map(_is_marked, text.lines))
    return marked > 0 and marked * 2 >= len(text.lines)


def _is_marked(line: str) -> bool:
    return _QUOTED.fullmatch(line) is not None or TOKEN_IDS.fullmatch(line) is not None


def parse_marked(text: str, edges: Edges) -> Iterator[Line]:
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


# -- regexes ----------------------------------------------------------------------------------------------------------

_LINE = regex.compile(r"""\s*[rR]?(?:"(.+?)"|'(.+?)'),?\s*(?:(?:#|//)\s.*)?""")
_SLASHES = regex.compile(r"/(.+)/([gimsuvy]*)[,;]?")
_CODE = regex.compile(r"""["']\s*[:,]\s*r?["']|\A(?:[\w. ]+=|[\w.]+\(|new RegExp\()\s*r?["'/]""")


def are_regexes(text: ListText) -> bool:
    signs = [looks_like_regex(line) for line in text.lines]
    return sum(signs) * 2 > len(signs)


def parse_regexes(text: ListText) -> Iterator[Line]:
    return (attempt(number, to_regex, _unquote(line.strip())) for number, line in text.numbered_lines)


def to_regex(text: str) -> Ban:
    """Return the ban of a regex, which may stand between slashes, with flags, as JavaScript has them."""
    refuse_signs(text, signs=NO_ENTRY)
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


# -- CSV --------------------------------------------------------------------------------------------------------------

_PHRASES = (*PHRASE_KEYS, "text", "term")
_SEPARATORS = "|\t;,"
_WHOLE = regex.compile(r"[0-9]{1,18}")
_FRACTION = regex.compile(r"[0-9]*\.?[0-9]+(?:[eE]-?[0-9]{1,3})?")


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


def parse_csv(text: ListText, edges: Edges) -> Iterator[Line]:
    numbered = enumerate(text.text.split("\n"), start=1)
    lines = [(number, line) for number, line in numbered if line.strip() and line[0] != "#"]
    separator = _find_separator([line for _, line in lines])
    rows = [(number, _split_cells(line, separator)) for number, line in lines]
    if rows and _has_names(rows[0][1]):
        (number, cells), *rows = rows
        names = _name_columns(cells, [cells for _, cells in rows], f"{text.place}:{number}")
    else:
        numbers = [_to_number(cells[1]) for _, cells in rows if len(cells) == 2 and cells[1]]
        refuse_ones(numbers, text)
        names = ["phrase", "count" if are_counts(numbers) else "weight"]
    return (_parse_row(number, cells, names, edges) for number, cells in rows)


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


def _name_columns(cells: Sequence[str], rows: Sequence[Sequence[str]], place: str) -> list[str]:
    """Return the key of each column, as an object would have it; of a remark, an empty string."""
    names = [cell.lower() for cell in cells]
    phrase = next(name for name in _PHRASES if name in names)
    for index, name in enumerate(names):
        is_kind_column = name == "kind" and all(is_kind(row[index]) for row in rows if index < len(row) and row[index])
        if name in COUNT_KEYS or name in WEIGHT_KEYS:
            names[index] = "count" if name in COUNT_KEYS else "weight"
        elif name not in (phrase, *list_keys()) and not is_kind_column:
            if not is_remark(name):
                advice = "name it weight, count, or as another option is, or leave it out"
                raise BanError(f"{place}: the column {cells[index]!r} is unknown: {advice}")
            names[index] = ""
    return names


def _to_number(cell: str) -> int | float | None:
    if _WHOLE.fullmatch(cell):
        return int(cell)
    cell = cell.replace(",", ".", 1)
    return float(cell) if _FRACTION.fullmatch(cell) else None


def _parse_row(number: int, cells: Sequence[str], names: Sequence[str], edges: Edges) -> Line:
    if not cells:
        return number, BanError("its quotation marks don't match: double those that belong to the phrase")
    if len(cells) > len(names):
        fault = f"{len(cells)} cells, and up to {len(names)} were expected"
        return number, BanError(f"{fault}: put a phrase with a comma in quotes, or name the columns in the first line")
    entry: dict[str, Any] = {next(name for name in _PHRASES if name in names): ""}
    for name, cell in zip(names, cells, strict=False):
        if name in ("weight", "count") and cell:
            entry[name] = _to_number(cell)
            if entry[name] is None:
                fault = f"the {name} {cell[:80]!r} is not a number from 0 on"
                return number, BanError(f"{fault}: correct it, or put it in quotes")
            if name == "count" and isinstance(entry[name], float):
                return number, BanError(f"the count of {cells[0][:80]!r} is {cell}; it is a whole number from 0 on")
        elif (name and name in _PHRASES) or (cell and name):
            is_switch = name in list_keys() and cell.lower() in ("true", "false")
            is_number = name in list_keys() and _WHOLE.fullmatch(cell)
            entry[name] = cell.lower() == "true" if is_switch else int(cell) if is_number else cell
    return read_object(number, entry, edges)

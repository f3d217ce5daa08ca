"""The text of a list, and the formats with one ban per line: phrases, SillyTavern's lists, regexes, and CSV.

If another program or person wrote a list of phrases, marks that most lines have, such as bullets, are removed (see
`signs`). A list for SillyTavern has free text on top, then `"quoted"` phrases, `[1, 2]` (token ids) and bare lines. A
list of regexes may have quotes, commas after them, and `#` comments. In CSV, each line is a row, so that an unclosed
quotation mark spoils one entry only.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import regex

from antislop.core.bans.bans import KINDS, Ban
from antislop.core.bans.folding import Edges
from antislop.core.bans.patterns.phrase import Phrase
from antislop.errors import BanError
from antislop.lists import entries, signs
from antislop.lists.entries import Line, attempt, is_pair, read_object
from antislop.lists.own import FRACTION, VERSION, WHOLE, Heading, parse_ban

TOKEN_IDS = regex.compile(r"\s*\[\s*\d+(?:\s*,\s*\d+)*\s*\],?\s*")
"""A line of token ids, such as [5, 17]."""


@dataclass(frozen=True)
class ListText:
    """The text of a list, and the properties by which its format is recognized.

    place: what messages call the list.
    suffix: suffix of the file's name, in lower case: ".json".
    heading: what the first lines say, if this package wrote them.
    groups: names of the groups of a JSON object that are bans, if the caller named them.
    is_asked: whether the caller named the format.
    left_out: names of groups and texts that were not read as bans; parsing adds to this list.
    """

    text: str
    place: str = "<text>"
    suffix: str = ""
    heading: Heading = field(default_factory=Heading)
    groups: tuple[str, ...] = ()
    is_asked: bool = False
    left_out: list[str] = field(default_factory=list)

    @cached_property
    def numbered_lines(self) -> list[tuple[int, str]]:
        """(number, line) of all lines but empty lines and comments."""
        lines = enumerate(self.text.split("\n"), start=1)
        return [(number, line) for number, line in lines if line.strip() and not line.lstrip().startswith("#")]

    @cached_property
    def unmarked(self) -> tuple[list[tuple[int, str | BanError]], tuple[str, ...]]:
        """The numbered lines without the marks that most of them have, and the names of these marks."""
        return signs.take_off_marks(self.numbered_lines)

    @cached_property
    def is_json(self) -> bool:
        first, *others = self.text.strip().split("\n", 1)
        is_text = self.suffix == ".txt"
        if not first.startswith(("[", "{")) or ((others or is_text) and TOKEN_IDS.fullmatch(first)):
            return self.suffix == ".json"
        try:
            return not is_text or self.value is not None
        except BanError:
            return False

    @cached_property
    def are_json_lines(self) -> bool:
        """Whether the text is JSON Lines: by the file's name, or as the first of several lines is an object or pair."""
        if self.suffix in (".json", ".jsonl", ".ndjson"):
            return self.suffix != ".json"
        first, *others = self.text.strip().split("\n", 1)
        try:
            value = json.loads(first) if others else None
        except (ValueError, RecursionError):
            return False
        return isinstance(value, dict) or is_pair(value)

    @cached_property
    def value(self) -> Any:
        """The JSON value of the text. Raises `BanError` if the text is not JSON, or a profile and no list."""
        try:
            value = json.loads(self.text)
        except (ValueError, RecursionError) as error:  # ValueError: not JSON, or a number of thousands of digits
            line = getattr(error, "lineno", 1)
            message = f"{self.place}:{line}: not JSON ({error}): correct it, or write one phrase per line"
            raise BanError(message) from error
        if isinstance(value, dict) and str(value.get("format")).startswith("antislop profile"):
            raise BanError(f"{self.place}:1: a profile, not a list: make a list of it with antislop bans-from")
        return value


def refuse_ones(numbers: Sequence[Any], text: ListText) -> None:
    """Raise `BanError` if numbers that should be weights are only 1, or 0 and 1: a weight of 1 bans nothing."""
    if not text.is_asked and 1 in numbers and {*numbers} <= {0, 1}:
        raise BanError(
            f"{text.place}:1: a number is 1, as a weight it bans nothing: write the phrases alone, as one list, or "
            'pass format="counts"'
        )


def find_format(text: ListText) -> str:
    r"""Return the name of the format of a text that is no JSON.

    "regexes" if most lines look like regexes; "csv" if all lines, but for a first line with names of columns, are a
    phrase and a number; "sillytavern" if at least half of the lines are quoted or token ids; otherwise "text".

    >>> find_format(ListText("delve,0.5\na testament to,0.25")), find_format(ListText("well, well\nin May, 2020"))
    ('csv', 'text')
    """
    lines = [line for _, line in text.numbered_lines]
    if 2 * sum(signs.find_sign(line, signs=signs.STRING_SIGNS) == signs.NO_REGEX for line in lines) > len(lines):
        return "regexes"
    separator = _find_separator(lines)
    has_names = bool(lines) and _has_names(_split_cells(lines[0], separator))
    rows = (_split_cells(line, separator) for line in lines[has_names:])
    if len(lines) > 1 and all(len(row) == 2 and row[0] and _to_number(row[1]) is not None for row in rows):
        return "csv"
    marked = sum(map(_is_marked, lines))
    return "sillytavern" if marked > 0 and marked * 2 >= len(lines) else "text"


def parse_text(text: ListText, edges: Edges) -> Iterator[Line]:
    version = text.heading.version
    if version is not None and version > VERSION:
        fault = f"{text.place}:1: this list is of version {version}, and up to {VERSION} is supported"
        raise BanError(f"{fault}: install a newer antislop")
    language = text.heading.language
    for number, line in text.numbered_lines if version is not None else text.unmarked[0]:
        if isinstance(line, BanError):
            yield number, line
        else:
            yield attempt(number, parse_ban, line, edges=edges, language=language, is_foreign=version is None)


# -- SillyTavern ------------------------------------------------------------------------------------------------------

_QUOTED = regex.compile(r'\s*"(.+?)"[,;]?\s*(?:(?:#|//)\s.*)?')
_NUMBER = regex.compile(r"\d{1,18}")
_LETTER = regex.compile(r"[\p{L}\p{N}]")


def _is_marked(line: str) -> bool:
    return _QUOTED.fullmatch(line) is not None or TOKEN_IDS.fullmatch(line) is not None


def parse_marked(text: str, edges: Edges) -> Iterator[Line]:
    lines = text.split("\n")
    marked = next((number for number, line in enumerate(lines) if _is_marked(line)), 0)
    # The free text on top ends with the last empty line or ruler above the first marked line.
    begin = max((number + 1 for number in range(marked) if not _LETTER.search(lines[number])), default=0)
    for number, line in enumerate(lines[begin:], start=begin + 1):
        if match := _QUOTED.fullmatch(line):
            yield attempt(number, _to_phrase, match[1], edges=edges, refused=signs.STRING_SIGNS)
        elif TOKEN_IDS.fullmatch(line):
            yield attempt(number, Ban.tokens, [int(digits) for digits in _NUMBER.findall(line)])
        elif line.strip() and not line.lstrip().startswith("#"):
            yield attempt(number, _to_phrase, line.strip(), edges=edges, refused=signs.SIGNS)


def _to_phrase(text: str, *, edges: Edges, refused: signs.Signs) -> Ban:
    signs.refuse_signs(text, signs=refused)
    return Ban(Phrase(text, edges=edges))  # a `*` is no wildcard in these lists


# -- regexes ----------------------------------------------------------------------------------------------------------

_LINE = regex.compile(r"""\s*[rR]?(?:"(.+?)"|'(.+?)'),?\s*(?:(?:#|//)\s.*)?""")
_SLASHES = regex.compile(r"/(.+)/([gimsuvy]*)[,;]?")
_CODE = regex.compile(r"""["']\s*[:,]\s*r?["']|\A(?:[\w. ]+=|[\w.]+\(|new RegExp\()\s*r?["'/]""")


def parse_regexes(text: ListText) -> Iterator[Line]:
    for number, line in text.numbered_lines:
        match = _LINE.fullmatch(line.strip())
        pattern = str(match[1] or match[2]) if match else line.strip()
        if match and "\\\\" in pattern:  # a string of JSON
            with suppress(ValueError):
                pattern = str(json.loads(f'"{pattern}"'))
        yield attempt(number, to_regex, pattern)


def to_regex(text: str, **options: Any) -> Ban:
    """Return the ban of a regex, which may be written as in JavaScript, between slashes and with flags: /a+/i."""
    signs.refuse_signs(text, signs=signs.NO_ENTRY)
    for pattern in (signs.BARE, _CODE):
        if pattern.search(text):
            raise BanError(f"{text[:80]!r} looks like a piece of a program: write the regexes alone, one per line")
    match = _SLASHES.fullmatch(text)
    flags = "".join(flag for flag in match[2] if flag in "ims") if match else ""
    return Ban.regex((f"(?{flags})" if flags else "") + match[1] if match else text, **options)


# -- CSV --------------------------------------------------------------------------------------------------------------

_PHRASES = (*entries.PHRASE_KEYS, "text", "term")
_SEPARATORS = "|\t;,"


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
        names = ["phrase", "count" if entries.are_counts(numbers) else "weight"]
    return (_parse_row(number, cells, names, edges) for number, cells in rows)


def _find_separator(lines: Sequence[str]) -> str:
    """Return the separator that yields names of columns, or a phrase and a number, in the first line; or most cells."""
    rows = {separator: _split_cells(lines[0] if lines else "", separator) for separator in _SEPARATORS}
    for separator, cells in rows.items():
        if len(cells) > 1 and (_has_names(cells) or (len(cells) == 2 and _to_number(cells[1]) is not None)):
            return separator
    return max(reversed(_SEPARATORS), key=lambda separator: len(rows[separator]))


def _split_cells(line: str, separator: str) -> list[str]:
    """Return the cells of a line; an empty list if the line's quotation marks don't match."""
    try:
        cells = next(csv.reader([line], delimiter=separator, skipinitialspace=True, strict=True))
    except (csv.Error, StopIteration):
        return []
    quoted = {*line.split('"')[1:-1]}  # a set: of many cells, looking for each in the line takes quadratic time
    return [cell if cell in quoted else cell.strip() for cell in cells]


def _has_names(cells: Sequence[str]) -> bool:
    return any(cell.lower() in _PHRASES for cell in cells) and all(_to_number(cell) is None for cell in cells)


def _name_columns(cells: Sequence[str], rows: Sequence[Sequence[str]], place: str) -> list[str]:
    """Return for each column the key that a JSON object would have for it; an empty string for remarks."""
    names = [cell.lower() for cell in cells]
    phrase = next(name for name in _PHRASES if name in names)
    for index, name in enumerate(names):
        is_kind_column = name == "kind" and all(row[index] in KINDS for row in rows if index < len(row) and row[index])
        if name in entries.COUNT_KEYS or name in entries.WEIGHT_KEYS:
            names[index] = "count" if name in entries.COUNT_KEYS else "weight"
        elif name not in (phrase, *entries.list_defaults(tuple(KINDS))) and not is_kind_column:
            if not signs.is_remark(name):
                advice = "name it weight, count, or as another option is, or leave it out"
                raise BanError(f"{place}: the column {cells[index]!r} is unknown: {advice}")
            names[index] = ""
    return names


def _to_number(cell: str) -> int | float | None:
    if WHOLE.fullmatch(cell):
        return int(cell)
    cell = cell.replace(",", ".", 1)
    return float(cell) if FRACTION.fullmatch(cell) else None


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
            is_option = name in entries.list_defaults(tuple(KINDS))
            is_switch = is_option and cell.lower() in ("true", "false")
            is_number = is_option and WHOLE.fullmatch(cell)
            entry[name] = cell.lower() == "true" if is_switch else int(cell) if is_number else cell
    return read_object(number, entry, edges)

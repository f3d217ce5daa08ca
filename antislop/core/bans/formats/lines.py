r"""Lists of lines: this package's own text format, published lists of SillyTavern and of regexes, and CSV.

The text format has one ban per line:

    # antislop 1
    # source: where the bans came from
    # license: under which they may be passed on
    a testament to
    tapestry	weight=0.25
    \bnot just\b	regex max_span=80
    " a phrase that could be misread "	edges=anywhere

After a tab follow the kind of the ban and its options, if not the defaults. A phrase that could be misread is a JSON
string. From other texts, the marks that most lines have are taken off (`marks`).

SillyTavern's lists have free text on top, then `"quoted"` phrases, `[1, 2]` (token ids) and bare lines. Regexes are in
quotes or not, with commas after them or not, and `#` comments. In CSV, each line is a row, so that an unclosed
quotation mark spoils one entry only.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

import regex

from antislop.core.bans.bans import BAN_OPTIONS, KINDS, Ban, list_options
from antislop.core.bans.folding import Edges
from antislop.core.bans.marks import (
    BARE,
    NO_ENTRY,
    NO_REGEX,
    OPTIONS_BEHIND,
    SIGNS,
    STRING_SIGNS,
    Signs,
    find_sign,
    is_remark,
    refuse_signs,
)
from antislop.core.bans.patterns.pattern import find_options, write_stars
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
    list_keys,
    make_ban,
    read_object,
    refuse_ones,
)
from antislop.errors import BanError

VERSION = 1

_HEADER = regex.compile(r"# antislop ([1-9][0-9]{0,8})\s*")
_FIELD = regex.compile(r"#\s*(source|license):\s*(.*\S)\s*")
_FLAG = regex.compile(r"[ \t]*(?P<name>[a-z_]+)(?:=(?P<value>[^ ]*))?")
_WHOLE = regex.compile(r"[0-9]{1,18}")
_FRACTION = regex.compile(r"[0-9]*\.?[0-9]+(?:[eE]-?[0-9]{1,3})?")


class Heading(NamedTuple):
    """The comments on top of a file. version: None if they don't name the format."""

    version: int | None = None
    source: str | None = None
    license: str | None = None


def parse_heading(text: str) -> Heading:
    lines = text.split("\n", 100)[:100]
    header = _HEADER.fullmatch(lines[0])
    if not header:
        return Heading()
    found: dict[str, str] = {}
    for line in lines[1:]:
        if not line.startswith("#"):
            break
        if field := _FIELD.fullmatch(line):
            found.setdefault(field[1], _unquote(field[2]))
    return Heading(int(header[1]), **found)


def write_lines(bans: Iterable[Ban], *, source: str | None = None, license: str | None = None) -> Iterator[str]:
    r"""Yield the lines of a file. Raises `BanError` for a ban that does not read back the same.

    >>> list(write_lines([Ban("tapestry", weight=0.25)], source="my stories"))
    ['# antislop 1', '# source: my stories', 'tapestry\tweight=0.25']
    """
    yield f"# antislop {VERSION}"
    if source is not None:
        yield f"# source: {_quote(source)}"
    if license is not None:
        yield f"# license: {_quote(license)}"
    for ban in bans:
        line = write_ban(ban)
        _, read = attempt(0, parse_ban, line)
        if not isinstance(read, Ban) or read != ban or read.count != ban.count:
            raise BanError(f"{ban.text[:80]!r} can't be written so that it reads back the same: simplify it")
        yield line


def parse_text(text: ListText, edges: Edges) -> Iterator[Line]:
    version = parse_heading(text.text).version
    if version is not None and version > VERSION:
        raise BanError(
            f"{text.place}:1: this list is of version {version}, and up to {VERSION} is supported: "
            "install a newer antislop"
        )
    for number, line in text.numbered_lines if version is not None else text.unmarked[0]:
        if isinstance(line, BanError):
            yield number, line
        else:
            yield attempt(number, parse_ban, line, edges=edges, is_foreign=version is None)


# -- a line of the text format ----------------------------------------------------------------------------------------


def write_ban(ban: Ban) -> str:
    kind = ban.pattern.kind
    text = write_stars(ban.text) if kind == Phrase.kind else ban.text
    flags = [*([] if kind == Phrase.kind else [kind]), *(_write_flag(*option) for option in list_options(ban))]
    return "\t".join([_quote(text), *([" ".join(flags)] if flags else [])])


def parse_ban(line: str, *, edges: Edges = "word", is_foreign: bool = False) -> Ban:
    r"""Return the ban of a line.

    edges: of a phrase that names none.
    is_foreign: `write_ban` did not write it, so that a phrase that looks like something else is refused.

    >>> parse_ban("a * of emotion*\tgap=2 weight=0.5")
    Ban.wildcard('a * of emotion*', weight=0.5, gap=2)
    """
    text, _, flags = line.partition("\t")
    text = text.strip()
    if _names_kind(text):
        kind, _, pattern = text.partition(":")
        flag = "regex" if kind == "re" else kind
        raise BanError(
            f"{text[:80]!r} names a kind in front: write {pattern[:80]}<tab>{flag}, or put a phrase that begins like "
            "this in double quotes"
        )
    options = _parse_flags(flags, line)
    phrase, kind = _unquote(text), options.pop("kind", None)
    if phrase == text and kind is None and OPTIONS_BEHIND.search(text):
        raise BanError(f"{text[:80]!r} has options behind spaces: write them after a tab, or put all in double quotes")
    if is_foreign and kind is None and phrase == text:
        refuse_signs(text)
    return make_ban(phrase, kind=kind, options=options, edges=edges)


def _names_kind(text: str) -> bool:
    """Return whether a line begins as `regex:…`, as nobody would begin a phrase."""
    name, colon, rest = text.partition(":")
    return bool(colon and rest[:1].strip()) and name in {*KINDS, "re"} - {Phrase.kind}


def _quote(text: str) -> str:
    is_misread = _names_kind(text) or OPTIONS_BEHIND.search(text)
    is_plain = text == text.strip() and text.isprintable() and text[:1] not in ("", "#", '"')
    return text if is_plain and not is_misread else _to_json(text)


def _to_json(value: Any) -> str:
    written = json.dumps(value, ensure_ascii=False)
    is_plain = not any(char == "\ufeff" or "\ud800" <= char <= "\udfff" for char in written)
    return written if is_plain else json.dumps(value)


def _unquote(text: str) -> str:
    """Return the string in a text that is JSON, else the text."""
    if text.startswith('"') and text.endswith('"'):
        with suppress(ValueError):
            return str(json.loads(text))
    return text


def _write_flag(name: str, value: Any) -> str:
    if value is True:
        return name
    if name == "scopes":
        value = [[scope.where, scope.span] for scope in value]
    if name in ("exempt", "scopes", "force"):
        return f"{name}={_to_json(value)}"
    return f"{name}={float(value) if name == 'weight' else value}"


def _parse_flags(flags: str, line: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    start, flags, defaults = 0, flags.strip(" \t"), _list_defaults(tuple(KINDS))
    while start < len(flags):
        match = _FLAG.match(flags, start)
        if match is None or match["name"] not in defaults:
            name = match["name"] if match else flags[start:].lstrip(" \t").split(" ")[0][:40]
            raise BanError(f"the flag {name!r} of {line[:80]!r} is unknown: it is one of {', '.join(defaults)}")
        name, value, start = match["name"], match["value"], match.end()
        if value and value[0] in '["':  # JSON, which may contain spaces
            try:
                value, start = json.JSONDecoder().raw_decode(flags, match.start("value"))
            except ValueError:
                value, start = {}, len(flags)  # no flag takes it
        # "words" alone is a kind, and "words=5" the option of a repeat.
        key = "kind" if name in KINDS and value is None else name
        value = _read_flag(name, defaults[name], value, line)
        if key in options:
            raise BanError(f"{key} of {line[:80]!r} is given twice: leave one out")
        options[key] = value
    return options


@cache
def _list_defaults(names: tuple[str, ...]) -> dict[str, Any]:
    """Return the known flags with their defaults; a flag for a kind has the kind's name as its default."""
    kinds = {name: name for name in names if name != Phrase.kind}
    of_patterns = {option.name: option.default for name in names for option in find_options(KINDS[name])}
    return kinds | of_patterns | BAN_OPTIONS


def _read_flag(name: str, default: Any, value: Any, line: str) -> Any:
    is_number = default is None or type(default) is int
    if value is None and (name in KINDS or default is False):
        return name if name in KINDS else True
    if isinstance(value, str):
        if is_number and _WHOLE.fullmatch(value):
            return int(value)
        if name == "weight" and _FRACTION.fullmatch(value):
            return float(value)
        if name not in KINDS and isinstance(default, str):
            return value
    if name in ("exempt", "scopes") and isinstance(value, list):
        return value
    example = f"{name}=3" if is_number else _EXAMPLES.get(name, name)
    raise BanError(f"{name} of {line[:80]!r} can't be read: write it as {example}")


_EXAMPLES = {
    "edges": "edges=anywhere",
    "exempt": 'exempt=["a phrase"]',
    "force": 'force="</think>"',
    "then": "then=stop",
    "scopes": 'scopes=[["outside", "quotes"]]',
    "weight": "weight=0.25",
}


# -- SillyTavern ------------------------------------------------------------------------------------------------------

_QUOTED = regex.compile(r'\s*"(.+?)"[,;]?\s*(?:(?:#|//)\s.*)?')
_NUMBER = regex.compile(r"\d{1,18}")
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
            yield attempt(number, Ban.tokens, [int(digits) for digits in _NUMBER.findall(line)])
        elif line.strip() and not line.lstrip().startswith("#"):
            yield attempt(number, _to_phrase, line.strip(), edges=edges, signs=SIGNS)


def _to_phrase(text: str, *, edges: Edges, signs: Signs) -> Ban:
    refuse_signs(text, signs=signs)
    return Ban(Phrase(text, edges=edges))  # a `*` is the character


# -- regexes ----------------------------------------------------------------------------------------------------------

_LINE = regex.compile(r"""\s*[rR]?(?:"(.+?)"|'(.+?)'),?\s*(?:(?:#|//)\s.*)?""")
_SLASHES = regex.compile(r"/(.+)/([gimsuvy]*)[,;]?")
_CODE = regex.compile(r"""["']\s*[:,]\s*r?["']|\A(?:[\w. ]+=|[\w.]+\(|new RegExp\()\s*r?["'/]""")


def are_regexes(text: ListText) -> bool:
    signs = [find_sign(line, signs=STRING_SIGNS) == NO_REGEX for line in text.lines]
    return sum(signs) * 2 > len(signs)


def parse_regexes(text: ListText) -> Iterator[Line]:
    return (attempt(number, to_regex, _unquote_regex(line.strip())) for number, line in text.numbered_lines)


def to_regex(text: str, **options: Any) -> Ban:
    """Return the ban of a regex, which may stand between slashes, with flags, as JavaScript has them."""
    refuse_signs(text, signs=NO_ENTRY)
    for pattern in (BARE, _CODE):
        if pattern.search(text):
            raise BanError(f"{text[:80]!r} looks like a piece of a program: write the regexes alone, one per line")
    match = _SLASHES.fullmatch(text)
    flags = "".join(flag for flag in match[2] if flag in "ims") if match else ""
    return Ban.regex((f"(?{flags})" if flags else "") + match[1] if match else text, **options)


def _unquote_regex(line: str) -> str:
    r"""Return the regex of a line, which is JSON if it contains `\\`."""
    match = _LINE.fullmatch(line)
    pattern = str(match[1] or match[2]) if match else line
    if match and "\\\\" in pattern:
        with suppress(ValueError):
            return str(json.loads(f'"{pattern}"'))
    return pattern


# -- CSV --------------------------------------------------------------------------------------------------------------

_PHRASES = (*PHRASE_KEYS, "text", "term")
_SEPARATORS = "|\t;,"


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
        is_kind_column = name == "kind" and all(row[index] in KINDS for row in rows if index < len(row) and row[index])
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

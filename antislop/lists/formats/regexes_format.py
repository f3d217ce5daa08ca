"""Lists of regexes: a JSON list, or one per line, in quotes or not, commas after it or not, `#` comments."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

import regex

from antislop.lists.formats.json_formats import find_shape, read_entries
from antislop.lists.reading import Line, ListFormat, ListText, attempt, leave_plain
from antislop.matching.bans import Ban
from antislop.matching.folding import Edges

_SIGNS = regex.compile(r"\\[bBdDsSwWmM]|\(\?[:=!<>iPmsx]|\[\^|[\])][+*?{]|\.[+*]")
_JSON_STRINGS = regex.compile(r'\s*\[\s*["\]]')
_LINE = regex.compile(r"""\s*[rR]?(?:"(.+)"|'(.+)'),?\s*""")


def _is_regexes(text: ListText) -> bool:
    if not text.is_json:
        return _are_regexes(text.lines)
    if find_shape(text) != "phrases" or not isinstance(text.value, list):
        return False
    entries = leave_plain(text.value)
    return all(isinstance(entry, str) for entry in entries) and _are_regexes(entries)


def _are_regexes(phrases: Iterable[str]) -> bool:
    signs = [_SIGNS.search(phrase) is not None for phrase in phrases]
    return sum(signs) * 2 > len(signs)


def _read_regexes(text: ListText, edges: Edges) -> Iterator[Line]:
    if text.suffix == ".json" or _JSON_STRINGS.match(text.text):
        return read_entries(text, edges, _read_entry)
    return _read_lines(text)


def _read_entry(line: int, item: object, edges: Edges) -> Line:  # noqa: ARG001
    return attempt(line, Ban.regex, item) if isinstance(item, str) else attempt(line, Ban, item)


def _read_lines(text: ListText) -> Iterator[Line]:
    for number, line in enumerate(text.text.split("\n"), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            yield attempt(number, Ban.regex, _unquote(line.strip()))


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


REGEXES = ListFormat("regexes", _is_regexes, _read_regexes, (".json",))

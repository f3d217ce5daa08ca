"""Lists of regexes: a JSON list, or one per line, in quotes or not, commas after it or not, `#` comments."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

import regex

from antislop.core.bans.bans import Ban
from antislop.core.bans.folding import Edges
from antislop.core.bans.formats.json_formats import find_shape, read_entries
from antislop.core.bans.marks import BARE, REGEX
from antislop.core.bans.reading import Line, ListFormat, ListText, attempt, leave_plain
from antislop.errors import BanError

_JSON_STRINGS = regex.compile(r'\s*\[\s*["\]]')
_LINE = regex.compile(r"""\s*[rR]?(?:"(.+?)"|'(.+?)'),?\s*(?:(?:#|//)\s.*)?""")
_SLASHES = regex.compile(r"/(.+)/([gimsuvy]*)[,;]?")
_CODE = regex.compile(r"""["']\s*[:,]\s*r?["']|\A(?:[\w. ]+=|[\w.]+\(|new RegExp\()\s*r?["'/]""")


def _is_regexes(text: ListText) -> bool:
    if not text.is_json:
        return _are_regexes(text.lines)
    if find_shape(text) != "phrases" or not isinstance(text.value, list):
        return False
    entries = leave_plain(text.value)
    return all(isinstance(entry, str) for entry in entries) and _are_regexes(entries)


def _are_regexes(phrases: Iterable[str]) -> bool:
    signs = [REGEX.search(phrase) is not None for phrase in phrases]
    return sum(signs) * 2 > len(signs)


def _read_regexes(text: ListText, edges: Edges) -> Iterator[Line]:
    if text.suffix == ".json" or _JSON_STRINGS.match(text.text):
        return read_entries(text, edges, _read_entry)
    return _read_lines(text)


def _read_entry(line: int, item: object, edges: Edges) -> Line:  # noqa: ARG001
    return attempt(line, _to_regex, item) if isinstance(item, str) else attempt(line, Ban, item)


def _read_lines(text: ListText) -> Iterator[Line]:
    return (attempt(number, _to_regex, _unquote(line.strip())) for number, line in text.numbered_lines)


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


REGEXES = ListFormat("regexes", _is_regexes, _read_regexes, (".json",))

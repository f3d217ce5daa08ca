"""The formats in which lists of bans are found, told apart and read.

Text in, lines out: each with its number, and the ban that stands there or why there is none. Knows no files.

| format | what it looks like | phrases match |
|---|---|---|
| text | one phrase per line, `#` comments, flags after a tab as in `antislop.notation` | whole words |
| phrases | a JSON list of strings, or of lists of one word | whole words |
| factors | JSON lists of [phrase, number up to 1], or {phrase: number}: weights | whole words |
| counts | JSON lists of [phrase, whole number], or {phrase: number}: ranks, of weight 0 | whole words |
| csv | a phrase per line, then a weight or a count; names of columns on top if need be | whole words |
| ngrams | JSON lists of words, stop words left out | in order, stop words between them |
| regexes | a JSON list of regexes; or one per line, in quotes or not, commas after it or not, `#` comments | |
| sillytavern | free text on top, then `"quoted"`, `[1, 2]` (token ids) and bare lines | anywhere |
| yaml | groups of phrases, in groups if need be; `*` for a gap | whole words |
| statistics | JSON or JSON Lines of objects with a phrase, word or n-gram each, as of slop-forensics | whole words |

What a text is like decides, where the name of its file does not. A JSON list of strings is phrases, or regexes if most
of them show signs of one; lists of strings are n-grams if any holds several words. Lines are SillyTavern's if at least
half of them are in quotes or token ids; free text on top is what stands above the last empty line or ruler before the
first of these. Lines that are all a phrase and a number are CSV. Counts of statistics are kept, scores and ratios are
not; what names no phrase there is no entry.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import regex

from antislop.lists.csv_format import are_pairs, read_csv
from antislop.lists.json_formats import are_json_lines, are_regexes, read_json, read_json_lines
from antislop.lists.reading import Format, Line, attempt
from antislop.lists.text_format import VERSION, read_ban, read_heading
from antislop.lists.yaml_format import read_yaml
from antislop.matching.bans import Ban
from antislop.matching.errors import BanError
from antislop.matching.folding import Edges

_QUOTED = regex.compile(r'\s*"(.+)",?\s*')
_IDS = regex.compile(r"\s*\[\s*\d+(?:\s*,\s*\d+)*\s*\],?\s*")
_NUMBER = regex.compile(r"\d+")
_JSON_STRINGS = regex.compile(r'\s*\[\s*["\]]')
_LETTER = regex.compile(r"[\p{L}\p{N}]")
_REGEX = regex.compile(r"""\s*[rR]?(?:"(.+)"|'(.+)'),?\s*""")
_YAML_ITEM = regex.compile(r"\s*- .*|---\s*")
_YAML_GROUP = regex.compile(r"""\s*[^\s"'#\[\]{}-][^:]*:\s*""")


def read(
    text: str,
    *,
    place: str,
    suffix: str = "",
    format: Format | None = None,  # noqa: A002
    edges: Edges | None = None,
) -> tuple[Format, Iterator[Line]]:
    """Return the format of a list, and its lines.

    place: what messages call the list. suffix: of its file's name, in lower case; ".json", ".jsonl", ".csv", ".yaml"
        and ".txt" count for more than what the text looks like. edges: of plain phrases, else as the format has them.

    Raises `BanError` for a text that is none of that format as a whole, also while the lines are read.

    >>> format, lines = read('[["a testament to", 517], ["delve", 12]]', place="list")
    >>> format, [ban for _, ban in lines]
    ('counts', [Ban('a testament to', count=517), Ban('delve', count=12)])
    """
    format = format or _detect(text, suffix)  # noqa: A001
    usual: Edges = edges or ("anywhere" if format == "sillytavern" else "word")
    if format == "text":
        return format, _read_text(text, place, usual)
    if format == "sillytavern":
        return format, _read_sillytavern(text, usual)
    if format == "yaml":
        return format, read_yaml(text, place, usual)
    if format == "csv":
        return format, read_csv(text, place, usual)
    if format == "regexes" and not (suffix == ".json" or _JSON_STRINGS.match(text)):
        return format, _read_regexes(text)
    if format == "statistics" and (suffix in (".jsonl", ".ndjson") or are_json_lines(text)):
        return format, read_json_lines(text, place, usual)
    return read_json(text, place, format, usual)


def _detect(text: str, suffix: str) -> Format | None:
    """Return the format of a list, or None for one in JSON, whose values will tell."""
    if read_heading(text).version:
        return "text"
    if suffix in (".yaml", ".yml"):
        return "yaml"
    if suffix in (".csv", ".tsv"):
        return "csv"
    if suffix in (".jsonl", ".ndjson"):
        return "statistics"
    if suffix == ".json":
        return None
    if suffix != ".txt" and text.lstrip().startswith(("[", "{")) and not _begins_with_ids(text):
        return "statistics" if are_json_lines(text) else None
    return _detect_lines(text, suffix)


def _begins_with_ids(text: str) -> bool:
    first, *rest = text.strip().split("\n", 1)
    return bool(rest) and _IDS.fullmatch(first) is not None


def _detect_lines(text: str, suffix: str) -> Format:
    """Tell apart the formats with an entry per line: half of the lines must show that it is not plain text."""
    lines = [line for line in text.split("\n") if line.strip() and not line.startswith("#")]
    if lines and are_regexes(lines):
        return "regexes"
    if are_pairs(lines):
        return "csv"
    marked = sum(_QUOTED.fullmatch(line) is not None or _IDS.fullmatch(line) is not None for line in lines)
    if marked and marked * 2 >= len(lines):
        return "sillytavern"
    items = [line for line in lines if _YAML_ITEM.fullmatch(line)]
    groups = [line for line in lines if _YAML_GROUP.fullmatch(line)]
    if suffix != ".txt" and items and len(items) + len(groups) == len(lines):
        return "yaml"
    return "text"


def _read_text(text: str, place: str, edges: Edges) -> Iterator[Line]:
    version = read_heading(text).version
    if version is not None and version > VERSION:
        raise BanError(
            f"{place}:1: this list is of version {version}, and up to {VERSION} is known here: install a newer antislop"
        )
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            yield attempt(number, read_ban, line, edges=edges)


def _read_sillytavern(text: str, edges: Edges) -> Iterator[Line]:
    lines = text.split("\n")
    for number, line in enumerate(lines[_count_heading(lines) :], start=_count_heading(lines) + 1):
        if match := _QUOTED.fullmatch(line):
            yield attempt(number, Ban, match[1], edges=edges)
        elif _IDS.fullmatch(line):
            yield attempt(number, _to_tokens, line.strip())
        elif line.strip():
            yield attempt(number, Ban, line.strip(), edges=edges)


def _count_heading(lines: list[str]) -> int:
    """Return how many lines of free text are on top: up to the last empty line or ruler above the first marked line."""
    marked = (number for number, line in enumerate(lines) if _QUOTED.fullmatch(line) or _IDS.fullmatch(line))
    above = range(next(marked, 0))
    return max((number + 1 for number in above if not _LETTER.search(lines[number])), default=0)


def _to_tokens(line: str) -> Ban:
    try:
        return Ban.tokens([int(number) for number in _NUMBER.findall(line)])
    except ValueError as error:  # of thousands of digits, or a BanError
        raise BanError(str(error)) from None


def _read_regexes(text: str) -> Iterator[Line]:
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            yield attempt(number, Ban.regex, _unquote(line.strip()))


def _unquote(line: str) -> str:
    r"""Return the regex of a line; only in one with `\\` are backslashes doubled, as in JSON."""
    match = _REGEX.fullmatch(line)
    if not match:
        return line
    pattern = str(match[1] or match[2])
    if "\\\\" in pattern:
        try:
            return str(json.loads(f'"{pattern}"'))
        except ValueError:
            return pattern
    return pattern

r"""The formats of lists of bans (docs/reference/formats.md), how they are recognized, and this package's own.

The suffix of the file determines the format, or else the text does:

* A JSON list of strings is phrases, or regexes if most of them look like one; with lists of several words, n-grams.
* Lines are SillyTavern's if at least half of them are in quotes or token ids; the free text on top ends with the last
  empty line or ruler before the first of these.
* Lines that are all a phrase and a number are CSV.
* A JSON object is statistics: groups of phrases, n-grams, regexes or objects, which `values` chooses by their names.
* Other text is the text format; the marks that most of its lines have are taken off (`antislop.core.bans.marks`).

The text format has one ban per line:

    # antislop 1
    # source: where the bans came from
    # license: under which they may be passed on
    a testament to
    tapestry	weight=0.25
    \bnot just\b	regex max_span=80
    " a phrase that could be misread "	edges=anywhere

After a tab follow the kind of the ban and its options, if not the defaults. A phrase that could be misread is a JSON
string.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, NamedTuple

import regex

from antislop.core.bans.bans import BAN_OPTIONS, KINDS, Ban, list_options
from antislop.core.bans.folding import Edges
from antislop.core.bans.formats.line_formats import (
    are_pairs,
    are_regexes,
    is_sillytavern,
    parse_csv,
    parse_marked,
    parse_regexes,
)
from antislop.core.bans.formats.values import find_shape, parse_values
from antislop.core.bans.marks import OPTIONS_BEHIND, refuse_signs
from antislop.core.bans.patterns.pattern import find_options, write_stars
from antislop.core.bans.patterns.phrase import Phrase
from antislop.core.bans.reading import Line, ListText, attempt, make_ban
from antislop.errors import BanError

VERSION = 1

_HEADER = regex.compile(r"# antislop ([1-9][0-9]{0,8})\s*")
_FIELD = regex.compile(r"#\s*(source|license):\s*(.*\S)\s*")
_JSON_STRINGS = regex.compile(r'\s*\[\s*["\]{]')
_FLAG = regex.compile(r"([a-z_]+)(=?)")
_WHOLE = regex.compile(r"[0-9]{1,18}")
_FRACTION = regex.compile(r"[0-9]*\.?[0-9]+(?:e-?[0-9]{1,3})?")


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


def _parse_text(text: ListText, edges: Edges) -> Iterator[Line]:
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


FORMATS = ("text", "regexes", "phrases", "factors", "counts", "ngrams", "statistics", "csv", "sillytavern")


def recognize(text: ListText) -> str:
    """Return the name of the format of a text."""
    if parse_heading(text.text).version is not None:  # its first line, whatever the file's name
        return "text"
    if text.suffix in (".yaml", ".yml"):
        advice = "write one phrase per line into a .txt file, or the groups as JSON into a .json file"
        raise BanError(f"{text.place}:1: a list in YAML can't be read: {advice}")
    if text.suffix in (".csv", ".tsv"):
        return "csv"
    if text.is_json or text.are_json_lines:
        return find_shape(text)
    if are_regexes(text):
        return "regexes"
    return "csv" if are_pairs(text.lines) else "sillytavern" if is_sillytavern(text) else "text"


def parse(text: ListText, name: str, edges: Edges) -> Iterator[Line]:
    """Yield the bans of a text in a format. Raises `BanError` for a text that is not in the format."""
    if name == "text":
        return _parse_text(text, edges)
    if name == "csv":
        return parse_csv(text, edges)
    if name == "sillytavern" and not text.is_json:
        return parse_marked(text.text, edges)
    if name == "regexes" and text.suffix != ".json" and not _JSON_STRINGS.match(text.text):
        return parse_regexes(text)
    return parse_values(text, edges, name=name)


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


def _is_misread(text: str) -> bool:
    return _names_kind(text) or OPTIONS_BEHIND.search(text) is not None


def _names_kind(text: str) -> bool:
    """Return whether a line begins as `regex:…`, as nobody would begin a phrase."""
    name, colon, rest = text.partition(":")
    return bool(colon and rest[:1].strip()) and name in {*KINDS, "re"} - {Phrase.kind}


def _quote(text: str) -> str:
    if text and text == text.strip() and text.isprintable() and text[0] not in '#"' and not _is_misread(text):
        return text
    return _to_json(text)


def _to_json(value: Any) -> str:
    written = json.dumps(value, ensure_ascii=False)
    is_plain = not any(char == "\ufeff" or "\ud800" <= char <= "\udfff" for char in written)
    return written if is_plain else json.dumps(value)


def _unquote(text: str) -> str:
    """Return the string in a text that is JSON, else the text."""
    if text.startswith('"') and text.endswith('"'):
        try:
            return str(json.loads(text))
        except ValueError:
            return text
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
    start, flags, defaults = 0, flags.rstrip(), _list_defaults(tuple(KINDS))
    while start < len(flags):
        if flags[start] in " \t":
            start += 1
            continue
        match = _FLAG.match(flags, start)
        if not match or match[1] not in defaults:
            name = match[1] if match else flags[start:].split(" ")[0][:40]
            raise BanError(f"the flag {name!r} of {line[:80]!r} is unknown: it is one of {', '.join(defaults)}")
        name = match[1]
        text, start = _cut_value(flags, match.end()) if match[2] else (None, match.end())
        # "words" alone is a kind, and "words=5" the option of a repeat.
        key = "kind" if name in KINDS and text is None else name
        value = _parse_value(name, defaults[name], text, line)
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


def _cut_value(flags: str, at: int) -> tuple[Any, int]:
    """Return the value after a = and its end: a JSON list or string, or text up to the next space."""
    if flags[at : at + 1] in ("[", '"'):
        try:
            return json.JSONDecoder().raw_decode(flags, at)
        except ValueError:
            return None, len(flags)
    end = (flags + " ").index(" ", at)
    return flags[at:end], end


def _parse_value(name: str, default: Any, text: Any, line: str) -> Any:
    if name in KINDS and text is None:
        return name
    if default is False and text is None:
        return True
    if _is_number(default) and isinstance(text, str) and _WHOLE.fullmatch(text):
        return int(text)
    if name not in KINDS and isinstance(default, str) and isinstance(text, str):
        return text
    if name in ("exempt", "scopes") and isinstance(text, list):
        return text
    if name == "weight" and isinstance(text, str) and _FRACTION.fullmatch(text):
        return float(text)
    example = f"{name}=3" if _is_number(default) else _EXAMPLES.get(name, name)
    raise BanError(f"{name} of {line[:80]!r} can't be read: write it as {example}")


def _is_number(default: Any) -> bool:
    return default is None or (isinstance(default, int) and not isinstance(default, bool))


_EXAMPLES = {
    "edges": "edges=anywhere",
    "exempt": 'exempt=["a phrase"]',
    "force": 'force="</think>"',
    "then": "then=stop",
    "scopes": 'scopes=[["outside", "quotes"]]',
    "weight": "weight=0.25",
}

r"""This package's own text format, with one ban per line.

    # antislop 1
    # source: where the bans came from
    # license: under which they may be passed on
    # language: code of the language by which phrases compare i and ı, unless they have one of their own
    a testament to
    tapestry	weight=0.25
    \bnot just\b	regex max_span=80
    " a phrase that could be misread "	edges=anywhere

After a tab, a line has the kind of the ban and its options, unless they are the defaults. A phrase that could be
misread is written as a JSON string.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import takewhile
from typing import Any, NamedTuple

import regex

from antislop.core.bans.bans import KINDS, Ban, list_options
from antislop.core.bans.folding import Edges
from antislop.core.bans.patterns.pattern import DOTTED, read_language, write_stars
from antislop.core.bans.patterns.phrase import Phrase
from antislop.errors import BanError
from antislop.lists.entries import attempt, list_defaults, make_ban
from antislop.lists.signs import OPTIONS_BEHIND, refuse_signs

VERSION = 1

_HEADER = regex.compile(r"# antislop ([1-9][0-9]{0,8})\s*")
_FIELD = regex.compile(r"#\s*(source|license|language):\s*(.*\S)\s*")
_FLAG = regex.compile(r"[ \t]*(?P<name>[a-z_]+)(?:=(?P<value>[^ ]*))?")
WHOLE = regex.compile(r"[0-9]{1,18}")
FRACTION = regex.compile(r"[0-9]*\.?[0-9]+(?:[eE]-?[0-9]{1,3})?")


class Heading(NamedTuple):
    """What the comments at the top of a file say. version: version of the format; None if they don't name it."""

    version: int | None = None
    source: str | None = None
    license: str | None = None
    language: str = ""


def parse_heading(text: str, place: str) -> Heading:
    lines = text.split("\n", 100)[:100]
    header = _HEADER.fullmatch(lines[0])
    found: dict[str, str] = {}
    for number, line in enumerate(takewhile(lambda line: line.startswith("#"), lines), start=1):
        if field := _FIELD.fullmatch(line):
            found.setdefault(field[1], _unquote(field[2]))
            if header and field[1] == "language":
                found["language"] = read_language(found["language"], name=f"{place}:{number}: the language of the list")
    if header:
        return Heading(int(header[1]), **found)
    return Heading(language=language if (language := found.get("language", "")) in DOTTED else "")  # or a remark


def write_lines(
    bans: Iterable[Ban], *, source: str | None = None, license: str | None = None, heading: bool = True
) -> Iterator[str]:
    r"""Yield the lines of a file with these bans. Raises `BanError` for a ban that would not read back as the same.

    heading: begin with what the file says of all bans; without that, each line can be read by itself.

    >>> list(write_lines([Ban("tapestry", weight=0.25)], source="my stories"))
    ['# antislop 1', '# source: my stories', 'tapestry\tweight=0.25']
    """
    bans, language = list(bans), ""
    if heading:
        yield f"# antislop {VERSION}"
        if source is not None:
            yield f"# source: {_quote(source)}"
        if license is not None:
            yield f"# license: {_quote(license)}"
        language = next((ban.pattern.language for ban in bans if ban.pattern.language), "")
        if not all(_reads_back(ban, write_ban(ban, language=language), language) for ban in bans if language):
            language = ""  # it would change phrases that have none
        if language:
            yield f"# language: {language}"
    for ban in bans:
        line = write_ban(ban, language=language)
        if not _reads_back(ban, line, language):
            raise BanError(f"{ban.text[:80]!r} can't be written so that it reads back the same: simplify it")
        yield line


def _reads_back(ban: Ban, line: str, language: str) -> bool:
    _, read = attempt(0, parse_ban, line, language=language)
    return isinstance(read, Ban) and read == ban and read.count == ban.count


# -- a line of the text format ----------------------------------------------------------------------------------------


def write_ban(ban: Ban, *, language: str = "") -> str:
    text = write_stars(ban.text) if ban.pattern.kind == Phrase.kind else ban.text
    flags = [] if ban.pattern.kind == Phrase.kind else [ban.pattern.kind]
    for name, value in list_options(ban):
        if name == "language" and value == language:
            continue
        if name in ("exempt", "scopes", "force"):
            value = _to_json([[scope.where, scope.span] for scope in value] if name == "scopes" else value)
        flags.append(name if value is True else f"{name}={float(value) if name == 'weight' else value}")
    return "\t".join([_quote(text), *([" ".join(flags)] if flags else [])])


def parse_ban(line: str, *, edges: Edges = "word", language: str = "", is_foreign: bool = False) -> Ban:
    r"""Return the ban of a line.

    edges, language: those of a phrase for which the line says none.
    is_foreign: whether `write_ban` did not write the line; then an entry that does not look like a phrase is refused.

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
    return make_ban(phrase, kind=kind, options=options, edges=edges, language=language)


def _names_kind(text: str) -> bool:
    """Return whether a line begins with the name of a kind and a colon: `regex:…`."""
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
    """Return the value of a text that is a JSON string; any other text as it is."""
    if text.startswith('"') and text.endswith('"'):
        with suppress(ValueError):
            return str(json.loads(text))
    return text


def _parse_flags(flags: str, line: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    start, flags = 0, flags.strip(" \t")
    defaults = {name: name for name in KINDS if name != Phrase.kind} | list_defaults(tuple(KINDS))
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
                value, start = {}, len(flags)  # no flag has an object as its value, so this is refused below
        # "words" alone is a kind, and "words=5" is an option of a repeat.
        key = "kind" if name in KINDS and value is None else name
        value = _read_flag(name, defaults[name], value, line)
        if key in options:
            raise BanError(f"{key} of {line[:80]!r} is given twice: leave one out")
        options[key] = value
    return options


def _read_flag(name: str, default: Any, value: Any, line: str) -> Any:
    is_number = default is None or type(default) is int
    if value is None and (name in KINDS or default is False):
        return name if name in KINDS else True
    if isinstance(value, str):
        if is_number and WHOLE.fullmatch(value):
            return int(value)
        if name == "weight" and FRACTION.fullmatch(value):
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
    "language": "language=tr",
    "then": "then=stop",
    "scopes": 'scopes=[["outside", "quotes"]]',
    "weight": "weight=0.25",
}

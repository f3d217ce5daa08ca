r"""The text format of this package: one ban per line, written and read.

    # antislop 1
    # source: where the bans came from
    # licence: under which they may be passed on
    a testament to
    tapestry	weight=0.25
    \bnot just\b	regex max_span=80
    " a phrase that could be misread "	edges=anywhere

After a tab stand, with spaces between, the kind of the ban and what differs from the usual. A phrase that could be
misread (it begins with # or a quotation mark, or holds what can't be seen) is a JSON string. Knows no files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Any, NamedTuple, get_args

import regex

from antislop.lists.reading import attempt
from antislop.matching.bans import Ban, BanError, Kind
from antislop.matching.folding import Edges
from antislop.matching.scopes import Scope

VERSION = 1
WILDCARD_GAP = 3
"""The gap of a wildcard that names none, as in `Ban.wildcard`."""

_HEADER = regex.compile(r"# antislop ([1-9][0-9]{0,8})\s*")
_FIELD = regex.compile(r"#\s*(source|licence):\s*(.*\S)\s*")
_FLAG = regex.compile(r"([a-z_]+)(=?)")
_WHOLE = regex.compile(r"[0-9]{1,18}")
_FRACTION = regex.compile(r"[0-9]*\.?[0-9]+(?:e-?[0-9]{1,3})?")
_SWITCHES = ("case_sensitive", "skip_stop_words")
_NUMBERS = ("gap", "max_span", "from_token", "at_most", "per_words", "count")
_KNOWN = (*get_args(Kind)[1:], *(each.name for each in fields(Ban) if each.name not in ("phrase", "kind")))


class Heading(NamedTuple):
    """What the comments on top of a file say; `version` is None where they don't name the format."""

    version: int | None = None
    source: str | None = None
    licence: str | None = None


def read_heading(text: str) -> Heading:
    r"""Read the comments on top of a file.

    >>> read_heading("# antislop 1\n# source: my stories\ndelve\n")
    Heading(version=1, source='my stories', licence=None)
    """
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


def write_lines(bans: Iterable[Ban], *, source: str | None = None, licence: str | None = None) -> Iterator[str]:
    r"""Yield the lines of a file, without line ends; each was read back before.

    >>> list(write_lines([Ban("tapestry", weight=0.25)], source="my stories"))
    ['# antislop 1', '# source: my stories', 'tapestry\tweight=0.25']
    """
    yield f"# antislop {VERSION}"
    if source is not None:
        yield f"# source: {_quote(source)}"
    if licence is not None:
        yield f"# licence: {_quote(licence)}"
    for ban in bans:
        line = write_ban(ban)
        _, read = attempt(0, read_ban, line)
        if read != ban or read.count != ban.count:
            raise BanError(f"{ban.phrase[:80]!r} can't be written so that it reads back the same: simplify it")
        yield line


def write_ban(ban: Ban) -> str:
    r"""Return the line of a ban.

    >>> write_ban(Ban.words(["voice", "barely", "whisper"], gap=2, exempt=["a whisper"]))
    'voice barely whisper\twords gap=2 exempt=["a whisper"]'
    """
    usual = {each.name: each.default for each in fields(Ban)}
    if ban.kind == "wildcard":
        usual["gap"] = WILDCARD_GAP
    flags: list[str] = [] if ban.kind == "phrase" else [ban.kind]
    for name in usual:
        value = getattr(ban, name)
        if name not in ("phrase", "kind") and value != usual[name]:
            flags.append(_write_flag(name, value))
    return "\t".join([_quote(ban.phrase), *([" ".join(flags)] if flags else [])])


def read_ban(line: str, *, edges: Edges = "word") -> Ban:
    r"""Return the ban of a line; edges: for a phrase that names none. Raises `BanError`.

    >>> read_ban("a * of emotion*\twildcard gap=2 weight=0.5")
    Ban.wildcard('a * of emotion*', weight=0.5, gap=2)
    """
    phrase, _, flags = line.partition("\t")
    options = _read_flags(flags, line)
    if options.get("kind", "phrase") == "phrase":
        options.setdefault("edges", edges)
    elif options["kind"] == "wildcard":
        options.setdefault("gap", WILDCARD_GAP)
    return Ban(_unquote(phrase.strip()), **options)


def _quote(text: str) -> str:
    if text and text == text.strip() and text.isprintable() and text[0] not in '#"':
        return text
    return _to_json(text)


def _to_json(value: Any) -> str:
    written = json.dumps(value, ensure_ascii=False)
    return written if "\ufeff" not in written and _is_utf8(written) else json.dumps(value)


def _is_utf8(text: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in text)


def _unquote(text: str) -> str:
    """Return the string that a text is the JSON of, else the text."""
    if text.startswith('"') and text.endswith('"'):
        try:
            return str(json.loads(text))
        except ValueError:
            return text
    return text


def _write_flag(name: str, value: Any) -> str:
    if name in _SWITCHES:
        return name
    if name == "scopes":
        value = [[scope.where, scope.span] for scope in value]
    return f"{name}={_to_json(value) if name in ('exempt', 'scopes') else float(value) if name == 'weight' else value}"


def _read_flags(flags: str, line: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    at, flags = 0, flags.rstrip()
    while at < len(flags):
        if flags[at] in " \t":
            at += 1
            continue
        match = _FLAG.match(flags, at)
        if not match or match[1] not in _KNOWN:
            name = match[1] if match else flags[at:].split(" ")[0][:40]
            raise BanError(f"the flag {name!r} of {line[:80]!r} is unknown: it is one of {', '.join(_KNOWN)}")
        name = match[1]
        text, at = _cut_value(flags, match.end()) if match[2] else (None, match.end())
        key, value = ("kind" if name in get_args(Kind) else name), _read_value(name, text, line)
        if key in options:
            raise BanError(f"{key} of {line[:80]!r} is given twice: leave one out")
        options[key] = value
    return options


def _cut_value(flags: str, at: int) -> tuple[Any, int]:
    """Return what stands after a = and where it ends: a JSON list, or text up to the next space."""
    if flags[at : at + 1] == "[":
        try:
            return json.JSONDecoder().raw_decode(flags, at)
        except ValueError:
            return None, len(flags)
    end = (flags + " ").index(" ", at)
    return flags[at:end], end


def _read_value(name: str, text: Any, line: str) -> Any:
    if name in get_args(Kind) and text is None:
        return name
    if name in _SWITCHES and text is None:
        return True
    if name in _NUMBERS and isinstance(text, str) and _WHOLE.fullmatch(text):
        return int(text)
    if name == "edges" and isinstance(text, str):
        return text
    if name == "exempt" and isinstance(text, list):
        return text
    if name == "scopes" and isinstance(text, list):
        return [_read_scope(each, line) for each in text]
    if name == "weight" and isinstance(text, str) and _FRACTION.fullmatch(text):
        return float(text)
    raise BanError(f"{name} of {line[:80]!r} can't be read: write it as {_EXAMPLES.get(name, name)}")


_EXAMPLES = {
    **{name: f"{name}=3" for name in _NUMBERS},
    "edges": "edges=anywhere",
    "exempt": 'exempt=["a phrase"]',
    "scopes": 'scopes=[["outside", "quotes"]]',
    "weight": "weight=0.25",
}


def _read_scope(value: Any, line: str) -> Scope:
    where, span = value if isinstance(value, list) and len(value) == 2 else (None, None)
    try:
        return Scope(where, tuple(span) if isinstance(span, list) else str(span))  # type: ignore[arg-type]
    except ValueError as error:
        raise BanError(f"scopes of {line[:80]!r}: {error}") from None

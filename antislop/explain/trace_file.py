"""Traces as files of JSON Lines: a header, the bans, the tokens that occur, the texts, and their final sequences.

When a file is read, the sequences show whether it was cut or changed. An event is written as a dict of those of its
fields that differ from their defaults, and a ban as its index in the list of bans.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import fields, replace
from types import NoneType, UnionType
from typing import IO, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from antislop.core.bans import Ban, BanList, Surfaces, Violation
from antislop.core.trace import Event, TokenChoice, TokenSurfaces, TracedRow
from antislop.display import escape_json
from antislop.errors import InputError
from antislop.files.disk import open_text, replace_text
from antislop.lists import parse_ban, write_lines

FORMAT = "antislop trace"
VERSION = 1

_FACTS: dict[str, Any] = {
    "model": dict,
    "controller": (str, NoneType),
    "assistant": (dict, NoneType),
    "tokenizer": dict,
    "sampler": dict,
    "settings": dict,
    "stop_strings": list,
    "processors": list,
    "criteria": list,
    "inputs": list,
    "record": str,
    "record_top_k": int,
    "seed": int,
    "versions": dict,
}
"""The names of the facts in every header, with the types of their values."""
_WRONG = (KeyError, TypeError, ValueError, IndexError, AttributeError)
"""The exceptions raised when a file is read in which a field is missing, unknown or not of its type."""
_TEXTS = {"model": ("name", "type", "dtype", "device"), "tokenizer": ("name", "fingerprint")}
_NO_TRACE = "not a trace: pass a file that --trace or Trace.save wrote"


class TraceContents(NamedTuple):
    rows: tuple[TracedRow, ...]
    bans: BanList
    surfaces: TokenSurfaces
    about: dict[str, Any]


def write_trace(
    path: str | os.PathLike[str],
    rows: Sequence[TracedRow],
    *,
    about: Mapping[str, Any],
    bans: BanList,
    surfaces: Surfaces,
) -> None:
    numbers = {ban: number for number, ban in reversed(list(enumerate(bans)))}
    tokens = sorted({token for row in rows for token in row.list_tokens()})
    texts, raw = dict[int, str](), dict[int, str]()
    for token in tokens:
        data = surfaces.surface(token)
        try:
            texts[token] = data.decode()
        except UnicodeDecodeError:
            raw[token] = data.hex()
    special = {token: surfaces.breaks[token] for token in tokens if token in surfaces.breaks}
    byte_tokens = [token for token in tokens if token in surfaces.byte_tokens]
    lines: list[dict[str, Any]] = [
        {
            "format": FORMAT,
            "version": VERSION,
            **about,
            "bans": {"count": len(bans), "fingerprint": _fingerprint_lines(bans)},
        },
        {"bans": [*write_lines(bans, heading=False)], "source": bans.source},
        {"tokens": texts, "bytes": raw, "byte_tokens": byte_tokens, "special": special},
    ]
    for number, row in enumerate(rows):
        lines.append({"row": number, "prompt": row.prompt, **({} if row.mask is None else {"mask": row.mask})})
        lines += [{"row": number, **write_event(event, numbers)} for event in row.events]
    lines.append({"sequences": [row.sequence for row in rows]})
    text = "\n".join(json.dumps(line, ensure_ascii=False) for line in lines)
    replace_text(path, escape_json(text) + "\n")


def _fingerprint_lines(bans: Iterable[Ban]) -> str:
    """Return a hash of bans, computed from the lines that a file of these bans has."""
    return hashlib.sha256("\n".join(write_lines(bans)).encode()).hexdigest()[:16]


class _Line(NamedTuple):
    """The JSON content of a line of a file. location: "file:line", for error messages."""

    content: Any
    location: str


def read_trace(source: str | os.PathLike[str] | IO[bytes]) -> TraceContents:
    location = (
        os.fspath(source) if isinstance(source, (str, os.PathLike)) else str(getattr(source, "name", "the trace"))
    )
    lines = _read_lines(source, location)
    header = _check_header(next(lines, None), location)
    bans = _read_line(
        next(lines, None), location, lambda content: BanList(map(parse_ban, content["bans"]), source=content["source"])
    )
    if header.pop("bans").get("fingerprint") != _fingerprint_lines(bans):
        raise InputError(f"{location}:2: these are not the bans that the header names: the file was changed")
    surfaces = _read_line(next(lines, None), location, _read_surfaces)
    body = list(lines)
    end = body.pop() if body else None
    begun: list[tuple[TracedRow, list[Event]]] = []
    for line in body:
        entry = _read_line(line, location, lambda content: _read_row(content, bans, number=len(begun)))
        if isinstance(entry, TracedRow):
            begun.append((entry, []))
        else:
            begun[-1][1].append(entry)
    rows = tuple(replace(row, events=tuple(events)) for row, events in begun)
    if end is None or not (isinstance(end.content, dict) and end.content.keys() == {"sequences"}):
        raise InputError(f"{location}: the trace ends early: the file was cut")
    try:
        is_same = end.content["sequences"] == [row.sequence for row in rows]
    except _WRONG:  # raised if the events withdraw tokens that were never drawn
        is_same = False
    if not is_same:
        raise InputError(f"{end.location}: the events don't come to these sequences: the file was changed")
    return TraceContents(rows, bans, surfaces, header)


def _read_lines(source: str | os.PathLike[str] | IO[bytes], location: str) -> Iterator[_Line]:
    number = 0
    try:
        is_path = isinstance(source, str) or not isinstance(source, Iterable)
        with open_text(source) if is_path else nullcontext(map(bytes.decode, source)) as file:  # type: ignore[arg-type]
            for number, text in enumerate(file, start=1):
                try:
                    yield _Line(json.loads(text), f"{location}:{number}")
                except (ValueError, RecursionError):
                    reason = _NO_TRACE if number == 1 else "this line is not JSON, which each line of a trace is"
                    raise InputError(f"{location}:{number}: {reason}") from None
    except OSError as error:
        raise InputError(f"{location}: can't be read ({error.strerror}): pass the path of a trace") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{location}:{number + 1}: not UTF-8 ({error.reason}), which a trace is") from None


def _check_header(line: _Line | None, location: str) -> dict[str, Any]:
    content = None if line is None else line.content
    if not isinstance(content, dict) or content.get("format") != FORMAT or not isinstance(content.get("bans"), dict):
        raise InputError(f"{location}:1: {_NO_TRACE}")
    if content.get("version") != VERSION:
        raise InputError(
            f"{location}:1: this trace is of version {content.get('version')}, and version {VERSION} is read: "
            "use the version of antislop that wrote it"
        )
    wrong = [name for name, kinds in _FACTS.items() if not isinstance(content.get(name, 0.0), kinds)]
    parts = {name: content[name] for name in _TEXTS if name not in wrong}
    wrong += [name for name, part in parts.items() if not all(isinstance(part.get(key), str) for key in _TEXTS[name])]
    lists = [name for name, kinds in _FACTS.items() if kinds is list and name not in wrong]
    wrong += [name for name in lists if not all(isinstance(text, str) for text in content[name])]
    if wrong:
        raise InputError(f"{location}:1: {wrong[0]} is missing or not of its type: the file was changed")
    return {name: value for name, value in content.items() if name not in ("format", "version")}


def _read_line(line: _Line | None, location: str, read: Callable[[Any], Any]) -> Any:
    if line is None:
        raise InputError(f"{location}: the trace ends early: the file was cut")
    try:
        return read(line.content)
    except InputError as error:
        raise InputError(f"{line.location}: {error}") from error
    except _WRONG as error:
        raise InputError(f"{line.location}: not a line of a trace: the file was changed") from error


def _read_surfaces(content: Mapping[str, Any]) -> TokenSurfaces:
    surfaces = {int(token): text.encode() for token, text in content["tokens"].items()}
    surfaces |= {int(token): bytes.fromhex(digits) for token, digits in content["bytes"].items()}
    special = {int(token): str(text) for token, text in content["special"].items()}
    return TokenSurfaces(surfaces, frozenset(map(int, content["byte_tokens"])), special)


def _read_row(content: Mapping[str, Any], bans: BanList, *, number: int) -> TracedRow | Event:
    """Return a new text, still without events, or an event of the latest text. number: how many texts were read."""
    expected = number if "prompt" in content else number - 1
    if content["row"] != expected or expected < 0:
        raise InputError(f"a line of text {content['row']} among those of text {number - 1}")
    if "prompt" not in content:
        return read_event({name: value for name, value in content.items() if name != "row"}, bans)
    prompt, mask = _read_value(tuple[int, ...], content["prompt"]), content.get("mask")
    if mask is not None and len(mask) != len(prompt):
        raise InputError(f"a mask of {len(mask)} numbers for {len(prompt)} tokens")
    return TracedRow(prompt, (), None if mask is None else _read_value(tuple[int, ...], mask))


# -- events -----------------------------------------------------------------------------------------------------------

_EVENTS = {kind.__name__: kind for kind in get_args(Event)}
_FIELDS: dict[Any, dict[str, Any]] = {
    kind: get_type_hints(kind, localns={"Ban": Ban, "Violation": Violation})
    for kind in (*_EVENTS.values(), Violation, TokenChoice)
}
"""For each type of event, and for the named tuples in events, the types of its fields."""


def write_event(event: Event, numbers: Mapping[Ban, int]) -> dict[str, Any]:
    """Return an event as a dict for JSON: its name and fields. numbers: the index of each ban in the trace's list."""
    values = ((part, getattr(event, part.name)) for part in fields(event))
    content = {part.name: _write(value, numbers) for part, value in values if value != part.default}
    return {"event": type(event).__name__, **content}


def _write(value: Any, numbers: Mapping[Ban, int]) -> Any:
    if isinstance(value, Ban):
        return numbers[value]
    if type(value) in _FIELDS:
        parts = value._asdict().items()
        return {name: _write(part, numbers) for name, part in parts if part != value._field_defaults.get(name, ...)}
    return value


def read_event(content: Mapping[str, Any], bans: Sequence[Ban]) -> Event:
    """Return the event from a dict of `write_event`. Raises `InputError` or one of `_WRONG` for any other dict."""
    if (kind := _EVENTS.get(content["event"])) is None:
        raise InputError(f"there is no event {content['event']}: use the version of antislop that wrote the trace")
    event: Event = _read_value(kind, {name: value for name, value in content.items() if name != "event"}, bans)
    return event


def _read_value(kind: Any, value: Any, bans: Sequence[Ban] = ()) -> Any:
    """Return the value of type `kind` that was written to JSON as `value`. Raises one of `_WRONG` if none was."""
    if type(value) is kind:  # not `isinstance`, for which True is an int
        return value
    if kind is Ban:
        return bans[_read_value(int, value, bans)]
    if kind is float:
        return float(_read_value(int, value, bans))
    if kind in _FIELDS:
        return kind(**{name: _read_value(_FIELDS[kind][name], part, bans) for name, part in value.items()})
    origin, parts = get_origin(kind), get_args(kind)
    if origin is UnionType:  # a type or None; None is the default, and defaults are not written
        return _read_value(parts[0], value, bans)
    if origin is tuple:
        kinds = [parts[0]] * len(value) if parts[-1] is Ellipsis else parts
        return tuple(_read_value(part, each, bans) for part, each in zip(kinds, value, strict=True))
    if origin is Literal and value in parts:
        return value
    raise TypeError(value)

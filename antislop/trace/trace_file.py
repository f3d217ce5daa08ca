"""Traces as files: JSON Lines with a header, the bans, the tokens that occur, the texts, and what they must come to.

The first line names the format and its version and has the facts of the call. The last one has the final sequences, so
a file that was cut or changed is detected. Version 1 is the only one.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, NamedTuple

from antislop.display import escape_json
from antislop.errors import InputError
from antislop.files import open_text, replace_text
from antislop.lists.ban_list import BanList
from antislop.lists.text_format import read_ban, write_lines
from antislop.matching.bans import Ban
from antislop.matching.token_matcher import Surfaces, Violation
from antislop.trace import events as event_types
from antislop.trace.events import Choice, Drawn, Event, Rewound
from antislop.trace.recording import Trace, TracedRow

FORMAT = "antislop trace"
VERSION = 1

_EVENTS: dict[str, type[Event]] = {
    name: getattr(event_types, name)
    for name in (
        "Admitted",
        "Conceded",
        "Drafted",
        "Drawn",
        "Dropped",
        "Finished",
        "Forwarded",
        "Rewound",
        "Settled",
        "Shortened",
    )
}
_WRONG = (KeyError, TypeError, ValueError, IndexError, AttributeError)
"""Raised by the contents of a line that no trace has."""


@dataclass(frozen=True)
class TokenSurfaces:
    """The bytes of the tokens that a trace contains; ids that don't occur in it have none."""

    surfaces: Mapping[int, bytes]
    byte_tokens: frozenset[int] = frozenset()
    breaks: Mapping[int, str] = field(default_factory=dict)

    def surface(self, token_id: int) -> bytes:
        """Return the bytes of one token."""
        return self.surfaces.get(token_id, b"")


def save_trace(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Write a trace to a file, which is replaced as a whole or not at all."""
    lines = (escape_json(json.dumps(line, ensure_ascii=False)) for line in _write(trace))
    replace_text(path, "\n".join([*lines, ""]))


def fingerprint_bans(bans: Iterable[Ban]) -> str:
    """Return a hash of a list: the same for the same bans in the same order, wherever they were loaded from."""
    return hashlib.sha256("\n".join(write_lines(bans)).encode()).hexdigest()[:16]


def _write(trace: Trace) -> Iterator[dict[str, Any]]:
    bans = {"count": len(trace.bans), "fingerprint": fingerprint_bans(trace.bans)}
    yield {"format": FORMAT, "version": VERSION, **trace.about, "bans": bans}
    yield {"bans": [line for line in write_lines(trace.bans) if not line.startswith("#")], "source": trace.bans.source}
    yield _write_tokens(trace.surfaces, sorted(set(_list_tokens(trace))))
    numbers = {ban: number for number, ban in reversed(list(enumerate(trace.bans)))}
    for number, row in enumerate(trace.rows):
        yield {"row": number, "prompt": row.prompt, **({} if row.mask is None else {"mask": row.mask})}
        for event in row.events:
            yield {"row": number, "event": type(event).__name__, **_write_fields(event, numbers)}
    yield {"sequences": trace.sequences}


def _list_tokens(trace: Trace) -> Iterator[int]:
    for row in trace.rows:
        yield from row.prompt
        for event in row.events:
            if isinstance(event, Drawn):
                yield event.token
                yield from (token for token, _ in (event.choice.alternatives if event.choice else ()))
            elif isinstance(event, Rewound):
                yield from (token for token, _ in event.alternatives)


def _write_tokens(surfaces: Surfaces, tokens: Sequence[int]) -> dict[str, Any]:
    """Return the bytes of tokens, as text if they are UTF-8, else in hexadecimal digits."""
    texts, raw = dict[int, str](), dict[int, str]()
    for token in tokens:
        data = surfaces.surface(token)
        try:
            texts[token] = data.decode()
        except UnicodeDecodeError:
            raw[token] = data.hex()
    special = {token: surfaces.breaks[token] for token in tokens if token in surfaces.breaks}
    byte_tokens = [token for token in tokens if token in surfaces.byte_tokens]
    return {"tokens": texts, "bytes": raw, "byte_tokens": byte_tokens, "special": special}


def _write_fields(event: Event, numbers: Mapping[Ban, int]) -> dict[str, Any]:
    """Return the fields of an event that don't have their default."""
    content = {}
    for part in fields(event):
        value = getattr(event, part.name)
        if isinstance(value, Violation):
            value = {"ban": numbers[value.ban], "start": value.start, "end": value.end}
        elif isinstance(value, Choice):
            value = value._asdict()
        elif isinstance(value, Ban):
            value = numbers[value]
        if part.default is MISSING or value != part.default:
            content[part.name] = value
    return content


class _Line(NamedTuple):
    """A line of a file, and its place for messages."""

    content: Any
    place: str


def load_trace(path: str | os.PathLike[str]) -> Trace:
    """Read a trace from a file. Raises `InputError` that names the file and the line."""
    lines = _read_lines(path)
    header = _check_header(next(lines, None), path)
    expected = header.pop("bans")
    bans = _read(next(lines, None), path, _read_bans)
    if fingerprint_bans(bans) != expected.get("fingerprint"):
        raise InputError(f"{os.fspath(path)}:2: these are not the bans that the header names: the file was changed")
    surfaces = _read(next(lines, None), path, _read_surfaces)
    prompts: list[tuple[tuple[int, ...], tuple[int, ...] | None]] = []
    rows: list[list[Event]] = []
    end = None
    for line in lines:
        if end is not None:
            raise InputError(f"{line.place}: a line after the end of the trace: the file was changed")
        if isinstance(line.content, dict) and "sequences" in line.content:
            end = line
        elif isinstance(line.content, dict) and "prompt" in line.content:
            prompts.append(_read(line, path, _read_prompt))
            rows.append([])
        else:
            number, event = _read(line, path, lambda content: _read_event(content, bans))
            if number != len(rows) - 1:
                raise InputError(f"{line.place}: an event of text {number} among those of text {len(rows) - 1}")
            rows[number].append(event)
    traced = tuple(TracedRow(prompt, tuple(row), mask) for (prompt, mask), row in zip(prompts, rows, strict=True))
    trace = Trace(traced, bans, surfaces, lambda: header)
    return _check_end(trace, end, path)


def _read_lines(path: str | os.PathLike[str]) -> Iterator[_Line]:
    with open_text(path) as file:
        for number, text in enumerate(file, start=1):
            place = f"{os.fspath(path)}:{number}"
            try:
                yield _Line(json.loads(text), place)
            except ValueError:
                raise InputError(f"{place}: this line is not JSON, which each line of a trace is") from None


def _check_header(line: _Line | None, path: str | os.PathLike[str]) -> dict[str, Any]:
    content = None if line is None else line.content
    if not isinstance(content, dict) or content.get("format") != FORMAT or not isinstance(content.get("bans"), dict):
        raise InputError(f"{os.fspath(path)}:1: not a trace: pass a file that --trace or Trace.save wrote")
    if content.get("version") != VERSION:
        raise InputError(
            f"{os.fspath(path)}:1: this trace is of version {content.get('version')}, and version {VERSION} is read: "
            "use the version of antislop that wrote it"
        )
    return {name: value for name, value in content.items() if name not in ("format", "version")}


def _read(line: _Line | None, path: str | os.PathLike[str], read: Callable[[Any], Any]) -> Any:
    """Return what `read` makes of a line's content; one that it can't read is an `InputError`."""
    if line is None:
        raise InputError(f"{os.fspath(path)}: the trace ends early: the file was cut")
    try:
        return read(line.content)
    except InputError as error:
        raise InputError(f"{line.place}: {error}") from error
    except _WRONG as error:
        raise InputError(f"{line.place}: not a line of a trace: the file was changed") from error


def _read_bans(content: Mapping[str, Any]) -> BanList:
    return BanList(map(read_ban, content["bans"]), source=content["source"])


def _read_surfaces(content: Mapping[str, Any]) -> TokenSurfaces:
    surfaces = {int(token): text.encode() for token, text in content["tokens"].items()}
    surfaces |= {int(token): bytes.fromhex(digits) for token, digits in content["bytes"].items()}
    special = {int(token): str(text) for token, text in content["special"].items()}
    return TokenSurfaces(surfaces, frozenset(map(int, content["byte_tokens"])), special)


def _read_prompt(content: Mapping[str, Any]) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    prompt, mask = tuple(map(int, content["prompt"])), content.get("mask")
    if mask is not None and len(mask) != len(prompt):
        raise InputError(f"a mask of {len(mask)} numbers for {len(prompt)} tokens")
    return prompt, None if mask is None else tuple(map(int, mask))


def _read_event(content: Mapping[str, Any], bans: BanList) -> tuple[int, Event]:
    kind = _EVENTS[content["event"]]
    values = {name: value for name, value in content.items() if name not in ("row", "event")}
    return int(content["row"]), kind(**{name: _read_field(name, value, bans) for name, value in values.items()})


def _read_field(name: str, value: Any, bans: BanList) -> Any:
    if name == "violation":
        return Violation(bans[value["ban"]], int(value["start"]), int(value["end"]))
    if name == "choice":
        return Choice(**{**value, "alternatives": _read_pairs(value["alternatives"])})
    if name == "ban":
        return bans[value]
    if name == "alternatives":
        return _read_pairs(value)
    return tuple(map(int, value)) if isinstance(value, list) else value


def _read_pairs(pairs: Iterable[Sequence[Any]]) -> tuple[tuple[int, float], ...]:
    return tuple((int(token), float(share)) for token, share in pairs)


def _check_end(trace: Trace, end: _Line | None, path: str | os.PathLike[str]) -> Trace:
    """Return the trace if its events come to the sequences of the last line."""
    if end is None:
        raise InputError(f"{os.fspath(path)}: the trace ends early: the file was cut")
    try:
        is_same = trace.sequences == end.content["sequences"]
    except _WRONG:
        is_same = False
    if not is_same:
        raise InputError(f"{end.place}: the events don't come to these sequences: the file was changed")
    return trace

"""Events as plain data for JSON: each field under its name unless it has its default, a ban as its number in a list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from antislop.core.bans.bans import Ban
from antislop.core.bans.token_matcher import Violation
from antislop.core.trace.events import Event, TokenChoice
from antislop.errors import InputError

WRONG = (KeyError, TypeError, ValueError, IndexError, AttributeError)
"""What reading raises for a field that is missing, unknown or not of its type."""
_EVENTS = {kind.__name__: kind for kind in get_args(Event)}
_FIELDS: dict[Any, dict[str, Any]] = {
    kind: get_type_hints(kind, localns={"Ban": Ban, "Violation": Violation})
    for kind in (*_EVENTS.values(), Violation, TokenChoice)
}
"""The types of the fields of events, and of the tuples in them."""


def write_event(event: Event, numbers: Mapping[Ban, int]) -> dict[str, Any]:
    """Return the name of an event and its fields. numbers: of the bans."""
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
    """Return the event that `write_event` wrote. Raises an error of `WRONG`, or `InputError`, for other content."""
    if (kind := _EVENTS.get(content["event"])) is None:
        raise InputError(f"there is no event {content['event']}: use the version of antislop that wrote the trace")
    event: Event = read_value(kind, {name: value for name, value in content.items() if name != "event"}, bans)
    return event


def read_value(kind: Any, value: Any, bans: Sequence[Ban] = ()) -> Any:
    """Return a value of a type from what JSON makes of it. Raises an error of `WRONG` for another type."""
    if type(value) is kind:  # by `isinstance`, True would be a number
        return value
    if kind is Ban:
        return bans[read_value(int, value, bans)]
    if kind is float:
        return float(read_value(int, value, bans))
    if kind in _FIELDS:
        return kind(**{name: read_value(_FIELDS[kind][name], part, bans) for name, part in value.items()})
    origin, parts = get_origin(kind), get_args(kind)
    if origin is UnionType:  # with None, which is the default
        return read_value(parts[0], value, bans)
    if origin is tuple:
        kinds = [parts[0]] * len(value) if parts[-1] is Ellipsis else parts
        return tuple(read_value(part, each, bans) for part, each in zip(kinds, value, strict=True))
    if origin is Literal and value in parts:
        return value
    raise TypeError(value)

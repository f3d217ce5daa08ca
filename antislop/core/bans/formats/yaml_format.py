"""Lists of phrases in YAML, in groups or in groups of groups, and the kinds of bans as tags.

It is read from events, so that an alias adds nothing, and every phrase is a string.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import regex

from antislop.core.bans.folding import Edges
from antislop.core.bans.marks import refuse_group, refuse_replacements
from antislop.core.bans.reading import MAX_DEPTH, Line, ListFormat, ListText, attempt, is_kind, make_ban, make_phrase
from antislop.errors import BanError

_ITEM = regex.compile(r"\s*- .*|---\s*")
_GROUP = regex.compile(r"""\s*[^\s"'#\[\]{}-][^:]*:\s*""")


class _Group(NamedTuple):
    """key: the name of which the value follows, in a mapping. is_left_out: by its name, it has no bans."""

    is_mapping: bool
    name: str = ""
    key: str | None = None
    is_left_out: bool = False


def read_yaml(text: str, place: str, edges: Edges) -> Iterator[Line]:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        yield from _read_events(yaml.parse(text, Loader=loader), place, edges)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        reason = getattr(error, "problem", None) or getattr(error, "reason", None) or type(error).__name__
        raise BanError(f"{place}:{mark.line + 1 if mark else 1}: not YAML ({reason}): correct it") from error
    except UnicodeEncodeError as error:
        raise BanError(f"{place}:1: not YAML (half of a surrogate pair): save it as UTF-8") from error


def _read_events(events: Iterable[Any], place: str, edges: Edges) -> Iterator[Line]:
    import yaml

    groups: list[_Group] = []
    entries: Counter[str] = Counter()
    anchors: set[str] = set()
    for event in events:
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent) and event.anchor not in anchors:
            phrase = f"*{event.anchor}"[:80]
            yield line, BanError(f"{phrase!r} is an alias in YAML: put a phrase that begins with * into quotes")
        elif isinstance(event, yaml.NodeEvent) and event.anchor:
            anchors.add(event.anchor)
        is_collection = isinstance(event, yaml.CollectionStartEvent)
        group = groups[-1] if groups else None
        if isinstance(event, yaml.CollectionEndEvent):
            groups.pop()
        elif group and group.is_mapping and group.key is None and isinstance(event, yaml.NodeEvent):
            if is_collection:
                raise BanError(f"{place}:{line}: the name of a group is a list or a mapping: give it a word")
            groups[-1] = group._replace(key=getattr(event, "value", ""))
        elif isinstance(event, yaml.NodeEvent):
            if group and group.is_mapping:
                groups[-1] = group._replace(key=None)
            if is_collection:
                name = (group.key or group.name) if group else ""
                fault = None if group and group.is_left_out else refuse_group(name)
                yield from [(line, fault)] if fault else []
                is_left_out = fault is not None or bool(group and group.is_left_out)
                groups.append(_Group(isinstance(event, yaml.MappingStartEvent), name, is_left_out=is_left_out))
            elif isinstance(event, yaml.ScalarEvent) and not (group and group.is_left_out):
                entries[group.name if group else ""] += 1
                yield from _read_scalar(line, event, group, edges)
        if len(groups) > MAX_DEPTH:
            raise BanError(f"{place}:{line}: groups are nested more than {MAX_DEPTH} deep: give a flat list")
    refuse_replacements(len(entries), entries.total(), f"{place}:1")


def _read_scalar(line: int, event: Any, group: _Group | None, edges: Edges) -> Iterator[Line]:
    value, kind = event.value, (event.tag or "").removeprefix("!")
    if group and not group.is_mapping and is_kind(kind):
        yield attempt(line, make_ban, value, kind=kind, options={}, edges=edges)
    elif group and not group.is_mapping:
        yield attempt(line, make_phrase, value, edges=edges)
    elif group and value:  # an empty group is fine
        pair = f"{group.key}: {value}"[:80]
        yield line, BanError(f"{pair!r} is not a phrase in a group: put one with a colon into quotes, after a dash")
    elif not group:
        yield line, BanError(f"{value[:80]!r} is in no list: write each phrase on a line of its own, after a dash")


def _is_yaml(text: ListText) -> bool:
    if text.is_json or text.suffix == ".txt":
        return False
    items = [line for line in text.lines if _ITEM.fullmatch(line)]
    groups = [line for line in text.lines if _GROUP.fullmatch(line)]
    return bool(items) and len(items) + len(groups) == len(text.lines)


YAML = ListFormat("yaml", _is_yaml, lambda text, edges: read_yaml(text.text, text.place, edges), (".yaml", ".yml"))

"""Published lists in JSON and JSON Lines.

Four shapes have one value for each ban: strings, [phrase, factor], [phrase, count], lists of words. The fifth,
statistics, has phrases anywhere inside objects. In each, an entry may be an object that names the kind of its ban.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import regex

from antislop.core.bans.bans import Ban
from antislop.core.bans.folding import Edges
from antislop.core.bans.marks import refuse_group, refuse_replacements
from antislop.core.bans.reading import (
    MAX_DEPTH,
    PHRASE_KEYS,
    STRING_KEYS,
    Line,
    ListFormat,
    ListText,
    are_counts,
    attempt,
    find_phrase_key,
    leave_plain,
    make_ban,
    make_phrase,
    names_kind,
    parse_object,
    to_words,
)
from antislop.errors import BanError

_COUNTS = ("count", "frequency")
_BETWEEN = regex.compile(r"[ \t\r\n,:]*")


def find_shape(text: ListText) -> str:
    if text.suffix != ".json" and _are_json_lines(text.text):
        return "statistics"
    if find_preset(text.value) is not None:
        return "preset"
    if _is_mapping(text.value):
        return _classify_numbers(text.value.values())
    if isinstance(text.value, dict):
        return "statistics"
    return _classify(leave_plain(text.value) or text.value) if isinstance(text.value, list) else "phrases"


def find_preset(value: Any) -> dict[str, str] | None:
    """Return the bans of a preset of SillyTavern by their keys; None for any other value."""
    preset = value.get("preset", value) if isinstance(value, dict) else None
    if not isinstance(preset, dict):
        return None
    keys = ("banned_tokens", "global_banned_tokens", "banned_strings")
    bans = {key: preset[key] for key in keys if isinstance(preset.get(key), str)}
    return bans or None


def parse_entries(text: ListText, edges: Edges, make: Callable[[int, Any, Edges], Line]) -> Iterator[Line]:
    """Yield the ban of each item of a JSON list. Raises `BanError` for any other value."""
    if not isinstance(text.value, list):
        kind = type(text.value).__name__
        raise BanError(f'{text.place}:1: a JSON list of phrases was expected, not {kind}: write ["…", …]')
    return (
        parse_object(line, item, edges) if names_kind(item) else make(line, item, edges)
        for line, _, item in _find_lines(text.text)
    )


def _parse_pairs(text: ListText, edges: Edges, make: Callable[[int, Any, Edges], Line]) -> Iterator[Line]:
    if not _is_mapping(text.value):
        return parse_entries(text, edges, make)
    return (make(line, [phrase, number], edges) for line, phrase, number in _find_lines(text.text))


def _parse_statistics(text: ListText, edges: Edges) -> Iterator[Line]:
    if text.suffix in (".jsonl", ".ndjson") or _are_json_lines(text.text):
        return _parse_json_lines(text.text, text.place, edges)
    if isinstance(text.value, list):
        return _parse_objects(text.text, f"{text.place}:1", edges)
    if isinstance(text.value, dict) and (lines := [*_parse_objects(text.text, f"{text.place}:1", edges)]):
        return iter(lines)
    return parse_entries(text, edges, _count_entry)  # raises


def _parse_json_lines(text: str, place: str, edges: Edges) -> Iterator[Line]:
    """Yield the bans of JSON Lines of objects, of [phrase, count] or of phrases."""
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            yield number, BanError(f"not JSON ({error}): correct it")
            continue
        if isinstance(value, dict):
            bans = [(number, ban) for _, ban in _parse_objects(line, f"{place}:{number}", edges)]
            yield from bans or [(number, _refuse_nameless(value))]
        else:
            yield _count_entry(number, value, edges)


def _are_json_lines(text: str) -> bool:
    """Return whether the first of several lines is an object, or a phrase with a number."""
    first, *others = text.strip().split("\n", 2)
    try:
        value = json.loads(first)
    except (ValueError, RecursionError):
        return False
    return bool(others) and (isinstance(value, dict) or _is_pair(value))


def _classify(items: list[Any]) -> str:
    if all(isinstance(item, str) for item in items):
        return "phrases"
    if all(isinstance(item, dict) for item in items):
        return "statistics"
    if all(isinstance(item, str) or _are_words(item) for item in items):
        lists = [" ".join(item).split() for item in items if isinstance(item, list)]
        return "ngrams" if any(len(words) > 1 for words in lists) else "phrases"
    if not any(isinstance(item, list) and len(item) == 2 for item in items):
        return "phrases"
    return _classify_numbers(item[1] for item in items if isinstance(item, list) and len(item) == 2)


def _are_words(item: Any) -> bool:
    return isinstance(item, list) and item != [] and all(isinstance(word, str) for word in item)


def _is_pair(item: Any) -> bool:
    is_pair = isinstance(item, list) and len(item) == 2 and isinstance(item[0], str)
    return is_pair and isinstance(item[1], (int, float))


def _classify_numbers(numbers: Iterable[Any]) -> str:
    return "counts" if are_counts(numbers) else "factors"


def _is_mapping(value: Any) -> bool:
    numbers = value.values() if isinstance(value, dict) else ()
    return bool(numbers) and all(type(number) in (int, float) for number in numbers)


def _phrase_entry(line: int, item: Any, edges: Edges) -> Line:
    return attempt(line, make_phrase, item[0] if _are_words(item) and len(item) == 1 else item, edges=edges)


def _pair_entry(line: int, item: Any, edges: Edges, *, option: str) -> Line:
    if isinstance(item, list) and len(item) == 2:
        return attempt(line, make_phrase, item[0], edges=edges, **{option: item[1]})
    return attempt(line, make_phrase, item, edges=edges)


_factor_entry = partial(_pair_entry, option="weight")
_count_entry = partial(_pair_entry, option="count")


def _ngram_entry(line: int, item: Any, edges: Edges) -> Line:  # noqa: ARG001
    text = " ".join(item) if _are_words(item) else item
    return attempt(line, to_words, text)


def _children(text: str, index: int) -> Iterator[tuple[str, int, Any]]:
    """Yield (key, index, value) for each item of the JSON list or object at an index."""
    decoder, is_object, key = json.JSONDecoder(), text[index] == "{", ""
    index = _skip(text, index + 1)
    while text[index] not in "]}":
        if is_object:
            key, index = decoder.raw_decode(text, index)
            index = _skip(text, index)
        value, end = decoder.raw_decode(text, index)
        yield key, index, value
        index = _skip(text, end)


def _skip(text: str, index: int) -> int:
    match = _BETWEEN.match(text, index)
    assert match
    return int(match.end())


def _find_lines(text: str) -> Iterator[tuple[int, str, Any]]:
    line, seen = 1, 0
    for key, index, item in _children(text, _skip(text, 0)):
        line, seen = line + text.count("\n", seen, index), index
        yield line, key, item


def _parse_objects(text: str, place: str, edges: Edges) -> Iterator[Line]:
    """Yield the phrases of objects that name one and of [phrase, count] in lists, however deep, or else all strings."""
    line, seen = 1, 0
    start = _skip(text, 0)
    value = json.JSONDecoder().raw_decode(text, start)[0]
    entries = list(_find_entries(text, start, value, place))
    has_statistics = any(isinstance(entry, (dict, list)) for _, entry, _ in entries)
    if not has_statistics:
        strings = [group for _, entry, group in entries if isinstance(entry, str)]
        refuse_replacements(len(set(strings)), len(strings), place)
    for index, entry, group in entries:
        line, seen = line + text.count("\n", seen, index), index
        if isinstance(entry, BanError):
            yield line, entry
        elif has_statistics and isinstance(entry, str):
            yield line, BanError(f"{entry[:80]!r} has no statistics: write [phrase, count] or a list of phrases")
        else:
            yield _statistics_entry(line, entry, group, edges)


def _refuse_nameless(value: Any) -> BanError:
    shown, keys = json.dumps(value, ensure_ascii=False)[:80], ", ".join([*PHRASE_KEYS, *STRING_KEYS])
    return BanError(f"{shown} names no {keys}: rename a key, or leave it out")


def _find_entries(
    text: str, index: int, value: Any, place: str, group: str = "", depth: int = 0
) -> Iterator[tuple[int, Any, str]]:
    """Yield (index, entry or error, name of its group); strings in a list, which have no statistics, too."""
    if depth > MAX_DEPTH:
        raise BanError(f"{place}: the statistics are nested more than {MAX_DEPTH} deep: give a list of phrases")
    fault = refuse_group(group) if value and isinstance(value, (dict, list)) else None
    if fault and any(_find_entries(text, index, value, place, "", depth)):
        yield index, fault, group
    elif fault:
        return
    elif find_phrase_key(value) or _is_pair(value) or names_kind(value) or isinstance(value, str):
        yield index, value, group
    elif isinstance(value, (dict, list)):
        found = [
            (begin, child, [*_find_entries(text, begin, child, place, key or group, depth + 1)])
            for key, begin, child in _children(text, index)
            if isinstance(child, (dict, list) if isinstance(value, dict) else (dict, list, str))
        ]
        objects = [entries for _, child, entries in found if isinstance(child, dict)]
        is_list = isinstance(value, list) and (depth == 0 or any(objects))
        for begin, child, entries in found:
            is_nameless = is_list and isinstance(child, dict) and not entries
            yield from [(begin, _refuse_nameless(child), group)] if is_nameless else entries


def _statistics_entry(line: int, value: Any, group: str, edges: Edges) -> Line:
    if names_kind(value):
        return parse_object(line, value, edges)
    if isinstance(value, str):
        name, phrase, count = "", value, None
    elif isinstance(value, list):
        name, phrase, count = "", *value
    else:
        name = find_phrase_key(value)
        phrase, count = value[name], next((value[key] for key in _COUNTS if key in value), None)
    options = {"count": count} if isinstance(count, int) and not isinstance(count, bool) and count >= 0 else {}
    if "regex" in group.casefold():  # as a request has them: banned_regex, banned_regex_case_insensitive
        return attempt(line, Ban.regex, f"(?i){phrase}" if "insensitive" in group else phrase, **options)
    if group in ("banned_strings", "banned_tokens") and isinstance(phrase, str) and "\n" in phrase:
        return attempt(line, make_ban, phrase, kind="phrase", options={**options, "line_feeds": True}, edges=edges)
    if "gram" in name or "gram" in group:
        return attempt(line, to_words, phrase, **options)
    return attempt(line, make_phrase, phrase, edges=edges, **options)


def _recognize(name: str) -> Callable[[ListText], bool]:
    return lambda text: text.is_json and find_shape(text) == name


_JSON = (".json",)
PHRASES = ListFormat("phrases", _recognize("phrases"), partial(parse_entries, make=_phrase_entry), _JSON)
FACTORS = ListFormat("factors", _recognize("factors"), partial(_parse_pairs, make=_factor_entry), _JSON)
COUNTS = ListFormat("counts", _recognize("counts"), partial(_parse_pairs, make=_count_entry), _JSON)
NGRAMS = ListFormat("ngrams", _recognize("ngrams"), partial(parse_entries, make=_ngram_entry), _JSON)
STATISTICS = ListFormat("statistics", _recognize("statistics"), _parse_statistics, (".json", ".jsonl", ".ndjson"))

"""Lists in JSON and JSON Lines: find the values that are bans, and read each of them.

A value is one ban: a string, a phrase with a number, token ids, the words of an n-gram, or an object with a phrase.
A JSON list consists of such values. In a JSON object, they are in groups (lists or objects): in those that the caller
chose; else in those whose names say so, however deep; else in the only list or mapping. The names of other groups are
reported; a group that may or may not be meant as bans is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import regex

from antislop.core.bans.bans import Ban
from antislop.core.bans.folding import Edges
from antislop.errors import BanError
from antislop.lists import entries
from antislop.lists.entries import Line, are_counts, attempt, is_pair, read_object
from antislop.lists.limits import MAX_DEPTH
from antislop.lists.lines import ListText, parse_marked, refuse_ones, to_regex
from antislop.lists.signs import is_remark, looks_like_regex, names_bans, names_exceptions

_PRESET_KEYS = ("banned_tokens", "global_banned_tokens", "banned_strings")
"""Keys under which a preset of SillyTavern has all lines of a list, as one string."""
_SHOWN = 8
_BETWEEN = regex.compile(r"[ \t\r\n,:]*")
_NO_REPLACEMENTS = "as replacements are, which bans don't have: write the phrases alone, as one list"


def find_shape(text: ListText) -> str:
    """Return the name of the format of a text that is JSON or JSON Lines.

    A list of strings is "phrases" or "regexes"; an object is "statistics", or by its numbers "counts" or "factors".
    """
    if text.are_json_lines:
        return "statistics"
    value = text.value
    if isinstance(value, dict):
        preset = value.get("preset", value)
        if isinstance(preset, dict) and any(isinstance(preset.get(key), str) for key in _PRESET_KEYS):
            return "sillytavern"
        if not _is_mapping(value):
            return "statistics"
        return "counts" if are_counts(value.values()) else "factors"
    items = [item for item in value if not entries.names_kind(item)] if isinstance(value, list) else []
    if items and all(isinstance(item, dict) for item in items):
        return "statistics"
    if any(is_pair(item) for item in items):
        numbers = [item[1] for item in items if isinstance(item, list) and len(item) == 2]
        return "counts" if are_counts(numbers) else "factors"
    if any(_are(str, item) and len(" ".join(item).split()) > 1 for item in items):
        return "ngrams"
    signs = [isinstance(item, str) and looks_like_regex(item) for item in items]
    return "regexes" if sum(signs) * 2 > len(signs) else "phrases"


def _are(kind: type, value: Any) -> bool:
    return isinstance(value, list) and value != [] and all(type(item) is kind for item in value)


def _is_mapping(value: dict[str, Any]) -> bool:
    return bool(value) and all(isinstance(number, (int, float)) for number in value.values())


def _names_phrase(value: dict[str, Any]) -> bool:
    key = entries.find_phrase_key(value)
    return entries.names_kind(value) or (key != "" and not isinstance(value[key], (dict, list)))


# -- what a value says ------------------------------------------------------------------------------------------------


class _Entry(NamedTuple):
    """A value that is a ban, or a `BanError` that says why it is none.

    at: index of the value in the text, or its line.
    group: name of the list or mapping that contains the value.
    """

    at: int
    group: str
    value: Any


class _MarkedLines(str):
    """A whole list in the line format of SillyTavern, in one string."""


def parse_values(text: ListText, edges: Edges, *, name: str) -> Iterator[Line]:
    """Yield the bans of a text. name: the name of its format, which says what strings and numbers mean."""
    found = [*_find_entries(text)]
    numbers = [value[1] for _, _, value in found if is_pair(value)]
    if any(isinstance(number, bool) for number in numbers):
        raise BanError(f"{text.place}:1: phrases with true or false were found: write the banned ones as one list")
    refuse_ones(numbers, text)
    by_look = {True: "count", False: "weight"}[are_counts(numbers)] if numbers and name != "ngrams" else ""
    option = {"factors": "weight", "counts": "count"}.get(name, by_look)
    if not numbers and not (text.is_asked and name == "ngrams"):
        lists = [value for _, group, value in found if _are(str, value) and "gram" not in group]
        several = [words for words in lists if len(words) > 1]
        fault = "two texts each" if several and all(len(words) == 2 for words in lists) else ""
        if any(" " in word.strip() for words in several for word in words):
            fault = "lists with texts of several words"
        if fault:
            raise BanError(f'{text.place}:1: {fault}, {_NO_REPLACEMENTS}, or name the format "ngrams"')
    patterns = {
        group for _, group, value in found if isinstance(value, str) and "pattern" in group and looks_like_regex(value)
    }
    for line, group, value in found:
        if isinstance(value, BanError):
            yield line, value
        elif isinstance(value, _MarkedLines):
            yield from ((line, ban) for _, ban in parse_marked(value, edges))
        else:
            is_regex = name == "regexes" or group in patterns or "regex" in group.casefold()
            kind = "regex" if is_regex else "words" if name == "ngrams" or "gram" in group else None
            yield _read_entry(line, value, edges, kind=kind, option=option, group=group)


def _read_entry(line: int, value: Any, edges: Edges, *, kind: str | None, option: str, group: str) -> Line:
    if isinstance(value, dict):
        return read_object(line, value, edges, kind=kind)
    if type(value) is int:
        advice = f"write token ids as [[{value}], [5, 17]], and other numbers in quotes"
        return line, BanError(f"a ban is a phrase, not {value}: {advice}")
    if _are(int, value):
        return attempt(line, Ban.tokens, value)
    options: dict[str, Any] = {}
    if option and isinstance(value, list) and len(value) == 2:
        value, options[option] = value
    if kind == "regex" and isinstance(value, str):
        return attempt(line, to_regex, f"(?i){value}" if "insensitive" in group else value, **options)
    if _are(str, value):
        kind, value = "words" if len(value) > 1 else kind, " ".join(value)
    if kind == "words":
        return attempt(line, entries.to_words, value, **options)
    if group in _PRESET_KEYS and isinstance(value, str) and "\n" in value:
        options["line_feeds"] = True
        return attempt(line, entries.make_ban, value, kind="phrase", options=options, edges=edges)
    return attempt(line, entries.make_phrase, value, edges=edges, options=options)


# -- where bans are ---------------------------------------------------------------------------------------------------


def _find_entries(text: ListText) -> Iterator[_Entry]:
    if not text.are_json_lines:
        value = text.value  # raises `BanError` if the text is not JSON
        line, seen = 1, 0
        for index, group, entry in _Walk(text.text, f"{text.place}:1", text).read_all(value):
            line, seen = line + text.text.count("\n", seen, index), index
            yield _Entry(line, group, entry)
        return
    for number, document in enumerate(text.text.split("\n"), start=1):
        try:
            value = json.loads(document) if document.strip() else []
        except (ValueError, RecursionError) as error:
            yield _Entry(number, "", BanError(f"not JSON ({error}): correct it"))
            continue
        if document.strip():
            walk = _Walk(document, f"{text.place}:{number}", text)
            start = len(document) - len(document.lstrip())
            yield from (entry._replace(at=number) for entry in walk.read(start, value, "", 0, is_item=True))


@dataclass
class _Walk:
    """Finds the bans in one JSON value.

    text, place: the value as JSON, and what messages call it, such as "bans.json:1".
    is_named: whether a group was found whose name says that it has bans, or that the caller chose.
    """

    text: str
    place: str
    listed: ListText
    is_named: bool = field(default=False, init=False)

    def read_all(self, value: Any) -> Iterator[_Entry]:
        start, groups = self._skip(0), self.listed.groups
        if not isinstance(value, (dict, list)):
            kind = type(value).__name__
            raise BanError(f'{self.place}: a JSON list of phrases was expected, not {kind}: write ["…", …]')
        found = [*self._search(start, value, 0)] if isinstance(value, dict) or groups else []
        if found or self.is_named:
            return iter(found)
        if groups:
            raise BanError(f"{self.place}: there is no group {', '.join(groups)}: {self._list_names(value)}")
        return self._read_only(start, value, "", 0)

    def _read_only(self, index: int, value: Any, group: str, depth: int) -> Iterator[_Entry]:
        """Yield the entries of a list or a mapping, or of an object whose only item is one of these."""
        if isinstance(value, list) or _names_phrase(value) or _has_phrases(value):
            return self.read(index, value, group, depth)
        if len(value) == 1:
            [(key, begin, child)] = self._children(index)
            if names_bans(key) is False:
                return iter([_Entry(begin, key, _refuse_group(key))])
            if isinstance(child, (dict, list)):
                return self._read_only(begin, child, key, depth + 1)
        if value and all(isinstance(text, str) for text in value.values()):
            raise BanError(f"{self.place}: texts under names were found, {_NO_REPLACEMENTS}")
        names = self._list_names(value)
        raise BanError(f'{self.place}: no group is known to be bans by its name; {names}, or name it "banned"')

    def _list_names(self, value: Any) -> str:
        objects = [value] if isinstance(value, dict) else [each for each in value if isinstance(each, dict)]
        names = [*dict.fromkeys(name[:40] for each in objects for name in each if _holds_texts(each[name]))]
        shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
        return f"it has {shown or 'none'}: name those that are, by --group NAME or load(…, group=NAME)"

    def _search(self, index: int, value: Any, depth: int) -> Iterator[_Entry]:
        """Yield the entries of all groups whose names say that they have bans, or that the caller chose."""
        self._check_depth(depth)
        groups, is_object = self.listed.groups, isinstance(value, dict)
        if is_object and not groups and _has_phrases(value):
            return  # the keys are phrases, not names of groups
        others, has_bans = [], False
        for key, begin, child in self._children(index):
            is_group = isinstance(child, (dict, list)) or (isinstance(child, str) and key in _PRESET_KEYS)
            if is_object and (key in groups or (not groups and is_group and names_bans(key))):
                self.is_named = has_bans = True
                yield from self.read(begin, child, key, depth + 1, is_chosen=key in groups)
            elif below := [*self._search(begin, child, depth + 1)] if isinstance(child, (dict, list)) else []:
                has_bans = True
                yield from below
            elif is_object:
                others.append((key, begin, child))
        if has_bans:
            yield from self._leave_out(others)

    def _leave_out(self, others: list[tuple[str, int, Any]]) -> Iterator[_Entry]:
        for key, begin, child in others:
            if isinstance(child, (dict, list)) and child and names_exceptions(key) and not self.listed.groups:
                yield _Entry(begin, key, _refuse_group(key))
            elif _holds_texts(child):
                self.listed.left_out.append(key)

    def read(
        self, index: int, value: Any, group: str, depth: int, *, is_chosen: bool = False, is_item: bool = False
    ) -> Iterator[_Entry]:
        """Yield the entries of a group, or of an item of a list. is_chosen: the caller named the group."""
        self._check_depth(depth)
        if isinstance(value, list) and not is_item:
            for _, begin, item in self._children(index):
                yield from self.read(begin, item, group, depth + 1, is_item=True)
        elif not isinstance(value, dict):
            yield _Entry(index, group, _MarkedLines(value) if group in _PRESET_KEYS and not is_item else value)
        elif _names_phrase(value) or (is_item and entries.find_phrase_key(value) in entries.PHRASE_KEYS):
            yield _Entry(index, group, value)
        elif is_item:
            before, self.is_named = self.is_named, False
            yield from self._search(index, value, depth)
            if not self.is_named:
                keys = ", ".join((*entries.PHRASE_KEYS, *entries.STRING_KEYS))
                fault = f"{json.dumps(value, ensure_ascii=False)[:80]} names no {keys}"
                yield _Entry(index, group, BanError(f"{fault}: rename a key, or leave it out"))
            self.is_named |= before
        elif _has_phrases(value):
            for key, begin, child in self._children(index):
                yield _Entry(begin, group, {"phrase": key, **child} if isinstance(child, dict) else [key, child])
        else:
            yield from self._read_groups(index, group, depth, is_chosen=is_chosen)

    def _read_groups(self, index: int, group: str, depth: int, *, is_chosen: bool) -> Iterator[_Entry]:
        """Yield the entries of the groups within a group; one error for all groups that may not be lists of bans."""
        unclear = []
        for key, begin, child in self._children(index):
            says = is_chosen or names_bans(key)
            if says is False:
                yield from self._leave_out([(key, begin, child)])
            elif isinstance(child, list) and says is None and any(isinstance(i, str) or _are(str, i) for i in child):
                unclear.append((begin, key[:40]))
            elif isinstance(child, (dict, list)):
                yield from self.read(begin, child, key, depth + 1, is_chosen=is_chosen)
            elif isinstance(child, str) and not is_remark(key):
                yield _Entry(begin, key, BanError(f"{key[:40]!r} has the text {child[:40]!r}, {_NO_REPLACEMENTS}"))
            elif _holds_texts(child):
                self.listed.left_out.append(key)
        if unclear:
            names = ", ".join(key for _, key in unclear[:_SHOWN])
            fault = f"{group!r} has lists under {names}, which may be phrases with replacements"
            advice = f"if all these lists are bans, choose them by --group {group} or load(…, group={group!r})"
            yield _Entry(unclear[0][0], group, BanError(f"{fault}: {advice}"))

    def _check_depth(self, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise BanError(f"{self.place}: the groups are nested more than {MAX_DEPTH} deep: give a list of phrases")

    def _children(self, index: int) -> Iterator[tuple[str, int, Any]]:
        """Yield (key, index, value) for each item of the JSON list or object at an index."""
        text, decoder, key = self.text, json.JSONDecoder(), ""
        is_object, index = text[index] == "{", self._skip(index + 1)
        while text[index] not in "]}":
            if is_object:
                key, index = decoder.raw_decode(text, index)
                index = self._skip(index)
            value, end = decoder.raw_decode(text, index)
            yield key, index, value
            index = self._skip(end)

    def _skip(self, index: int) -> int:
        match = _BETWEEN.match(self.text, index)
        assert match
        return int(match.end())


def _holds_texts(value: Any) -> bool:
    return isinstance(value, (dict, list, str)) and bool(value)


def _has_phrases(value: dict[str, Any]) -> bool:
    """Return whether the keys of an object are phrases: each value is a number, or an object that says more on it."""
    describe = (isinstance(each, dict) and entries.says_more(each) for each in value.values())
    return _is_mapping(value) or (value != {} and all(describe))


def _refuse_group(name: str) -> BanError:
    return BanError(f"the group {name[:80]!r} holds no bans by its name: leave it out, or give it another name")

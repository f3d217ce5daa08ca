"""SillyTavern's lists: free text on top, then `"quoted"` phrases, `[1, 2]` (token ids) and bare lines.

A preset of its samplers, in JSON, has such lists under `banned_tokens` and `global_banned_tokens`.
"""

from __future__ import annotations

from collections.abc import Iterator

import regex

from antislop.core.bans.bans import Ban
from antislop.core.bans.folding import Edges
from antislop.core.bans.formats.json_formats import find_preset, find_shape
from antislop.core.bans.marks import SIGNS, STRING_SIGNS, Signs, refuse_signs
from antislop.core.bans.patterns.phrase import Phrase
from antislop.core.bans.reading import TOKEN_IDS, Line, ListFormat, ListText, attempt
from antislop.errors import BanError

_QUOTED = regex.compile(r'\s*"(.+?)"[,;]?\s*(?:(?:#|//)\s.*)?')
_NUMBER = regex.compile(r"\d+")
_LETTER = regex.compile(r"[\p{L}\p{N}]")


def _is_sillytavern(text: ListText) -> bool:
    if text.is_json:
        return find_shape(text) == "preset"
    marked = sum(_is_marked(line) for line in text.lines)
    return marked > 0 and marked * 2 >= len(text.lines)


def _is_marked(line: str) -> bool:
    return _QUOTED.fullmatch(line) is not None or TOKEN_IDS.fullmatch(line) is not None


def _read_sillytavern(text: ListText, edges: Edges) -> Iterator[Line]:
    return _read_preset(text, edges) if text.is_json else _read_lines(text.text, edges)


def _read_preset(text: ListText, edges: Edges) -> Iterator[Line]:
    lists = find_preset(text.value) or {}
    if not "".join(lists.values()).strip():
        names = " and ".join(lists) or "banned_tokens"
        raise BanError(
            f"{text.place}:1: a preset of SillyTavern with bans was expected, and {names} is empty or missing"
        )
    for key, bans in lists.items():
        number = text.text[: text.text.find(f'"{key}"')].count("\n") + 1
        yield from ((number, ban) for _, ban in _read_lines(bans, edges))


def _read_lines(text: str, edges: Edges) -> Iterator[Line]:
    lines = text.split("\n")
    for number, line in enumerate(lines[_count_heading(lines) :], start=_count_heading(lines) + 1):
        if match := _QUOTED.fullmatch(line):
            yield attempt(number, _to_phrase, match[1], edges=edges, signs=STRING_SIGNS)
        elif TOKEN_IDS.fullmatch(line):
            yield attempt(number, _to_tokens, line.strip())
        elif line.strip() and not line.lstrip().startswith("#"):
            yield attempt(number, _to_phrase, line.strip(), edges=edges, signs=SIGNS)


def _count_heading(lines: list[str]) -> int:
    """Return the number of lines up to the last empty line or ruler above the first marked line."""
    marked = (number for number, line in enumerate(lines) if _is_marked(line))
    above = range(next(marked, 0))
    return max((number + 1 for number in above if not _LETTER.search(lines[number])), default=0)


def _to_phrase(text: str, *, edges: Edges, signs: Signs) -> Ban:
    refuse_signs(text, signs=signs)
    return Ban(Phrase(text, edges=edges))


def _to_tokens(line: str) -> Ban:
    try:
        return Ban.tokens([int(number) for number in _NUMBER.findall(line)])
    except ValueError as error:  # of thousands of digits, or a BanError
        raise BanError(str(error)) from None


SILLYTAVERN = ListFormat("sillytavern", _is_sillytavern, _read_sillytavern, (".json",), edges="anywhere")

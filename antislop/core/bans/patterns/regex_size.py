r"""Compute from a regex how long it becomes when it is compiled, and whether it can take long on a short text.

The package regex writes repetitions out: `X{2,}` becomes X, X and a loop over X. Nested ones multiply: 26 nested `+`
around a letter would take 14 GB.
"""

from __future__ import annotations

from math import comb, prod
from typing import NamedTuple

import regex

MANY = 1 << 40
"""Stands for any larger number."""
LETTERS = 12
"""Characters of a text for which `Size.paths` is counted."""

COMMENT = r"\(\?#(?:\\.|[^)\\])*+(?:\)|\Z)"
SET = r"\[\^?\]?(?:\\.|\[:\w+:\]|[^\]\\])*+(?:\]|\Z)"
_REPEAT = r"(?:[*+?]|\{(?P<lower>[0-9]*)(?P<upper>,[0-9]*)?\})[?+]?"
_PART = regex.compile(rf"(?P<comment>{COMMENT})|(?P<set>{SET})|(?P<open>\([?*]?)|(?P<repeat>{_REPEAT})|\\.|.", regex.S)
_INNER_BRACKET = regex.compile(r"(?<!\\)(?:\\\\)*\[")
_VERBOSE = regex.compile(r"\(\?\w*x")
_SPACE = rf"(?:\s|#[^\n]*\n|{COMMENT})*"
_REPEATED_GROUP = regex.compile(rf"\){_SPACE}\+")
_COUNTED = regex.compile(rf"\{{({_SPACE}(?:[0-9]{_SPACE})*)")
_VERBOSE_COMMENT = regex.compile(r"#[^\n]*\n")


class Size(NamedTuple):
    """The size of a compiled regex.

    characters: with its repetitions written out; an upper limit for a verbose regex, and for brackets within a set.
    paths: upper limit of the paths through it along `LETTERS` characters of a text; `MANY` if unknown.
    """

    characters: int
    paths: int


class _Part(NamedTuple):
    """A part of a pattern. loops: over single characters."""

    characters: int = 0
    choices: int = 1
    loops: int = 0
    is_group: bool = False


class _Level:
    """An open group. The latest part is kept apart because a repetition may follow it."""

    def __init__(self) -> None:
        self.characters, self.choices, self.loops, self.other_choices = 0, 1, 0, 0
        self.part = _Part()

    def add(self, part: _Part) -> None:
        self.characters = min(MANY, self.characters + self.part.characters)
        self.choices = min(MANY, self.choices * self.part.choices)
        self.loops = min(MANY, self.loops + self.part.loops)
        self.part = part

    def repeat(self, lower: int, upper: int | None) -> None:
        characters, choices, loops, is_group = self.part
        if lower and (lower, upper) != (1, 1):
            characters = min(MANY, characters * (lower + 1))
        if not is_group and upper != 1:
            loops = 1
        elif upper is None or upper > LETTERS:
            choices = MANY
        else:
            choices, loops = min(MANY, (choices + 1) ** upper), loops * upper
        self.part = _Part(characters, choices, loops, is_group)

    def branch(self) -> None:
        self.add(_Part(1))
        self.other_choices, self.choices = min(MANY, self.other_choices + self.choices), 1

    def close(self) -> _Part:
        self.add(_Part())
        return _Part(self.characters + 2, min(MANY, self.other_choices + self.choices), self.loops, is_group=True)


def measure(pattern: str) -> Size:
    """Return how large a regex becomes.

    >>> measure("ab+"), measure("(?:ab+){2}").characters
    (Size(characters=3, paths=13), 18)
    """
    sets = (part["set"] for part in _PART.finditer(pattern))
    if _VERBOSE.search(pattern) or any(part and _INNER_BRACKET.search(part, 1) for part in sets):
        return Size(_multiply(pattern), MANY)
    levels = [_Level()]
    for part in _PART.finditer(pattern):
        if part["comment"]:
            continue
        if part["open"]:
            levels.append(_Level())
        elif part["repeat"]:
            levels[-1].repeat(*_read_counts(part))
        elif part[0] == ")" and len(levels) > 1:
            group = levels.pop().close()
            levels[-1].add(group)
        elif part[0] == "|":
            levels[-1].branch()
        else:
            levels[-1].add(_Part(len(part[0])))
    while len(levels) > 1:  # it does not compile
        levels[-2].add(levels.pop().close())
    total = levels[0].close()
    ways = comb(LETTERS + min(LETTERS, total.loops), LETTERS)  # to share the characters out to the loops
    return Size(total.characters - 2, min(MANY, total.choices * ways) if total.loops <= LETTERS else MANY)


def _read_counts(repeat: regex.Match[str]) -> tuple[int, int | None]:
    """Return the limits of a repetition; None for no upper one."""
    if repeat[0][0] in "*+?":
        return int(repeat[0][0] == "+"), 1 if repeat[0][0] == "?" else None
    lower, upper = repeat["lower"], repeat["upper"]
    if upper is None:
        return _to_int(lower), _to_int(lower)
    return _to_int(lower), _to_int(upper[1:]) if upper[1:] else None


def _to_int(digits: str) -> int:
    return int(digits[:12] or 0)


def _multiply(pattern: str) -> int:
    """Return an upper limit of the length, as if all repetitions were nested."""
    counts = [_to_int("".join(filter(str.isdecimal, _VERBOSE_COMMENT.sub("", c)))) for c in _COUNTED.findall(pattern)]
    factors = [*(count + 1 for count in counts), *(2 for _ in _REPEATED_GROUP.finditer(pattern))]
    return min(MANY, len(pattern) * prod(factors[:1000]) * (1 if len(factors) <= 1000 else MANY))

"""A regular expression, which reads the text as it is."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

import regex

from antislop.matching.errors import BanError, SlowError
from antislop.matching.patterns.incremental_regex import IncrementalRegex
from antislop.matching.patterns.pattern import MAX_SPAN, SHOWN, Pattern, check_switch
from antislop.matching.patterns.regex_search import RegexSearch

_FLAGS = {
    "i": regex.IGNORECASE,
    "m": regex.MULTILINE,
    "s": regex.DOTALL,
    "x": regex.VERBOSE,
    "a": regex.ASCII,
    "f": regex.FULLCASE,
    "V1": regex.V1,
}


@dataclass(frozen=True, slots=True)
class Regex(Pattern):
    """A regular expression of the package `regex`.

    case_sensitive: accepted so that it can be set for a whole list; letters compare as the expression says.
    max_span: characters that a match, and what it looks ahead to, may cover.
    """

    kind: ClassVar[str] = "regex"
    constructor: ClassVar[str] = "Ban.regex"
    is_legible: ClassVar[bool] = False
    search = RegexSearch

    text: str
    case_sensitive: bool = False
    max_span: int = MAX_SPAN

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise BanError(f"a regex (str) was expected, not {self.text!r}: write Ban.regex('…')")
        check_switch("case_sensitive", self.text, self.case_sensitive)
        try:
            self.prepare()
        except TimeoutError:
            message = f"the regex {self.text[:SHOWN]!r} takes too long on a few characters: simplify it"
            raise SlowError(message) from None

    @property
    def subject(self) -> Hashable:
        return self.kind, self.text

    def prepare(self) -> IncrementalRegex:
        """Return the compiled expression."""
        return IncrementalRegex(self.text, max_span=self.max_span)


def write_flags(pattern: str, flags: int) -> str:
    """Return a regex with the flags of `regex.compile` written in front of it. Raises `BanError` for unknown ones."""
    if flags & ~sum(_FLAGS.values()):
        raise BanError(f"flags of {pattern!r} are {flags}; known are {', '.join(_FLAGS)} of the package regex")
    letters = "".join(letter for letter, flag in _FLAGS.items() if flags & flag)
    return f"(?{letters}){pattern}" if letters else pattern

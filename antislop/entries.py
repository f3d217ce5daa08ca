"""What reading a list yields: for each entry its line, and the ban or why it was refused. Knows no format."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, Literal

import regex

from antislop.bans import Ban, BanError

Format = Literal["text", "phrases", "factors", "counts", "ngrams", "regexes", "sillytavern", "yaml", "statistics"]

Line = tuple[int, "Ban | BanError"]
"""The number of a line, and the ban that begins there or why there is none."""

MAX_CHARACTERS = 20_000_000
"""Characters of a whole list."""
MAX_ENTRIES = 500_000
"""Entries of a list."""
MAX_LENGTH = 100_000
"""Characters of an entry."""
MAX_DEPTH = 10
"""Lists and groups inside of each other."""
MAX_REGEXES = 10_000
"""Regexes of a list."""
MAX_REGEX = 20_000
"""Characters of a regex times its least repetitions, `{n}`: the package regex writes these out when it compiles."""
MAX_SLOW = 10
"""Regexes that take too long to be tried, until a list is given up."""

_REPEATED = regex.compile(r"\{\s*([0-9]{1,9})")


def attempt(line: int, make: Callable[..., Ban], phrase: Any, **options: Any) -> Line:
    """Make a ban of what stands on a line, or say why that can't be."""
    try:
        if isinstance(phrase, str) and len(phrase) > MAX_LENGTH:
            raise BanError(f"{phrase[:40]!r}… has {len(phrase)} characters, more than {MAX_LENGTH}: shorten it")
        return line, make(phrase, **options)
    except BanError as error:
        return line, error
    except (RecursionError, OverflowError) as error:
        return line, BanError(f"{str(phrase)[:80]!r} is too complicated ({type(error).__name__}): simplify it")


def make_regex(pattern: str, **options: Any) -> Ban:
    """Make the ban of a regex that somebody else wrote: one that would take all memory or time is refused."""
    size = len(pattern) * prod(max(1, int(count)) for count in _REPEATED.findall(pattern))
    if size > MAX_REGEX:
        raise BanError(f"the regex {pattern[:80]!r} becomes too large: shorten it, or repeat less in it")
    return Ban(pattern, kind="regex", **options)

"""What reading a list yields: for each entry its line, and the ban or why it was refused. Knows no format."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

from antislop.matching.bans import Ban
from antislop.matching.errors import BanError

Format = Literal[
    "text", "phrases", "factors", "counts", "ngrams", "regexes", "sillytavern", "yaml", "statistics", "csv"
]

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
MAX_WRITTEN_OUT = 2_000_000
"""Characters of a list's regexes with their repetitions written out, some 100 bytes each where they are compiled."""
MAX_SLOW = 10
"""Regexes that take too long to be tried, until a list is given up."""


def attempt(line: int, make: Callable[..., Ban], phrase: Any, **options: Any) -> Line:
    """Make a ban of what stands on a line, or say why that can't be."""
    try:
        if isinstance(phrase, str) and len(phrase) > MAX_LENGTH:
            raise BanError(f"{phrase[:40]!r}… has {len(phrase)} characters, more than {MAX_LENGTH}: shorten it")
        return line, make(phrase, **options)
    except BanError as error:
        return line, error


def are_counts(numbers: Iterable[Any]) -> bool:
    """Tell counts, which rank, from weights: all are whole numbers, some above 1.

    >>> are_counts([3, 1, 0]), are_counts([0.5, 1]), are_counts([1, 1])
    (True, False, False)
    """
    known = list(numbers)
    whole = all(isinstance(number, int) and not isinstance(number, bool) and number >= 0 for number in known)
    return whole and any(number > 1 for number in known)


def to_words(text: Any, **options: Any) -> Ban:
    """Return the ban of an n-gram of a published list: stop words were left out before it was counted."""
    return Ban.words(text.split(), skip_stop_words=True, **options) if isinstance(text, str) else Ban(text)

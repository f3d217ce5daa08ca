"""What reading a list yields: for each entry its line, and the ban or why it was refused. Knows no format."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

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
MAX_REGEX = 5_000
"""Characters of a regex."""
MAX_DEPTH = 20
"""Lists and groups inside of each other."""


def attempt(line: int, make: Callable[..., Ban], phrase: Any, **options: Any) -> Line:
    """Make a ban of what stands on a line, or say why that can't be."""
    longest = MAX_REGEX if make == Ban.regex else MAX_LENGTH
    try:
        if isinstance(phrase, str) and len(phrase) > longest:
            raise BanError(f"{phrase[:40]!r}… has {len(phrase)} characters, more than {longest}: shorten it")
        return line, make(phrase, **options)
    except BanError as error:
        return line, error
    except (RecursionError, OverflowError, TimeoutError) as error:
        return line, BanError(f"{str(phrase)[:80]!r} is too complicated ({type(error).__name__}): simplify it")

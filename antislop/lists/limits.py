"""What a list may have at most: one of a file, and one that a request brings to a server."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from antislop.core.bans.patterns.incremental_regex import measure
from antislop.errors import BanError

MAX_CHARACTERS = 20_000_000
"""Characters of a whole list."""
MAX_ENTRIES = 500_000
"""Entries of a list."""
MAX_LENGTH = 100_000
"""Characters of an entry."""
MAX_DEPTH = 10
"""Levels of nested lists and groups."""
MAX_REGEXES = 10_000
"""Regexes of a list."""
MAX_WRITTEN_OUT = 2_000_000
"""Characters of all regexes of a list with their repetitions written out; compiled, each takes about 100 bytes."""
MAX_TIMED_OUT = 10
"""Regexes of a list that may time out when they are compiled."""


@dataclass(frozen=True)
class SentLimits:
    """What a request may bring to a server at most, since other requests wait while its list is compiled.

    entries: exempt phrases and ids too.
    characters: of an entry, unless it is a regex.
    regexes, regex_characters: how many of the entries, and the characters of one.
    written_out: characters of all regexes with their repetitions written out: 20 MB, compiled.
    size: bytes of all that the request brings.
    seconds: how long it waits for its list.
    """

    entries: int = 10_000
    characters: int = 256
    regexes: int = 100
    regex_characters: int = 1000
    written_out: int = 200_000
    size: int = 2**20
    seconds: float = 10.0

    def check(self, entries: int, phrases: Iterable[str], regexes: Sequence[str]) -> None:
        """Raise `BanError` for more than a request may bring. entries: how many it has of all kinds."""
        for size, limit, what in (
            (entries, self.entries, "bans and exempt phrases"),
            (len(regexes), self.regexes, "regexes"),
            (max(map(len, regexes), default=0), self.regex_characters, "characters in one regex"),
            (max(map(len, phrases), default=0), self.characters, "characters in one phrase"),
        ):
            if size > limit:
                raise BanError(
                    f"{size:,} {what} are too many for a request: at most {limit:,}, or a list of the server"
                )
        if (size := sum(measure(text).characters for text in regexes)) > self.written_out:
            raise BanError(
                f"{size:,} characters of regexes, with their repetitions written out, are too many for a request: at "
                f"most {self.written_out:,}, or a list of the server"
            )


SENT_LIMITS = SentLimits()

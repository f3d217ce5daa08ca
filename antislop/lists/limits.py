"""The limits of a list: one that is read from a file, or one that a request brings to a server."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from antislop.core.bans.patterns.incremental_regex import measure
from antislop.errors import BanError

MAX_CHARACTERS = 20_000_000
"""Maximum characters of a whole list."""
MAX_ENTRIES = 500_000
"""Maximum entries of a list."""
MAX_LENGTH = 100_000
"""Maximum characters of an entry."""
MAX_DEPTH = 10
"""Maximum levels of nested lists and groups."""
MAX_REGEXES = 10_000
"""Maximum regexes of a list."""
MAX_WRITTEN_OUT = 2_000_000
"""Maximum of the `Size.characters` of all regexes of a list together; compiled, each character takes 100 bytes."""
MAX_TIMED_OUT = 10
"""Number of regexes that may be refused since they take too long; at the next one, the whole list is refused."""


@dataclass(frozen=True)
class SentLimits:
    """The limits of a list that a request brings to a server: other requests wait while it is compiled.

    entries: number of entries, exempt phrases and ids included.
    characters: characters of a phrase.
    regexes, regex_characters: number of regexes, and characters of a single regex.
    written_out: characters of all regexes with their repetitions written out; compiled, they take 20 MB.
    size: bytes of the whole request.
    seconds: how long the request waits until its list is compiled.
    """

    entries: int = 10_000
    characters: int = 256
    regexes: int = 100
    regex_characters: int = 1000
    written_out: int = 200_000
    size: int = 2**20
    seconds: float = 10.0

    def check(self, entries: int, phrases: Iterable[str], regexes: Sequence[str]) -> None:
        """Raise `BanError` if a request exceeds a limit. entries: number of its entries of all kinds."""
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

"""A sequence of token ids, whatever its text."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from antislop.core.bans.patterns.pattern import Pattern
from antislop.errors import BanError

_EXPECTED = "token ids were expected, numbers from 0 on"
_FIX = "write Ban.tokens([5, 17])"


@dataclass(frozen=True, slots=True)
class Tokens(Pattern):
    """Token ids, written as numbers with spaces between."""

    kind: ClassVar[str] = "tokens"
    constructor: ClassVar[str] = "Ban.tokens"

    text: str
    token_ids: tuple[int, ...] = field(init=False, repr=False, compare=False, default=())

    def __post_init__(self) -> None:
        parts = self.text.split() if isinstance(self.text, str) else []
        if not parts or not all(part.isascii() and part.isdigit() and int(part) <= sys.maxunicode for part in parts):
            raise BanError(f"{_EXPECTED}, not {self.text!r}: {_FIX}")
        object.__setattr__(self, "token_ids", tuple(map(int, parts)))

    @property
    def arguments(self) -> str:
        return repr(list(self.token_ids))

    def describe(self) -> str:
        return f"the tokens {self.text}"


def join_ids(token_ids: Sequence[int]) -> str:
    if not isinstance(token_ids, Iterable) or not all(
        isinstance(i, int) and not isinstance(i, bool) for i in token_ids
    ):
        raise BanError(f"token ids were expected, not {token_ids!r}: {_FIX}")
    return " ".join(map(str, token_ids))

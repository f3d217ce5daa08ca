"""A passage that repeats, whatever it says."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

import regex

from antislop.matching.errors import BanError
from antislop.matching.patterns.loop_search import LoopSearch
from antislop.matching.patterns.pattern import Pattern, check_number

COPIES = 3
"""How many copies in a row are a loop, by default."""
MIN_CHARACTERS = 40
"""Characters of all copies together, by default."""
MAX_PERIOD = 1000
"""Characters of a copy, by default."""
MAX_COPIES = 1000
MAX_CHARACTERS = 100_000
"""Characters that a search may keep of a text."""

_TEXT = regex.compile(r"a passage \d+ times in a row|")


@dataclass(frozen=True, slots=True)
class Loop(Pattern):
    """A passage that is written several times in a row, whatever it says, compared under folding.

    A loop is complete when the folded text ends in `copies` equal copies of a passage that has up to `max_period`
    characters and contains a letter, and the copies together have `min_characters` or more. Of several such passages
    the shortest counts.

    The repetition is the run of characters, up to the loop's end, that equal those one passage earlier. The occurrence
    begins in it: at the first character with which a sentence or a line begins, or a word that is `ROOM` characters
    into the repetition, whichever comes first. So what was written once stays whole. The next loop's repetition begins
    after this occurrence.

    text: follows from `copies`; a loop has no text of its own.
    """

    kind: ClassVar[str] = "loop"
    constructor: ClassVar[str] = "Ban.loop"
    is_legible: ClassVar[bool] = False
    begins_anew: ClassVar[bool] = True
    search = LoopSearch

    text: str = ""
    copies: int = COPIES
    min_characters: int = MIN_CHARACTERS
    max_period: int = MAX_PERIOD

    def __post_init__(self) -> None:
        name = f"a passage {self.copies} times in a row"
        if not isinstance(self.text, str) or not _TEXT.fullmatch(self.text):
            raise BanError(f"a loop has no text of its own, but {self.text!r} came: write {name!r}, or Ban.loop()")
        for option, least in (("copies", 2), ("min_characters", 1), ("max_period", 1)):
            value = getattr(self, option)
            check_number(option, name, value)
            if value < least:
                raise BanError(f"{option} of a loop is {value}; it is a whole number, {least} or more")
        if self.copies > MAX_COPIES or self.copies * self.max_period > MAX_CHARACTERS:
            raise BanError(
                f"a loop of {self.copies} copies of up to {self.max_period} characters is too long to look for: "
                f"the copies may have {MAX_CHARACTERS} characters together"
            )
        if self.min_characters > self.copies * self.max_period:
            raise BanError(
                f"{self.copies} copies of up to {self.max_period} characters never have min_characters="
                f"{self.min_characters} together: lower it, or raise max_period"
            )
        object.__setattr__(self, "text", name)

    @property
    def arguments(self) -> str:
        return ""

    @property
    def subject(self) -> Hashable:
        return self.kind

    def describe(self) -> str:
        return self.text

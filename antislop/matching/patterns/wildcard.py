r"""A phrase in which `*` stands for any letters of a word, and alone for any words; `\*` is the character."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from antislop.matching.patterns.pattern import WILDCARD_GAP
from antislop.matching.patterns.words import WordSequence


@dataclass(frozen=True, slots=True)
class Wildcard(WordSequence):
    r"""A phrase in which `*` stands for any letters of a word, and alone for one to `gap` words.

    `\*` is the character, which does not matter between words, like all punctuation.
    """

    kind: ClassVar[str] = "wildcard"
    constructor: ClassVar[str] = "Ban.wildcard"
    has_stars: ClassVar[bool] = True

    gap: int = WILDCARD_GAP

"""Words in order, with gaps between them, compared under folding within a sentence."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import ClassVar

from antislop.matching.folding import BOUNDARY
from antislop.matching.patterns.pattern import FILLER, Pattern, check_number, check_switch, check_text
from antislop.matching.patterns.word_search import Item, WordSearch, split_words


@dataclass(frozen=True, slots=True)
class WordSequence(Pattern):
    """Words in order; the base of the kinds that write them in different ways.

    case_sensitive: compare letters as they are. gap: how many other words a gap may contain. items: the words, folded.
    """

    has_stars: ClassVar[bool] = False
    search = WordSearch

    text: str
    case_sensitive: bool = False
    gap: int = 0
    items: tuple[Item, ...] = field(init=False, repr=False, compare=False, default=())

    def __post_init__(self) -> None:
        check_text(self.text)
        check_switch("case_sensitive", self.text, self.case_sensitive)
        check_number("gap", self.text, self.gap)
        object.__setattr__(self, "items", self._split(case_sensitive=self.case_sensitive))

    @property
    def skip_stop_words(self) -> bool:
        """Whether stop words between the words don't count as words."""
        return False

    @property
    def key(self) -> Hashable:
        return WordSequence, self.items, self.skip_stop_words, self.case_sensitive

    def find_symbols(self, *, case_sensitive: bool) -> str:
        words = (item.word.replace("*", FILLER) for item in self._split(case_sensitive=case_sensitive))
        return FILLER.join(f"{BOUNDARY}{word}{BOUNDARY}" for word in words)

    def find_extremes(self, *, widest_gap: int) -> list[str]:
        uncounted = ["the"] * (widest_gap + 1) if self.skip_stop_words else []
        shortest, longest = list[str](), list[str]()
        for item in self.items:
            word = item.word.replace("*", FILLER)
            shortest += [*[FILLER] * item.min_gap, word]
            longest += [*[FILLER] * item.max_gap, *uncounted, word]
        return [" ".join(shortest), " ".join(longest)]

    def _split(self, *, case_sensitive: bool) -> tuple[Item, ...]:
        items = split_words(self.text, gap=self.gap, has_stars=self.has_stars, case_sensitive=case_sensitive)
        return tuple(items)


@dataclass(frozen=True, slots=True)
class Words(WordSequence):
    """Words in this order, with up to `gap` others between any two of them.

    skip_stop_words: articles, pronouns, auxiliaries and the like between them don't count.
    """

    kind: ClassVar[str] = "words"
    constructor: ClassVar[str] = "Ban.words"

    skip_stop_words: bool = False

    def __post_init__(self) -> None:
        check_switch("skip_stop_words", self.text, self.skip_stop_words)
        WordSequence.__post_init__(self)

    @property
    def arguments(self) -> str:
        return repr(self.text.split())

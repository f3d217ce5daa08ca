"""A phrase, compared under folding."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, ClassVar, get_args

from antislop.matching.errors import BanError
from antislop.matching.folding import Edges, fold_phrase
from antislop.matching.patterns.pattern import Pattern, check_switch, check_text, has_wildcard, read_stars, write_stars
from antislop.matching.patterns.phrase_search import PhraseSearch


@dataclass(frozen=True, slots=True)
class Phrase(Pattern):
    """A phrase; white space, quotes, dashes and canonically equivalent characters compare as in `folding`.

    text: compared as it is, a `*` too.

    case_sensitive: compare letters as they are. edges: "word" if the phrase must not touch other letters or digits.
    """

    kind: ClassVar[str] = "phrase"
    constructor: ClassVar[str] = "Ban"
    search = PhraseSearch

    text: str
    case_sensitive: bool = False
    edges: Edges = "word"

    def __post_init__(self) -> None:
        check_text(self.text)
        check_switch("case_sensitive", self.text, self.case_sensitive)
        if self.edges not in get_args(Edges):
            raise BanError(f"the edges of {self.text!r} are {self.edges!r}; they are 'word' or 'anywhere'")

    @property
    def arguments(self) -> str:
        return repr(write_stars(self.text))

    @property
    def key(self) -> Hashable:
        return self.find_symbols(case_sensitive=self.case_sensitive), self.case_sensitive

    def find_symbols(self, *, case_sensitive: bool) -> str:
        return fold_phrase(self.text, case_sensitive=case_sensitive, edges=self.edges)

    def find_extremes(self, *, widest_gap: int) -> list[str]:  # noqa: ARG002
        return [self.text] if self.edges == "word" else []


def read_phrase(text: Any) -> tuple[type[Pattern], Any]:
    r"""Return the kind and the text of a phrase as people write it: a wildcard with a `*`, where `\*` is the character.

    >>> read_phrase(r"\*sighs\*")
    (<class 'antislop.matching.patterns.phrase.Phrase'>, '*sighs*')
    """
    if not isinstance(text, str) or "*" not in text:
        return Phrase, text
    if not has_wildcard(text):
        return Phrase, read_stars(text)
    from antislop.matching.patterns.wildcard import Wildcard  # most lists have none

    return Wildcard, text

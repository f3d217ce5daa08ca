"""The keyword arguments that several constructors of bans take, for type checkers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias, TypedDict

from antislop.core.bans.folding import Edges
from antislop.core.bans.scopes import Scope

RepeatOf = Literal["text", "prompt", "both"]
"""Where the words of a repeat stand already: in what was written so far, in the prompt, or in either."""

Ending: TypeAlias = Literal["", "stop", "force", "concede"]
"""What follows where a ban has used up its tries; nothing of its own if empty."""


class CommonOptions(TypedDict, total=False):
    """The arguments of `Ban` that all kinds have."""

    weight: float
    exempt: Sequence[str]
    scopes: Sequence[Scope]
    from_token: int
    at_most: int
    per_words: int
    then: Ending
    tries: int
    force: str
    count: int | None


class LetterOptions(CommonOptions, total=False):
    """Those of kinds that compare letters, too."""

    case_sensitive: bool


class LoopOptions(CommonOptions, total=False):
    """The arguments of `Ban.loop`."""

    copies: int
    min_length: int
    max_passage: int
    similarity: int


class PatternOptions(TypedDict, total=False):
    """The options of all patterns; each kind has some of them."""

    case_sensitive: bool
    edges: Edges
    gap: int
    skip_stop_words: bool
    max_span: int
    copies: int
    min_length: int
    max_passage: int
    similarity: int
    words: int
    of: RepeatOf


class PhraseOptions(PatternOptions, total=False):
    """What `Ban` takes beside the arguments that it names."""

    count: int | None

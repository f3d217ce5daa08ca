"""The interface of patterns: what a ban forbids.

A new kind is a subclass in a module of its own and a line in `kinds`. It is a frozen dataclass: `text` is its first
field, all others are options with defaults (switches, whole numbers or strings). Lists of bans write and read them as
flags.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import Field, fields, replace
from typing import Any, ClassVar, TypeVar

from antislop.matching.errors import BanError
from antislop.matching.folding import BOUNDARY, fold_phrase
from antislop.matching.patterns.text_search import TextSearch

P = TypeVar("P", bound="Pattern")

FILLER = "\ua66e"
"""A letter that no language uses. In folded symbols it means any word or any letters."""
MAX_SPAN = 200
"""Characters that a match of a regex may cover, by default."""
WILDCARD_GAP = 3
"""The largest number of words that a lone `*` of a wildcard matches, by default."""
SHOWN = 80
"""Characters of a pattern that a message shows."""

_LETTER = re.compile("[0-9A-Za-z]")  # most phrases contain one and need no folding
_STAR = re.compile(r"(\\*)\*")


class Pattern:
    """What a ban forbids.

    kind: its name in lists and reports.
    constructor: the shorthand that a `repr` shows, if `Ban` has one.
    search: finds it in texts; None for a pattern that text alone does not show. Kinds with the same search are
        searched for together.
    begins_anew: whether greedy decoding changes the first token of an occurrence, not the last one.
    is_legible: whether `text` can be quoted to a reader as something not to write.
    """

    __slots__ = ()

    kind: ClassVar[str]
    constructor: ClassVar[str] = ""
    search: ClassVar[type[TextSearch[Any]] | None] = None
    is_legible: ClassVar[bool] = True
    begins_anew: ClassVar[bool] = False

    text: str

    @classmethod
    def build(cls: type[P], text: str, **options: Any) -> P:
        """Return a pattern. Raises `BanError` for an option that its kind does not have."""
        cls._check_names(text, options)
        return cls(text, **options)  # type: ignore[call-arg]  # the fields of the subclass

    def with_options(self: P, **options: Any) -> P:
        """Return the pattern with other options. Raises `BanError` as `build` does."""
        self._check_names(self.text, options)
        return replace(self, **options)  # type: ignore[type-var]

    @property
    def occurs_in_text(self) -> bool:
        """Whether the text alone shows an occurrence."""
        return self.search is not None

    @property
    def case_sensitive(self) -> bool:
        """Whether letters compare as they are."""
        return False

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The token ids that are forbidden whatever their text, if any."""
        return ()

    @property
    def arguments(self) -> str:
        """The text as it is passed to the constructor."""
        return repr(self.text)

    @property
    def key(self) -> Hashable:
        """A value that two patterns share if they match the same texts."""
        return self

    @property
    def subject(self) -> Hashable:
        """A value that two patterns share if they differ in their options only."""
        return self.kind, fold_phrase(self.text, edges="anywhere").strip()

    def find_symbols(self, *, case_sensitive: bool) -> str | None:  # noqa: ARG002
        """Return folded symbols that every occurrence contains, with `FILLER` for what varies; None if unknown."""
        return None

    def find_extremes(self, *, widest_gap: int) -> list[str]:  # noqa: ARG002
        """Return the shortest and the longest text that matches, up to a number of words in each gap; or nothing."""
        return []

    def describe(self) -> str:
        """Return the pattern as a sentence names it, cut if it is long."""
        return repr(self.text if len(self.text) <= SHOWN else self.text[: SHOWN - 1] + "…")

    @classmethod
    def _check_names(cls, text: object, options: dict[str, Any]) -> None:
        for name in options:
            if name not in (names := [option.name for option in find_options(cls)]):
                advice = r"; write \* for the character" if has_wildcard(str(text)) else ""
                raise BanError(f"the {cls.kind} {text!r} has no option {name}: {_list_options(names)}{advice}")


def _list_options(names: Sequence[str]) -> str:
    return f"it has {', '.join(names)}" if names else "leave it out"


def find_options(kind: type[Pattern]) -> tuple[Field[Any], ...]:
    """Return the fields of a kind of patterns that are options."""
    return tuple(field for field in fields(kind)[1:] if field.init)  # type: ignore[arg-type]  # its subclasses are


def check_text(text: object) -> None:
    """Raise `BanError` for anything but a string with a visible character."""
    if not isinstance(text, str):
        raise BanError(f"a ban is a phrase (str), not {text!r}: write Ban('…') or leave it out")
    if not is_visible(text):
        raise BanError(f"the ban {text!r} contains no visible character and would match everywhere: leave it out")


def is_visible(text: str) -> bool:
    """Return whether a text contains a visible character."""
    return _LETTER.search(text) is not None or bool(fold_phrase(text).strip(BOUNDARY + " "))


def has_wildcard(text: str) -> bool:
    r"""Return whether a phrase, as people write it, contains a `*` that is a wildcard; after a backslash it is not.

    >>> has_wildcard("a * of"), has_wildcard(r"f\*ck")
    (True, False)
    """
    return any(len(star[1]) % 2 == 0 for star in _STAR.finditer(text))


def read_stars(text: str, *, wildcard: str = "*") -> str:
    r"""Return a phrase with `*` for each `\*`, and another text for each `*`.

    Of backslashes before a `*`, each two are one; all others are what they are.

    >>> read_stars(r"f\*ck \o/ a*", wildcard="…")
    'f*ck \\o/ a…'
    """
    return _STAR.sub(lambda star: "\\" * (len(star[1]) // 2) + (wildcard, "*")[len(star[1]) % 2], text)


def write_stars(text: str) -> str:
    r"""Return the phrase that reads as a text without wildcards.

    >>> print(write_stars("f*ck"))
    f\*ck
    """
    return _STAR.sub(r"\1\1\\*", text)


def check_switch(name: str, text: str, value: object) -> None:
    """Raise `BanError` for an option that is not True or False."""
    if not isinstance(value, bool):
        raise BanError(f"{name} of {text!r} is {value!r}; it is True or False")


def check_number(name: str, text: str, value: object) -> None:
    """Raise `BanError` for an option that is not a whole number, 0 or more."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise BanError(f"{name} of {text!r} is {value!r}; it is a whole number, 0 or more")

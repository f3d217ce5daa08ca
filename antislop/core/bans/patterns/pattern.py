"""The interfaces of each kind of bans: `Pattern`, what a ban forbids, and `TextSearch`, which finds it in a text.

`Tokens` is the only kind without a search: a text does not show from which tokens it was made.

Searches count places in characters back from the end of the text read so far; 1 is the last character. So a search
that reads the same piece in the same state always returns the same result, wherever that is in a text.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import Field, dataclass, field, fields
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar, get_args

from antislop.core.bans.folding import BOUNDARY, NO_EDGES, SIGNS, Folding, fold_phrase
from antislop.errors import BanError

S = TypeVar("S")
T = TypeVar("T")

FILLER = "\ua66e"
"""A letter that no language uses: among folded symbols, it stands for any word or any letters."""
MAX_SPAN = 200
"""Default for the maximum number of characters of a regex's match."""
WILDCARD_GAP = 3
"""Default for the maximum number of words that a lone `*` matches."""
DOTTED = ("tr", "az")
"""Languages in which İ is the capital of i, and I that of ı."""
DOTLESS = str.maketrans("iı", FILLER * 2)
"""Replaces folded letters that other foldings do not compare as those languages do."""
MAX_SHOWN = 80
"""Maximum number of characters of a pattern that a message shows."""

_LETTER = re.compile("[0-9A-Za-z]")  # most phrases contain one and need no folding
_WORD = re.compile(r"[^\W_]")
_LANGUAGE = re.compile(r"([A-Za-z]{2,8})(?:[-_][0-9A-Za-z]+)*")
_DOTTED = re.compile("[Iiİı]")
_STAR = re.compile(r"(\\*)\*")


class Fault(NamedTuple):
    """A mistake in one pattern, for `antislop lint`.

    clause: what is wrong, as the end of a sentence that begins with the ban: "has only one letter".
    fix: what to do about it, in the imperative.
    """

    kind: Literal["short", "common", "slow", "loop", "kind"]
    clause: str
    fix: str


class Pattern:
    """What a ban forbids. Each kind of patterns is a subclass, and a frozen dataclass.

    The first field of a kind is `text`; all others are options with defaults (switches, whole numbers or strings),
    which lists write and read as flags. A kind must define `kind` and `search`.

    kind: name of the kind in lists and reports.
    constructor: the method of `Ban` that makes such bans, for `repr`; "" if there is none.
    search: the class that finds such patterns in a text; None if no text shows them. Patterns with the same search and
        the same `group` are searched for together.
    is_literal: whether each text with the symbols of `find_symbols` is an occurrence.
    is_repetition: whether an occurrence repeats earlier text. Greedy decoding then replaces the occurrence's first
        token, not its last one, and a text that the ban ends has the finish reason "repetition".
    language: the code of a language of `DOTTED` if the pattern compares i and ı as that language does; else "".
    """

    __slots__ = ()

    kind: ClassVar[str]
    constructor: ClassVar[str] = ""
    search: ClassVar[type[TextSearch[Any]] | None] = None
    is_literal: ClassVar[bool] = False
    is_repetition: ClassVar[bool] = False

    text: str
    language: str = ""

    # -- what the matcher asks

    @property
    def occurs_in_text(self) -> bool:
        """Whether text alone shows an occurrence."""
        return self.search is not None

    @property
    def group(self) -> Hashable:
        """A value that is equal for patterns which one search finds together."""
        return None

    @property
    def case_sensitive(self) -> bool:
        """Whether the case of letters is compared."""
        return False

    @property
    def folding(self) -> Folding:
        """The folding under which the pattern is compared with a text."""
        if self.case_sensitive:
            return "cased"
        if self.language or self.text.isascii():
            return "turkish" if self.language else "caseless"
        return "signed" if SIGNS.search(unicodedata.normalize("NFD", self.text)) else "caseless"

    @property
    def is_part_of_words(self) -> bool:
        """Whether the pattern is a single word, or a part of a word, that also occurs within longer words."""
        return False

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The sequence of token ids that `Tokens` forbids; empty for all other kinds."""
        return ()

    @property
    def key(self) -> Hashable:
        """A value that two patterns share if they match the same texts."""
        return self

    def find_symbols(self, folding: Folding) -> str | None:  # noqa: ARG002
        """Return folded symbols that every occurrence contains, with `FILLER` for what varies; None if unknown."""
        return None

    # -- what lists ask

    @property
    def arguments(self) -> str:
        """What the `constructor` is called with before any options, as source code."""
        return repr(self.text)

    @property
    def diff_key(self) -> Hashable:
        """A value that `BanList.diff` compares: equal for two patterns that differ in nothing but their options."""
        folding: Folding = "written" if self.folding == "written" else "caseless"
        return self.kind, fold_phrase(self.text, folding=folding, edges="anywhere").strip()

    @property
    def compiled_size(self) -> int:
        """Size of the compiled pattern in characters, for kinds where it may exceed the text's by far; else 0."""
        return 0

    @property
    def is_legible(self) -> bool:
        """Whether `text` can be quoted to a reader as something not to write."""
        return self.find_symbols("caseless") is not None

    def describe(self) -> str:
        """Return what a sentence calls the pattern: its text in quotes, for instance, shortened to `MAX_SHOWN`."""
        return repr(self.text if len(self.text) <= MAX_SHOWN else self.text[: MAX_SHOWN - 1] + "…")

    # -- what lint asks

    @property
    def is_opaque(self) -> bool:
        """Whether only a trial on texts shows what the pattern matches: no symbols of its occurrences are known."""
        return self.occurs_in_text and not self.is_legible

    def find_parts(self, folding: Folding) -> list[str]:
        """Return folded strings that every occurrence contains in this order, with anything between them."""
        return (self.find_symbols(folding) or "").translate(NO_EDGES).split(FILLER)

    @property
    def widest_gap(self) -> int:
        """The largest number of other words that may stand between two neighboring words of the pattern."""
        return 0

    def find_samples(self, *, widest_gap: int) -> list[str]:  # noqa: ARG002
        """Return sample texts: a ban of words that occurs in all of them occurs in every occurrence of this pattern.

        widest_gap: the most words that a gap of such a ban may have. An empty list if there are no such samples.
        """
        return []

    def list_spellings(self) -> list[str]:
        """Return different spellings of the pattern, each an occurrence, `text` first; or an empty list."""
        return []

    def find_in(self, texts: Sequence[str]) -> list[int]:
        """Return the indices of the texts with an occurrence; an empty list if the search takes too long."""
        if self.search is None:
            return []
        search = self.search([self])
        found = [i for i, text in enumerate(texts) if search.read(search.start, text, final=True)[1].matches]
        return [] if search.timed_out else found

    def find_faults(self) -> Iterator[Fault]:
        """Yield the mistakes that can be seen from the pattern alone, without other bans or texts."""
        yield from ()


class Repetition(Pattern):
    """A pattern whose occurrences repeat earlier text. Its `text` is a name, such as "a passage 3 times in a row"."""

    __slots__ = ()

    is_repetition: ClassVar[bool] = True

    @property
    def arguments(self) -> str:
        return ""

    @property
    def diff_key(self) -> Hashable:
        return self.kind

    def describe(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Tokens(Pattern):
    """A sequence of token ids; `text` has them as numbers with spaces between."""

    kind: ClassVar[str] = "tokens"
    constructor: ClassVar[str] = "Ban.tokens"

    text: str
    token_ids: tuple[int, ...] = field(init=False, repr=False, compare=False, default=())

    def __post_init__(self) -> None:
        parts = self.text.split() if isinstance(self.text, str) else []
        if not parts or not all(part.isascii() and part.isdigit() and int(part) <= sys.maxunicode for part in parts):
            raise BanError(f"token ids were expected, numbers from 0 on, not {self.text!r}: write Ban.tokens([5, 17])")
        object.__setattr__(self, "token_ids", tuple(map(int, parts)))  # each is a character of the matcher's automaton

    @property
    def arguments(self) -> str:
        return repr(list(self.token_ids))

    def describe(self) -> str:
        return f"the tokens {self.text}"


def find_options(kind: type[Pattern]) -> tuple[Field[Any], ...]:
    return tuple(field for field in fields(kind)[1:] if field.init)  # type: ignore[arg-type]  # its subclasses are


# -- searches ---------------------------------------------------------------------------------------------------------


class PatternMatch(NamedTuple):
    """An occurrence that the latest piece of a text completed.

    pattern: index of the pattern.
    start_back, end_back: places of the first and the last character, counted back from the end: 1 is the last one.
    """

    pattern: int
    start_back: int
    end_back: int

    def shift(self, size: int) -> PatternMatch:
        return PatternMatch(self.pattern, self.start_back + size, self.end_back + size)

    def is_within(self, other: PatternMatch) -> bool:
        return other.start_back >= self.start_back and other.end_back <= self.end_back


class PieceResult(NamedTuple):
    """The matches in one piece, and the places at which incomplete occurrences begin.

    Of several incomplete phrases, only the longest is reported: a rewind to its start withdraws the others, too.
    """

    matches: tuple[PatternMatch, ...] = ()
    open: tuple[int, ...] = ()


class TextSearch(ABC, Generic[S]):
    """A search for patterns of one kind, piece by piece. A state never changes: to rewind, use an earlier state."""

    start: S

    @abstractmethod
    def __init__(self, patterns: Sequence[Any]) -> None: ...

    @abstractmethod
    def read(self, state: S, piece: str, *, final: bool = False) -> tuple[S, PieceResult]:
        """Read one more piece. final: the text ends with this piece, so that no match has to wait for more text."""

    @abstractmethod
    def forget(self, state: S) -> S:
        """Return a state after the same text, such that no later match begins within that text."""

    @property
    def prompt_start(self) -> S:
        """The state before a prompt."""
        return self.start

    def leave_prompt(self, state: S, *, drops_space: bool) -> S:  # noqa: ARG002
        """Return the state at the end of a prompt. drops_space: leave out a space at the start of the text after it."""
        return state

    def restart(self, state: S) -> S:  # noqa: ARG002
        """Return the state after a special token, which no occurrence extends across."""
        return self.start

    def begin(self, *, is_brief: bool = False) -> None:  # noqa: ARG002
        """Begin a text that is unrelated to earlier texts. is_brief: give up a slow search early."""
        return

    @property
    def timed_out(self) -> Sequence[int]:
        """The patterns that took too long and are no longer searched for."""
        return ()

    def restore(self) -> None:
        """Search again for the patterns that timed out."""
        return


def make_tracks(patterns: Sequence[Any], make: Callable[..., T]) -> list[T]:
    """Return a track, the search under one folding, for each folding of the patterns. make: makes such a track."""
    numbers: dict[Folding, list[int]] = {folding: [] for folding in get_args(Folding)}
    for number, pattern in enumerate(patterns):
        numbers[pattern.folding].append(number)
    return [make(patterns, ids, folding) for folding, ids in numbers.items() if ids]


# -- checks and the notation of phrases -------------------------------------------------------------------------------


def check_text(text: object, *, line_feeds: bool = False) -> None:
    if not isinstance(text, str):
        raise BanError(f"a ban is a phrase (str), not {text!r}: write Ban('…') or leave it out")
    if not (is_visible(text) or (line_feeds and "\n" in text)):
        raise BanError(f"the ban {text!r} contains no visible character and would match everywhere: leave it out")


def has_word(text: str) -> bool:
    """Return whether a text contains a letter or digit."""
    return _WORD.search(text) is not None


def is_visible(text: str) -> bool:
    return _LETTER.search(text) is not None or bool(fold_phrase(text, folding="signed").strip(BOUNDARY + " "))


def check_switch(name: str, text: str, value: object) -> None:
    if not isinstance(value, bool):
        raise BanError(f"{name} of {text!r} is {value!r}; it is True or False")


def read_language(language: object, *, name: str) -> str:
    """Return the code of a language in `DOTTED`, and "" for any other. name: what a message calls the language."""
    code = _LANGUAGE.fullmatch(language) if isinstance(language, str) else None
    if code is None and language != "":
        raise BanError(f"{name} is {language!r}; it is a code of letters, such as tr")
    return code[1].lower() if code and code[1].lower() in DOTTED else ""


def settle_language(pattern: Pattern, *, ignores_case: bool) -> None:
    """Check a pattern's language, and set it to "" if it has no effect on the pattern."""
    if pattern.language != "":
        language = read_language(pattern.language, name=f"the language of {pattern.text!r}")
        object.__setattr__(pattern, "language", language if ignores_case and _DOTTED.search(pattern.text) else "")


def check_number(name: str, text: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise BanError(f"{name} of {text!r} is {value!r}; it is a whole number, 0 or more")


def has_wildcard(text: str) -> bool:
    r"""Return whether a phrase, as people write it, contains a wildcard.

    >>> has_wildcard("a * of"), has_wildcard(r"f\*ck")
    (True, False)
    """
    return any(len(star[1]) % 2 == 0 for star in _STAR.finditer(text))


def read_stars(text: str, *, wildcard: str = "*") -> str:
    r"""Return a phrase with `*` for each `\*`, and `wildcard` for each `*`; two backslashes before a `*` are one.

    >>> read_stars(r"f\*ck \o/ a*", wildcard="…")
    'f*ck \\o/ a…'
    """
    return _STAR.sub(lambda star: "\\" * (len(star[1]) // 2) + (wildcard, "*")[len(star[1]) % 2], text)


def write_stars(text: str) -> str:
    """Return a text as a phrase without wildcards: the inverse of `read_stars`."""
    return _STAR.sub(r"\1\1\\*", text)

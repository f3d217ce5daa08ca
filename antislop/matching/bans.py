"""Bans: what must not be written.

Text only: nothing here knows of tokens or models, and nothing imports torch.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, NamedTuple, get_args

import regex

from antislop.errors import InputError
from antislop.matching.folding import BOUNDARY, Edges, fold_phrase
from antislop.matching.regexes import MAX_SPAN, Regex
from antislop.matching.scopes import Scope
from antislop.matching.word_sequences import Item, split_words

Kind = Literal["phrase", "wildcard", "words", "regex", "tokens"]


class BanError(InputError):
    """Raised for a ban, a list or a file of bans that can't be used as it is."""


class SlowError(BanError):
    """Raised for a regex that takes too long even for a few characters."""


@dataclass(frozen=True, slots=True, repr=False)
class Ban:
    """Forbid one phrase, or make it rarer.

    weight: how much of the phrase's probability is kept, 0.0 (never written, unless nothing else is left) to 1.0 (no
        ban at all).
    case_sensitive: compare letters as they are; otherwise "Elara" also bans ELARA and elara.
    edges: "word": a letter or digit at the phrase's edge must not touch another one, so "cat" is not in
        "category"; "anywhere": it may.
    kind: what the phrase is; use `Ban.wildcard`, `Ban.words`, `Ban.regex` and `Ban.tokens`, which check more.
    exempt: phrases inside which the ban does not count; they compare without regard to case, as whole words.
    scopes: where the ban counts, all of them at once; everywhere by default.
    from_token: the first generated token, from 0, in which the ban may begin.
    at_most: how many occurrences are free: in any `per_words` words, or in the whole text where that is 0.
    count: how often somebody saw it: a rank for `BanList.top`, which changes nothing about what is written.

    White space of any kind and length compares as one space; quotes, dashes, canonically equivalent characters
    compare as equal. Raises `BanError` for a phrase without a visible character and for values out of range.

    >>> Ban("tapestry", weight=0.25)
    Ban('tapestry', weight=0.25)
    """

    phrase: str
    weight: float = 0.0
    case_sensitive: bool = False
    edges: Edges = "word"
    kind: Kind = field(default="phrase", kw_only=True)
    gap: int = field(default=0, kw_only=True)
    skip_stop_words: bool = field(default=False, kw_only=True)
    max_span: int = field(default=MAX_SPAN, kw_only=True)
    exempt: Sequence[str] = field(default=(), kw_only=True)
    scopes: Sequence[Scope] = field(default=(), kw_only=True)
    from_token: int = field(default=0, kw_only=True)
    at_most: int = field(default=0, kw_only=True)
    per_words: int = field(default=0, kw_only=True)
    count: int | None = field(default=None, kw_only=True, compare=False)

    @classmethod
    def wildcard(cls, phrase: str, *, gap: int = 3, **options: Any) -> Ban:
        """Forbid a phrase in which `*` stands for any letters of a word, and alone for one to `gap` words.

        It is compared word by word within a sentence; punctuation between the words does not matter. options: the
        other arguments of `Ban`, but for edges.

        >>> from antislop import BanList
        >>> [match[1:] for match in BanList([Ban.wildcard("a * of emotion*")]).find("A wild mix of emotions!")]
        [(0, 22)]
        """
        return cls(phrase, kind="wildcard", gap=gap, **options)

    @classmethod
    def words(cls, words: Sequence[str], *, gap: int = 0, skip_stop_words: bool = False, **options: Any) -> Ban:
        """Forbid words in this order within a sentence, with up to `gap` others between any two of them.

        skip_stop_words: articles, pronouns, auxiliaries and the like between them don't count, as in published n-gram
            lists, which leave them out. options: the other arguments of `Ban`, but for edges.

        >>> from antislop import BanList
        >>> ban = Ban.words(["voice", "barely", "whisper"], gap=1)
        >>> [match[1:] for match in BanList([ban]).find("Her voice was barely a whisper.")]
        [(4, 30)]
        """
        if isinstance(words, str) or not all(isinstance(word, str) for word in words):
            raise BanError(f"words were expected, not {words!r}: write Ban.words(['…', '…'])")
        return cls(" ".join(words), kind="words", gap=gap, skip_stop_words=skip_stop_words, **options)

    @classmethod
    def regex(cls, pattern: str, *, max_span: int = MAX_SPAN, flags: int = 0, **options: Any) -> Ban:
        r"""Forbid what a regular expression of the package `regex` matches, in the text as it is, without folding.

        max_span: the most characters that a match, and what it looks ahead to, may cover; longer ones are not seen.
        flags: as in `regex.compile`; they end up in the pattern, as `(?i)`. options: the other arguments of `Ban`.
        Of overlapping matches the first counts. A look-behind that reaches past the beginning of the text sees its
        beginning. Raises `BanError` for a pattern that does not compile or matches the empty text.

        >>> from antislop import BanList
        >>> ban = Ban.regex(r"\bnot just \w+", flags=regex.IGNORECASE)
        >>> [match[1:] for match in BanList([ban]).find("Not just rain, hail.")]
        [(0, 13)]
        """
        letters = "".join(letter for letter, flag in _FLAGS.items() if flags & flag)
        if flags & ~sum(_FLAGS.values()):
            raise BanError(f"flags of {pattern!r} are {flags}; known are {', '.join(_FLAGS)} of the package regex")
        return cls(f"(?{letters}){pattern}" if letters else pattern, kind="regex", max_span=max_span, **options)

    @classmethod
    def tokens(cls, token_ids: Sequence[int], *, weight: float = 0.0, count: int | None = None) -> Ban:
        """Forbid a sequence of token ids, whatever its text: other tokens with the same text stay allowed.

        >>> Ban.tokens([5, 17])
        Ban.tokens([5, 17])
        """
        if isinstance(token_ids, str) or not all(isinstance(i, int) and not isinstance(i, bool) for i in token_ids):
            raise BanError(f"token ids were expected, not {token_ids!r}: write Ban.tokens([5, 17])")
        return cls(" ".join(map(str, token_ids)), weight, kind="tokens", count=count)

    def __post_init__(self) -> None:
        if not isinstance(self.phrase, str):
            raise BanError(f"a ban is a phrase (str), not {self.phrase!r}: write Ban('…') or leave it out")
        if self.kind not in get_args(Kind):
            raise BanError(f"the kind of {self.phrase!r} is {self.kind!r}; it is one of {', '.join(get_args(Kind))}")
        if self.kind not in ("regex", "tokens") and not _is_visible(self.phrase):
            raise BanError(
                f"the ban {self.phrase!r} holds no visible character and would match everywhere: leave it out"
            )
        if isinstance(self.weight, bool) or not isinstance(self.weight, (int, float)) or not 0 <= self.weight <= 1:
            raise BanError(
                f"the weight of {self.phrase!r} is {self.weight!r}; it is the share of probability that is kept, "
                "a number from 0.0 (never) to 1.0 (as often as before)"
            )
        if not isinstance(self.case_sensitive, bool):
            raise BanError(f"case_sensitive of {self.phrase!r} is {self.case_sensitive!r}; it is True or False")
        if self.edges not in get_args(Edges):
            raise BanError(f"the edges of {self.phrase!r} are {self.edges!r}; they are 'word' or 'anywhere'")
        count = 0 if self.count is None else self.count
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise BanError(f"count of {self.phrase!r} is {self.count!r}; it is a whole number, 0 or more")
        if not self.is_plain or self.gap or self.skip_stop_words or self.max_span != MAX_SPAN or self.per_words:
            self._check_options()

    @property
    def is_plain(self) -> bool:
        """Whether it is a phrase that counts everywhere and always."""
        return self.kind == "phrase" and not (self.exempt or self.scopes or self.from_token or self.at_most)

    @property
    def items(self) -> list[Item]:
        """The words of a wildcard or a sequence of words, folded, with the gaps between them."""
        is_wildcard = self.kind == "wildcard"
        return split_words(self.phrase, gap=self.gap, is_wildcard=is_wildcard, case_sensitive=self.case_sensitive)

    @property
    def token_ids(self) -> list[int]:
        """What a ban of token ids forbids."""
        return [int(part) for part in self.phrase.split()] if self.kind == "tokens" else []

    def __repr__(self) -> str:
        first: Any = {"tokens": self.token_ids, "words": self.phrase.split()}.get(self.kind, self.phrase)
        usual = {each.name: each.default for each in fields(self)} | ({"gap": 3} if self.kind == "wildcard" else {})
        options = [(name, getattr(self, name)) for name in usual if name not in ("phrase", "kind")]
        shown = [repr(first), *(f"{name}={value!r}" for name, value in options if value != usual[name])]
        return f"Ban{'' if self.kind == 'phrase' else '.' + self.kind}({', '.join(shown)})"

    def _check_options(self) -> None:
        for name in ("gap", "from_token", "at_most", "per_words"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise BanError(f"{name} of {self.phrase!r} is {value!r}; it is a whole number, 0 or more")
        if not isinstance(self.skip_stop_words, bool):
            raise BanError(f"skip_stop_words of {self.phrase!r} is {self.skip_stop_words!r}; it is True or False")
        if self.per_words and not self.at_most:
            raise BanError(f"per_words of {self.phrase!r} needs at_most: say how many occurrences are free there")
        self._check_rules()
        self._check_kind()

    def _check_rules(self) -> None:
        if isinstance(self.exempt, str) or not all(isinstance(phrase, str) for phrase in self.exempt):
            raise BanError(f"exempt of {self.phrase!r} is {self.exempt!r}; it is phrases: write exempt=['…']")
        for phrase in self.exempt:
            if not _is_visible(phrase):
                raise BanError(f"exempt of {self.phrase!r} holds {phrase!r}, without a visible character: leave it out")
        if isinstance(self.scopes, Scope) or not all(isinstance(scope, Scope) for scope in self.scopes):
            raise BanError(f"scopes of {self.phrase!r} is {self.scopes!r}; write scopes=[Scope('outside', 'quotes')]")
        object.__setattr__(self, "exempt", tuple(self.exempt))  # given as lists they could not be hashed
        object.__setattr__(self, "scopes", tuple(self.scopes))

    def _check_kind(self) -> None:
        """Check what belongs to one kind only."""
        alien = {"gap": ("words", "wildcard"), "skip_stop_words": ("words",), "max_span": ("regex",)}
        for each in fields(self):
            if self.kind not in alien.get(each.name, (self.kind,)) and getattr(self, each.name) != each.default:
                raise BanError(f"{each.name} of {self.phrase!r} means nothing for a {self.kind}: leave it out")
        if self.kind != "phrase" and self.edges != "word":
            raise BanError(f"edges of {self.phrase!r} mean nothing for {self.kind}: leave them out")
        try:
            if self.kind == "regex":
                Regex(self.phrase, max_span=self.max_span)
            elif self.kind in ("words", "wildcard"):
                self.items  # noqa: B018
            elif self.kind == "tokens":
                self._check_tokens()
        except ValueError as error:
            raise BanError(str(error)) from None
        except TimeoutError:
            raise SlowError(
                f"the regex {self.phrase[:80]!r} takes too long for a few characters: simplify it"
            ) from None

    def _check_tokens(self) -> None:
        parts = self.phrase.split()
        if not parts or not all(part.isascii() and part.isdigit() and int(part) <= sys.maxunicode for part in parts):
            raise BanError(
                f"token ids were expected, numbers from 0 on, not {self.phrase!r}: write Ban.tokens([5, 17])"
            )
        if self.exempt or self.scopes or self.at_most or self.case_sensitive:
            raise BanError(f"the tokens {self.phrase} have no text: leave out case_sensitive, exempt, scopes, at_most")


_LETTER = re.compile("[0-9A-Za-z]")  # most phrases need no closer look
_FLAGS = {
    "i": regex.IGNORECASE,
    "m": regex.MULTILINE,
    "s": regex.DOTALL,
    "x": regex.VERBOSE,
    "a": regex.ASCII,
    "f": regex.FULLCASE,
    "V1": regex.V1,
}


def _is_visible(phrase: str) -> bool:
    return _LETTER.search(phrase) is not None or bool(fold_phrase(phrase).strip(BOUNDARY + " "))


class Match(NamedTuple):
    """An occurrence of a ban in a text: `text[start:end]`, in characters."""

    ban: Ban
    start: int
    end: int


def distinct(bans: Iterable[Ban]) -> list[Ban]:
    """Return the bans that differ once folded, in order, each with the smallest weight it came with."""
    kept: dict[Any, Ban] = {}
    for ban in bans:
        key = _compared(ban)
        rival = kept.setdefault(key, ban)
        if ban.weight < rival.weight:
            kept[key] = ban
    return list(kept.values())


def _compared(ban: Ban) -> Any:
    """Return what two bans that forbid the same have in common."""
    if ban.kind != "phrase":
        return replace(ban, weight=0.0)
    symbols = fold_phrase(ban.phrase, case_sensitive=ban.case_sensitive, edges=ban.edges)
    rules = () if ban.is_plain else (ban.exempt, ban.scopes, ban.from_token, ban.at_most, ban.per_words)
    return symbols, ban.case_sensitive, rules

"""Bans: patterns that must not be written, or only rarely, and where; and the table of the kinds of patterns."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypedDict, get_args

from antislop.core.bans.folding import Edges
from antislop.core.bans.patterns.loop import Loop
from antislop.core.bans.patterns.pattern import (
    MAX_SPAN,
    WILDCARD_GAP,
    Pattern,
    Tokens,
    check_number,
    find_options,
    has_wildcard,
    is_visible,
)
from antislop.core.bans.patterns.phrase import Phrase, read_phrase
from antislop.core.bans.patterns.regex import Regex, write_flags
from antislop.core.bans.patterns.repeat import Repeat, RepeatOf
from antislop.core.bans.patterns.words import Wildcard, Words
from antislop.core.bans.scopes import Scope
from antislop.core.bans.units import Opening, Unit
from antislop.errors import BanError, suggest

if TYPE_CHECKING:
    from typing_extensions import Unpack

KINDS: dict[str, type[Pattern]] = {kind.kind: kind for kind in (Phrase, Regex, Wildcard, Words, Tokens, Loop, Repeat)}
"""By name, in the order in which matches that begin at the same character are reported. A new one is added here."""

TRIES = 3

Ending: TypeAlias = Literal["", "stop", "force", "concede"]
"""What follows where a ban has used up its tries; if empty, the sampler decides."""


class CommonOptions(TypedDict, total=False):
    """The arguments of `Ban` that all kinds have."""

    weight: float
    exempt: Sequence[str]
    scopes: Sequence[Scope]
    opening: Opening | Literal[""]
    from_token: int
    at_most: int
    per_words: int
    then: Ending
    tries: int
    force: str
    rewind: Unit | Literal[""]
    count: int | None


class LetterOptions(CommonOptions, total=False):
    """The arguments of `Ban` that kinds have that compare letters."""

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
    line_feeds: bool
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

    opening: Opening | Literal[""]
    rewind: Unit | Literal[""]
    count: int | None


@dataclass(frozen=True, slots=True, repr=False, init=False)
class Ban:
    r"""Forbid one phrase or pattern, or make it rarer.

    pattern: a phrase, in which `*` is a wildcard and `\*` the character, or a pattern such as `Regex`.
    weight: share of the pattern's probability to keep, from 0.0 (never written, unless nothing else is left) to 1.0. A
        coin decides once for each place of a text whether the ban holds there.
    exempt: phrases within which the ban does not apply, compared as whole words of any case.
    scopes: all of these must hold where the ban applies; everywhere by default.
    opening: "word", "sentence" or "paragraph": the ban holds only where it begins in the first of these in a reply, or
        in what the scopes leave of a reply. What comes before the first letter or digit belongs to it.
    from_token: index of the first generated token, from 0, in which the ban may begin.
    at_most: number of free occurrences in any `per_words` words, or in the whole text if that is 0.
    then: what the sampler does at a place to which the ban has led back `tries` times, if the ban is written from there
        once more. "stop": end the text there. "force": go on from there with `force`. "concede": leave the ban in the
        text. Without `then`, the sampler's `max_rewinds` and `on_exhausted` apply.
    tries: rewinds to one place that this ban may cause before `then` follows.
    force: the text to write there with then="force". Without `force`, that is what ends the model's thoughts, by its
        response template; outside of thoughts the text then stops.
    rewind: what is drawn again where the ban was written: the "span" of the ban itself; the "word", "sentence" or
        "paragraph" in which it begins, from its beginning; or all the "text". Without `rewind`, the sampler's applies;
        without that, "word" for a single word, or a part of one, with edges="anywhere", and "span" for all else.
    count: how often the phrase was counted somewhere: a rank for `BanList.top`.
    options: of the pattern. For a phrase, case_sensitive=True compares letters as they are, and edges="anywhere" lets
        letters and digits touch it ("cat" in "category"). Without it, only particles may touch it that Korean, Arabic
        and Hebrew write onto words.

    White space of any kind and length compares as one space, but with line_feeds=True, a line feed is a line feed.
    Quotes, dashes and canonically equivalent characters compare as equal. A phrase without a letter or digit, such as
    "—", compares as it is written. Raises `BanError` for a phrase without a visible character and for values out of
    range.

    >>> Ban("tapestry", weight=0.25)
    Ban('tapestry', weight=0.25)
    """

    pattern: Pattern
    weight: float = 0.0
    exempt: tuple[str, ...] = ()
    scopes: tuple[Scope, ...] = ()
    opening: Opening | Literal[""] = ""
    from_token: int = 0
    at_most: int = 0
    per_words: int = 0
    then: Ending = ""
    tries: int = TRIES
    force: str = ""
    rewind: Unit | Literal[""] = ""
    count: int | None = field(default=None, compare=False)  # a rank, and no part of what is forbidden

    def __init__(
        self,
        pattern: str | Pattern,
        weight: float = 0.0,
        *,
        exempt: Sequence[str] = (),
        scopes: Sequence[Scope] = (),
        from_token: int = 0,
        at_most: int = 0,
        per_words: int = 0,
        then: Ending = "",
        tries: int = TRIES,
        force: str = "",
        **options: Unpack[PhraseOptions],
    ) -> None:
        count, rewind, opening = options.pop("count", None), options.pop("rewind", ""), options.pop("opening", "")
        if not isinstance(pattern, Pattern):
            kind, text = read_phrase(pattern)
            check_options(kind, text, options)
            pattern = kind(text, **options)  # type: ignore[call-arg, misc]  # the fields of the subclass
        elif options:
            check_options(type(pattern), pattern.text, options)
            pattern = replace(pattern, **options)  # type: ignore[type-var]  # its subclasses are dataclasses
        exempt = _check_exempt(pattern.text, exempt) if exempt != () else ()
        if not isinstance(scopes, Iterable) or not all(isinstance(scope, Scope) for scope in scopes):
            raise BanError(f"scopes of {pattern.text!r} is {scopes!r}; write scopes=[Scope('outside', 'quotes')]")
        rules = (exempt, tuple(scopes), opening, from_token, at_most, per_words)
        values = (pattern, weight, *rules, then, tries, force, rewind, count)
        for name, value in zip(_FIELDS, values, strict=True):
            object.__setattr__(self, name, value)  # the class is frozen, and dataclasses write no __init__ with options
        self._check_numbers()
        for name, value, choices in (("rewind", rewind, get_args(Unit)), ("opening", opening, get_args(Opening))):
            if value not in ("", *choices):
                raise BanError(f"{name} of {pattern.text!r} is {value!r}; it is one of {', '.join(map(repr, choices))}")
        if (then, tries, force) != ("", TRIES, ""):
            self._check_ending()
        if not pattern.occurs_in_text and (exempt or scopes or at_most or opening):
            names = "exempt, scopes, opening and at_most"
            raise BanError(f"{pattern.describe()} have no text, which {names} need: leave these out")

    @classmethod
    def wildcard(cls, phrase: str, *, gap: int = WILDCARD_GAP, **options: Unpack[LetterOptions]) -> Ban:
        r"""Forbid a phrase in which `*` stands for any letters of a word, and alone for one to `gap` words.

        options: the other arguments of `Ban`, except edges.

        Words are compared within a sentence; punctuation between them does not matter.

        >>> from antislop import BanList
        >>> [match[1:] for match in BanList([Ban.wildcard("a * of emotion*")]).find("A wild mix of emotions!")]
        [(0, 22)]
        """
        return cls(Wildcard(phrase, gap=gap), **options)

    @classmethod
    def words(
        cls, words: Sequence[str], *, gap: int = 0, skip_stop_words: bool = False, **options: Unpack[LetterOptions]
    ) -> Ban:
        """Forbid words in this order within a sentence, with up to `gap` others between any two of them.

        skip_stop_words: don't count articles, pronouns, auxiliaries and the like: published n-gram lists lack these.
        options: the other arguments of `Ban`, except edges.

        >>> from antislop import BanList
        >>> ban = Ban.words(["voice", "barely", "whisper"], gap=1)
        >>> [match[1:] for match in BanList([ban]).find("Her voice was barely a whisper.")]
        [(4, 30)]
        """
        if not _are_strings(words):
            raise BanError(f"words were expected, not {words!r}: write Ban.words(['…', '…'])")
        return cls(Words(" ".join(words), gap=gap, skip_stop_words=skip_stop_words), **options)

    @classmethod
    def regex(cls, pattern: str, *, max_span: int = MAX_SPAN, flags: int = 0, **options: Unpack[LetterOptions]) -> Ban:
        r"""Forbid the matches of a regular expression of the package `regex`, in the text as it is, without folding.

        max_span: characters that a match, and what it looks ahead to, may cover; longer ones are not seen.
        flags: as in `regex.compile`; they become part of the pattern, as `(?i)`.
        options: the other arguments of `Ban`.

        Of overlapping matches the first counts. Raises `BanError` for a pattern that does not compile or matches the
        empty text.

        >>> import regex
        >>> from antislop import BanList
        >>> ban = Ban.regex(r"\bnot just \w+", flags=regex.IGNORECASE)
        >>> [match[1:] for match in BanList([ban]).find("Not just rain, hail.")]
        [(0, 13)]
        """
        return cls(Regex(write_flags(pattern, flags) if flags else pattern, max_span=max_span), **options)

    @classmethod
    def loop(
        cls,
        copies: int = 3,
        min_length: int = 40,
        max_passage: int = 1000,
        similarity: int = 80,
        **options: Unpack[CommonOptions],
    ) -> Ban:
        """Forbid a passage that is written several times in a row, whatever it says, compared under folding.

        copies: number in a row that is a loop.
        min_length: characters of all copies together, so that "ha ha ha" is not a loop.
        max_passage: characters that one copy may have.
        similarity: percent of the words of a copy that equal those of the copy before; 100 for equal copies only.
        options: the other arguments of `Ban`.

        The occurrence begins with the first sentence, line or word of the second copy, so that the passage stays once.
        Raises `BanError` for numbers out of range.

        >>> from antislop import BanList
        >>> text = "Tom ran home. He was glad. He was glad. He was glad. He slept."
        >>> [match[1:] for match in BanList([Ban.loop(min_length=30)]).find(text)]
        [(26, 51)]
        """
        return cls(Loop("", copies, min_length, max_passage, similarity), **options)

    @classmethod
    def repeat(cls, words: int = 8, of: RepeatOf = "text", **options: Unpack[CommonOptions]) -> Ban:
        """Forbid to write words again, in the same order, compared under folding, whatever is between them.

        words: number in a row that is a repeat, from 2 on.
        of: where they stand already: "text" is what was written so far, "prompt" all before it, and "both" either.
        options: the other arguments of `Ban`; exempt names, for example.

        The occurrence begins with the first of the words. `BanList.find` knows no prompt. Raises `BanError` for values
        out of range.

        >>> from antislop import BanList
        >>> text = "It was a cold and dark night. So it was a cold, and dark, day."
        >>> [match[1:] for match in BanList([Ban.repeat(words=5)]).find(text)]
        [(33, 51)]
        """
        return cls(Repeat("", words, of), **options)

    @classmethod
    def tokens(cls, token_ids: Sequence[int], **options: Unpack[CommonOptions]) -> Ban:
        """Forbid a sequence of token ids, whatever its text: other tokens with the same text stay allowed.

        options: the other arguments of `Ban`, except those that need a text: exempt, scopes, opening and at_most.

        >>> Ban.tokens([5, 17])
        Ban.tokens([5, 17])
        """
        if not isinstance(token_ids, Iterable) or not all(
            isinstance(i, int) and not isinstance(i, bool) for i in token_ids
        ):
            raise BanError(f"token ids were expected, not {token_ids!r}: write Ban.tokens([5, 17])")
        return cls(Tokens(" ".join(map(str, token_ids))), **options)

    if TYPE_CHECKING:  # without a method of its own here, mypy takes `"a phrase" in bans` for a mistake

        def __eq__(self, other: object) -> bool: ...

    @property
    def text(self) -> str:
        """The text of the pattern."""
        return self.pattern.text

    @property
    def unit(self) -> Unit:
        """What is drawn again where the ban was written, if neither it nor the sampler says that."""
        return self.rewind or ("word" if self.pattern.is_part_of_words else "span")

    @property
    def is_unconditional(self) -> bool:
        """Whether it applies everywhere."""
        return not (self.exempt or self.scopes or self.opening or self.from_token or self.at_most)

    @property
    def key(self) -> Hashable:
        """A value that two bans share if they forbid the same, whatever their weights."""
        if self.is_unconditional:
            return self.pattern.key
        return self.pattern.key, self.exempt, self.scopes, self.opening, self.from_token, self.at_most, self.per_words

    def __repr__(self) -> str:
        name = self.pattern.constructor
        shown = [self.pattern.arguments if name else repr(self.pattern)]
        shown += [f"{name}={value!r}" for name, value in list_options(self, with_pattern=bool(name))]
        return f"{name or 'Ban'}({', '.join(filter(None, shown))})"

    def _check_numbers(self) -> None:
        if isinstance(self.weight, bool) or not isinstance(self.weight, (int, float)) or not 0 <= self.weight <= 1:
            raise BanError(
                f"the weight of {self.text!r} is {self.weight!r}; it is the share of probability that is kept, "
                "a number from 0.0 (never) to 1.0 (as often as before)"
            )
        check_number("count", self.text, 0 if self.count is None else self.count)
        for name in ("from_token", "at_most", "per_words", "tries"):
            check_number(name, self.text, getattr(self, name))
        if self.per_words and not self.at_most:
            raise BanError(f"per_words of {self.text!r} needs at_most: say how many occurrences are free there")

    def _check_ending(self) -> None:
        if self.then not in get_args(Ending):
            endings = ", ".join(map(repr, get_args(Ending)[1:]))
            raise BanError(f"then of {self.text!r} is {self.then!r}; it is one of {endings}")
        if not isinstance(self.force, str):
            raise BanError(f"force of {self.text!r} is {self.force!r}; the text to write there was expected")
        if self.tries != TRIES and not self.then:
            raise BanError(f"tries of {self.text!r} needs then: say what follows, then='stop' for instance")
        if self.force and self.then != "force":
            raise BanError(f"force of {self.text!r} needs then='force': pass that, or leave it out")


BAN_OPTIONS: dict[str, Any] = {option.name: option.default for option in fields(Ban)[1:]}
"""Options that all kinds have, with their defaults."""
_FIELDS = ("pattern", *BAN_OPTIONS)


def check_options(kind: type[Pattern], text: object, options: Iterable[str]) -> None:
    """Refuse an option that a kind of patterns does not have. text: of the pattern that is to have them."""
    for name in options:
        names = [option.name for option in find_options(kind)]
        if name not in names:
            advice = f"it has {', '.join(names)}" if names else "leave it out"
            advice = suggest(name, [*names, *BAN_OPTIONS], advice=advice)
            star = r"; write \* for the character" if has_wildcard(str(text)) else ""
            raise BanError(f"the {kind.kind} {text!r} has no option {name}: {advice}{star}")


def list_options(ban: Ban, *, with_pattern: bool = True) -> list[tuple[str, Any]]:
    """Return (name, value) of each option that is not its default."""
    weight, *rules = fields(ban)[1:]
    of_pattern = find_options(type(ban.pattern)) if with_pattern else ()
    owned = [(ban, weight), *((ban.pattern, option) for option in of_pattern), *((ban, rule) for rule in rules)]
    values = [(option, getattr(owner, option.name)) for owner, option in owned]
    return [(option.name, value) for option, value in values if value != option.default]


def _are_strings(values: object) -> bool:
    """Return whether values are several strings, and not one."""
    return isinstance(values, Iterable) and not isinstance(values, str) and all(isinstance(one, str) for one in values)


def _check_exempt(phrase: str, exempt: Sequence[str]) -> tuple[str, ...]:
    if not _are_strings(exempt):
        raise BanError(f"exempt of {phrase!r} is {exempt!r}; a list of phrases is expected: write exempt=['…']")
    for other in exempt:
        if not is_visible(other):
            raise BanError(f"exempt of {phrase!r} contains {other!r}, without a visible character: leave it out")
    return tuple(exempt)


class Match(NamedTuple):
    """An occurrence of a ban in a text: `text[start:end]`, in characters."""

    ban: Ban
    start: int
    end: int


def drop_overlaps(matches: Iterable[Match], *, begin: int = 0) -> list[Match]:
    """Return the matches, in order, without those that overlap an earlier or, from the same start, a longer one.

    begin: where the last match ends that an earlier call kept.
    """
    kept = []
    for match in sorted(matches, key=lambda match: (match.start, -match.end)):
        if match.start >= begin:
            kept.append(match)
            begin = match.end
    return kept


def distinct(bans: Iterable[Ban]) -> list[Ban]:
    """Return one ban for each key, with the smallest weight, and an ending if one of these has one, in order."""
    kept: dict[Hashable, Ban] = {}
    for ban in bans:
        key = ban.key
        rival = kept.setdefault(key, ban)
        if (ban.weight, not ban.then) < (rival.weight, not rival.then):
            kept[key] = ban
    return list(kept.values())

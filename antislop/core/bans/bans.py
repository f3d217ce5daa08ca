"""`Ban`: a pattern that a model must not write, or only rarely, and where; and `KINDS`, all kinds of patterns."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypedDict, get_args

from antislop.core.bans.folding import Edges
from antislop.core.bans.patterns import pattern as shared
from antislop.core.bans.patterns.loop import Loop
from antislop.core.bans.patterns.pattern import MAX_SPAN, WILDCARD_GAP, Pattern, Tokens
from antislop.core.bans.patterns.phrase import Phrase, read_phrase
from antislop.core.bans.patterns.regex import Regex, write_flags
from antislop.core.bans.patterns.repeat import Repeat, RepeatOf
from antislop.core.bans.patterns.words import Wildcard, Words
from antislop.core.bans.refusals import sentence
from antislop.core.bans.scopes import Scope
from antislop.core.bans.units import Opening, Unit
from antislop.errors import BanError, suggest

if TYPE_CHECKING:
    from typing_extensions import Unpack

KINDS: dict[str, type[Pattern]] = {kind.kind: kind for kind in (Phrase, Regex, Wildcard, Words, Tokens, Loop, Repeat)}
"""The kinds of patterns by name; matches with the same start are reported in this order. Add a new kind here."""

TRIES = 3

Ending: TypeAlias = Literal["", "stop", "force", "concede"]
"""What the sampler does where a ban has used up its `tries` (see `Ban`); "" leaves that to the sampler's settings."""


class CommonOptions(TypedDict, total=False):
    """The arguments of `Ban` for patterns of all kinds."""

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
    """The arguments of `Ban` for patterns of the kinds that compare letters. A regex has no language."""

    case_sensitive: bool
    language: str


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
    language: str
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
    """The `options` of `Ban`: those of patterns, and three of the ban itself."""

    opening: Opening | Literal[""]
    rewind: Unit | Literal[""]
    count: int | None


@dataclass(frozen=True, slots=True, repr=False, init=False)
class Ban:
    r"""Forbid one phrase or pattern, or make it rarer.

    pattern: a phrase, in which `*` is a wildcard and `\*` the character, or a pattern such as `Regex`.
    weight: share of the pattern's probability to keep, from 0.0 (never written, unless nothing else is left) to 1.0. A
        coin decides once for each place of a text whether the ban holds there.
    exempt: phrases within which the ban does not apply, compared as whole words, ignoring case.
    scopes: the ban applies only where all of these hold; by default everywhere.
    opening: "word", "sentence" or "paragraph": the ban applies only if it begins in the first word, sentence or
        paragraph of a reply (or of its parts in the scopes). Signs before the first letter or digit are part of that.
    from_token: the ban applies only if it begins in this generated token, counted from 0, or a later one.
    at_most: number of allowed occurrences in any `per_words` words, or in the whole text if `per_words` is 0.
    then: what the sampler does if this ban has caused `tries` rewinds to one place and is written from there again.
        "stop": end the text at that place. "force": continue there with the text `force`. "concede": leave the ban in
        the text. Without `then`, the sampler's `max_rewinds` and `on_exhausted` apply.
    tries: number of rewinds to one place that this ban may cause before `then` applies.
    force: the text to continue with if then="force". Without `force`, it is the text that ends the model's thoughts,
        by its response template; outside of thoughts, the reply ends.
    rewind: how much is drawn again: the "span" of the ban itself; the whole "word", "sentence" or "paragraph" in which
        the ban begins; or the whole "text". Without `rewind`, the sampler's `rewind` applies; without that, "word" for
        a word or a part of a word with edges="anywhere", and "span" for all other patterns.
    count: how often the phrase was counted in some texts. `BanList.top` ranks by it; matching ignores it.
    options: options of the pattern. For a phrase, case_sensitive=True compares the case of letters, and
        edges="anywhere" finds the phrase within words, too ("cat" in "category"). By default, a phrase must not touch
        other letters or digits, except particles that Korean, Arabic and Hebrew attach to words. language="tr" or "az"
        compares i and ı as Turkish and Azerbaijani do.

    White space of any kind and length compares as one space; with line_feeds=True, a line feed equals only itself.
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
    count: int | None = field(default=None, compare=False)  # bans that differ in it forbid the same

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
        r"""Forbid a phrase in which a `*` in a word stands for any letters, and a lone `*` for one to `gap` words.

        options: the other arguments of `Ban`, except edges.

        An occurrence lies within one sentence; punctuation between its words does not matter.

        >>> from antislop import BanList
        >>> [match[1:] for match in BanList([Ban.wildcard("a * of emotion*")]).find("A wild mix of emotions!")]
        [(0, 22)]
        """
        return cls(Wildcard(phrase, gap=gap), **options)

    @classmethod
    def words(
        cls, words: Sequence[str], *, gap: int = 0, skip_stop_words: bool = False, **options: Unpack[LetterOptions]
    ) -> Ban:
        """Forbid words in this order within a sentence, with up to `gap` other words between neighbors.

        skip_stop_words: don't count articles, pronouns, auxiliaries and the like, which published n-gram lists lack.
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
        r"""Forbid the matches of a regular expression of the package `regex`. It reads the text as it is, unfolded.

        max_span: maximum characters of a match, with all that it looks ahead to; longer matches are not found.
        flags: as in `regex.compile`; they become part of the pattern: `regex.IGNORECASE` is `(?i)`.
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
        """Forbid to write any passage several times in a row. Copies are compared without case, as phrases are.

        copies: how many copies in a row are a loop.
        min_length: minimum characters of all copies together, so that "ha ha ha" is not a loop.
        max_passage: maximum characters of one copy.
        similarity: percent of the words of a copy that must equal those of the copy before; 100 for exact copies only.
        options: the other arguments of `Ban`.

        An occurrence begins with the first sentence, line or word of the second copy, so that the first copy stays.
        Raises `BanError` for numbers out of range.

        >>> from antislop import BanList
        >>> text = "Tom ran home. He was glad. He was glad. He was glad. He slept."
        >>> [match[1:] for match in BanList([Ban.loop(min_length=30)]).find(text)]
        [(26, 51)]
        """
        return cls(Loop("", copies, min_length, max_passage, similarity), **options)

    @classmethod
    def repeat(cls, words: int = 8, of: RepeatOf = "text", **options: Unpack[CommonOptions]) -> Ban:
        """Forbid to write a sequence of words that was written before, whatever punctuation is between them.

        words: how many words in a row are a repeat; 2 or more.
        of: where the words were before: in the "text" generated so far, in the "prompt" before it, or in "both".
        options: the other arguments of `Ban`; exempt names, for example.

        An occurrence begins with the first repeated word. In `BanList.find`, there is no prompt. Raises `BanError` for
        values out of range.

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
        """How much is drawn again if the sampler has no `rewind`: the ban's own, or the default for its pattern."""
        return self.rewind or ("word" if self.pattern.is_part_of_words else "span")

    @property
    def is_unconditional(self) -> bool:
        """Whether the ban applies to every occurrence: it has no exempt phrases, scopes or other conditions."""
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
            raise BanError(sentence("weight", text=self.text, weight=self.weight))
        shared.check_number("count", self.text, 0 if self.count is None else self.count)
        for name in ("from_token", "at_most", "per_words", "tries"):
            shared.check_number(name, self.text, getattr(self, name))
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
"""The options that bans of all kinds have, with their defaults."""
_FIELDS = ("pattern", *BAN_OPTIONS)


def check_options(kind: type[Pattern], text: object, options: Iterable[str]) -> None:
    """Raise `BanError` for an option that a kind of patterns lacks. text: the text of the pattern, for the message."""
    for name in options:
        names = [option.name for option in shared.find_options(kind)]
        if name not in names:
            advice = f"it has {', '.join(names)}" if names else "leave it out"
            advice = suggest(name, [*names, *BAN_OPTIONS], advice=advice)
            star = r"; write \* for the character" if shared.has_wildcard(str(text)) else ""
            raise BanError(f"the {kind.kind} {text!r} has no option {name}: {advice}{star}")


def list_options(ban: Ban, *, with_pattern: bool = True) -> list[tuple[str, Any]]:
    """Return (name, value) of each option of a ban whose value is not the default."""
    weight, *rules = fields(ban)[1:]
    of_pattern = shared.find_options(type(ban.pattern)) if with_pattern else ()
    owned = [(ban, weight), *((ban.pattern, option) for option in of_pattern), *((ban, rule) for rule in rules)]
    values = [(option, getattr(owner, option.name)) for owner, option in owned]
    return [(option.name, value) for option, value in values if value != option.default]


def _are_strings(values: object) -> bool:
    """Return whether a value is an iterable of strings, and not a single string."""
    return isinstance(values, Iterable) and not isinstance(values, str) and all(isinstance(one, str) for one in values)


def _check_exempt(phrase: str, exempt: Sequence[str]) -> tuple[str, ...]:
    if not _are_strings(exempt):
        raise BanError(f"exempt of {phrase!r} is {exempt!r}; a list of phrases is expected: write exempt=['…']")
    for other in exempt:
        if not shared.is_visible(other):
            raise BanError(f"exempt of {phrase!r} contains {other!r}, without a visible character: leave it out")
    return tuple(exempt)


class Match(NamedTuple):
    """An occurrence of a ban in a text: `text[start:end]`, in characters."""

    ban: Ban
    start: int
    end: int


def drop_overlaps(matches: Iterable[Match], *, begin: int = 0) -> list[Match]:
    """Return the matches, in order, without those that overlap an earlier match, or a longer one with the same start.

    begin: the end of the last match that an earlier call returned.
    """
    kept = []
    for match in sorted(matches, key=lambda match: (match.start, -match.end)):
        if match.start >= begin:
            kept.append(match)
            begin = match.end
    return kept


def distinct(bans: Iterable[Ban]) -> list[Ban]:
    """Return one ban for each `Ban.key`, in order: the ban with the smallest weight; of equal weights, with `then`."""
    kept: dict[Hashable, Ban] = {}
    for ban in bans:
        key = ban.key
        rival = kept.setdefault(key, ban)
        if (ban.weight, not ban.then) < (rival.weight, not rival.then):
            kept[key] = ban
    return list(kept.values())

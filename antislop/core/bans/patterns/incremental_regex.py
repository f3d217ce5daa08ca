r"""Search a text for a regex while the text is still being written.

A match is reported as soon as no later character can change it; until then, the search knows where it may begin.
Both come from partial matches of the package `regex`: with `(*FAIL)` at its end, a pattern tries every way to match,
and matches partially if one of these ways reaches the end of the text. `\b`, `$` and the like get a look-ahead.

The memory for a regex is estimated before it is compiled: the package writes repetitions out (`X{2,}` as X, X and a
loop over X), and nested repetitions multiply: 26 nested `+` around a letter would take 14 GB.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import comb, prod
from time import perf_counter, thread_time
from typing import NamedTuple

import regex

from antislop.core.bans.patterns.pattern import MAX_SPAN
from antislop.core.bans.refusals import sentence
from antislop.errors import BanError

TIME_LIMIT = 0.25
"""Seconds of CPU time that a regex may take in all, beyond the time that its searches are credited with."""
SHARED_LIMIT = 1.0
"""Seconds of CPU time that all regexes of a list together may take, beyond the time credited to their searches."""
SHORT_LIMIT = 0.0025
"""Seconds that replace `TIME_LIMIT` for each regex once its list has used up `SHARED_LIMIT`."""
SEARCH_EARNS = 1e-5
"""Seconds credited for each search; with `CHARACTER_EARNS`, about ten times what a fast search takes."""
CHARACTER_EARNS = 5e-7
"""Seconds credited for each character that a search reads."""
FEW_PATHS = 30_000
"""A regex with up to so many paths through `LETTERS` characters is searched for faster than a clock is read."""
MAX_SIZE = 20_000
"""Maximum characters of a regex with its repetitions written out, as it is compiled."""
LARGE_SIZE = 2_000
"""A regex of more characters (see `MAX_SIZE`) joins no group: its copy in the group would take 100 bytes for each."""
GROUP_SIZE = 8
"""Number of regexes that are tried together: in most pieces none of them matches."""

MANY = 1 << 40
"""Stands for any larger number."""
LETTERS = 12
"""Length of the texts for which `Size.paths` counts the paths through a regex."""

COMMENT = r"\(\?#(?:\\.|[^)\\])*+(?:\)|\Z)"
SET = r"\[\^?\]?(?:\\.|\[:\w+:\]|[^\]\\])*+(?:\]|\Z)"
_REPEAT = r"(?:[*+?]|\{(?P<lower>[0-9]*)(?P<upper>,[0-9]*)?\})[?+]?"
_PART = regex.compile(rf"(?P<comment>{COMMENT})|(?P<set>{SET})|(?P<open>\([?*]?)|(?P<repeat>{_REPEAT})|\\.|.", regex.S)
_INNER_BRACKET = regex.compile(r"(?<!\\)(?:\\\\)*\[")
_VERBOSE = regex.compile(r"\(\?\w*x")
_SPACE = rf"(?:\s|#[^\n]*\n|{COMMENT})*"
_REPEATED_GROUP = regex.compile(rf"\){_SPACE}\+")
_COUNTED = regex.compile(rf"\{{({_SPACE}(?:[0-9]{_SPACE})*)")
_VERBOSE_COMMENT = regex.compile(r"#[^\n]*\n")
_ATOM = regex.compile(rf"\\.|{COMMENT}|{SET}|.", regex.S)
_VERBOSE_ATOM = regex.compile(rf"\\.|{COMMENT}|{SET}|#[^\n]*|.", regex.S)
_ANCHORS = {"^", r"\A"}
_EDGES = {r"\b", r"\B", r"\m", r"\M", r"\Z", r"\z"}
_BEHIND = regex.compile(r"\(\?<[=!]")
_REFERENCES = regex.compile(r"\\[1-9]|\\g<|\(\?(?:P[=>]|&|\(|[+-]?\d)")
_REFUSED = {
    r"\(\?(?:R|0)\)": "calls itself as a whole: put it into a group and call that",
    r"\\[KG]": r"contains \K or \G, which depend on where a search began: use a look-behind",
}
_PROBES = ("", "a", " ", "a b", ".\n", "0")


class RegexTimeout(BanError):
    """Raised for a regex that takes too long even on a few characters."""


class Span(NamedTuple):
    """A match, `text[start:end]`."""

    start: int
    end: int


@dataclass
class SharedTime:
    """Seconds that all searches of one list took, less the seconds credited to them (see `SEARCH_EARNS`)."""

    spent: float = 0.0

    @property
    def limit(self) -> float:
        return TIME_LIMIT if self.spent < SHARED_LIMIT else SHORT_LIMIT


class Allowance:
    """The time that one regex may still take, so that no regex can block the program.

    A search in linear time is credited with more time than it takes. Any other regex uses up `TIME_LIMIT` seconds
    sooner or later, and then its search raises `TimeoutError`.
    """

    def __init__(self, shared: SharedTime | None = None) -> None:
        self._shared = shared or SharedTime()
        self._spent = 0.0
        self._clock: Callable[[], float] = perf_counter  # the cheapest clock, but it counts other processes, too

    def search(
        self, pattern: regex.Pattern[str], text: str, start: int, end: int, *, partial: bool = True, brief: int = -1
    ) -> regex.Match[str] | None:
        """Search text[start:end]; raise `TimeoutError` if no time is left. Up to `brief` characters are not timed."""
        if end - start <= brief:
            return pattern.search(text, start, end, partial=partial)
        while (left := self._shared.limit - self._spent) > 0:
            began = self._clock()
            try:
                match = pattern.search(text, start, end, partial=partial, timeout=left)
            except TimeoutError:
                self._spend(self._clock() - began)
                continue
            earned = SEARCH_EARNS + (end - start) * CHARACTER_EARNS
            self._spend(self._clock() - began - earned)
            return match
        raise TimeoutError

    def _spend(self, seconds: float) -> None:
        self._spent = max(0.0, self._spent + seconds)
        self._shared.spent = max(0.0, self._shared.spent + seconds)  # a server's list is searched for days
        if self._spent >= self._shared.limit and self._clock is perf_counter:
            self._clock, self._spent = thread_time, 0.0  # once more: another process may have had the processor


class IncrementalRegex:
    r"""A compiled regex that reports only decided matches: those that no later character can change.

    max_span: maximum characters of a match, with all that it looks ahead to; longer matches are not found.

    >>> cats = IncrementalRegex(r"\bcats?\b")
    >>> cats.advance("a cat", 0, 5)
    (None, 2)
    >>> cats.advance("a cat.", 2, 6)
    (Span(start=2, end=5), 5)
    """

    def __init__(self, pattern: str, *, max_span: int = MAX_SPAN) -> None:
        if isinstance(max_span, bool) or not isinstance(max_span, int) or max_span < 1:
            raise BanError(f"max_span of {pattern!r} is {max_span!r}; it counts characters, 1 or more")
        if len(pattern) > MAX_SIZE or (size := measure(pattern)).characters > MAX_SIZE:
            raise BanError(sentence("large regex", start=pattern[:80], most=MAX_SIZE))
        self.pattern = pattern
        self.max_span = max_span
        self.original = _compile(pattern)
        _check(self.original, pattern)
        end = "\n" if self.original.flags & regex.VERBOSE else ""  # or a comment would swallow a bracket after it
        self.source = "".join(map(_reach, _ATOM.findall(pattern))) + end
        self.decided = self.original if self.source == pattern else _compile(self.source)
        self.is_large = size.characters > LARGE_SIZE
        self._open = _compile(f"(?:{self.source})(*FAIL)")  # tries every continuation, and matches only partially
        self.looks_behind = bool(_BEHIND.search(pattern))
        is_tame = size.paths <= FEW_PATHS and not self.looks_behind and not _REFERENCES.search(pattern)
        self.brief = LETTERS if is_tame else 0  # texts of up to so many characters are searched without a time limit

    def advance(self, text: str, start: int, end: int, allowance: Allowance | None = None) -> tuple[Span | None, int]:
        """Return the first decided match in text[start:end], and the index from which to search next.

        Without a match, this index is where an undecided match may begin, or `end`. Raises `TimeoutError`.
        """
        allowance = allowance or Allowance()
        while True:
            limit = min(start + self.max_span, end)
            result = allowance.search(self.decided, text, start, limit, brief=self.brief)
            if result is None:
                undecided, match = limit, None
            elif result.partial:
                undecided, match = result.start(), None
            else:  # this match counts only if no earlier start can still become a match
                first = allowance.search(self._open, text, start, limit, brief=self.brief)
                undecided, match = limit if first is None else first.start(), Span(*result.span())
            is_full = limit == start + self.max_span
            if match and (match.start < undecided or (is_full and match.start == start)):
                if match.end > match.start:
                    return match, match.end
                start = match.start + 1  # an empty match does not count
            elif is_full and undecided == start:
                start += 1  # a match from here would be longer than `max_span`
            elif limit == end:
                return None, undecided
            else:
                start = undecided

    def finish(self, text: str, start: int, allowance: Allowance | None = None) -> list[Span]:
        """Return the matches in text[start:], which no more text follows. Raises `TimeoutError`."""
        allowance = allowance or Allowance()
        matches = []
        while start < len(text):
            match, start = self.advance(text, start, len(text), allowance)
            if match is None:
                final_match = allowance.search(self.original, text, start, len(text), partial=False)
                if final_match is None:
                    break
                match = Span(*final_match.span())
                start = max(match.end, match.start + 1)
            if match.end > match.start:
                matches.append(match)
        return matches


class RegexGroup(NamedTuple):
    """Numbered regexes that are tried together. joined: a regex that matches wherever one of these does."""

    numbers: list[int]
    joined: regex.Pattern[str]
    max_span: int
    brief: int

    def may_match(self, text: str, begun: int, allowance: Allowance) -> bool:
        end = len(text)
        if end - begun > self.max_span:  # characters beyond the span can change the result
            return True
        try:
            match = allowance.search(self.joined, text, begun, end, brief=self.brief)
        except TimeoutError:
            return True  # the separate searches then show which regex times out
        return match is not None and match.start() < end


def join(regexes: Mapping[int, IncrementalRegex]) -> list[RegexGroup]:
    """Return groups of up to `GROUP_SIZE` regexes with the same flags; a large regex is a group of its own."""
    by_flags: dict[tuple[int, int], list[int]] = {}
    for number, member in regexes.items():
        alone = number if member.is_large or _REFERENCES.search(member.pattern) else -1
        by_flags.setdefault((member.original.flags, alone), []).append(number)
    groups = []
    for same in by_flags.values():
        for numbers in (same[i : i + GROUP_SIZE] for i in range(0, len(same), GROUP_SIZE)):
            members = [regexes[number] for number in numbers]
            sources = "|".join(f"(?:{member.source})" for member in members)
            joined = members[0].decided if len(members) == 1 else _compile(sources)
            spans, briefs = [member.max_span for member in members], [member.brief for member in members]
            groups.append(RegexGroup(numbers, joined, min(spans), min(briefs)))
    return groups


def is_anchored(pattern: str) -> bool:
    r"""Return whether a regex has an anchor for the beginning of the text, `^` or `\A`.

    >>> is_anchored(r"\s*\ASure"), is_anchored(r"\^[^a]")
    (True, False)
    """
    atoms = (_VERBOSE_ATOM if _VERBOSE.search(pattern) else _ATOM).findall(pattern)
    return not _ANCHORS.isdisjoint(atoms)


def _compile(pattern: str) -> regex.Pattern[str]:
    try:
        return regex.compile(pattern, cache_pattern=False)  # regex keeps 500, each up to 2 MB here, for ever
    except (RecursionError, OverflowError) as error:
        kind = type(error).__name__
        raise BanError(f"the regex {pattern[:80]!r} is too complicated ({kind}): simplify it") from error
    except regex.error as error:
        raise BanError(f"the regex {pattern!r} does not compile ({error}): correct it") from error


def _check(compiled: regex.Pattern[str], pattern: str) -> None:
    if compiled.flags & (regex.REVERSE | regex.WORD):
        raise BanError(sentence("flags of a regex", text=pattern))
    for construct, reason in _REFUSED.items():
        if regex.search(construct, pattern):
            raise BanError(f"the regex {pattern!r} {reason}")
    allowance = Allowance()
    for probe in _PROBES:
        start = 0
        while match := allowance.search(compiled, probe, start, len(probe), partial=False):
            if match.start() == (start := match.end()):
                raise BanError(sentence("empty match", text=pattern))


def _reach(atom: str) -> str:
    """Return an atom of a regex, with a look-ahead for the next character if the atom depends on that character."""
    if atom == "$":  # before a line feed, `$` depends on the character after the line feed
        return "(?=(?s:..))$"
    return f"(?:(?=(?s:.)){atom})" if atom in _EDGES else atom


# -- how large a regex becomes ----------------------------------------------------------------------------------------


class Size(NamedTuple):
    """The size of a compiled regex.

    characters: its length with repetitions written out; an upper limit if it is verbose or has brackets within a set.
    paths: upper limit of the ways in which it can be tried on `LETTERS` characters of a text; `MANY` if unknown.
    """

    characters: int
    paths: int


class _Part(NamedTuple):
    """A part of a regex. choices: number of ways through the part. loops: number of its repeated single characters."""

    characters: int = 0
    choices: int = 1
    loops: int = 0
    is_group: bool = False


class _Level:
    """A group that is not closed yet. Its latest part is not yet added up, because a repetition sign may follow."""

    def __init__(self) -> None:
        self.characters, self.choices, self.loops, self.other_choices = 0, 1, 0, 0
        self.part = _Part()

    def add(self, part: _Part) -> None:
        self.characters = min(MANY, self.characters + self.part.characters)
        self.choices = min(MANY, self.choices * self.part.choices)
        self.loops = min(MANY, self.loops + self.part.loops)
        self.part = part

    def repeat(self, repeat: regex.Match[str]) -> None:
        sign, up_to = repeat[0][0], repeat["upper"]
        lower = int(sign == "+") if sign != "{" else _to_int(repeat["lower"])
        upper = {"*": None, "+": None, "?": 1}.get(sign, lower)
        if up_to is not None:
            upper = _to_int(up_to[1:]) if up_to[1:] else None
        characters, choices, loops, is_group = self.part
        if lower and (lower, upper) != (1, 1):
            characters = min(MANY, characters * (lower + 1))
        if not is_group and upper != 1:
            loops = 1
        elif upper is None or upper > LETTERS:
            choices = MANY
        else:
            choices, loops = min(MANY, (choices + 1) ** upper), loops * upper
        self.part = _Part(characters, choices, loops, is_group)

    def branch(self) -> None:
        self.add(_Part(1))
        self.other_choices, self.choices = min(MANY, self.other_choices + self.choices), 1

    def close(self) -> _Part:
        self.add(_Part())
        return _Part(self.characters + 2, min(MANY, self.other_choices + self.choices), self.loops, is_group=True)


def measure(pattern: str) -> Size:
    """Return how large a regex becomes when it is compiled.

    >>> measure("ab+"), measure("(?:ab+){2}").characters
    (Size(characters=3, paths=13), 18)
    """
    sets = (part["set"] for part in _PART.finditer(pattern))
    if _VERBOSE.search(pattern) or any(part and _INNER_BRACKET.search(part, 1) for part in sets):
        # An upper limit of the size: the length as if all repetitions were nested.
        braces = (_VERBOSE_COMMENT.sub("", count) for count in _COUNTED.findall(pattern))
        counts = [_to_int("".join(filter(str.isdecimal, count))) for count in braces]
        factors = [*(count + 1 for count in counts), *(2 for _ in _REPEATED_GROUP.finditer(pattern))]
        length = len(pattern) * prod(factors[:1000]) * (1 if len(factors) <= 1000 else MANY)
        return Size(min(MANY, length), MANY)
    levels = [_Level()]
    for part in _PART.finditer(pattern):
        if part["comment"]:
            continue
        if part["open"]:
            levels.append(_Level())
        elif part["repeat"]:
            levels[-1].repeat(part)
        elif part[0] == ")" and len(levels) > 1:
            group = levels.pop().close()
            levels[-1].add(group)
        elif part[0] == "|":
            levels[-1].branch()
        else:
            levels[-1].add(_Part(len(part[0])))
    while len(levels) > 1:  # groups without an end: the regex does not compile
        levels[-2].add(levels.pop().close())
    total = levels[0].close()
    ways = comb(LETTERS + min(LETTERS, total.loops), LETTERS)  # to distribute the characters over the loops
    return Size(total.characters - 2, min(MANY, total.choices * ways) if total.loops <= LETTERS else MANY)


def _to_int(digits: str) -> int:
    return int(digits[:12] or 0)

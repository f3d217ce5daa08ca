r"""Search a text for a regex while the text is still being written.

A match is reported when nothing that follows can change it any more, and where a match may begin that is not decided
yet, that is known, too. What the package `regex` calls a partial match tells: a pattern that must fail at its end tries
every way to go on, and ends in a partial match exactly where one of them reached the end of the text. So that `\b`, `$`
and the like reach for the next character, too, they are made to look ahead for it.

Knows nothing of bans or tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter, thread_time
from typing import NamedTuple

import regex

from antislop.matching.regex_size import COMMENT, LETTERS, SET, measure

MAX_SPAN = 200
"""Characters that a match may cover, unless told otherwise."""
TIME_LIMIT = 0.25
"""Seconds of processor time that one pattern may take beyond what all of its searches earn."""
SEARCH_EARNS = 1e-5
"""Seconds that a search earns, and `CHARACTER_EARNS` for each character: some ten times what searches take."""
CHARACTER_EARNS = 5e-7
FEW_PATHS = 30_000
"""Ways through a pattern along `LETTERS` characters that take no time worth a look at the clock, which costs more."""
MAX_SIZE = 20_000
"""Characters of a regex with its repetitions written out, as the package regex does when it compiles."""
GROUP = 8
"""Patterns that are tried together: most pieces of a text are of no interest to any of them."""

_ATOM = regex.compile(rf"\\.|{COMMENT}|{SET}|.", regex.S)
_EDGES = {r"\b", r"\B", r"\m", r"\M", r"\Z", r"\z"}
_BEHIND = regex.compile(r"\(\?<[=!]")
_REFERENCES = regex.compile(r"\\[1-9]|\\g<|\(\?(?:P[=>]|&|\(|[+-]?\d)")
_REFUSED = {
    r"\(\?(?:R|0)\)": "calls itself as a whole: put it into a group and call that",
    r"\\[KG]": r"holds \K or \G, which depend on where a search began: use a look-behind",
}
_PROBES = ("", "a", " ", "a b", ".\n", "0")


class Match(NamedTuple):
    """A match in a text, `text[start:end]`."""

    start: int
    end: int


class Allowance:
    """The time that one regex may still take, so that none can bring everything to a standstill.

    Each search earns more than it costs where its time grows with the characters that it reads. A regex that does not
    work like that uses up `TIME_LIMIT` seconds, in one search or in many, and every search after that is refused.
    """

    def __init__(self) -> None:
        self._left = TIME_LIMIT
        self._clock: Callable[[], float] = perf_counter  # costs least, but counts what other processes take

    def search(
        self, pattern: regex.Pattern[str], text: str, start: int, end: int, *, partial: bool = True
    ) -> regex.Match[str] | None:
        """Search text[:end] from start on, with a look at the clock. Raises `TimeoutError` when the time is used up."""
        while self._left > 0:
            began = self._clock()
            try:
                found = pattern.search(text, start, end, partial=partial, timeout=self._left)
            except TimeoutError:
                self._spend(self._clock() - began)
                continue
            earned = SEARCH_EARNS + (end - start) * CHARACTER_EARNS
            self._spend(self._clock() - began - earned)
            return found
        raise TimeoutError

    def _spend(self, seconds: float) -> None:
        left = self._left - seconds
        self._left = left if left < TIME_LIMIT else TIME_LIMIT
        if left <= 0 and self._clock is perf_counter:  # perhaps somebody else had the processor
            self._clock, self._left = thread_time, TIME_LIMIT


class Regex:
    r"""A compiled regex that knows what is still open.

    max_span: characters that a match, and what it looks ahead to, may cover; longer ones are not seen.

    Raises `ValueError` with one sentence for a pattern that does not compile, that matches nothing at all (`x*`), that
    searches backwards or calls itself as a whole, and for a max_span under 1.

    >>> cats = Regex(r"\bcats?\b")
    >>> cats.advance("a cat", 0, 5)
    (None, 2)
    >>> cats.advance("a cat.", 2, 6)
    (Match(start=2, end=5), 5)
    """

    def __init__(self, pattern: str, *, max_span: int = MAX_SPAN) -> None:
        if isinstance(max_span, bool) or not isinstance(max_span, int) or max_span < 1:
            raise ValueError(f"max_span of {pattern!r} is {max_span!r}; it counts characters, 1 or more")
        if len(pattern) > MAX_SIZE or (size := measure(pattern)).characters > MAX_SIZE:
            raise ValueError(
                f"the regex {pattern[:80]!r} becomes too large, more than {MAX_SIZE} characters with its repetitions "
                "written out: shorten it, or nest fewer repetitions"
            )
        self.pattern = pattern
        self.max_span = max_span
        self._whole = _compile(pattern)
        _check(self._whole, pattern)
        self.flags = self._whole.flags
        end = "\n" if self.flags & regex.VERBOSE else ""  # or a comment would swallow a bracket after it
        self.source = "".join(map(_reach, _ATOM.findall(pattern))) + end
        self._decided = _compile(self.source)
        self._open = _compile(f"(?:{self.source})(*FAIL)")
        self.looks_behind = bool(_BEHIND.search(pattern))
        is_tame = size.paths <= FEW_PATHS and not self.looks_behind and not _REFERENCES.search(pattern)
        self.brief = LETTERS if is_tame else 0
        """Characters in which no time can be lost."""

    def advance(self, text: str, start: int, end: int, allowance: Allowance | None = None) -> tuple[Match | None, int]:
        """Return the first match from start on that is decided within text[:end], and where to search next.

        Without a match that is the first place where one may still begin, or `end`. Raises `TimeoutError` when the
        allowance is used up, or that of a search alone.
        """
        allowance = allowance or Allowance()
        while True:
            limit = start + self.max_span if start + self.max_span < end else end
            search = allowance.search if limit - start > self.brief else _search_at_once
            found = search(self._decided, text, start, limit)
            if found is None:
                undecided, match = limit, None
            elif found.partial:
                undecided, match = found.start(), None
            else:
                first = search(self._open, text, start, limit)
                undecided, match = limit if first is None else first.start(), Match(*found.span())
            is_full = limit == start + self.max_span
            if match and (match.start < undecided or (is_full and match.start == start)):
                if match.end > match.start:
                    return match, match.end
                start = match.start + 1
            elif is_full and undecided == start:
                start += 1
            elif limit == end:
                return None, undecided
            else:
                start = undecided

    def finish(self, text: str, start: int, allowance: Allowance | None = None) -> list[Match]:
        """Return the matches from start on, now that the text ends here. Raises `TimeoutError`."""
        allowance = allowance or Allowance()
        found = []
        while start < len(text):
            match, start = self.advance(text, start, len(text), allowance)
            if match is None:
                last = allowance.search(self._whole, text, start, len(text), partial=False)
                if last is None:
                    break
                match = Match(*last.span())
                start = max(match.end, match.start + 1)
            if match.end > match.start:
                found.append(match)
        return found


def join(regexes: Sequence[Regex]) -> list[tuple[list[Regex], regex.Pattern[str] | None]]:
    """Return groups of regexes, each with a pattern that matches where any of them does, or None for one alone."""
    alike: dict[int, list[Regex]] = {}
    alone = []
    for one in regexes:
        if _REFERENCES.search(one.pattern):
            alone.append(one)
        else:
            alike.setdefault(one.flags, []).append(one)
    groups = [some[i : i + GROUP] for some in alike.values() for i in range(0, len(some), GROUP)]
    joined = [(group, _compile("|".join(f"(?:{one.source})" for one in group))) for group in groups]
    return [*joined, *(([one], None) for one in alone)]


def _search_at_once(pattern: regex.Pattern[str], text: str, start: int, end: int) -> regex.Match[str] | None:
    return pattern.search(text, start, end, partial=True)


def _compile(pattern: str) -> regex.Pattern[str]:
    try:
        return regex.compile(pattern)
    except (RecursionError, OverflowError) as error:
        kind = type(error).__name__
        raise ValueError(f"the regex {pattern[:80]!r} is too complicated ({kind}): simplify it") from error
    except regex.error as error:
        raise ValueError(f"the regex {pattern!r} does not compile ({error}): mend it") from error


def _check(compiled: regex.Pattern[str], pattern: str) -> None:
    if compiled.flags & (regex.REVERSE | regex.WORD):
        raise ValueError(f"the regex {pattern!r} has the flag r or w, which need text not written yet: leave it out")
    for refused, why in _REFUSED.items():
        if regex.search(refused, pattern):
            raise ValueError(f"the regex {pattern!r} {why}")
    for probe in _PROBES:
        matches = compiled.finditer(probe, timeout=TIME_LIMIT / len(_PROBES))
        if any(match.start() == match.end() for match in matches):
            raise ValueError(f"the regex {pattern!r} matches the empty text, so everywhere: let it need a character")


def _reach(atom: str) -> str:
    """Return a part of a pattern that looks at the next character where it depends on it."""
    if atom == "$":  # before a line feed it depends on what follows that
        return "(?=(?s:..))$"
    return f"(?:(?=(?s:.)){atom})" if atom in _EDGES else atom

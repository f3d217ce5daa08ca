"""The kind `Regex`: regular expressions, compared with the text as it is, without folding; and their search.

Regexes are tried in groups. A regex with an incomplete match is tried alone, from the place where the match may begin.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import ClassVar, NamedTuple

import regex

from antislop.core.bans.folding import SHORT_PIECE
from antislop.core.bans.patterns import incremental_regex as incremental, pattern as shared
from antislop.core.bans.patterns.incremental_regex import TIME_LIMIT, Allowance, IncrementalRegex, SharedTime, Span
from antislop.core.bans.patterns.pattern import MAX_SPAN, Fault, Pattern, PatternMatch, PieceResult, TextSearch
from antislop.errors import BanError

_FLAGS = {
    "i": regex.IGNORECASE,
    "m": regex.MULTILINE,
    "s": regex.DOTALL,
    "x": regex.VERBOSE,
    "a": regex.ASCII,
    "f": regex.FULLCASE,
    "V1": regex.V1,
}
PIECES_KEPT = 20_000
"""Number of pieces of text for which the regexes that may match there are remembered, in about 5 MB."""
_ANYTHING = r"(?:(?<!\\)\.|\[\^[^\]]*\]|\[\\[sSwWdD]\\[sSwWdD]\])"
_ANY_PASSAGE = regex.compile(rf"{_ANYTHING}(?:[*+]|\{{\d*,?\d*\}}).*(?:\\[1-9]|\(\?P=)", regex.S)


class RegexState(NamedTuple):
    """The state of a search for regexes after some text.

    text: the end of the text, as far as later matches can depend on it; "" at the beginning of the text.
    starts: (number of a regex, place) of each incomplete match.
    drops_space: whether a space at the beginning of the next piece is left out.
    """

    text: str = ""
    starts: tuple[tuple[int, int], ...] = ()
    drops_space: bool = False


class RegexSearch(TextSearch[RegexState]):
    """Compiled regexes. Of overlapping matches of one regex, the first counts.

    Regexes with an anchor such as `^` don't see the prompt: for them, the text begins after the prompt, and a special
    token does not begin another text.
    """

    def __init__(self, patterns: Sequence[Regex]) -> None:
        self.start = RegexState()
        self._is_anchored = any(pattern.group for pattern in patterns)
        self._regexes = [pattern.prepare() for pattern in patterns]
        self._timed_out: list[int] = []
        self._looks_behind = any(member.looks_behind for member in self._regexes)
        self._candidates: dict[tuple[str, str], list[int]] = {}  # by the character before a piece, and the piece
        self._regroup()
        self.begin()

    def begin(self, *, is_brief: bool = False) -> None:
        self._is_brief, shared = is_brief, SharedTime(inf if is_brief else 0.0)
        self._allowances = [Allowance(shared) for _ in self._regexes]
        self._group_allowance = Allowance(shared)

    def _regroup(self) -> None:
        kept = {i: member for i, member in enumerate(self._regexes) if i not in self._timed_out}
        self._groups = incremental.join(kept)
        self._candidates.clear()

    def read(self, state: RegexState, piece: str, *, final: bool = False) -> tuple[RegexState, PieceResult]:
        if state.drops_space:
            if not piece:
                return state, PieceResult()
            piece = piece.removeprefix(" ")
        text = state.text + piece
        begun, end = len(state.text), len(text)
        candidates = self._find_candidates(text, begun, final=final)
        if not (candidates or state.starts or self._looks_behind):
            return RegexState(text[-1:]), PieceResult()  # the case for most pieces
        searched = {number: begun - back for number, back in state.starts}
        for number in candidates:
            searched.setdefault(number, begun)
        matches: list[PatternMatch] = []
        starts: list[tuple[int, int]] = []
        for number, start in searched.items():
            if number in self._timed_out:
                continue
            try:
                spans, start = self._search(number, text, start, final=final)
            except TimeoutError:
                self._drop(number)
                continue
            matches += [PatternMatch(number, end - span.start, end - span.end + 1) for span in spans]
            if start < end:
                starts.append((number, end - start))
        keep = max((back for _, back in starts), default=0) + 1  # the character before decides whether a word begins
        if not self._looks_behind and keep < end:
            text = text[-keep:]
        return RegexState(text, tuple(starts)), PieceResult(tuple(matches), tuple(back for _, back in starts))

    @property
    def timed_out(self) -> Sequence[int]:
        return self._timed_out

    def restore(self) -> None:
        self._timed_out.clear()
        self._regroup()
        self.begin()

    def forget(self, state: RegexState) -> RegexState:
        return state._replace(starts=())

    def leave_prompt(self, state: RegexState, *, drops_space: bool) -> RegexState:
        return RegexState(drops_space=drops_space) if self._is_anchored else state

    def restart(self, state: RegexState) -> RegexState:
        return self.forget(state) if self._is_anchored else self.start

    def _search(self, number: int, text: str, start: int, *, final: bool) -> tuple[list[Span], int]:
        compiled, allowance = self._regexes[number], self._allowances[number]
        if final:
            return compiled.finish(text, start, allowance), len(text)
        spans: list[Span] = []
        while True:
            span, start = compiled.advance(text, start, len(text), allowance)
            if span is None:
                return spans, start
            spans.append(span)

    def _drop(self, number: int) -> None:
        self._timed_out.append(number)
        self._regroup()
        if not self._is_brief:
            warnings.warn(
                f"the regex {self._regexes[number].pattern!r} took longer than {TIME_LIMIT} seconds in all and is no "
                "longer searched for: simplify it, most likely by nesting fewer repetitions",
                RuntimeWarning,
                stacklevel=2,
            )

    def _find_candidates(self, text: str, begun: int, *, final: bool) -> list[int]:
        """Return the numbers of the regexes that may have a match which begins in text[begun:]."""
        # Without look-behinds, the result depends only on this piece and the character before; the same pieces recur.
        key = text[max(0, begun - 1) : begun], text[begun:]
        candidates = None if final else self._candidates.get(key)
        if candidates is None:
            groups = [group for group in self._groups if final or group.may_match(text, begun, self._group_allowance)]
            candidates = [number for group in groups for number in group.numbers]
            if not (final or self._looks_behind) and len(text) - begun < SHORT_PIECE:
                if len(self._candidates) >= PIECES_KEPT:
                    self._candidates.clear()
                self._candidates[key] = candidates
        return candidates


class _Compiled(Pattern):
    __slots__ = ("_compiled",)  # beside the fields, which are options
    _compiled: IncrementalRegex


@dataclass(frozen=True, slots=True)
class Regex(_Compiled):
    r"""A regular expression of the package `regex`.

    A regex with `^` or `\A` reads a reply as if there were no prompt before; the reply begins only once, not again
    after each special token. Any other regex sees the text before a match, including the prompt.

    case_sensitive: no effect; exists so that it can be set for a whole list. The regex itself says how letters compare.
    max_span: maximum characters of a match, with all that it looks ahead to.
    """

    kind: ClassVar[str] = "regex"
    constructor: ClassVar[str] = "Ban.regex"
    search = RegexSearch

    text: str
    case_sensitive: bool = False
    max_span: int = MAX_SPAN

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise BanError(f"a regex (str) was expected, not {self.text!r}: write Ban.regex('…')")
        shared.check_switch("case_sensitive", self.text, self.case_sensitive)
        try:
            self.prepare()
        except TimeoutError:
            message = f"the regex {self.text[: shared.MAX_SHOWN]!r} takes too long on a few characters: simplify it"
            raise incremental.RegexTimeout(message) from None

    @property
    def group(self) -> Hashable:
        return incremental.is_anchored(self.text)

    @property
    def diff_key(self) -> Hashable:
        return self.kind, self.text

    @property
    def compiled_size(self) -> int:
        return incremental.measure(self.text).characters

    def prepare(self) -> IncrementalRegex:
        """Return the compiled regex, which all searches share; a copy of the `Regex` compiles it anew."""
        if not hasattr(self, "_compiled"):
            object.__setattr__(self, "_compiled", IncrementalRegex(self.text, max_span=self.max_span))
        return self._compiled

    def find_in(self, texts: Sequence[str]) -> list[int]:
        compiled, allowance = self.prepare().original, Allowance()
        try:
            return [i for i, text in enumerate(texts) if allowance.search(compiled, text, 0, len(text), partial=False)]
        except TimeoutError:
            return []

    def find_faults(self) -> Iterator[Fault]:
        if text := self._find_slow_text():
            clause = f"takes longer than {TIME_LIMIT} seconds on a text like {text[:12] + '…'!r}"
            yield Fault("slow", clause, "make it simpler: no repetition within a repetition, as in (a+)+")
        if _ANY_PASSAGE.search(self.text):
            clause = "looks for a passage that repeats, and withdraws the first copy too"
            yield Fault("loop", clause, "use Ban.loop(), which withdraws the later ones only")

    def _find_slow_text(self) -> str:
        """Return a text on which the regex takes too long, or ""; shorter than `max_span`, so it is searched once."""
        compiled, allowance = self.prepare(), Allowance()
        letters: dict[str, None] = dict.fromkeys(regex.findall(r"\w", self.text)[:12])
        words = " ".join(regex.findall(r"[^\W_]+", self.text))
        for part in (words, "word ", " ", "a", "0", "a, ", *letters):
            text: str = (part * self.max_span)[: max(1, self.max_span - 1)]
            try:
                compiled.finish(text, 0, allowance)
            except TimeoutError:
                return text
        return ""


def write_flags(pattern: str, flags: int) -> str:
    """Return a regex with flags written in front, such as "(?i)". Raises `BanError` for unknown flags."""
    if not isinstance(flags, int) or flags & ~sum(_FLAGS.values()):
        raise BanError(f"flags of {pattern!r} are {flags!r}; known are {', '.join(_FLAGS)} of the package regex")
    letters = "".join(letter for letter, flag in _FLAGS.items() if flags & flag)
    return f"(?{letters}){pattern}" if letters else pattern

"""Spans of a text between delimiters, such as `<think>`, code fences or quotes, and whether a ban applies there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias, get_args

import regex

from antislop.core.bans.units import BEFORE, OVER, PROMPT, Opening, follow_first
from antislop.errors import BanError
from antislop.files.delimiters import THOUGHT_DELIMITERS

Where = Literal["inside", "outside", "after"]
BanScope = Literal["answer", "thinking", "all"]
"""Which parts of a chat message bans apply to: its answer, its thoughts, or both; never its calls of tools."""
THOUGHTS = frozenset({"reasoning_content", "reasoning", "thinking"})
TOOL_CALLS = frozenset({"tool_calls"})
"""The fields of a message that are not its answer."""

_LINE = "\n"  # closes a quotation, so that a missing quotation mark swaps inside and outside on one line only
SPACES_KEPT = 64
"""Spaces that are kept where a delimiter may begin with any number of them: each piece has all searched again."""
SPANS: dict[str, dict[str, tuple[str, ...]]] = {
    "think": THOUGHT_DELIMITERS,
    "quotes": {
        **{mark: (mark, _LINE) for mark in '"＂″'},
        "“": ("”", _LINE),
        "„": ("“", "”", _LINE),
        "«": ("»", _LINE),
        "»": ("«", "»", _LINE),  # German and Danish; Swedish
        "「": ("」", _LINE),
        "『": ("』", _LINE),
    },
}
"""For each named span, its opening delimiters and those that close it."""
_NEXT = {"»": r"(?=[\w…])"}  # what follows an opening delimiter; else the « before it is on an earlier line
_RUN = "`{1,64}+(?=[^`])"


class Regions(NamedTuple):
    """The parts of a chat message, such as thoughts and tool calls, of which some are a span.

    delimiters: for each part its name, and regular expressions for what opens and what closes it. One part is open at a
        time; "" is the text around them.
    chosen: the names of the parts that are the span.
    anchor: a regular expression for what begins a message, and ends all that the text before it has opened.
    """

    delimiters: tuple[tuple[str, str, str], ...]
    chosen: tuple[str, ...]
    anchor: str

    @classmethod
    def read(cls, delimiters: Sequence[Sequence[str]], chosen: Sequence[str], anchor: str) -> Regions:
        """Return the regions of JSON. Raises `ValueError`, `TypeError` or `regex.error` for others."""
        regions = cls(tuple((name, opens, closes) for name, opens, closes in delimiters), tuple(chosen), anchor)
        regions.compile()
        return regions

    def compile(self) -> dict[str, regex.Pattern[str]]:
        """Return what to search for in each part."""
        opening = "|".join(f"(?P<{_MARK}{i}>{opens})" for i, (_, opens, _) in enumerate(self.delimiters))
        marks = {"": opening} | {name: closes for name, _, closes in self.delimiters}
        return {name: regex.compile(f"{marks[name]}|{self.anchor}", regex.DOTALL) for name in marks}

    def find_opened(self, match: regex.Match[str]) -> str:
        """Return the part that a delimiter opens; "" if it opens none."""
        groups = match.groupdict()
        names = (name for i, (name, _, _) in enumerate(self.delimiters) if groups.get(f"{_MARK}{i}") is not None)
        return next(names, "")

    @staticmethod
    def name_part(opened: str) -> str:
        """Return whether a part is of the "answer", of "thinking" or of "tool_calls", however a template names it."""
        return "thinking" if opened in THOUGHTS else "tool_calls" if opened in TOOL_CALLS else "answer"


_MARK = "antislop_"  # begins the names of groups, which delimiters may have, too

Changes: TypeAlias = list[tuple[int, bool]]
"""(index, whether bans apply from there on) of each change within a piece."""


class ScopeState(NamedTuple):
    """The state of a scope.

    opened: the delimiter that opened the current span, or the region; empty outside of both. That of code begins with
        the line feed before it if its line does, and ends with one if it is known to be a fence.
    has_ended: whether any span has ended.
    tail: the end of the text, if a delimiter may begin there.
    """

    opened: str = ""
    has_ended: bool = False
    tail: str = ""


@dataclass(frozen=True)
class Scope:
    """Say where a ban applies; the first character of an occurrence decides.

    where: "inside" or "outside" a span, or "after" the first one has ended.
    span: "think" (`<think>…</think>` and variants), "code" (of markdown, by CommonMark's rules for fences and for runs
        of backticks), "quotes" (double quotes of any kind, to the end of their line at most), a pair: the opening and
        the closing delimiter, or `Regions` of a chat message.

    A fence is indented by up to 32 spaces, as in lists, and has up to 64 signs. Without an end it goes on to the end of
    the text, even if a list ends before, and code in a line to the end of the line: its end is not known yet.

    A span may begin in the prompt. The sampler reads a special token as its content; `BanList.find` sees such
    delimiters only in texts decoded with `skip_special_tokens=False`. Raises `BanError` for anything else.

    >>> Scope("outside", "quotes")
    Scope(where='outside', span='quotes')
    >>> Scope("after", ("<plan>", "</plan>")).read(ScopeState(), "<plan>so</plan>it")
    (ScopeState(opened='', has_ended=True, tail=''), [(15, True)])
    """

    where: Where
    span: str | tuple[str, str] | Regions

    def __post_init__(self) -> None:
        if self.where not in get_args(Where):
            raise BanError(f"a scope is 'inside', 'outside' or 'after' a span, not {self.where!r}")
        is_pair = isinstance(self.span, tuple) and len(self.span) == 2
        is_pair = is_pair and all(isinstance(mark, str) and mark != "" for mark in self.span)
        if not is_pair and not isinstance(self.span, Regions) and self.span not in (*SPANS, "code"):
            raise BanError(
                f"a scope's span is one of {', '.join(SPANS)}, code, or a pair of its opening and closing delimiter, "
                f"not {self.span!r}"
            )

    @property
    def start(self) -> ScopeState:
        return ScopeState(tail=_LINE if self.span == "code" else "")

    def applies(self, state: ScopeState) -> bool:
        is_inside = self._is_inside(state)
        return {"inside": is_inside, "outside": not is_inside, "after": state.has_ended}[self.where]

    def _is_inside(self, state: ScopeState) -> bool:
        return state.opened in self.span.chosen if isinstance(self.span, Regions) else state.opened != ""

    def read(self, state: ScopeState, piece: str, *, is_text: bool = True) -> tuple[ScopeState, Changes]:  # noqa: ARG002
        """Read one more piece; return the state after it, and the changes within it."""
        changes: Changes = []
        start, text, tail = 0, state.tail + piece, len(state.tail)
        while match := self._delimiters[state.opened].search(text, start, partial=True):
            if match.partial:
                rest = text[match.start() :]  # without the first of very many spaces
                return state._replace(tail=rest[max(0, len(rest) - len(rest.lstrip()) - SPACES_KEPT) :]), changes
            before, start = self.applies(state), match.end()
            opened = ""  # within a span, this delimiter closes it
            if self.span == "code":
                opened = _follow_code(state.opened, match[0])
            elif not state.opened:
                opened = self.span.find_opened(match) if isinstance(self.span, Regions) else match[0]
            state = ScopeState(opened, state.has_ended or (not opened and self._is_inside(state)))
            if self.applies(state) != before:
                changes.append((start - tail, not before))  # from 0 on: each delimiter ends in this piece
        return state._replace(tail=""), changes

    @cached_property
    def _delimiters(self) -> dict[str, regex.Pattern[str]]:
        """What to search for outside of spans (""), and inside by the delimiter that opened the span."""
        if isinstance(self.span, Regions):
            return self.span.compile()
        if self.span == "code":
            return _CodeDelimiters()
        span = SPANS[self.span] if isinstance(self.span, str) else {self.span[0]: (self.span[1],)}
        opening = "|".join(regex.escape(mark) + _NEXT.get(mark, "") for mark in span)
        closing = {opened: "|".join(map(regex.escape, marks)) for opened, marks in span.items()}
        return {opened: regex.compile(marks) for opened, marks in {"": opening, **closing}.items()}


class _CodeDelimiters(dict[str, regex.Pattern[str]]):
    """Regexes for the next delimiter, by what is open: "" for nothing, the backticks in a line, or the fence."""

    def __missing__(self, opened: str) -> regex.Pattern[str]:
        if not opened:
            marks = rf"\\[^\n]|\n[ \t]{{0,32}}(?:`{{3,64}}+(?=[^`])|~{{3,64}}+(?=[^~]))|{_RUN}"
        elif opened.endswith(_LINE):
            indent, run = len(opened[1:-1].rstrip("`~")) + 3, opened.strip()
            marks = rf"\n[ \t]{{0,{indent}}}{run[0]}{{{len(run)},64}}+[ \t]{{0,64}}\r?(?=\n)"
        else:
            marks = rf"{_RUN}|(?=\n)"
        pattern = self[opened] = regex.compile(marks)
        return pattern


def _follow_code(opened: str, mark: str) -> str:
    """Return what a delimiter leaves open."""
    run = opened.strip()
    if not opened:
        return "" if mark.startswith("\\") else mark + _LINE if mark.endswith("~") else mark
    if opened.endswith(_LINE):
        return ""
    if not mark:  # at the end of the line: no backticks follow those of a fence there
        return opened + _LINE if opened.startswith(_LINE) else ""
    return "" if mark == run else run


class OpeningState(NamedTuple):
    """The state of an opening.

    scopes: of each scope.
    units: of the text's first unit, now, and before each of the latest characters in which a delimiter of a scope may
        have begun. The last one is now.
    is_in: whether the latest character was in the opening.
    """

    scopes: tuple[ScopeState, ...]
    units: tuple[int, ...] = (BEFORE,)
    is_in: bool = True


@dataclass(frozen=True)
class OpeningScope:
    """The first unit of what scopes leave of a text, without their delimiters. It is read like a `Scope`."""

    unit: Opening
    scopes: tuple[Scope, ...]

    @property
    def start(self) -> OpeningState:
        """The state before a prompt."""
        return OpeningState(tuple(scope.start for scope in self.scopes), (PROMPT,), is_in=False)

    def applies(self, state: OpeningState) -> bool:
        return state.is_in

    def is_over(self, state: OpeningState) -> bool:
        return state.units[-1] == OVER and not any(each.tail for each in state.scopes)

    def read(self, state: OpeningState, piece: str, *, is_text: bool = True) -> tuple[OpeningState, Changes]:
        if self.is_over(state) and not state.is_in:
            return state, []
        if state.units == (PROMPT,):
            read = tuple(scope.read(each, piece)[0] for scope, each in zip(self.scopes, state.scopes, strict=True))
            return state._replace(scopes=read), []
        changes: Changes = []
        for index, char in enumerate(piece):  # of the few that an opening has
            before = after = state.units[-1]
            if is_text and all(scope.applies(each) for scope, each in zip(self.scopes, state.scopes, strict=True)):
                after = follow_first(self.unit, char, before)
            # A word ends before this character, and all else behind it.
            is_in = before < OVER and not (self.unit == "word" and before > BEFORE and after == OVER)
            if is_in != state.is_in:
                changes.append((index, is_in))
            read = tuple(scope.read(each, char)[0] for scope, each in zip(self.scopes, state.scopes, strict=True))
            pairs = list(zip(state.scopes, read, strict=True))
            ended = max((len(old.tail) for old, new in pairs if old.opened != new.opened), default=-1)
            if ended >= 0:  # the character completes a delimiter, with which the opening neither begins nor ends
                state = OpeningState(read, state.units[-1 - ended :][:1], is_in)
            else:
                kept = max((len(each.tail) for each in read), default=0)
                state = OpeningState(read, (*state.units, after)[-1 - kept :], is_in)
        return state, changes

"""Spans of a text between delimiters, such as `<think>`, code fences or quotes, and whether a ban applies there."""

from __future__ import annotations

from collections import defaultdict
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
"""Spaces kept at the end of a text, where a delimiter may begin with any number: each piece searches them again."""
SPANS: dict[str, dict[str, tuple[str, ...]]] = {
    "think": THOUGHT_DELIMITERS,
    "quotes": {
        **{mark: (mark, _LINE) for mark in '"＂″'},
        **{opens: (closes, _LINE) for opens, closes in ("“”", "””", "«»", "「」", "『』")},  # ”…” is Swedish
        "„": ("“", "”", _LINE),
        "»": ("«", "»", _LINE),  # German and Danish; Swedish
    },
}
"""For each named span, its opening delimiters, each with the delimiters that close it."""
_NEXT = dict.fromkeys("»”", r"(?=[\w…])")  # what follows if it opens; any other closes a quotation of an earlier line
# At the start of a line, a Markdown quotation or a message, whose special token ends with > or is [/INST].
_DIALOGUE = r"""(?:[\n>]|\[/INST\])[^\S\n]{0,32}(?:["«“„”»][^\S\n]?)?(?:(?=[—–―⸺⸻])|--(?=[^-]))"""
_RUN = "`{1,64}+(?=[^`])"


class Regions(NamedTuple):
    """A span that consists of parts of a chat message, such as its thoughts and tool calls.

    delimiters: (name, regex that opens it, regex that closes it) of each part. Parts are not nested; the text outside
        of all parts has the name "".
    chosen: the names of the parts that belong to the span.
    anchor: a regex for the beginning of a message, which closes any part that is open.
    """

    delimiters: tuple[tuple[str, str, str], ...]
    chosen: tuple[str, ...]
    anchor: str

    @classmethod
    def read(cls, delimiters: Sequence[Sequence[str]], chosen: Sequence[str], anchor: str) -> Regions:
        """Return the regions that JSON values describe; raise `ValueError`, `TypeError` or `regex.error` for others."""
        regions = cls(tuple((name, opens, closes) for name, opens, closes in delimiters), tuple(chosen), anchor)
        regions.compile()
        return regions

    def compile(self) -> dict[str, regex.Pattern[str]]:
        """Return, by the name of each part, the regex that finds the next delimiter while this part is open."""
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
        """Return "thinking", "tool_calls" or "answer": what kind of part it is, by its name in the chat template."""
        return "thinking" if opened in THOUGHTS else "tool_calls" if opened in TOOL_CALLS else "answer"


_MARK = "antislop_"  # begins the names of our regex groups, since delimiters may have named groups of their own

Changes: TypeAlias = list[tuple[int, bool]]
"""(index, whether bans apply from there on) of each change within a piece."""


class ScopeState(NamedTuple):
    """The state of a scope after some text.

    opened: the delimiter that opened the current span, or the name of the current region; "" outside of spans. For
        code, it begins with a line feed if it stands at the start of a line, and ends with one if it is surely a fence.
    has_ended: whether a span has ended so far.
    tail: the end of the text from where an incomplete delimiter may begin.
    """

    opened: str = ""
    has_ended: bool = False
    tail: str = ""


@dataclass(frozen=True)
class Scope:
    """Say where a ban applies; the first character of an occurrence decides.

    where: "inside" or "outside" a span, or "after" the first one has ended.
    span: "think" (`<think>…</think>` and variants), "code" (of markdown, by CommonMark's rules for fences and for runs
        of backticks), "quotes" (double quotes of any kind, to the end of their line at most), "dialogue" (lines that
        begin with a dash, but no hyphen), a pair: the opening and the closing delimiter, or `Regions` of a message.

    A code fence may be indented by up to 32 spaces, as in lists, and has up to 64 backticks or tildes. An unclosed
    fence extends to the end of the text, even if a list around it ends; unclosed code in a line, to the line's end.

    A span may begin in the prompt. The sampler reads a special token such as <think> as text; `BanList.find` sees such
    delimiters only in texts decoded with `skip_special_tokens=False`. Raises `BanError` for other `where` or `span`.

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
        if not is_pair and not isinstance(self.span, Regions) and self.span not in (*SPANS, "code", "dialogue"):
            names = f"one of {', '.join(SPANS)}, code, dialogue, or a pair of delimiters"
            raise BanError(f"a scope's span is {names}, not {self.span!r}")

    @property
    def start(self) -> ScopeState:
        return ScopeState(tail=_LINE if self.span in ("code", "dialogue") else "")

    def applies(self, state: ScopeState) -> bool:
        is_inside = self._is_inside(state)
        return {"inside": is_inside, "outside": not is_inside, "after": state.has_ended}[self.where]

    def _is_inside(self, state: ScopeState) -> bool:
        return state.opened in self.span.chosen if isinstance(self.span, Regions) else state.opened != ""

    def read(self, state: ScopeState, piece: str, *, is_text: bool = True) -> tuple[ScopeState, Changes]:  # noqa: ARG002
        """Read one more piece; return the state after it, and where in the piece bans begin or cease to apply."""
        changes: Changes = []
        start, text, tail = 0, state.tail + piece, len(state.tail)
        while match := self._delimiters[state.opened].search(text, start, partial=True):
            if match.partial:
                rest = text[match.start() :]  # the last `SPACES_KEPT` of its leading spaces are kept
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
        """Regexes for the next delimiter: outside of spans (key ""), and within the span that a delimiter opened."""
        if isinstance(self.span, Regions):
            return self.span.compile()
        if self.span == "code":
            return _CodeDelimiters()
        if self.span == "dialogue":
            return defaultdict(lambda: regex.compile(r"(?=\n)"), {"": regex.compile(_DIALOGUE)})
        span = SPANS[self.span] if isinstance(self.span, str) else {self.span[0]: (self.span[1],)}
        opening = "|".join(regex.escape(mark) + _NEXT.get(mark, "") for mark in span)
        closing = {opened: "|".join(map(regex.escape, marks)) for opened, marks in span.items()}
        return {opened: regex.compile(marks) for opened, marks in {"": opening, **closing}.items()}


class _CodeDelimiters(dict[str, regex.Pattern[str]]):
    """Regexes for the next delimiter of code, by `ScopeState.opened`: "", backticks within a line, or a fence."""

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
    """Return the `ScopeState.opened` of code after a delimiter `mark`."""
    run = opened.strip()
    if not opened:
        return "" if mark.startswith("\\") else mark + _LINE if mark.endswith("~") else mark
    if opened.endswith(_LINE):
        return ""
    if not mark:  # the end of the line: no backticks followed, so a run at the start of the line is a fence
        return opened + _LINE if opened.startswith(_LINE) else ""
    return "" if mark == run else run


class OpeningState(NamedTuple):
    """The state of an opening after some text.

    scopes: the state of each scope.
    units: states of the text's first unit, as of `follow_first`. The last state is the current one; those before it
        are older, one for each of the latest characters that may turn out to be a delimiter of a scope.
    is_in: whether the latest character was in the opening.
    """

    scopes: tuple[ScopeState, ...]
    units: tuple[int, ...] = (BEFORE,)
    is_in: bool = True


@dataclass(frozen=True)
class OpeningScope:
    """The first unit of a text, or of its parts in some scopes, without delimiters. It has the methods of a `Scope`."""

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
        for index, char in enumerate(piece):  # an opening has few characters
            before = after = state.units[-1]
            if is_text and all(scope.applies(each) for scope, each in zip(self.scopes, state.scopes, strict=True)):
                after = follow_first(self.unit, char, before)
            # The character that shows the end of a word is not in the word; that of a sentence or paragraph is.
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

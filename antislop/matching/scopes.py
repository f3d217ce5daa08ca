"""Spans of a text between delimiters, such as `<think>`, code fences or quotes, and whether a ban applies there."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, get_args

import regex

from antislop.errors import BanError

Where = Literal["inside", "outside", "after"]

_LINE = "\n"  # closes a quotation, so that a missing quotation mark swaps inside and outside on one line only
SPANS: dict[str, dict[str, tuple[str, ...]]] = {
    "think": {
        "<think>": ("</think>",),
        "[THINK]": ("[/THINK]",),
        "<seed:think>": ("</seed:think>",),
        "<|START_THINKING|>": ("<|END_THINKING|>",),
        "<|channel|>analysis<|message|>": ("<|end|>",),
    },
    "code": {"```": ("```",)},
    "quotes": {
        '"': ('"', _LINE),
        "“": ("”", _LINE),
        "„": ("“", "”", _LINE),
        "«": ("»", _LINE),
        "「": ("」", _LINE),
    },
}
"""For each named span, its opening delimiters and those that close it."""


class ScopeState(NamedTuple):
    """The state of a scope.

    opened: the delimiter that opened the current span; empty outside of spans.
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
    span: "think" (`<think>…</think>` and variants), "code" (fenced by ```), "quotes" (double quotes of any kind, to the
        end of their line at most), or a pair: the opening and the closing delimiter.

    A span may begin in the prompt. The sampler reads a special token as its content; `BanList.find` sees such
    delimiters only in texts decoded with `skip_special_tokens=False`. Raises `BanError` for anything else.

    >>> Scope("outside", "quotes")
    Scope(where='outside', span='quotes')
    >>> Scope("after", ("<plan>", "</plan>")).read(ScopeState(), "<plan>so</plan>it")
    (ScopeState(opened='', has_ended=True, tail=''), [(15, True)])
    """

    where: Where
    span: str | tuple[str, str]

    def __post_init__(self) -> None:
        if self.where not in get_args(Where):
            raise BanError(f"a scope is 'inside', 'outside' or 'after' a span, not {self.where!r}")
        is_pair = isinstance(self.span, tuple) and len(self.span) == 2 and all(map(_is_text, self.span))
        if not is_pair and self.span not in SPANS:
            raise BanError(
                f"a scope's span is one of {', '.join(SPANS)}, or a pair of its opening and closing delimiter, "
                f"not {self.span!r}"
            )

    def applies(self, state: ScopeState) -> bool:
        is_inside = state.opened != ""
        return {"inside": is_inside, "outside": not is_inside, "after": state.has_ended}[self.where]

    def read(self, state: ScopeState, piece: str) -> tuple[ScopeState, list[tuple[int, bool]]]:
        """Read one more piece; return the state after it, and (index, whether bans apply) of each change within it."""
        changes: list[tuple[int, bool]] = []
        start, text, tail = 0, state.tail + piece, len(state.tail)
        while match := self._delimiters[state.opened].search(text, start, partial=True):
            if match.partial:
                return state._replace(tail=text[match.start() :]), changes
            before, start = self.applies(state), match.end()
            is_inside = state.opened != ""
            state = ScopeState("" if is_inside else match[0], state.has_ended or is_inside)
            if self.applies(state) != before:
                changes.append((start - tail, not before))  # from 0 on: each delimiter ends in this piece
        return state._replace(tail=""), changes

    @cached_property
    def _delimiters(self) -> dict[str, regex.Pattern[str]]:
        """What to search for outside of spans (""), and inside by the delimiter that opened the span."""
        span = SPANS[self.span] if isinstance(self.span, str) else {self.span[0]: (self.span[1],)}
        delimiters = {"": tuple(span), **span}
        return {opened: regex.compile("|".join(map(regex.escape, marks))) for opened, marks in delimiters.items()}


def _is_text(mark: object) -> bool:
    return isinstance(mark, str) and mark != ""

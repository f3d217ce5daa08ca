"""Spans of a text between delimiters, and whether a ban counts there.

Works on any cutting of a text into pieces, the contents of special tokens included. Knows nothing of bans: only where
`<think>`, a code fence or a quotation begins and ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, get_args

import regex

Where = Literal["inside", "outside", "after"]

_LINE = "\n"  # ends a quotation that is not closed: one missing mark would turn all the rest inside out
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
"""The spans that have a name: what opens them, and what closes them then."""


class ScopeState(NamedTuple):
    """Where a text stands: what opened the span, if any, whether one has ended, what may become a delimiter."""

    opened: str = ""
    has_ended: bool = False
    tail: str = ""


@dataclass(frozen=True)
class Scope:
    """Say where a ban counts.

    where: "inside" or "outside" a span, or "after" the first one has ended.
    span: "think" (`<think>…</think>` and its likes in `SPANS`), "code" (fenced by ```), "quotes" (double quotes of any
        kind, to the end of their line at most), or what opens and what closes a span of your own.

    An occurrence belongs where its first character stands. A span begins after what opens it, also in the prompt. The
    sampler reads a special token by its content, as `decode(…, skip_special_tokens=False)` writes it; `BanList.find`
    sees such delimiters only in texts that were decoded like that. Raises `ValueError` for what is none of these.

    >>> Scope("outside", "quotes")
    Scope(where='outside', span='quotes')
    >>> Scope("after", ("<plan>", "</plan>")).read(ScopeState(), "<plan>so</plan>it")
    (ScopeState(opened='', has_ended=True, tail=''), [(15, True)])
    """

    where: Where
    span: str | tuple[str, str]

    def __post_init__(self) -> None:
        if self.where not in get_args(Where):
            raise ValueError(f"a scope is 'inside', 'outside' or 'after' a span, not {self.where!r}")
        is_pair = isinstance(self.span, tuple) and len(self.span) == 2 and all(map(_is_text, self.span))
        if not is_pair and self.span not in SPANS:
            raise ValueError(
                f"a scope's span is one of {', '.join(SPANS)}, or a pair of what opens and what closes it, "
                f"not {self.span!r}"
            )

    def applies(self, state: ScopeState) -> bool:
        """Tell whether a ban counts in a state."""
        is_inside = state.opened != ""
        return {"inside": is_inside, "outside": not is_inside, "after": state.has_ended}[self.where]

    def read(self, state: ScopeState, piece: str) -> tuple[ScopeState, list[tuple[int, bool]]]:
        """Read one more piece; return the state after it, and from which characters of it on bans count or don't.

        A delimiter that began in an earlier piece ends in this one, so the places are never negative.
        """
        changes: list[tuple[int, bool]] = []
        at, text, begun = 0, state.tail + piece, len(state.tail)
        while match := self._delimiters[state.opened].search(text, at, partial=True):
            if match.partial:
                return state._replace(tail=text[match.start() :]), changes
            before, at = self.applies(state), match.end()
            is_inside = state.opened != ""
            state = ScopeState("" if is_inside else match[0], state.has_ended or is_inside)
            if self.applies(state) != before:
                changes.append((at - begun, not before))
        return state._replace(tail=""), changes

    @cached_property
    def _delimiters(self) -> dict[str, regex.Pattern[str]]:
        """What to look for outside a span (""), and inside, by what opened it."""
        span = SPANS[self.span] if isinstance(self.span, str) else {self.span[0]: (self.span[1],)}
        marks = {"": tuple(span), **span}
        return {opened: regex.compile("|".join(map(regex.escape, wanted))) for opened, wanted in marks.items()}


def _is_text(mark: object) -> bool:
    return isinstance(mark, str) and mark != ""

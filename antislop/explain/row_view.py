"""A view of one text of a trace, ready to be shown: its tokens, attempts and notes; and counts for each ban."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from antislop.core.bans import decode
from antislop.core.trace import (
    Admitted,
    Attempt,
    Conceded,
    Drawn,
    Finished,
    Forked,
    Report,
    TextPiece,
    TextPieces,
    TracedRow,
    WrittenText,
    WrittenToken,
)
from antislop.display import describe_count, make_visible
from antislop.explain.console import describe_conceded, describe_endings

if TYPE_CHECKING:
    from antislop.core.bans import Ban, Surfaces

UNFINISHED = "·"
"""The sign shown for a token that completes no character."""
REPLACEMENT_TOKENS, REPLACEMENT_CHARACTERS = 3, 40
"""Minimum number of tokens and maximum number of characters of the text that is shown as an attempt's replacement."""
LONG_PROMPT = 600
"""A prompt with more characters is shown in a scrolling box, apart from the text."""


class ShownToken(NamedTuple):
    """The text and style of one token.

    parts: pairs (text, kind), since the characters of a token may differ in kind.
    sign: what is shown instead of a text if the token completes no character; else "".
    is_drawn: False for the pseudo-token of incomplete bytes at the end of a text.
    """

    parts: tuple[tuple[str, str], ...]
    sign: str
    is_drawn: bool = True


class Segment(NamedTuple):
    """Successive tokens of the final text, or of one attempt. number: the attempt's, from 1; 0 for the final text."""

    number: int
    attempt: Attempt | None
    tokens: tuple[ShownToken, ...]


@dataclass(frozen=True)
class RowView:
    """One text of a trace, with the properties from which pages and consoles show it.

    about: the facts of the call, from `Trace.about`.
    relevance: maps the index of a token in the text to a list with a number for each token before that token.
    """

    row: TracedRow
    surfaces: Surfaces
    about: Mapping[str, Any]
    relevance: Mapping[int, Sequence[float]] = field(default_factory=dict)

    @property
    def attempts(self) -> Sequence[Attempt]:
        return self.row.history.attempts

    @cached_property
    def written(self) -> list[WrittenToken]:
        drops = drops_space_after(self.row, surfaces=self.surfaces, about=self.about)
        return WrittenText(self.surfaces, drops_space=drops, has_kinds=True).read(self.row.events)

    @property
    def has_long_prompt(self) -> bool:
        return sum(len(text) for token in self.prompt for text, _ in token.parts) > LONG_PROMPT

    @cached_property
    def prompt(self) -> list[ShownToken]:
        drawn = map(Drawn.plain, self.row.prompt_tokens)
        text = WrittenText(self.surfaces, drops_space=drops_space(self.about))
        return list(map(self._show, text.read(drawn)))

    @cached_property
    def segments(self) -> list[Segment]:
        return [
            Segment(
                number,
                self.attempts[number - 1] if number else None,
                tuple(self._show(token, is_first=not place) for place, token in enumerate(tokens)),
            )
            for number, tokens in groupby(self.written, key=lambda token: token.attempt)
        ]

    def _show(self, token: WrittenToken, *, is_first: bool = True) -> ShownToken:
        parts = [
            ("".join(character for character, _ in group), kind)
            for kind, group in groupby(zip(token.text, token.kinds, strict=True), key=lambda pair: pair[1])
        ]
        if token.attempt:
            parts = [(text.replace("\n", "↵"), "beside" if kind == "kept" else kind) for text, kind in parts]
            if is_first and parts:  # the space at the start of an attempt is not struck through
                (first, kind), *others = parts
                words = first.lstrip(" ")
                separated = [(first[: len(first) - len(words)], "space"), (words, kind), *others]
                parts = [(text, kind) for text, kind in separated if text]
        shown = tuple((make_visible(text, keep_layout=True), kind) for text, kind in parts)
        if parts or token.is_end:
            return ShownToken(shown, "", not token.is_end)
        return ShownToken(shown, make_visible(self.surfaces.breaks.get(token.token, "") or UNFINISHED))

    @cached_property
    def let_through(self) -> list[Conceded | Admitted]:
        """The events of the banned occurrences that stay in the text, conceded or admitted."""
        return Report.of(self.row.events).let_through

    @cached_property
    def attempt_texts(self) -> list[str]:
        tokens: list[list[WrittenToken]] = [[] for _ in self.attempts]
        for token in self.written:
            if token.attempt:
                tokens[token.attempt - 1].append(token)
        return list(map(_join, tokens))

    def describe_token(self, token: int) -> str:
        surface = self.surfaces.surface(token)
        if not surface:
            return make_visible(self.surfaces.breaks.get(token, "")) or f"token {token}"
        try:
            text = surface.decode()
        except UnicodeDecodeError:
            return f"<{surface.hex(' ')}>"
        return make_visible(text.replace(" ", "␣").replace("\n", "↵"))

    @cached_property
    def replacements(self) -> list[str | None]:
        """For each attempt, the final text at its place; None if text before the attempt was withdrawn, too."""
        kept = [token for token in self.written if not token.attempt]

        def find_end(start: int, length: int) -> int:
            """Return the index after `length` tokens from `start`, or later if a word is unfinished there."""
            end = start + max(REPLACEMENT_TOKENS, length)
            while end < len(kept) and kept[end].text[:1].isalnum() and end < start + length + 8:
                end += 1
            return end

        return [
            _shorten(_join(kept[each.token_index : find_end(each.token_index, len(each.tokens))]))
            if each.is_on_path
            else None
            for each in self.attempts
        ]


def _join(tokens: Sequence[WrittenToken]) -> str:
    return make_visible("".join(token.text for token in tokens).strip(" ").replace("\n", "↵"))


def _shorten(text: str) -> str:
    if len(text) <= REPLACEMENT_CHARACTERS:
        return text
    cut = text[:REPLACEMENT_CHARACTERS]
    return (cut.rpartition(" ")[0] or cut).rstrip() + "…"


# -- pieces -----------------------------------------------------------------------------------------------------------


def list_pieces(row: TracedRow, *, surfaces: Surfaces, about: Mapping[str, Any]) -> list[TextPiece]:
    text_pieces = TextPieces(surfaces, drops_space=drops_space_after(row, surfaces=surfaces, about=about))
    prompt = decode(surfaces, row.prompt_tokens)
    return [
        TextPiece(prompt.removeprefix(" ") if drops_space(about) else prompt, "prompt"),
        *text_pieces.read(row.events),
    ]


def drops_space(about: Mapping[str, Any]) -> bool:
    return bool(about.get("tokenizer", {}).get("drops_space", False))


def drops_space_after(row: TracedRow, *, surfaces: Surfaces, about: Mapping[str, Any]) -> bool:
    """Return whether the decoder removes a space at the start of the text after the row's prompt."""
    prompt = row.prompt_tokens
    return drops_space(about) and (not prompt or prompt[-1] in surfaces.breaks)


# -- notes ------------------------------------------------------------------------------------------------------------


def list_notes(row: TracedRow) -> list[str]:
    """Return sentences with facts about a text that its tokens don't show, the most important first.

    >>> list_notes(TracedRow((), []))
    ['The text is unfinished: its events end here.']
    """
    notes = []
    for event in row.events:
        match event:
            case Forked():
                begun = f"A controller forked this text from text {event.parent}"
                notes.append(f"{begun} after {describe_count(event.length, 'token')}: branch {event.branch_idx}.")
            case Finished(reason="exhausted", violation=None):
                cause = f", since {event.constrained_by} rules out all else" if event.constrained_by else ""
                notes.append(f"The text ends early: every continuation was banned{cause}.")
            case Finished(reason="failed"):
                notes.append("The text ends early: the model returned no probabilities to draw from.")
            case _:
                pass
    if not row.is_finished:
        notes.append("The text is unfinished: its events end here.")
    report = Report.of(row.events)
    notes += [
        f"{text[:1].upper()}{text[1:]}." for text in (describe_endings(report), describe_conceded(report)) if text
    ]
    notes += [f"The regex {ban.text!r} took too long, and was no longer searched for." for ban in report.timed_out]
    return list(map(make_visible, notes))


# -- bans -------------------------------------------------------------------------------------------------------------


@dataclass
class BanCounts:
    """The counts of one ban in all texts; if `ban` is None, those of cuts by controllers and by other rows.

    rewinds: the number of attempts that the ban ended.
    tokens: the number of tokens withdrawn with these attempts.
    conceded, admitted: the numbers of occurrences left in the texts.
    instead: the final texts in place of the attempts, each with its number of times.
    """

    ban: Ban | None
    rewinds: int = 0
    tokens: int = 0
    conceded: int = 0
    admitted: int = 0
    instead: Counter[str] = field(default_factory=Counter)


def count_bans(rows: Iterable[RowView]) -> list[BanCounts]:
    counts: dict[Ban | None, BanCounts] = {}
    for row in rows:
        for attempt, text in zip(row.attempts, row.replacements, strict=True):
            ban = attempt.violation.ban if attempt.violation else None
            entry = counts.setdefault(ban, BanCounts(ban))
            entry.rewinds += 1
            entry.tokens += len(attempt.tokens)
            if text is not None:
                entry.instead[text] += 1
        for event in row.row.events:
            if isinstance(event, Conceded | Admitted):
                entry = counts.setdefault(event.violation.ban, BanCounts(event.violation.ban))
                entry.conceded += isinstance(event, Conceded)
                entry.admitted += isinstance(event, Admitted)
    return sorted(counts.values(), key=lambda entry: (-entry.rewinds, -entry.conceded, -entry.admitted))

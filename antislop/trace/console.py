"""Make a generation visible: its text with what was withdrawn struck through. Folds over events; no torch.

As on paper: a withdrawn piece stays where it was written, struck through, and what was written instead follows it.
"""

from __future__ import annotations

import io
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Literal, NamedTuple

from rich.cells import cell_len
from rich.console import CONSOLE_SVG_FORMAT, Console  # type: ignore[attr-defined]  # rich documents this name
from rich.text import Text

from antislop.display import make_visible
from antislop.files import replace_text
from antislop.lists.ban_list import BanList
from antislop.matching.characters import NOTHING, complete, finish
from antislop.matching.token_matcher import Matcher, State, Surfaces, Violation
from antislop.trace.events import Admitted, Conceded, Drawn, Event, Finished, Rewound, Settled
from antislop.trace.report import Report

Kind = Literal["prompt", "kept", "withdrawn", "conceded", "admitted"]

STYLES: dict[Kind, str] = {
    "prompt": "dim",
    "kept": "",
    "withdrawn": "red strike",
    "conceded": "yellow underline",
    "admitted": "underline",
}
BESIDE = "dim strike"
"""The style of what was withdrawn together with a ban and is no part of it."""


class Piece(NamedTuple):
    """A stretch of text to which one thing happened.

    A withdrawn piece is made to be read in one line: its line breaks are "↵", and a space keeps it from the withdrawn
    piece before it. banned: from which to which of its characters the ban reached; (0, 0) if none of them.
    """

    text: str
    kind: Kind
    banned: tuple[int, int] = (0, 0)


@dataclass(slots=True, eq=False)
class _Entry:
    """The characters that one token completed. `attempt` numbers the rewind that withdrew it, 0 while it stands.

    kinds: of its characters; of a withdrawn token's, only those of the ban are "withdrawn". begun: how many tokens ago
    the first of them began.
    """

    text: str = ""
    kinds: list[Kind] = field(default_factory=list)
    begun: tuple[int, ...] = ()
    attempt: int = 0
    is_settled: bool = False

    def append(self, text: str) -> None:
        self.text += text
        self.kinds += ["kept"] * len(text)

    def drop(self, count: int) -> None:
        self.text, self.kinds = self.text[count:], self.kinds[count:]


class Trail:
    """Turn events into pieces, as soon as nothing can change them any more.

    surfaces: an object whose `surface(token)` is the bytes that a token adds to the text, such as a `Vocabulary`.

    A withdrawn piece comes with its `Rewound`, unless text that may still be withdrawn itself stands before it. The
    pieces that are not withdrawn, joined, are the text; bytes at its end that are no character come as U+FFFD, and in
    a withdrawn piece are left out.
    """

    def __init__(self, surfaces: Surfaces) -> None:
        self._surfaces = surfaces
        self._standing: list[_Entry] = []  # the text as it is, by position
        self._waiting: list[_Entry] = []  # not handed out, in order of time
        self._pending = [NOTHING]  # bytes that are no characters yet, by length of the text
        self._settled = 0
        self._attempts = 0
        self._ends_withdrawn = False

    def add(self, event: Event) -> list[Piece]:
        """Take one more event and return the pieces that are now certain."""
        if isinstance(event, Drawn):
            self._write(event.token)
        elif isinstance(event, Rewound):
            self._strike(event)
        elif isinstance(event, Conceded):
            self._mark(event.violation, "conceded")
        elif isinstance(event, Admitted):
            self._mark(event.violation, "admitted")
        elif isinstance(event, Settled):
            self._settle(len(event.tokens))
        elif isinstance(event, Finished):
            self._end()
        return list(self._release())

    def _write(self, token: int) -> None:
        text, begun, pending = complete(self._surfaces, token, self._pending[-1])
        entry = _Entry(begun=begun)
        entry.append(text)
        self._pending.append(pending)
        self._standing.append(entry)
        self._waiting.append(entry)

    def _divide_run(self, length: int) -> None:
        """Give each side of a cut within a run of bytes its own characters, which only the run's end completed."""
        if not self._surfaces.byte_tokens:
            return
        for index, entry in enumerate(self._standing[length:], start=length):
            entry.drop(sum(index - age < length for age in entry.begun))
        pending, withdrawn = self._pending[-1], len(self._standing) - length
        count = sum(age <= withdrawn for age in pending.ages)
        self._standing[-1].append(pending.data[len(pending.data) - count :].decode(errors="ignore"))

    def _strike(self, event: Rewound) -> None:
        self._divide_run(event.length)
        self._mark(event.violation, "withdrawn")
        self._attempts += 1
        for entry in self._standing[event.length :]:
            entry.attempt = self._attempts
        del self._standing[event.length :], self._pending[event.length + 1 :]

    def _mark(self, violation: Violation, kind: Kind) -> None:
        """Mark the characters of a ban: the last token of a violation may be the one after it, which ends its word."""
        entries = self._standing[violation.start : violation.end + 1]
        places = [(entry, i) for entry in entries for i in range(len(entry.text))]
        matches = BanList([violation.ban]).find("".join(entry.text for entry in entries))
        spans = [(match.start, match.end) for match in matches] or [(0, len(places))]  # none: it began in the prompt
        for start, end in spans:
            for entry, i in places[start:end]:
                entry.kinds[i] = kind

    def _settle(self, count: int) -> None:
        for entry in self._standing[self._settled : self._settled + count]:
            entry.is_settled = True
        self._settled += count

    def _end(self) -> None:
        rest = _Entry()
        rest.append(finish(self._surfaces, self._pending[-1]).text)
        rest.is_settled = True
        self._waiting.append(rest)

    def _release(self) -> Iterator[Piece]:
        certain = next((i for i, e in enumerate(self._waiting) if not (e.attempt or e.is_settled)), len(self._waiting))
        released, self._waiting = self._waiting[:certain], self._waiting[certain:]
        for attempt, run in groupby(released, key=lambda entry: entry.attempt):
            for piece in self._withdrawn(run) if attempt else _kept(run):
                self._ends_withdrawn = piece.kind == "withdrawn"
                yield piece

    def _withdrawn(self, run: Iterable[_Entry]) -> Iterator[Piece]:
        entries = list(run)
        text = "".join(entry.text for entry in entries).replace("\n", "↵")
        if text:
            touches = self._ends_withdrawn and not text.startswith(" ")
            kinds = [kind for entry in entries for kind in entry.kinds]
            banned = [touches + i for i, kind in enumerate(kinds) if kind == "withdrawn"]
            yield Piece(" " * touches + text, "withdrawn", (banned[0], banned[-1] + 1) if banned else (0, 0))


def _kept(run: Iterable[_Entry]) -> Iterator[Piece]:
    characters = ((character, kind) for entry in run for character, kind in zip(entry.text, entry.kinds, strict=True))
    for kind, group in groupby(characters, key=lambda pair: pair[1]):
        yield Piece("".join(character for character, _ in group), kind)


def picture(events: Iterable[Event], surfaces: Surfaces) -> Text:
    """Return the whole text of a run with its corrections."""
    trail = Trail(surfaces)
    return paint([piece for event in events for piece in trail.add(event)])


def paint(pieces: Iterable[Piece], *, brackets: bool = False) -> Text:
    """Return pieces in color: withdrawn struck through, the ban in it red, conceded yellow, admitted underlined.

    brackets: also put withdrawn pieces between "[-" and "-]", and conceded ones between "[!" and "!]", for screens that
    may not show styles.

    Control and direction characters become visible symbols, so that no text can steer the terminal.
    """
    painted = Text()
    for piece in pieces:
        if piece.kind == "withdrawn":
            _paint_withdrawn(painted, piece, brackets=brackets)
        else:
            text = _bracket(piece) if brackets else piece.text
            painted.append(make_visible(text, keep_layout=True), STYLES[piece.kind])
    return painted


def _paint_withdrawn(painted: Text, piece: Piece, *, brackets: bool) -> None:
    text = piece.text
    first = len(text) - len(text.lstrip(" "))  # between two words, a struck space would glue them
    start, end = (max(first, place) for place in piece.banned)
    painted.append(text[:first] + "[-" * brackets)
    for part, style in ((text[first:start], BESIDE), (text[start:end], STYLES["withdrawn"]), (text[end:], BESIDE)):
        painted.append(make_visible(part, keep_layout=True), style)
    painted.append("-]" * brackets)


def spell(pieces: Iterable[Piece]) -> str:
    """Return pieces without color: withdrawn ones as " [-a testament to-]", conceded ones as " [!a testament to!]"."""
    return "".join(map(_bracket, pieces))


def _bracket(piece: Piece) -> str:
    if piece.kind not in _SIGNS:
        return piece.text
    words, sign = piece.text.lstrip(" "), _SIGNS[piece.kind]
    return " " * (len(piece.text) - len(words)) + f"[{sign}{words}{sign}]"


_SIGNS: dict[Kind, str] = {"withdrawn": "-", "conceded": "!"}


def point_out(events: Iterable[Event], matcher: Matcher, state: State) -> Iterator[Event]:
    """Yield the events of a run without bans as if each ban of `matcher` that it writes had been conceded.

    state: the matcher's after the prompt.
    """
    tokens: list[int] = []
    settled = 0
    for event in events:
        if isinstance(event, Settled):
            continue
        if isinstance(event, Drawn):
            tokens.append(event.token)
            state = matcher.feed(state, event.token)
            yield event
            yield from map(Conceded, state.violations)
            if state.earliest_start > settled:
                yield Settled(tuple(tokens[settled : state.earliest_start]))
                settled = state.earliest_start
            continue
        if isinstance(event, Finished):
            yield from map(Conceded, matcher.finish(state))
            yield Settled(tuple(tokens[settled:]))
        yield event


class Page:
    """Write pieces to a console as they come.

    A terminal gets color, the prompt, and lines broken between words, one without color brackets too; anything else
    gets the text as it is.
    """

    def __init__(self, console: Console, *, show_withdrawn: bool) -> None:
        self._console = console
        self._screen = _Screen(console)
        self._marks = show_withdrawn
        self._hidden = set[Kind]() if show_withdrawn else {"withdrawn"}
        if not console.is_terminal:
            self._hidden.add("prompt")

    def write(self, pieces: Iterable[Piece]) -> None:
        """Write what is to be shown of some pieces."""
        shown = [piece for piece in pieces if piece.kind not in self._hidden]
        if self._console.is_terminal:
            is_colorless = self._console.no_color or self._console.color_system is None
            self._screen.write(paint(shown, brackets=is_colorless and self._marks))
        elif shown:
            self._console.file.write(spell(shown) if self._marks else "".join(piece.text for piece in shown))
            self._console.file.flush()

    def end(self) -> None:
        """Write what was held back, and end the line."""
        if self._console.is_terminal:
            self._screen.end()
        else:
            self._console.file.write("\n")


class _Screen:
    """Write text to a terminal, lines broken between words: the last word waits until it is whole."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._held = Text()
        self._column = 0

    def write(self, text: Text) -> None:
        self._held.append_text(text)
        end = 0
        for match in _WORD.finditer(self._held.plain):
            end = match.end()
            self._put(self._held[match.start() : end])
        self._held = self._held[end:]

    def end(self) -> None:
        self._put(self._held)
        self._held = Text()
        if self._column:
            self._put(Text("\n"))

    def _put(self, word: Text) -> None:
        width = cell_len(word.plain)
        if self._column and self._column + width > self._console.width and word.plain != "\n":
            self._console.print()
            self._column = 0
            word = word[len(word.plain) - len(word.plain.lstrip(" ")) :]
            width = cell_len(word.plain)
        self._console.print(word, end="", soft_wrap=True)
        self._column = 0 if word.plain == "\n" else self._column + width


_WORD = re.compile(r"\n|[^\S\n]*\S+(?=\s)|[^\S\n]+(?=\n)")


def summarize(report: Report, *, seconds: float, kept_tokens: int) -> str:
    """Return what a run did and cost, in one line."""
    parts = [
        _count(kept_tokens, "token"),
        _count(report.violations, "violation"),
        _count(report.withdrawn_tokens, "withdrawn token"),
        _count(report.forward_passes, "forward pass", "forward passes"),
        f"{kept_tokens / max(seconds, 1e-9):.1f} tokens/s",
    ]
    if report.conceded:
        parts.insert(2, f"{report.conceded:,} conceded")
    if report.dropped:
        parts.append(f"{_count(len(report.dropped), 'regex', 'regexes')} dropped: too slow")
    return ", ".join(parts)


def list_bans(report: Report, kind: type[Rewound | Conceded] = Rewound) -> str:
    """Return the bans that were withdrawn, or conceded, the most frequent first, with their counts above 1.

    >>> from antislop.matching.bans import Ban
    >>> list_bans(Report(events=[Rewound(3, (8,), Violation(Ban("cat"), 3, 3))] * 2))
    "'cat' (2)"
    """
    counts = Counter(event.violation.ban.phrase for event in report.events if isinstance(event, kind))
    shown = ((make_visible(repr(phrase)), count) for phrase, count in counts.most_common())
    return ", ".join(f"{phrase} ({count:,})" if count > 1 else phrase for phrase, count in shown)


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def save_svg(text: Text, path: str | os.PathLike[str], *, title: str = "antislop", width: int = 88) -> None:
    """Write a text to an SVG file of `width` columns that loads no font and nothing else."""
    console = Console(record=True, file=io.StringIO(), width=width, highlight=False)
    console.print(text)
    replace_text(path, console.export_svg(title=title, code_format=_SVG_FORMAT))


_SVG_FORMAT = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL).replace(
    "Fira Code, monospace", "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
)

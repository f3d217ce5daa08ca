"""Show the pieces of a text, withdrawn ones included, on a console: in color or as plain text.

A withdrawn piece stays at its place, struck through or in brackets, before the text that replaced it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from antislop.core.trace import Conceded, Report, Rewound, TextPiece
from antislop.display import describe_count, make_visible

if TYPE_CHECKING:
    from antislop.core.bans import Ban

STYLES: dict[str, str] = {
    "prompt": "dim",
    "kept": "",
    "withdrawn": "red strike",
    "conceded": "yellow underline",
    "admitted": "underline",
}
BESIDE_BAN = "dim strike"  # the style of withdrawn text that does not belong to the ban


def to_rich(pieces: Iterable[TextPiece], *, brackets: bool = False) -> Text:
    """Return the pieces as one styled text, with control and direction characters replaced by visible symbols.

    brackets: for terminals without styles, also write a withdrawn piece as "[-…-]" and a conceded piece as "[!…!]".
    """
    text = Text()
    for piece in pieces:
        if piece.kind == "withdrawn":
            spaces = len(piece.text) - len(piece.text.lstrip(" "))
            text.append(" " * min(spaces, 1) + "[-" if brackets else " " * spaces)
            for part, kind in piece.split_withdrawn():
                if kind != "space":
                    style = STYLES["withdrawn"] if kind == "withdrawn" else BESIDE_BAN
                    text.append(make_visible(part, keep_layout=True), style)
            text.append("-]" * brackets)
        else:
            content = _bracket(piece) if brackets else piece.text
            text.append(make_visible(content, keep_layout=True), STYLES[piece.kind])
    return text


def to_plain(pieces: Iterable[TextPiece]) -> str:
    """Return the pieces as plain text, a withdrawn piece as " [-a testament to-]", a conceded one as " [!…!]"."""
    return "".join(map(_bracket, pieces))


def _bracket(piece: TextPiece) -> str:
    if piece.kind not in _SIGNS:
        return piece.text
    words, sign = piece.text.lstrip(" "), _SIGNS[piece.kind]
    spaces = len(piece.text) - len(words)
    return " " * (min(spaces, 1) if piece.kind == "withdrawn" else spaces) + f"[{sign}{words}{sign}]"


_SIGNS: dict[str, str] = {"withdrawn": "-", "conceded": "!"}


class ConsoleWriter:
    """Write pieces of a text to a console as soon as they are passed to `write`.

    A terminal gets the prompt and the text, with lines broken between words. A file or pipe gets the text alone. If
    `show_withdrawn`, both also get withdrawn pieces: in color on a terminal that has colors, else in brackets.
    """

    def __init__(self, console: Console, *, show_withdrawn: bool) -> None:
        self._console = console
        self._shows_withdrawn = show_withdrawn
        self._hidden: set[str] = set() if show_withdrawn else {"withdrawn"}
        if not console.is_terminal:
            self._hidden.add("prompt")
        self._unfinished = Text()  # the last word, until it is complete
        self._column = 0

    def write(self, pieces: Iterable[TextPiece]) -> None:
        shown = [piece for piece in pieces if piece.kind not in self._hidden]
        if self._console.is_terminal:
            is_colorless = self._console.no_color or self._console.color_system is None
            self._unfinished.append_text(to_rich(shown, brackets=is_colorless and self._shows_withdrawn))
            end = 0
            for match in _WORD.finditer(self._unfinished.plain):
                end = match.end()
                self._put(self._unfinished[match.start() : end])
            self._unfinished = self._unfinished[end:]
        elif shown:
            self._console.file.write(to_plain(shown) if self._shows_withdrawn else "".join(p.text for p in shown))
            self._console.file.flush()

    def end(self) -> None:
        if self._console.is_terminal:
            self._put(self._unfinished)
            self._unfinished = Text()
            if self._column:
                self._put(Text("\n"))
        else:
            self._console.file.write("\n")

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
    parts = [
        describe_count(kept_tokens, "token"),
        describe_count(report.violations, "violation"),
        describe_count(report.withdrawn_tokens, "withdrawn token"),
        describe_count(report.forward_passes, "forward pass", "forward passes"),
        f"{kept_tokens / max(seconds, 1e-9):.1f} tokens/s",
    ]
    if report.conceded:
        parts.insert(2, f"{report.conceded:,} conceded")
    if report.timed_out:
        parts.append(f"{describe_count(len(report.timed_out), 'regex', 'regexes')} dropped: too slow")
    return ", ".join(parts)


def list_bans(report: Report, kind: type[Rewound | Conceded] = Rewound) -> str:
    """Return the texts of the bans that were withdrawn (or conceded), the most frequent first, with counts above 1.

    >>> from antislop import Ban
    >>> from antislop.core.bans.token_matcher import Violation
    >>> list_bans(Report(events=[Rewound(3, (8,), Violation(Ban("cat"), 3, 3))] * 2))
    "'cat' (2)"
    """
    return _count_bans(event.violation.ban for event in report.events if isinstance(event, kind))


def _count_bans(bans: Iterable[Ban]) -> str:
    counts = Counter(ban.text for ban in bans)
    shown = ((make_visible(repr(phrase)), count) for phrase, count in counts.most_common())
    return ", ".join(f"{phrase} ({count:,})" if count > 1 else phrase for phrase, count in shown)


def describe_conceded(report: Report) -> str:
    """Return a phrase that says which bans were conceded and why; "" if none was conceded.

    >>> from antislop import Ban
    >>> from antislop.core.bans.token_matcher import Violation
    >>> describe_conceded(Report.of([Conceded(Violation(Ban("cat"), 3, 3), constrained_by="Grammar")]))
    "conceded, since Grammar rules out all else: 'cat'"
    """
    events = [event for event in report.let_through if isinstance(event, Conceded)]
    parts = []
    for cause in dict.fromkeys(event.constrained_by for event in events):
        bans = list_bans(Report(events=[event for event in events if event.constrained_by == cause]), Conceded)
        why = "every continuation was banned" if cause is None else f"{cause} rules out all else"
        parts.append(f"since {why}: {bans}")
    return f"conceded, {'; '.join(parts)}" if parts else ""


def describe_endings(report: Report) -> str:
    """Return a phrase that says what happened when bans had used up their tries; "" if no ban had.

    >>> from antislop import Ban
    >>> from antislop.core.bans.token_matcher import Violation
    >>> from antislop.core.trace.events import Finished
    >>> ended = Violation(Ban.loop(then="stop"), 3, 8)
    >>> describe_endings(Report.of([Finished("repetition", 0.0, None, ended)]))
    "the text ended because it repeated itself: 'a passage 3 times in a row'"
    """
    why = "it repeated itself" if report.reason == "repetition" else "a ban had used up its tries"
    parts = [("text was forced in the place of", report.forced), (f"the text ended because {why}:", report.ended)]
    return "; ".join(f"{what} {_count_bans(each.ban for each in found)}" for what, found in parts if found)

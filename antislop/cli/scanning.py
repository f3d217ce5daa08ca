"""Scan texts of any size: what is banned in them is found while they are read, in bounded memory.

Knows lists and terminals, but no options.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from antislop.lists.ban_list import BanList
from antislop.matching.bans import Match

SILENCE = 0.5
"""Seconds without output after which a bar is shown."""


class Place(NamedTuple):
    """Where a ban begins in a text, the first character at 1, 1, and the text that it matches."""

    file: str
    line: int
    column: int
    ban: str
    text: str


def find_places(bans: BanList, pieces: Iterable[str], *, file: str) -> Iterator[list[Place]]:
    """Yield the occurrences of bans in a text that comes in pieces, some at a time, in order."""
    window = Window(pieces)
    for found in bans.search(window):
        yield [Place(file, *window.locate(match.start), match.ban.phrase, window.cut(match)) for match in found.matches]
        window.drop(found.settled)


class Window:
    """The part of a text that later matches may be in; iterating over it reads the text on.

    pieces: the text. Places are asked for in order: `locate` and `drop` never go back.
    """

    def __init__(self, pieces: Iterable[str]) -> None:
        self._pieces = pieces
        self.text = ""
        self._start = 0  # characters before `text`
        self._at = 0  # the index in `text` up to which lines were counted
        self._line, self._line_start = 1, 0

    def __iter__(self) -> Iterator[str]:
        for piece in self._pieces:
            self.text += piece
            yield piece

    def locate(self, place: int) -> tuple[int, int]:
        """Return the line and the column of a character, those of the first one being 1, 1."""
        index = place - self._start
        self._line += self.text.count("\n", self._at, index)
        line_end = self.text.rfind("\n", self._at, index)
        if line_end >= 0:
            self._line_start = self._start + line_end + 1
        self._at = index
        return self._line, place - self._line_start + 1

    def cut(self, match: Match) -> str:
        """Return the text of a match."""
        return self.text[match.start - self._start : match.end - self._start]

    def drop(self, settled: int) -> None:
        """Forget the characters before a place."""
        self.locate(settled)
        self.text = self.text[self._at :]
        self._start, self._at = settled, 0


class ReadingBar:
    """Show how much of a file was read, on a terminal and after some silence only.

    total: bytes of the file, None if unknown. silence: seconds without output after which the bar appears.
    """

    def __init__(self, screen: Console, title: str, *, total: int | None, silence: float = SILENCE) -> None:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn(),
            TextColumn("{task.fields[found]:,} found"),
            TimeElapsedColumn(),
        )
        # What goes to standard output while the bar is shown must not go through it: it may be a file.
        self._bar = Progress(*columns, console=screen, transient=True, redirect_stdout=False, redirect_stderr=False)
        self._task = self._bar.add_task(title, total=total, found=0)
        self._is_enabled = screen.is_interactive
        self._is_shown = False
        self._silence = silence
        self._quiet_since = time.monotonic()

    def advance(self, size: int) -> None:
        """Count bytes that were read."""
        self._bar.update(self._task, advance=size)
        if self._is_enabled and not self._is_shown and time.monotonic() - self._quiet_since >= self._silence:
            self._bar.start()
            self._is_shown = True

    def add(self, found: int) -> None:
        """Count occurrences."""
        self._bar.update(self._task, found=self._bar.tasks[0].fields["found"] + found)

    def hide(self) -> None:
        """Make room for output."""
        if self._is_shown:
            self._bar.stop()
        self._is_shown = False
        self._quiet_since = time.monotonic()


def style_line(screen: Console) -> str:
    """Return a format for lines of (name, place, phrase): styled by rich once, which takes long, not for each line."""
    if not screen.is_terminal:
        return "{}{}{}\n"
    name, place, phrase = "\ue000\ue001\ue002"
    with screen.capture() as captured:
        screen.print(Text.assemble((name, "magenta"), place, (phrase, "bold red")), soft_wrap=True)
    return captured.get().replace(name, "{}").replace(place, "{}").replace(phrase, "{}")

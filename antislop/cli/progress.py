"""Progress bars of long runs, and how Ctrl-C stops these."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text


class _TimeColumn(ProgressColumn):
    """The remaining time if it can be estimated, else the elapsed time."""

    def render(self, task: Task) -> Text:
        seconds, suffix = task.time_remaining, " left"
        if seconds is None:
            seconds, suffix = task.elapsed or 0, ""
        return Text(f"{timedelta(seconds=round(seconds))}{suffix}")


class ProgressBar:
    """Show the progress of a run, on terminals only; the bar is removed at the end.

    total: of the units that `update` counts; None if unknown.
    silence: seconds without output before the bar appears.
    """

    def __init__(self, screen: Console, title: str = "", *, total: float | None = None, silence: float = 0.0) -> None:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(20),
            _TimeColumn(),
            TextColumn("{task.fields[note]}", markup=False, table_column=Column(ratio=1, no_wrap=True)),
        )
        # Standard output is not redirected: it may be a file.
        self._bar = Progress(*columns, console=screen, transient=True, expand=True, redirect_stdout=False)
        self._task = self._bar.add_task(title, total=total, note="")
        self._is_enabled = screen.is_interactive
        self._is_shown = False
        self._silence = silence
        self._quiet_since = time.monotonic()

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *error: object) -> None:
        self.hide()

    def update(
        self,
        *,
        advance: float | None = None,
        done: float | None = None,
        total: float | None = None,
        title: str | None = None,
        note: str | None = None,
    ) -> None:
        """Update the bar; `advance` adds to `done`, both in the units of `total`."""
        fields: dict[str, Any] = {} if note is None else {"note": note}
        self._bar.update(self._task, advance=advance, completed=done, total=total, description=title, **fields)
        if self._is_enabled and not self._is_shown and time.monotonic() - self._quiet_since >= self._silence:
            self._bar.start()
            self._is_shown = True

    def hide(self) -> None:
        """Hide the bar, to make room for output, until the next update after `silence`."""
        if self._is_shown:
            self._bar.stop()
        self._is_shown = False
        self._quiet_since = time.monotonic()


@dataclass
class Stop:
    is_requested: bool = False


@contextmanager
def stop_at_interrupt(
    say: Callable[[str], None], message: str = "finishing the texts in flight; Ctrl-C again discards them"
) -> Iterator[Stop]:
    """Turn the first Ctrl-C into a request to stop, which the caller reads; the second one interrupts as usual.

    message: said at the first one.
    """
    requested = Stop()

    def stop(_: int, __: FrameType | None) -> None:
        requested.is_requested = True
        signal.signal(signal.SIGINT, handler)
        say(message)

    handler = signal.signal(signal.SIGINT, stop)
    try:
        yield requested
    finally:
        signal.signal(signal.SIGINT, handler)


@contextmanager
def stop_workers_at_interrupt(say: Callable[[str], None]) -> Iterator[Stop]:
    """Discard the texts in flight at the first Ctrl-C, which ends the workers of a cluster, too."""
    requested = Stop()
    try:
        yield requested
    except KeyboardInterrupt:
        requested.is_requested = True
        say("texts that the workers had not finished are discarded")

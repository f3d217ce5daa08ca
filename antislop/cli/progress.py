"""Long runs: show their progress, estimate the remaining time, and stop them at Ctrl-C."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from math import ceil, sqrt
from statistics import NormalDist, fmean, stdev
from threading import Event, Thread
from types import FrameType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

LINE_EVERY = 30.0
"""Seconds between two lines of progress where the output is not a terminal, but a file or a pipe."""


class _TimeColumn(ProgressColumn):
    """The remaining time if it can be estimated, else the elapsed time."""

    def render(self, task: Task) -> Text:
        ends = task.fields["ends"]
        seconds, suffix = task.time_remaining if ends is None else max(0, ends - time.monotonic()), " left"
        if seconds is None:
            seconds, suffix = task.elapsed or 0, ""
        return Text(f"{timedelta(seconds=round(seconds))}{suffix}")


class ProgressBar:
    """Show the progress of a run: on terminals a bar, which is removed at the end, elsewhere a line now and then.

    total: the value of `done` at the end of the run; None if unknown.
    silence: seconds without output before the bar appears.
    """

    def __init__(self, screen: Console, title: str = "", *, total: float | None = None, silence: float = 0.0) -> None:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(20),
            _TimeColumn(),
            TextColumn("{task.fields[note]}", markup=False, table_column=Column(ratio=1)),
        )
        # Standard output is not redirected: it may be a file.
        self._bar = Progress(*columns, console=screen, transient=True, expand=True, redirect_stdout=False)
        self._task = self._bar.add_task(title, total=total, note="", ends=None)
        self._is_enabled = screen.is_interactive
        self._ended = Event()
        self._writer = None if screen.is_terminal else Thread(target=self._write_lines, daemon=True)
        self._is_shown = False
        self._silence = silence
        self._quiet_since = time.monotonic()

    def __enter__(self) -> ProgressBar:
        if self._writer is not None:
            self._writer.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.hide()
        if self._writer is not None:
            self._ended.set()
            self._writer.join()

    def _write_lines(self) -> None:
        while not self._ended.wait(LINE_EVERY):
            task = self._bar.tasks[0]
            share = f"{task.percentage:.0f} %" if task.total else ""
            parts = (task.description, share, str(_TimeColumn().render(task)), task.fields["note"])
            self._bar.console.print(Text(", ".join(filter(None, parts))), soft_wrap=True)

    def update(
        self,
        *,
        advance: float | None = None,
        done: float | None = None,
        total: float | None = None,
        title: str | None = None,
        note: str | None = None,
        seconds_left: float | None = None,
    ) -> None:
        """Update the bar. done: the new value; advance: a number to add to it instead; both in the units of `total`.

        seconds_left: the remaining time; by default estimated from the speed of the latest updates.
        """
        fields: dict[str, Any] = {} if note is None else {"note": note}
        if seconds_left is not None:
            fields["ends"] = time.monotonic() + seconds_left
        self._bar.update(self._task, advance=advance, completed=done, total=total, description=title, **fields)
        if self._is_enabled and not self._is_shown and time.monotonic() - self._quiet_since >= self._silence:
            self._bar.start()
            self._is_shown = True

    def hide(self) -> None:
        """Hide the bar to make room for output; the first update after `silence` seconds shows it again."""
        if self._is_shown:
            self._bar.stop()
        self._is_shown = False
        self._quiet_since = time.monotonic()


def estimate_seconds(finished: Sequence[float], *, elapsed: float, total: int, at_once: int) -> float | None:
    """Return how many seconds the unfinished ones of `total` texts will take; None before two texts are finished.

    finished: the seconds that each finished text took. Texts that end early finish first, so these times are taken as
        the lower part of a normal distribution, and the mean of all texts is estimated from it.
    elapsed: seconds since the first text began.
    at_once: number of texts that are written at the same time.

    >>> estimate_seconds([60.0, 60.0], elapsed=60.0, total=40, at_once=8)
    255.0
    """
    in_flight = min(at_once, total - len(finished))
    if len(finished) < 2 or in_flight < 1:
        return None
    share = len(finished) / (len(finished) + in_flight)
    cut = NormalDist().inv_cdf(share)
    ratio = NormalDist().pdf(cut) / share
    spread = stdev(finished) / sqrt(max(1e-3, 1 - cut * ratio - ratio**2))
    places = min(at_once, total)
    mean = max(fmean(finished) + spread * ratio, places * elapsed / (len(finished) + in_flight))
    age = (places * elapsed - sum(finished)) / in_flight  # as if all places were always taken
    rounds = ceil((total - len(finished) - in_flight) / at_once)
    return max(0.0, mean - age) + rounds * mean + spread * (in_flight > 1)  # the last text takes longer than the mean


@contextmanager
def stop_at_interrupt(
    say: Callable[[str], None], message: str = "finishing the texts in flight; Ctrl-C again discards them"
) -> Iterator[Event]:
    """Yield an event, which the first Ctrl-C in the block sets; the second Ctrl-C interrupts as usual.

    message: what to say at the first Ctrl-C.
    """
    requested = Event()

    def stop(_: int, __: FrameType | None) -> None:
        requested.set()
        signal.signal(signal.SIGINT, handler)
        say(message)

    handler = signal.signal(signal.SIGINT, stop)
    try:
        yield requested
    finally:
        signal.signal(signal.SIGINT, handler)


@contextmanager
def stop_workers_at_interrupt(say: Callable[[str], None]) -> Iterator[Event]:
    """Leave the block at the first Ctrl-C and give up unfinished texts: Ctrl-C also ends the workers writing them."""
    requested = Event()
    try:
        yield requested
    except KeyboardInterrupt:
        requested.set()
        say("texts that the workers had not finished are discarded")

"""What long runs show, and how they are stopped: a bar on a terminal, else a line now and then; Ctrl-C twice."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from antislop.cli.terminal import complain
from antislop.records.journal import Record
from antislop.records.prompts import fingerprint_text

if TYPE_CHECKING:
    from antislop.datasets.summary import Summary

SHOWN = 40
"""Characters of a prompt that has no other name."""
LINE_EVERY = 10.0
"""Seconds between two lines about progress where there is no terminal."""


def follow(records: Iterable[Record], summary: Summary, *, target: Any, total: int | None) -> None:
    """Count records as they are made and show how far that is; what failed is told once for each prompt.

    target: a console. total: how many records there will be; None where nobody knows.
    """
    failed: set[str] = set()
    with show_progress(target, summary, total) as advance:
        for record in records:
            summary.add(record)
            if record["error"] and record["key"] not in failed:
                failed.add(record["key"])
                complain(f"{_name(record)}: {record['error']}")
            advance()


def _name(record: Record) -> str:
    """Return what a user knows the prompt of a record by: its id, or how its text begins."""
    key, text = record["key"], record["prompt"]
    if key.split("#")[0] != fingerprint_text(text):
        return str(key)
    return repr(text if len(text) <= SHOWN else text[:SHOWN] + "…")


@contextmanager
def show_progress(target: Any, summary: Summary, total: int | None) -> Iterator[Callable[[], None]]:
    """Show progress: a bar on a terminal, else a line every few seconds; call what is yielded after each record.

    total: how many records there will be; None where nobody knows.
    """
    if not target.is_terminal:
        last = [time.monotonic()]

        def tell() -> None:
            if time.monotonic() - last[0] >= LINE_EVERY:
                last[0] = time.monotonic()
                target.print(summary.describe() + _estimate(summary, total), soft_wrap=True)

        yield tell
        return
    rest = Column(ratio=1, no_wrap=True)  # cut off where it is narrow
    rates = TextColumn("{task.description}", markup=False, table_column=rest)
    columns = (BarColumn(10), MofNCompleteColumn(), TimeRemainingColumn(), rates)
    with Progress(*columns, console=target, transient=True, expand=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda: bar.update(task, advance=1, description=summary.describe_rates())


def _estimate(summary: Summary, total: int | None) -> str:
    done = summary.records + summary.failed
    if total is None or not done:
        return ""
    left = max(0, total - done)
    seconds = (time.monotonic() - summary.began) / done * left
    return f", {left:,} to go, {timedelta(seconds=round(seconds))} left"


@dataclass
class Stop:
    """Whether the user asked a run to end."""

    is_asked: bool = False


@contextmanager
def stop_at_interrupt(say: Callable[[str], None]) -> Iterator[Stop]:
    """Ask for the end at the first Ctrl-C, so that the texts in flight are finished; the second ends at once."""
    asked = Stop()

    def stop(_: int, __: FrameType | None) -> None:
        asked.is_asked = True
        signal.signal(signal.SIGINT, before)
        say("finishing the texts in flight; Ctrl-C again leaves them")

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)

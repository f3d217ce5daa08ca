"""A selector that collects the events of many streams, as network cards coalesce interrupts."""

from __future__ import annotations

import selectors
import time
from collections.abc import Sequence

PAUSE = 0.0005
"""Seconds. Fast servers write the next token of each stream after 4 ms or more."""


class CoalescingSelector(selectors.DefaultSelector):
    """Wait a little after the first event, and return it with those that came meanwhile.

    A server sends the tokens of one step within a fraction of a millisecond, each by a stream of its own. An event loop
    that wakes up for each of them takes processor time from a server on the same machine. A poll (timeout 0) does not
    wait, so a loop that has work does not rest.
    """

    def __init__(self, pause: float = PAUSE) -> None:
        super().__init__()
        self._pause = pause

    def select(self, timeout: float | None = None) -> Sequence[tuple[selectors.SelectorKey, int]]:  # type: ignore[override]
        """Return the files that are ready, as `selectors.BaseSelector.select` does."""
        events = super().select(timeout)
        if not events or (timeout is not None and timeout <= 0):
            return events
        time.sleep(self._pause)
        return super().select(0)

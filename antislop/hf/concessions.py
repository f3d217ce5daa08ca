"""Warn once that a ban was let through."""

from __future__ import annotations

import sys
import warnings
from typing import Any

from antislop.trace.events import Conceded, ConcededWarning


class ConcessionWarner:
    """Warns of the first concession that it is called with, in the line of the code that called the library."""

    def __init__(self) -> None:
        self._has_warned = False

    def __reduce__(self) -> tuple[Any, ...]:
        """Have copies warn again: they may be in another process."""
        return type(self), ()

    def __call__(self, event: Conceded) -> None:
        """Warn, if this is the first concession."""
        if self._has_warned:
            return
        self._has_warned = True
        violation = event.violation
        cause = f"{event.forced_by} rules out all else" if event.forced_by else "nothing else was left to write"
        warnings.warn(
            f"the banned {violation.ban.phrase!r} was let through at token {violation.start}, since {cause}: "
            "report.conceded and Completion.conceded count such places, of which this is the sampler's "
            "first; on_exhausted='stop' or 'raise' lets none through",
            ConcededWarning,
            stacklevel=_find_caller(),
        )


def _find_caller() -> int:
    """Return the stack level of the code that called the library, as `warnings.warn` counts in the function above."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in _LIBRARIES:
        frame, level = frame.f_back, level + 1
    return level


_LIBRARIES = {"antislop", "contextlib", "torch", "transformers"}

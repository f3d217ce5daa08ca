"""What each ban did in a trace: how often, how much was withdrawn, what came instead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from antislop.trace.events import Admitted, Conceded
from antislop.trace.view.rows import RowView

if TYPE_CHECKING:
    from antislop.matching.bans import Ban


@dataclass
class BanCounts:
    """The counts of one ban; of all cuts without a ban, by controllers and in batches, if `ban` is None.

    rewinds, tokens: attempts, and the tokens withdrawn with them. conceded, admitted: occurrences left in the texts.
    instead: the texts that came instead, with the number of times, of the attempts on the paths that survived.
    """

    ban: Ban | None
    rewinds: int = 0
    tokens: int = 0
    conceded: int = 0
    admitted: int = 0
    instead: Counter[str] = field(default_factory=Counter)


def count_bans(rows: Iterable[RowView]) -> list[BanCounts]:
    """Return the counts of each ban that was completed, the most rewinds first."""
    counts: dict[Ban | None, BanCounts] = {}

    def count(ban: Ban | None) -> BanCounts:
        return counts.setdefault(ban, BanCounts(ban))

    for row in rows:
        for attempt, text in zip(row.history.attempts, row.replacements, strict=True):
            entry = count(attempt.violation.ban if attempt.violation else None)
            entry.rewinds += 1
            entry.tokens += len(attempt.tokens)
            if text is not None:
                entry.instead[text] += 1
        for event in row.row.events:
            if isinstance(event, Conceded):
                count(event.violation.ban).conceded += 1
            elif isinstance(event, Admitted):
                count(event.violation.ban).admitted += 1
    return sorted(counts.values(), key=lambda entry: (-entry.rewinds, -entry.conceded, -entry.admitted))

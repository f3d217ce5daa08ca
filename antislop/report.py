"""Add up what happened: a report is a fold over events. Plain data: no torch, no transformers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

from antislop.bans import Ban
from antislop.events import (
    Admitted,
    Conceded,
    Drafted,
    Drawn,
    Dropped,
    Event,
    Finished,
    Forwarded,
    Reason,
    Rewound,
    Settled,
    Shortened,
)


@dataclass
class Report:
    """Count what a run did and cost.

    violations: bans that were completed and not admitted by their weight: rewinds and concessions.
    rewinds, withdrawn_tokens: how often the text went back, and the tokens it lost by that.
    conceded: bans that stand in the text because there was nothing else to say.
    admitted: bans that stand in the text because their weight allows it.
    forward_passes, tokens_fed, cut_tokens: runs of the model, tokens that it read, and tokens that were taken out of
        its cache again: tokens_fed == prompt + kept + cut_tokens - 1 (in a batch less what was known at its end).
    drafted_tokens, accepted_tokens: tokens that were read ahead in the hope that they come next, and those that did.
    dropped: regexes that took too long and were not looked for to the end.
    matcher_seconds: time spent in the matcher.
    reason: why the text ended; None while it goes on.
    events: everything, in order.
    """

    violations: int = 0
    rewinds: int = 0
    withdrawn_tokens: int = 0
    conceded: int = 0
    admitted: int = 0
    forward_passes: int = 0
    tokens_fed: int = 0
    cut_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    dropped: list[Ban] = field(default_factory=list)
    matcher_seconds: float = 0.0
    reason: Reason | None = None
    events: list[Event] = field(default_factory=list, repr=False)

    def add(self, event: Event) -> None:
        """Count one more event."""
        self.events.append(event)
        if isinstance(event, (Drawn, Settled, Shortened)):  # most events are
            return
        if isinstance(event, Forwarded):
            self.forward_passes += event.fed > 0
            self.tokens_fed += event.fed
            self.cut_tokens += event.cut
        elif isinstance(event, Drafted):
            self.drafted_tokens += event.proposed
            self.accepted_tokens += event.accepted
        elif isinstance(event, Rewound):
            self.violations += 1
            self.rewinds += 1
            self.withdrawn_tokens += len(event.withdrawn)
        elif isinstance(event, Conceded):
            self.violations += 1
            self.conceded += 1
        elif isinstance(event, Admitted):
            self.admitted += 1
        elif isinstance(event, Dropped):
            self.dropped.append(event.ban)
        elif isinstance(event, Finished):
            self.reason = event.reason
            self.matcher_seconds = event.matcher_seconds

    @classmethod
    def total(cls, reports: Sequence[Report]) -> Report:
        """Add up the reports of a batch's rows; events and reasons stay with the rows.

        Passes are counted once per row that took part in them.
        """
        names = [own.name for own in fields(cls) if own.name not in ("dropped", "reason", "events")]
        dropped = list(dict.fromkeys(ban for report in reports for ban in report.dropped))
        return cls(**{name: sum(getattr(report, name) for report in reports) for name in names}, dropped=dropped)

    @classmethod
    def of(cls, events: Sequence[Event]) -> Report:
        """Count all events of a run."""
        report = cls()
        for event in events:
            report.add(event)
        return report

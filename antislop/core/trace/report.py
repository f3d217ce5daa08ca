"""Counts of a generation: a report is a fold over its events. A finished text comes with its report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from antislop.core.bans.characters import Surfaces, decode
from antislop.core.trace.events import (
    Admitted,
    Conceded,
    Drafted,
    Drawn,
    Event,
    Finished,
    Forced,
    Forked,
    Forwarded,
    Reason,
    Rewound,
    Settled,
    TimedOut,
    Truncated,
)
from antislop.display import describe_count, write_html_table

if TYPE_CHECKING:
    from antislop.core.bans.bans import Ban
    from antislop.core.bans.token_matcher import Violation


BATCH_SIZE = 16
"""Texts that are written at a time by default."""


class Withdrawal(NamedTuple):
    """Text that a rewind to `length` generated tokens withdrew.

    text: None if the report has no surfaces; a character that the rewind split is U+FFFD.
    """

    text: str | None
    length: int
    violation: Violation


@dataclass(repr=False)
class Report:
    """Count the events of a generation.

    violations: bans that were completed and not admitted by their weight: rewinds and concessions.
    rewinds: rewinds because of a violation.
    rewinds_by_part: these, by the `Rewound.part` in which the ban begins; empty if the parts are not known.
    withdrawn_tokens: tokens that these rewinds removed from the text.
    conceded: bans left in the text because every alternative was banned as well.
    admitted: bans left in the text because their weight allows it.
    forward_passes: runs of the model.
    tokens_fed: tokens that the model read, prompt + kept + cut_tokens - 1 (in a batch, less those known when it ended).
    cut_tokens: tokens removed from the model's cache.
    drafted_tokens: proposed draft tokens.
    accepted_tokens: draft tokens that were drawn.
    parent: the number of the text that a controller forked, if one did.
    fork_length: the length that `parent` had; the counts are those since then.
    timed_out: regexes that took too long and are no longer searched for.
    matcher_seconds: time spent in the matcher.
    reason: why the text ended; None while it is being generated.
    forced: the violations in whose place another text was forced, as their bans' `then` says.
    ended: the violation before which the text ended, as its ban's `then` says; in a total, one for each such text.
    let_through: the events of the bans that are left in the text.
    events: empty if they were only counted.
    surfaces: the bytes of each token, such as a `Vocabulary`; without it, withdrawn texts are None. Not pickled.

    A rewind that withdraws a conceded or admitted ban lowers that count, but not `violations`.
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
    parent: int | None = None
    fork_length: int | None = None
    timed_out: list[Ban] = field(default_factory=list)
    matcher_seconds: float = 0.0
    reason: Reason | None = None
    withdrawn: list[Withdrawal] = field(default_factory=list, repr=False)
    forced: list[Violation] = field(default_factory=list)
    ended: list[Violation] = field(default_factory=list)
    rewinds_by_part: Counter[str] = field(default_factory=Counter)
    let_through: list[Conceded | Admitted] = field(default_factory=list, repr=False)
    events: list[Event] = field(default_factory=list, repr=False)
    surfaces: Surfaces | None = field(default=None, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "surfaces": None}

    def __repr__(self) -> str:
        """Return the counts that are not zero."""
        blank, names = Report(), [each.name for each in fields(self) if each.repr]
        shown = [name for name in names if getattr(self, name) != getattr(blank, name)]
        return f"Report({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    def add(self, event: Event) -> None:
        """Count an event and keep it."""
        self.events.append(event)
        self.count(event)

    def extend(self, events: Sequence[Event], *, keep: bool = True) -> None:
        """Count events, and keep them or not."""
        if keep:
            self.events += events
        for event in events:
            if type(event) is not Drawn and type(event) is not Settled:  # as most are, and they count nothing
                self.count(event)

    def count(self, event: Event) -> None:
        """Count an event without keeping it."""
        match event:
            case Forwarded():
                self.forward_passes += event.fed > 0
                self.tokens_fed += event.fed
                self.cut_tokens += event.cut
            case Drawn() | Settled():
                pass
            case Drafted(proposed, accepted):
                self.drafted_tokens += proposed
                self.accepted_tokens += accepted
            case Rewound(length, tokens, violation):
                self.violations += 1
                self.rewinds += 1
                if event.part is not None:
                    self.rewinds_by_part[event.part] += 1
                self.withdrawn_tokens += len(tokens)
                text = None if self.surfaces is None else decode(self.surfaces, tokens)
                self.withdrawn.append(Withdrawal(text, length, violation))
                self._forget_withdrawn(length)
            case Truncated(length):
                self._forget_withdrawn(length)
            case Forked(parent, length):
                self.parent, self.fork_length = parent, length
            case Conceded():
                self.violations += 1
                self.conceded += 1
                self.let_through.append(event)
            case Admitted():
                self.admitted += 1
                self.let_through.append(event)
            case TimedOut(ban):
                self.timed_out.append(ban)
            case Forced(_, violation):
                self.forced.append(violation)
            case Finished(reason, seconds, _, violation):
                self.reason, self.matcher_seconds = reason, seconds
                self.ended += [violation] if violation is not None else []

    def _forget_withdrawn(self, length: int) -> None:
        if self.let_through:
            self.let_through = [event for event in self.let_through if event.violation.end < length]
            self.conceded = sum(isinstance(event, Conceded) for event in self.let_through)
            self.admitted = len(self.let_through) - self.conceded

    def to_dict(self) -> dict[str, Any]:
        """Return the counts and texts as plain data for JSON, without the events.

        Bans are represented by their text; `let_through` lists the conceded and the admitted ones.
        """
        return {
            **{name: getattr(self, name) for name in _COUNTS},
            **({"rewinds_by_part": dict(self.rewinds_by_part)} if self.rewinds_by_part else {}),
            "reason": self.reason,
            "forced": list(map(_describe_violation, self.forced)),
            "ended": list(map(_describe_violation, self.ended)),
            "timed_out": [ban.text for ban in self.timed_out],
            "withdrawn": [
                {"text": text, "length": length, **_describe_violation(violation)}
                for text, length, violation in self.withdrawn
            ],
            "let_through": [
                {
                    "conceded": isinstance(event, Conceded),
                    **_describe_violation(event.violation),
                    **(
                        {"constrained_by": event.constrained_by}
                        if isinstance(event, Conceded) and event.constrained_by
                        else {}
                    ),
                }
                for event in self.let_through
            ],
        }

    @classmethod
    def total(cls, reports: Sequence[Report]) -> Report:
        """Return the sum of the reports of a batch's rows, without their events and reasons.

        A forward pass counts once for each row that took part in it.
        """
        total = cls(**{name: sum(getattr(report, name) for report in reports) for name in _COUNTS})
        total.timed_out = list(dict.fromkeys(ban for report in reports for ban in report.timed_out))
        for report in reports:
            total.rewinds_by_part += report.rewinds_by_part
            total.withdrawn += report.withdrawn
            total.forced += report.forced
            total.ended += report.ended
        return total

    @classmethod
    def of(cls, events: Sequence[Event], *, surfaces: Surfaces | None = None) -> Report:
        report = cls(surfaces=surfaces)
        for event in events:
            report.add(event)
        return report

    def _repr_html_(self) -> str:
        counts = (
            describe_count(self.violations, "violation"),
            describe_count(self.rewinds, "rewind"),
            describe_count(self.withdrawn_tokens, "withdrawn token"),
            f"{self.conceded:,} conceded, {self.admitted:,} admitted",
            describe_count(self.forward_passes, "forward pass", "forward passes"),
        )
        withdrawn: dict[Ban, list[Withdrawal]] = {}
        for withdrawal in self.withdrawn:
            withdrawn.setdefault(withdrawal.violation.ban, []).append(withdrawal)
        lines = [
            (
                ban.text,
                len(cases),
                ", ".join(dict.fromkeys(f"“{case.text.strip()}”" for case in cases[:3] if case.text)),
            )
            for ban, cases in sorted(withdrawn.items(), key=lambda item: -len(item[1]))
        ]
        return write_html_table(("ban", "rewinds", "withdrawn"), lines, caption=", ".join(counts))


_COUNTS = tuple(count.name for count in fields(Report) if count.type in ("int", "float"))


def _describe_violation(violation: Violation) -> dict[str, Any]:
    return {"ban": violation.ban.text, "weight": violation.ban.weight, "start": violation.start, "end": violation.end}


@dataclass(frozen=True)
class Completion:
    """A finished text.

    number: index of its prompt among the prompts.
    text: what follows the prompt's text, with the space between both if there is one.
    tokens: ids without the prompt's.
    error: why the text could not be written to its end.
    """

    number: int
    text: str
    tokens: list[int]
    report: Report
    error: Exception | None = field(default=None, kw_only=True)

    @property
    def conceded(self) -> int:
        """Bans that the text contains because nothing else was left to write."""
        return self.report.conceded

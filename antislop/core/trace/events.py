"""The events of a generation: all that the decoding loop yields. A report, the counts, is a fold over them.

`WrittenText` makes the text of them, for streams and pages. `Drawn`, `Rewound` and `Truncated` alone give the tokens of
the text. A finished text comes with its report.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from antislop.core.bans.characters import Surfaces, decode
from antislop.display import describe_count, write_html_table

if TYPE_CHECKING:
    from antislop.core.bans.bans import Ban
    from antislop.core.bans.token_matcher import Matcher, State, Violation

SHARED = 1 << 13
"""Maximum events of each kind that texts share, 5 MB in all: most events equal an earlier one."""

Reason = Literal["done", "exhausted", "repetition", "failed"]


@dataclass(frozen=True, slots=True)
class Forwarded:
    """The model read `fed` tokens in one pass, after `cut` tokens were removed from its cache."""

    fed: int
    cut: int


@dataclass(frozen=True, slots=True)
class Drafted:
    """The latest forward pass also read `proposed` draft tokens, of which `accepted` were drawn."""

    proposed: int
    accepted: int


class TokenChoice(NamedTuple):
    """The distribution that a token was drawn from, as far as it was recorded.

    probability: of the token under the processed scores, as `generate` would draw it.
    share: its part of what bans had left of that distribution.
    rank: among the tokens left, 1 for the likeliest.
    alternatives: the likeliest tokens left and their shares, the drawn one among them if it is likely enough.
    """

    probability: float
    share: float
    rank: int
    alternatives: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Drawn:
    """A token was added to the text. choice: None if it was not recorded."""

    token: int
    choice: TokenChoice | None = field(default=None, compare=False)

    @staticmethod
    @lru_cache(SHARED)
    def plain(token: int) -> Drawn:
        """Return the event without a choice; equal ones are one object."""
        return Drawn(token)


@dataclass(frozen=True, slots=True)
class Rewound:
    """A violation cut the text to `length` tokens.

    alternatives: the likeliest next tokens, with probabilities renormalized without the banned tokens.
    part: of a chat message in which the ban begins: "answer", "thinking" or "tool_calls"; None if no scope of the bans
        knows the parts.
    """

    length: int
    withdrawn: tuple[int, ...]
    violation: Violation
    alternatives: tuple[tuple[int, float], ...] = field(default=(), compare=False)
    part: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Truncated:
    """The text was cut to `length` tokens by a controller, or because another row of the batch rewound.

    A criterion over all rows may end the text there after such a rewind.
    """

    length: int
    withdrawn: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Forked:
    """A controller forked the text `parent`: this text begins with its first `length` tokens, and their events.

    branch_idx: the branch that this text follows.
    """

    parent: int
    length: int
    branch_idx: int


@dataclass(frozen=True, slots=True)
class Admitted:
    """A ban was completed and stays in the text, as its weight allows."""

    violation: Violation


@dataclass(frozen=True, slots=True)
class Conceded:
    """A ban was completed and stays in the text, because every alternative was banned as well.

    constrained_by: the caller's logits processor, such as a grammar, that ruled out more than 99 % of the vocabulary
        where the ban starts, if any.
    """

    violation: Violation
    constrained_by: str | None = None


@dataclass(frozen=True, slots=True)
class Forced:
    """A ban used up its tries, and the latest `length` tokens were written in its place, as its `then` says."""

    length: int
    violation: Violation


@dataclass(frozen=True, slots=True)
class TimedOut:
    """A regex took too long, here or in an earlier text, and is no longer searched for."""

    ban: Ban


@dataclass(frozen=True, slots=True)
class Settled:
    """The next tokens of the text that can no longer be withdrawn."""

    tokens: tuple[int, ...]

    @staticmethod
    @lru_cache(SHARED)
    def of(tokens: tuple[int, ...]) -> Settled:
        """Return the event; equal ones are one object."""
        return Settled(tokens)


@dataclass(frozen=True, slots=True)
class Finished:
    """The text ends.

    reason: "done": a stopping criterion is met; "exhausted": every continuation is banned, or the tries of a ban with
        then="stop" are used up; "repetition": the same for one that finds repeated text, such as a loop; "failed": the
        model returned no probabilities to draw from.
    constrained_by: if the text is exhausted, as in `Conceded`.
    violation: of the ban whose `then` ended the text, if one did.
    """

    reason: Reason
    matcher_seconds: float
    constrained_by: str | None = None
    violation: Violation | None = None


Event: TypeAlias = (
    Forwarded
    | Drafted
    | Drawn
    | Rewound
    | Truncated
    | Forked
    | Admitted
    | Conceded
    | Forced
    | TimedOut
    | Settled
    | Finished
)


def mark_conceded(events: Iterable[Event], matcher: Matcher, state: State) -> Iterator[Event]:
    """Yield the events of a run without bans, and occurrences as `Conceded`. state: of the matcher after the prompt."""
    tokens: list[int] = []
    settled = 0
    for event in events:
        if isinstance(event, Settled):  # too early: a ban may still reach these tokens
            continue
        if isinstance(event, Finished):
            yield from map(Conceded, matcher.finish(state))
            yield Settled(tuple(tokens[settled:]))
        yield event
        if isinstance(event, Drawn):
            tokens.append(event.token)
            state = matcher.feed(state, event.token)
            yield from map(Conceded, state.violations)
            if state.earliest_start > settled:
                yield Settled(tuple(tokens[settled : state.earliest_start]))
                settled = state.earliest_start


# -- counts ------------------------------------------------------------------------------------------------------------


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
                    **({"constrained_by": name} if (name := getattr(event, "constrained_by", None)) else {}),
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
        report.extend(events)
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

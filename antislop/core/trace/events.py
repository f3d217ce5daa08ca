"""The events that the decoding loop yields, the report that counts them, and the finished text with its report.

The tokens of a text follow from its events `Drawn`, `Rewound` and `Truncated` alone. `WrittenText` turns events into
characters, for streams and pages.
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
"""Maximum number of `Drawn` and of `Settled` events kept for reuse, 5 MB in all: most equal an earlier event."""

Reason = Literal["done", "exhausted", "repetition", "failed"]


@dataclass(frozen=True, slots=True)
class Forwarded:
    """The model read `fed` tokens in one forward pass, before which `cut` tokens were removed from its cache."""

    fed: int
    cut: int


@dataclass(frozen=True, slots=True)
class Drafted:
    """The latest forward pass also read `proposed` draft tokens; the text kept the first `accepted` of them."""

    proposed: int
    accepted: int


class TokenChoice(NamedTuple):
    """The recorded part of the distribution that a token was drawn from.

    probability: the token's probability in `generate`, after logits processors and without bans.
    share: the token's probability in that distribution as bans have left it, renormalized.
    rank: the token's rank by share; 1 for the likeliest token.
    alternatives: the likeliest tokens and their shares; the drawn token is among them if it is likely enough.
    """

    probability: float
    share: float
    rank: int
    alternatives: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Drawn:
    """A token was added to the text. choice: the distribution it was drawn from; None if that was not recorded."""

    token: int
    choice: TokenChoice | None = field(default=None, compare=False)

    @staticmethod
    @lru_cache(SHARED)
    def plain(token: int) -> Drawn:
        """Return the event of a token without a choice; calls with the same token may return the same object."""
        return Drawn(token)


@dataclass(frozen=True, slots=True)
class Rewound:
    """A violation of a ban cut the text to its first `length` tokens and withdrew the tokens after them.

    alternatives: the likeliest next tokens, with probabilities renormalized without the banned tokens.
    part: the part of a chat message in which the violation begins: "answer", "thinking" or "tool_calls"; None if no
        ban has a scope that tells these parts apart.
    """

    length: int
    withdrawn: tuple[int, ...]
    violation: Violation
    alternatives: tuple[tuple[int, float], ...] = field(default=(), compare=False)
    part: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Truncated:
    """A controller, or a rewind of another row of the batch, cut the text to its first `length` tokens.

    After the rewind of another row, a stopping criterion that sees all rows may end this text at that length.
    """

    length: int
    withdrawn: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Forked:
    """A controller forked the text number `parent`; this text starts as a copy of the parent's first `length` tokens.

    branch_idx: the index of the controller's branch that this text follows.
    """

    parent: int
    length: int
    branch_idx: int


@dataclass(frozen=True, slots=True)
class Admitted:
    """An occurrence of a ban stays in the text, because the ban's weight, which is above 0, allowed it."""

    violation: Violation


@dataclass(frozen=True, slots=True)
class Conceded:
    """An occurrence of a ban stays in the text, because every alternative was banned as well.

    constrained_by: the name of the caller's logits processor, such as a grammar, that ruled out more than 99 % of the
        vocabulary where the occurrence starts; None if none did.
    """

    violation: Violation
    constrained_by: str | None = None


@dataclass(frozen=True, slots=True)
class Forced:
    """A ban with then="force" used up its tries: the latest `length` tokens are the text that the ban forced."""

    length: int
    violation: Violation


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The regex of a ban took too long, in this text or an earlier one, and is no longer searched for."""

    ban: Ban


@dataclass(frozen=True, slots=True)
class Settled:
    """These tokens, which follow all tokens settled before, can no longer be withdrawn from the text."""

    tokens: tuple[int, ...]

    @staticmethod
    @lru_cache(SHARED)
    def of(tokens: tuple[int, ...]) -> Settled:
        """Return the event for these tokens; calls with the same tokens may return the same object."""
        return Settled(tokens)


@dataclass(frozen=True, slots=True)
class Finished:
    """The text ends.

    reason: "done": a stopping criterion is met; "exhausted": every continuation is banned, or a ban with then="stop"
        has used up its tries; "repetition": a ban on repeated text, such as a loop, has done so; "failed": the model
        returned no probabilities to draw from.
    constrained_by: for the reason "exhausted", the processor that `Conceded` describes.
    violation: the violation at which a ban's `then` ended the text; None if the text ended otherwise.
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
    """Yield the events of a run without bans, with a `Conceded` for each ban found. state: after the prompt."""
    tokens: list[int] = []
    settled = 0
    for event in events:
        if isinstance(event, Settled):  # left out: a ban may still be completed in these tokens
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
"""The default number of texts that are generated at the same time."""


class Withdrawal(NamedTuple):
    """The text that one rewind withdrew; `length` generated tokens were kept.

    text: the withdrawn text, with U+FFFD for a character that the rewind split; None if the report has no surfaces.
    """

    text: str | None
    length: int
    violation: Violation


@dataclass(repr=False)
class Report:
    """The counts of the events of one text, or of several texts together.

    violations: rewinds because of a ban, and concessions together; occurrences that a weight admits don't count.
    rewinds: rewinds because of a violation.
    rewinds_by_part: the rewinds for each `Rewound.part`; empty if the parts are not known.
    withdrawn_tokens: tokens that these rewinds removed from the text.
    conceded: occurrences of bans left in the text because every alternative was banned as well.
    admitted: occurrences of bans left in the text because the weights of the bans allow it.
    forward_passes: forward passes of the model.
    tokens_fed: tokens that the model read: prompt + kept + cut_tokens - 1, or fewer in a batch, which may end unread.
    cut_tokens: tokens removed from the model's cache.
    drafted_tokens: draft tokens that were proposed.
    accepted_tokens: draft tokens that became tokens of the text.
    parent: the number of the text from which a controller forked this text; None if it was not forked.
    fork_length: the number of the parent's tokens at the fork; this report counts only what came after it.
    timed_out: bans whose regex took too long and is no longer searched for.
    matcher_seconds: seconds spent in the search for bans.
    reason: why the text ended; None while it is being generated.
    forced: the violations in whose place bans with then="force" wrote another text.
    ended: the violation at which a ban's `then` ended the text; in a total, a violation for each such text.
    let_through: the events `Conceded` and `Admitted` of the occurrences that are left in the text.
    events: all events; empty if they were only counted.
    surfaces: the bytes of each token, such as a `Vocabulary`; without it, withdrawn texts are None. Not pickled.

    If a rewind withdraws a conceded or admitted occurrence, `conceded` or `admitted` goes down, `violations` doesn't.
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
        """Return the fields that differ from those of an empty report."""
        blank, names = Report(), [each.name for each in fields(self) if each.repr]
        shown = [name for name in names if getattr(self, name) != getattr(blank, name)]
        return f"Report({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    def add(self, event: Event) -> None:
        """Count an event and append it to `events`."""
        self.events.append(event)
        self.count(event)

    def extend(self, events: Sequence[Event], *, keep: bool = True) -> None:
        """Count events; with `keep`, also append them to `events`."""
        if keep:
            self.events += events
        for event in events:
            if type(event) is not Drawn and type(event) is not Settled:  # most events are these, which change no count
                self.count(event)

    def count(self, event: Event) -> None:
        """Count an event without appending it to `events`."""
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

        A ban is represented by its text; `let_through` lists the conceded and the admitted occurrences.
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
    """A finished text of `generate_many`.

    number: the index of the text's prompt in the list of prompts.
    text: the generated text, beginning with the space that separates it from the prompt, if there is one.
    tokens: the generated ids, without the prompt's ids.
    error: why the text could not be written to its end; None if it was.
    """

    number: int
    text: str
    tokens: list[int]
    report: Report
    error: Exception | None = field(default=None, kw_only=True)

    @property
    def conceded(self) -> int:
        """The number of banned occurrences in the text, left there because every alternative was banned as well."""
        return self.report.conceded

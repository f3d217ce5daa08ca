"""Judge the tokens of a text, whoever has drawn them: the rules by which a ban rewinds it.

Sees neither logits nor text. docs/exactness.md explains why the texts are distributed as with rejection sampling.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, Protocol, TypeAlias

import torch

from antislop.decoding.ledger import Node
from antislop.decoding.policy import Exhausted
from antislop.decoding.row import Row
from antislop.decoding.tables import CertainTable, draw_uniform
from antislop.matching.token_matcher import Violation
from antislop.trace.events import Admitted, Conceded, Rewound

ALSO_TRIED = 32
"""Likely other tokens that are subtracted with the one that completed a ban: many may end its last word."""
LISTED_ALTERNATIVES = 16
"""Alternatives that a `Rewound` event lists."""

Verdict: TypeAlias = Literal["stays", "rewound", "forced", "exhausted", "repetition"]
"""What becomes of a token. "forced": the text was cut before it and goes on with what the ban forces. "exhausted",
"repetition": it was cut and ends there.
"""


class Drawer(Protocol):
    """What a judge asks whoever draws the tokens of a row."""

    def has_choice(self, node: Node, *, avoided: Node | None = None) -> bool:
        """Report whether a token is left to draw, after a search for further tokens where little is left.

        avoided: a node whose tokens are not alternatives.
        """

    def draws_others(self, node: Node) -> bool:
        """Report whether other tokens drawn at a node would be added to the text as they are."""

    def is_stuck(self, start: Node) -> bool:
        """Report whether so many rewinds led to a start that tokens into a ban are excluded there."""

    def find_constraint(self, node: Node) -> str | None:
        """Return the name of what left no choice at a node, other than bans."""


class Judge:
    """Judges the tokens of one row.

    constraint: what left no choice where the text was cut.
    ended_by: the violation whose ban said by its `then` what follows.
    """

    def __init__(self, row: Row, source: Drawer) -> None:
        self._row = row
        self._source = source
        self._matcher = row.spec.matcher
        self._policy = row.spec.policy
        self._draw_exactly: Callable[[], float] = partial(draw_uniform, row.spec.generator, dtype=torch.float64)
        self.constraint: str | None = None
        self.ended_by: Violation | None = None

    def judge(self, token: int, violations: Sequence[Violation]) -> Verdict:
        """Judge the violations that `token` completes, which was drawn at the row's node."""
        row, violations = self._row, self._raise_starts(violations)
        latest_start = self._find_latest_start(row.node)
        for violation in violations:
            if violation.start < row.settled:
                raise ValueError(
                    f"the rows of the batch end together, and {violation.ban.text!r} would rewind one to token "
                    f"{violation.start}, which is settled: pass one prompt at a time"
                )
            if self._is_admitted(token, violation):
                row.events.append(Admitted(violation))
                continue
            self._subtract(token, violation, violations, latest_start)
            if self._may_try(violation, latest_start) and (target := self._find_target(violation, latest_start)):
                target.rewinds += 1
                part, withdrawn = self._find_part(violation), row.rewind(target.depth)
                alternatives = target.list_alternatives(LISTED_ALTERNATIVES)
                row.events.append(Rewound(target.depth, withdrawn, violation, alternatives, part))
                return "rewound"
            constraint = self._source.find_constraint(row.node.back_to(violation.start))
            ending = violation.ban.then or self._policy.on_exhausted
            if ending == "raise":
                raise Exhausted(_describe_exhaustion(violation, constraint))
            if ending != "concede":
                self.constraint, self.ended_by = constraint, violation if violation.ban.then else None
                return self._end_before(violation, forces=ending == "force")
            row.events.append(Conceded(violation, constraint))
        if self._policy.method != "token":
            # Subtract the mass now. Otherwise a later violation below this node would be weighted by the full
            # probability, not by what the weight let through.
            if not self._subtract_known(token, violations, latest_start):
                row.node.leave_unresolved(token)
            row.node.propagate()
        return "stays"

    def find_choice(self, node: Node) -> Node | None:
        """Return the latest node, from this one back, where a token was drawn; None if it can't be drawn again."""
        row = self._row
        while isinstance(node.table, CertainTable):
            before = node.depth - 1
            if node.parent is None or before < 0 or row.state.back_to(before).earliest_start < row.settled:
                return None
            node = node.parent.back_to(before)
        return node

    def _find_latest_start(self, node: Node) -> int:
        # method="text" is rejection sampling of whole texts: each violation leads back to the start of the text. Whole
        # texts are then independent trials, of which the first that is accepted is kept, so a text is written in
        # proportion to its probability times the weights of its bans. The mass that the ledger has subtracted belongs
        # to trials that would be rejected: without them, the accepted texts keep their shares.
        if self._policy.method == "text":
            return self._row.floor
        choice = self.find_choice(node)  # a ban within certain tokens leads back to the draw before them
        return self._row.max_new_tokens if choice is None else choice.depth

    def _is_admitted(self, token: int, violation: Violation) -> bool:
        """Return whether a weight lets this occurrence stay: by a coin, but without one if its mass was subtracted."""
        row, weight = self._row, violation.ban.weight
        if self._is_by_first_token(violation):
            start, first = row.node.step_from(violation.start, token)
            return weight > 0 and start.has_resolved(_without_end(violation), token=first)
        if row.node.has_resolved(violation, token=token):
            return weight > 0
        return self._policy.do_sample and weight > 0 and draw_uniform(row.spec.generator) < weight

    def _is_by_first_token(self, violation: Violation) -> bool:
        is_greedy = not self._policy.do_sample and violation.ban.pattern.is_repetition
        return is_greedy or self._policy.method == "token"

    def _subtract(self, token: int, violation: Violation, violations: Sequence[Violation], latest_start: int) -> None:
        """Subtract a violation, and the violations of other likely tokens at its node.

        Where a probability on the way is unknown, nothing is subtracted: the text is drawn again as in plain rejection.
        """
        node = self._row.node
        if not node.knows_since(min(violation.start, latest_start), token):
            return
        start, first = node.step_from(violation.start, token)
        if self._is_by_first_token(violation):
            start.weigh(first, _without_end(violation))
        else:
            self._subtract_known(token, violations, latest_start)
            if self._source.draws_others(node):
                self._subtract_others(node, latest_start)
            node.propagate()
        if violation.ban.weight == 0 and self._source.is_stuck(start):
            start.exclude(first, start=start.depth)
            start.propagate()

    def _subtract_others(self, node: Node, latest_start: int) -> None:
        row = self._row
        before = row.state.back_to(len(row.tokens) - 1)
        for other, _ in node.table.likeliest(ALSO_TRIED) if node.table else ():
            after = row.feed(before, other)
            completed = after.violations
            if len(row.tokens) == row.max_new_tokens:
                completed = in_order((*completed, *self._matcher.finish(after)))
            self._subtract_known(other, self._raise_starts(completed), latest_start)

    def _subtract_known(self, token: int, violations: Sequence[Violation], latest_start: int) -> bool:
        """Subtract all violations that a token would complete, if all probabilities since their starts are known.

        Otherwise they are rejected, or let through by their weights, whenever the token is drawn.
        """
        node = self._row.node
        if violations and node.knows_since(min(latest_start, violations[0].start), token):
            node.subtract(token, violations, latest_start=latest_start)
            return True
        return False

    def _raise_starts(self, violations: Sequence[Violation]) -> Sequence[Violation]:
        """Have bans that began before the end of a forced text lead back to that end."""
        floor = self._row.floor
        return [each._replace(start=max(each.start, floor)) for each in violations] if floor else violations

    def _may_try(self, violation: Violation, latest_start: int) -> bool:
        """Count a try of a ban that has an ending, where it leads back to; return whether one was left."""
        ban, place = violation.ban, self._row.node.back_to(min(violation.start, latest_start))
        if ban.then:
            place.tries[ban] = place.tries.get(ban, 0) + 1
        return not ban.then or place.tries[ban] <= ban.tries

    def _find_target(self, violation: Violation, latest_start: int) -> Node | None:
        row, policy = self._row, self._policy
        node = row.node.back_to(min(violation.start, latest_start))
        if policy.do_sample:
            node = node.follow_exits(self._draw_exactly)
        is_spent = policy.method != "text" and row.withdrawn_count >= policy.max_withdrawn_ratio * row.max_new_tokens
        if is_spent or node.rewinds >= policy.max_rewinds:
            return None
        if not node.is_scarce(policy.mass_floor):
            return node
        word_end = self._find_word_end(violation)
        target = self._step_back(node, avoided=word_end)
        if target is None and word_end is not None and self._source.has_choice(node):
            return node  # a longer word is bad text, but it is not banned
        return target

    def _step_back(self, node: Node, *, avoided: Node | None) -> Node | None:
        """Return the latest unsettled node, from this one back, that has an alternative."""
        row = self._row
        while not self._source.has_choice(node, avoided=avoided):
            before = node.depth - 1  # a splice or a cut may lead from a greater depth: then resume before it
            if node.parent is None or before < row.floor or row.state.back_to(before).earliest_start < row.settled:
                return None
            node.parent.exclude(node.token, start=before)
            node.parent.propagate()
            node = node.parent.back_to(before)
        return node

    def _find_word_end(self, violation: Violation) -> Node | None:
        """Return the row's node if the token drawn there only ended the ban's last word.

        The tokens left there would only make the word longer: "once upon a times".
        """
        before = self._row.state.back_to(len(self._row.tokens) - 1)
        ended = {(other.ban, other.start) for other in self._matcher.finish(before)}
        return self._row.node if (violation.ban, violation.start) in ended else None

    def _end_before(self, violation: Violation, *, forces: bool) -> Verdict:
        row, floor = self._row, self._row.floor
        if forces and violation.ban.force in row.spec.forced and not 0 < floor == violation.start:
            part = self._find_part(violation)
            row.events.append(Rewound(violation.start, row.rewind(violation.start), violation, part=part))
            return "forced"
        self.cut_before(violation)
        return "repetition" if violation.ban.then and violation.ban.pattern.is_repetition else "exhausted"

    def cut_before(self, violation: Violation) -> None:
        """Rewind the text to before a violation, and before any ban that ending there would complete."""
        row, violations = self._row, [violation]
        while violations:
            first, part = violations[0], self._find_part(violations[0])
            row.events.append(Rewound(first.start, row.rewind(first.start), first, part=part))
            violations = list(self._raise_starts(self._matcher.finish(row.state)))

    def _find_part(self, violation: Violation) -> str | None:
        return self._matcher.find_part(self._row.state.back_to(violation.start))


def in_order(violations: Sequence[Violation]) -> tuple[Violation, ...]:
    return tuple(sorted(violations, key=lambda violation: violation.start))


def _without_end(violation: Violation) -> Violation:
    # The classic rule depends only on the start of a ban.
    return Violation(violation.ban, violation.start, violation.start)


def _describe_exhaustion(violation: Violation, constraint: str | None) -> str:
    cause = f" ({constraint} allows nothing else)" if constraint else ""
    return (
        f"at token {violation.start} every alternative to the banned {violation.ban.text!r} is used up{cause}: "
        "shorten the list, give the ban a weight, or choose on_exhausted='concede' or 'stop'"
    )

"""Judge the tokens of a text, whoever has drawn them: the rules by which a ban rewinds it.

Sees neither logits nor text. docs/exactness.md explains why the texts are distributed as with rejection sampling.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, Protocol, TypeAlias

import torch

from antislop.core.bans.bans import Ban
from antislop.core.bans.token_matcher import Violation
from antislop.core.loop.forced import Answer, LookAhead, ask, find_place
from antislop.core.loop.ledger import Node
from antislop.core.loop.row import Row
from antislop.core.loop.tables import CertainTable, draw_uniform
from antislop.core.trace.events import Admitted, Conceded, Rewound
from antislop.errors import Exhausted

ALSO_TRIED = 32
"""Likely other tokens that are subtracted with the one that completed a ban: many may end its last word."""
UNKNOWN_TRIES = 8
"""Rewinds to a place where it is not known whether a grammar forces a ban."""
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

    def look_ahead(self, node: Node) -> LookAhead | None:
        """Return the grammar of the text at a node; None if there is none that reads characters."""


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
        row, latest_start = self._row, self._find_latest_start(self._row.node)
        violations = self._in_order(violations)
        held = [violation for violation in violations if self._is_held(token, violation)]
        for violation in violations:
            if violation.target < row.settled:
                raise ValueError(
                    f"the rows of the batch end together, and {violation.ban.text!r} would rewind one to token "
                    f"{violation.target}, which is settled: pass one prompt at a time"
                )
            if violation not in held:
                row.events.append(Admitted(violation))
                continue
            target, (answer, way_out) = None, self._ask_grammar(violation, latest_start)
            if answer == "avoidable":
                self._subtract(token, violation, held, latest_start)
            if answer != "forced" and self._may_try(violation, latest_start, is_known=answer != "unknown"):
                target = self._find_target(violation, latest_start, way_out)
            if target is not None:
                target.rewinds += 1
                part, withdrawn = self._find_part(violation), row.rewind(target.depth)
                alternatives = target.list_alternatives(LISTED_ALTERNATIVES)
                row.events.append(Rewound(target.depth, withdrawn, violation, alternatives, part))
                return "rewound"
            constraint = self._source.find_constraint(row.node.back_to(violation.target))
            ending = violation.ban.then or self._policy.on_exhausted
            if ending == "raise":
                cause = f" ({constraint} allows nothing else)" if constraint else ""
                raise Exhausted(
                    f"at token {violation.start} every alternative to the banned {violation.ban.text!r} is used up"
                    f"{cause}: shorten the list, give the ban a weight, or choose on_exhausted='concede' or 'stop'"
                )
            if ending != "concede":
                self.constraint, self.ended_by = constraint, violation if violation.ban.then else None
                return self._end_before(violation, forces=ending == "force")
            row.events.append(Conceded(violation, constraint))
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

    def _is_held(self, token: int, violation: Violation, *, is_drawn: bool = True) -> bool:
        """Return whether a ban holds where it begins: always, or by the coin of its weight for that place.

        is_drawn: whether the text was continued by the token; the others that are likely have had no trial.
        """
        row, policy, weight = self._row, self._policy, violation.ban.weight
        if weight == 0:
            return True
        if policy.method == "token":
            start, first = row.node.step_from(violation.target, token)
            return not start.has_weighed(violation.ban, token=first)
        if not policy.do_sample:
            return not self._is_likeliest(token, violation)
        if policy.method == "text":  # each whole text that is drawn is a trial, with coins of its own
            return is_drawn and draw_uniform(row.spec.generator) >= weight
        return row.toss(violation.target, violation.ban) >= weight

    def _is_likeliest(self, token: int, violation: Violation) -> bool:
        """Return whether a greedy text keeps an occurrence: if its weight leaves it likelier than other beginnings."""
        node, mass = self._row.node, violation.ban.weight
        if not node.knows_since(violation.target, token):
            return False
        while True:
            assert node.table is not None, "its tokens are known"
            mass *= node.table.left(token) / node.mass_left()
            if node.depth <= violation.target or node.parent is None:
                break
            node, token = node.parent, node.token
        others = (share for other, share in node.list_alternatives(2) if other != token)
        return mass >= max(others, default=0.0)

    def _subtract(self, token: int, violation: Violation, held: Sequence[Violation], latest_start: int) -> None:
        """Subtract a violation, and the violations of other likely tokens at its node.

        Where a probability on the way is unknown, nothing is subtracted: the text is drawn again as in plain rejection.
        """
        node = self._row.node
        if not node.knows_since(min(violation.target, latest_start), token):
            return
        start, first = node.step_from(violation.target, token)
        if self._policy.method == "token":
            start.weigh(first, violation.ban)
        elif not self._policy.do_sample and violation.ban.pattern.is_repetition:
            # From the last token, the text would change one word of each copy, and repeat the rest.
            start.exclude(first, start=start.depth)
        elif violation.ban.weight == 0 or self._policy.method == "exact" or not self._policy.do_sample:
            self._subtract_known(token, held, latest_start)
            if self._source.draws_others(node):
                self._subtract_others(node, violation.ban, latest_start)
            node.propagate()
        if self._source.is_stuck(start):
            start.exclude(first, start=start.depth)
            start.propagate()

    def _subtract_others(self, node: Node, ban: Ban, latest_start: int) -> None:
        """Subtract other likely tokens that would be rejected, except where what follows is another ban's ending."""
        row = self._row
        before = row.state.back_to(len(row.tokens) - 1)
        for other, _ in node.table.likeliest(ALSO_TRIED) if node.table else ():
            after = row.feed(before, other)
            completed = after.violations
            if len(row.tokens) == row.max_new_tokens:
                completed = (*completed, *self._matcher.finish(after))
            held = [each for each in self._in_order(completed) if self._is_held(other, each, is_drawn=False)]
            if not any(each.ban.then and each.ban != ban for each in held):
                self._subtract_known(other, held, latest_start)

    def _subtract_known(self, token: int, held: Sequence[Violation], latest_start: int) -> None:
        """Subtract a token that would be rejected, if all probabilities since the first start are known.

        Otherwise the token is rejected whenever it is drawn.
        """
        if held and self._row.node.knows_since(start := min(latest_start, held[0].target), token):
            self._row.node.exclude(token, start=start)

    def _in_order(self, violations: Sequence[Violation]) -> Sequence[Violation]:
        """Return what leads back furthest first, and bans that lead to the same place in the order of their list.

        Bans that began before the end of a forced text lead back to that end.
        """
        if floor := self._row.floor:
            violations = [
                each._replace(start=max(each.start, floor), unit=None if each.unit is None else max(each.unit, floor))
                for each in violations
            ]
        if len(violations) > 1:
            violations = sorted(violations, key=lambda each: (each.target, self._matcher.ranks[each.ban]))
        return violations

    def _may_try(self, violation: Violation, latest_start: int, *, is_known: bool) -> bool:
        """Count a try of a ban that has an ending, or may be forced, where it leads back to; return if one was left."""
        ban, place = violation.ban, self._row.node.back_to(min(violation.target, latest_start))
        if is_known and not ban.then:
            return True
        place.tries[ban] = place.tries.get(ban, 0) + 1
        return place.tries[ban] <= (ban.tries if ban.then else UNKNOWN_TRIES)

    def _find_target(self, violation: Violation, latest_start: int, way_out: Node) -> Node | None:
        row, policy = self._row, self._policy
        node = row.node.back_to(min(violation.target, latest_start))
        if policy.do_sample:
            node = node.follow_exits(self._draw_exactly)
        is_spent = policy.method != "text" and row.withdrawn_count >= policy.max_withdrawn_ratio * row.max_new_tokens
        if is_spent or node.rewinds >= policy.max_rewinds:
            return None
        if node.depth > way_out.depth:
            return self._step_back(node, avoided=None, limit=way_out.depth)
        if not node.is_scarce(policy.mass_floor):
            return node
        # If the token drawn at the row's node only ended the ban's last word, those left there would only make the word
        # longer: "once upon a times".
        ended = {(one.ban, one.start) for one in self._matcher.finish(row.state.back_to(len(row.tokens) - 1))}
        word_end = row.node if (violation.ban, violation.start) in ended else None
        target = self._step_back(node, avoided=word_end)
        if target is None and word_end is not None and self._source.has_choice(node):
            return node  # a longer word is bad text, but it is not banned
        return target

    def _ask_grammar(self, violation: Violation, latest_start: int) -> tuple[Answer, Node]:
        """Answer whether a grammar forces an occurrence, and from each place to which the text could go back its ban.

        Returns the latest place from which a text avoids it, too.
        """
        row, policy, ban = self._row, self._policy, violation.ban
        node = row.node.back_to(min(violation.target, latest_start))
        ahead, state = self._source.look_ahead(node), row.state.back_to(node.depth)
        if ahead is None or (ban.weight and policy.method != "exact"):  # then one of the next trials is kept
            return "avoidable", node
        if policy.method == "text":  # each trial is a whole text
            is_forced = ask(ban, ahead, self._matcher, state, is_here=False) == "forced"
            return "forced" if is_forced else "avoidable", node
        before = find_place(ban, self._matcher, state, row.tokens[node.depth :])
        # The coin of a weight is tossed for the place before a token, which depends on the spelling.
        if before is None or (before and ban.weight) or (before and not ahead.accept_string(before)):
            return "avoidable", node
        *_, state = state, *self._matcher.read_characters(state, before)
        answer = ask(ban, ahead, self._matcher, state, is_here=True)
        if answer != "forced":
            # Of two equal greedy draws the second one is banned, too.
            return answer if policy.do_sample else "avoidable", node
        place = node
        while True:
            if before or place is not node:  # otherwise that was asked above
                ahead, state = self._source.look_ahead(place), row.state.back_to(place.depth)
                if ahead is None or ask(ban, ahead, self._matcher, state, is_here=ban.weight > 0) == "avoidable":
                    return "avoidable", place
            if place.parent is None or (earlier := self._find_before(place)) is None:
                return "forced", node
            place = place.parent.back_to(earlier)

    def _step_back(self, node: Node, *, avoided: Node | None, limit: int | None = None) -> Node | None:
        """Return the latest unsettled node, from this one back, that has an alternative to a ban.

        limit: a depth up to which none has.
        """
        while (limit is not None and node.depth > limit) or not self._source.has_choice(node, avoided=avoided):
            if (before := self._find_before(node)) is None or node.parent is None:
                return None
            node.parent.exclude(node.token, start=before)
            node.parent.propagate()
            node = node.parent.back_to(before)
        return node

    def _find_before(self, node: Node) -> int | None:
        """Return the place before a node, if the text may be drawn again from there."""
        row, before = self._row, node.depth - 1  # a splice or a cut may lead from a greater depth: resume before it
        settled = max(row.settled, row.closed)
        is_settled = before < row.floor or row.state.back_to(before).earliest_start < settled
        return None if node.parent is None or is_settled else before

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
            violations = list(self._in_order(self._matcher.finish(row.state)))

    def _find_part(self, violation: Violation) -> str | None:
        return self._matcher.find_part(self._row.state.back_to(violation.start))

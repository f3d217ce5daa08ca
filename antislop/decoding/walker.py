"""Draw tokens, and draw again if they complete a ban.

A row walks: it draws a token at its node and feeds the matcher. Without a violation it moves to the next node;
otherwise the ledger subtracts the violation, and the row rewinds. It walks until it needs the model. Knows neither what
the tokens mean nor what computes the logits.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from antislop.control.branches import SampleRule
from antislop.decoding.ledger import Node, draw_uniform
from antislop.decoding.policy import Exhausted
from antislop.decoding.row import NO_DRAFT, Row
from antislop.matching.bans import Ban
from antislop.matching.token_matcher import State, Violation
from antislop.trace.events import (
    Admitted,
    Conceded,
    Drafted,
    Drawn,
    Dropped,
    Event,
    Finished,
    Reason,
    Rewound,
    Settled,
    Shortened,
)

ALTERNATIVES = 16
"""How many alternatives a `Rewound` event lists."""
CANDIDATES = 32
"""Tokens that are tried in addition to the one that completed a ban: the end of a word often completes it with many."""

NONE_DRAWN = -1
"""Returned instead of a token if none can be drawn: all probabilities are NaN."""


class Walker:
    """Moves one row through its tree until it needs the model, and appends to `events` what happens."""

    def __init__(self, row: Row) -> None:
        self.row = row
        self.matcher = row.spec.matcher
        self.policy = row.spec.policy
        self.drafter = row.spec.drafter
        # method="text" is rejection sampling of whole texts: each violation leads back to the start of the text. Whole
        # texts are then independent trials, of which the first that is accepted is kept, so a text is written in
        # proportion to its probability times the weights of its bans. The mass that the ledger has subtracted belongs
        # to trials that would be rejected: without them, the accepted texts keep their shares.
        self._latest_start = 0 if self.policy.method == "text" else row.capacity
        self.events: list[Event] = []
        self._dropped: set[Ban] = set()  # the matcher's slow bans that were reported
        self._is_together = row.history is not None and row.history.is_together
        self._ends_itself = False  # because of its own tokens, not of a criterion's answer about all rows
        self._reason: Reason = "done"
        self._forced_by: str | None = None

    def draft(self) -> None:
        """Ask for a draft and cut it where it would complete a ban or outgrow the text."""
        row = self.row
        if self.drafter is None or row.is_finished or row.is_waiting or not row.tokens:
            return
        draft, state, read = self.drafter.propose(row), row.state, 0
        for token in draft.proposed[: row.capacity - len(row.tokens) - 1]:
            state = self._feed(state, token)
            if state.violations:
                break
            read += 1
        row.draft = draft._replace(read=read)

    def walk_drafted(self) -> None:
        """Walk, first along the draft, and report how many of its tokens were accepted."""
        row, draft, before, length = self.row, self.row.draft.tokens, len(self.events), len(self.row.tokens)
        self.walk()
        accepted = 0
        for event in self.events[before:]:
            if isinstance(event, Rewound):
                break
            if isinstance(event, Drawn):
                if accepted == len(draft) or event.token != draft[accepted]:
                    break
                accepted += 1
        if self.drafter is not None:
            self.drafter.learn(row, proposed=len(draft), accepted=accepted)
        row.draft = NO_DRAFT
        if row.history is not None and accepted < len(draft):
            row.history.rewind(row, min(length + accepted, len(row.tokens)))
        self.events.append(Drafted(len(draft), accepted))

    def _draw(self) -> int:
        """Draw at the row's node, with the draft's token as a proposal as long as the text follows the draft."""
        row, draft = self.row, self.row.draft
        if row.is_alone and row.node.is_broken(do_sample=self.policy.do_sample):
            return NONE_DRAWN
        step = len(row.tokens) - row.unchanged
        is_along = step < len(draft.proposed) and row.tokens[row.unchanged :] == draft.tokens[:step]
        if self.policy.do_sample and draft.proposals is not None and is_along:
            return row.node.draw_beside(draft.proposed[step], draft.proposals[step], generator=row.spec.generator)
        return row.node.draw(do_sample=self.policy.do_sample, generator=row.spec.generator)

    def walk(self, token: int | None = None) -> None:
        """Walk until the model is needed; `token` is the token drawn at the first node, if it was already drawn."""
        row = self.row
        while row.node.is_filled and not (row.is_finished or row.is_waiting):
            if token is None:
                token = self._draw()
            if token == NONE_DRAWN:
                self._finish("failed")
                return
            self._add(token, self._describe(token))
            token = None

    def _describe(self, token: int) -> Drawn:
        """Return the event of a token drawn at the row's node."""
        record = self.row.spec.record_choice
        return Drawn.plain(token) if record is None else Drawn(token, record(self.row.node, token))

    def _add(self, token: int, drawn: Drawn, *, edge: int | None = None) -> bool:
        """Add a token to the text, and judge it; return whether it stays.

        edge: the drawn token, if a controller put another one in its place.
        """
        row = self.row
        edge = token if edge is None else edge
        row.append(token, self._feed(row.state, token))
        self.events.append(drawn)
        violations, is_done = row.state.violations, row.spec.settings.is_done(row)
        if is_done:
            violations = in_order((*violations, *self.matcher.finish(row.state)))
        if slow := self.matcher.slow:
            self._note_dropped(slow)
        if violations and not self._judge(edge, violations):
            return False
        row.node = row.node.child(edge, depth=len(row.tokens))
        if is_done:
            self._finish("done")
        elif self._is_together:
            row.is_waiting = True
        else:
            self.settle(row.settled_length)
        return True

    def end_at(self, length: int) -> None:
        """End the text after `length` tokens, unless that completes a ban: then rewind it."""
        row = self.row
        row.end, self._ends_itself = None, False
        if len(row.tokens) > length:
            self.events.append(Shortened(length, row.rewind(length)))
        token = row.tokens[-1]
        if violations := in_order(self.matcher.finish(row.state)):
            row.node = row.node.back_to(length - 1)
            if not self._judge(token, violations):
                return
            row.node = row.node.child(token)
        self._finish("done")
        self._ends_itself = False

    def wait(self, step_count: int) -> None:
        """Wait at an end, or for the criteria's answer about a token; they have seen `step_count` tokens so far."""
        row = self.row
        if row.end is not None and row.end > step_count and not self._ends_itself:
            row.end = None  # the answer that ended it was about withdrawn text
        row.is_waiting = row.end is not None or len(row.tokens) > step_count

    def _note_dropped(self, slow: Sequence[Ban]) -> None:
        self.events.extend(Dropped(ban) for ban in slow if ban not in self._dropped)
        self._dropped.update(slow)

    def _feed(self, state: State, token: int) -> State:
        began = time.perf_counter()
        after = self.matcher.feed(state, token)
        self.row.matcher_seconds += time.perf_counter() - began
        return after

    def settle(self, length: int) -> None:
        """Settle the first `length` tokens, which no rewind reaches any more."""
        row = self.row
        if length > row.settled:
            self.events.append(Settled.of(tuple(row.tokens[row.settled : length])))
            row.settled = length
            row.node.back_to(length).cut_loose()

    def _finish(self, reason: Reason) -> None:
        row, self._reason = self.row, reason
        if self._is_together:
            row.end, row.is_waiting, self._ends_itself = len(row.tokens), True, True
        else:
            self.conclude()

    def conclude(self) -> None:
        """Finish the text with its present tokens."""
        self.row.is_finished = True
        self.settle(len(self.row.tokens))
        self.row.node.drop_children()
        if self._reason != "failed":  # then its logits are described
            self.row.node = Node(depth=len(self.row.tokens))
        forced_by = self._forced_by if self._reason == "exhausted" else None
        self.events.append(Finished(self._reason, self.row.matcher_seconds, forced_by))

    def _judge(self, token: int, violations: Sequence[Violation]) -> bool:
        """Return whether the token stays; if not, the row was rewound or is finished."""
        for violation in violations:
            if violation.start < self.row.settled:
                raise ValueError(
                    f"the rows of the batch end together, and {violation.ban.phrase!r} would rewind one to token "
                    f"{violation.start}, which is settled: pass one prompt at a time"
                )
            if self._is_admitted(token, violation):
                self.events.append(Admitted(violation))
                continue
            self._take(token, violation, violations)
            target = self._find_target(violation)
            if target is not None:
                target.rewinds += 1
                withdrawn = self.row.rewind(target.depth)
                self.events.append(Rewound(target.depth, withdrawn, violation, target.alternatives(ALTERNATIVES)))
                return False
            forced_by = self._find_forcing(violation)
            if self.policy.on_exhausted == "raise":
                cause = f", since {forced_by} rules out all else" if forced_by else ""
                raise Exhausted(
                    f"nothing is left to say at token {violation.start} but the banned {violation.ban.phrase!r}"
                    f"{cause}: "
                    "shorten the list, give the ban a weight, or choose on_exhausted='concede' or 'stop'"
                )
            if self.policy.on_exhausted == "stop":
                self._stop(violation, forced_by=forced_by)
                return False
            self.events.append(Conceded(violation, forced_by))
        if self.policy.method != "token":
            # Subtract the mass now: otherwise a later exit from below would count more than the coin that led there.
            self._subtract(token, violations)
        return True

    def _subtract(self, token: int, violations: Sequence[Violation]) -> None:
        """Subtract the mass of the bans that a token completes, here and in all ancestors."""
        self.row.node.take(token, violations, latest_start=self._latest_start)
        self.row.node.carry()

    def _find_forcing(self, violation: Violation) -> str | None:
        """Return the name of a processor of the caller's that left no choice where the violation starts."""
        if self.row.history is None:
            return None
        node = self.row.node.back_to(violation.start)
        return self.row.history.find_forcing(self.row, node.depth, node.logits)

    def _is_admitted(self, token: int, violation: Violation) -> bool:
        """Report whether a weight lets this occurrence stay: by a coin, or because its mass was subtracted before."""
        row, weight = self.row, violation.ban.weight
        if self._is_by_first_token(violation):
            start, first = row.node.step_from(violation.start, token)
            return weight > 0 and start.has_resolved(_at_start(violation), token=first)
        if row.node.has_resolved(violation, token=token):
            return weight > 0
        return self.policy.do_sample and weight > 0 and draw_uniform(row.spec.generator) < weight

    def _is_by_first_token(self, violation: Violation) -> bool:
        """Report whether a violation weighs on its first token alone, whatever follows it."""
        is_greedy = not self.policy.do_sample and violation.ban.pattern.begins_anew
        return is_greedy or self.policy.method == "token"

    def _take(self, token: int, violation: Violation, violations: Sequence[Violation]) -> None:
        """Subtract the mass of a violation, and of likely tokens that complete a ban at the same place."""
        row = self.row
        if self._is_by_first_token(violation):
            start, first = row.node.step_from(violation.start, token)
            start.scale(first, _at_start(violation))
            return
        row.node.take(token, violations, latest_start=self._latest_start)
        if not (isinstance(row.node.rule, SampleRule) and row.node.rule.splices):  # which may replace other tokens
            self._take_others(row.node)
        row.node.carry()

    def _take_others(self, node: Node) -> None:
        """Subtract the mass of likely tokens that would complete a ban in the place of the latest one."""
        row = self.row
        before = row.state.back_to(len(row.tokens) - 1)
        for other in node.likeliest(CANDIDATES):
            after = self._feed(before, other)
            completed = after.violations
            if len(row.tokens) == row.capacity:
                completed = in_order((*completed, *self.matcher.finish(after)))
            if completed:
                node.take(other, completed, latest_start=self._latest_start)

    def _find_target(self, violation: Violation) -> Node | None:
        """Return the node to draw from next, or None if there is no alternative to the violation."""
        row, policy = self.row, self.policy
        node = row.node.back_to(min(violation.start, self._latest_start))
        if policy.do_sample:
            node = node.bounce(row.spec.generator)
        is_spent = policy.method != "text" and row.withdrawn >= policy.max_withdrawn_ratio * row.capacity
        if is_spent or node.rewinds >= policy.max_rewinds:
            return None
        if not self._is_scarce(node):
            return node
        edge = self._find_edge(violation)
        target = self._step_back(node, avoided=edge)
        if target is None and edge is not None and self._has_choice(node):
            return node  # a longer word is bad text, but it is not banned
        return target

    def _step_back(self, node: Node, *, avoided: Node | None) -> Node | None:
        """Return the latest unsettled node, from this one back, that has an alternative; None if there is none."""
        row = self.row
        while not self._has_choice(node, avoided=avoided):
            # A splice or a cut by a controller may lead from a greater depth: then resume before it.
            before = node.depth - 1
            if node.parent is None or before < 0 or row.state.back_to(before).earliest_start < row.settled:
                return None
            node.parent.close(node.token, start=before)
            node.parent.carry()
            node = node.parent.back_to(before)
        return node

    def _find_edge(self, violation: Violation) -> Node | None:
        """Return the row's node if the token drawn there completed no characters of the ban, but only ended its word.

        The tokens that are left there would only make the word longer: "once upon a times".
        """
        before = self.row.state.back_to(len(self.row.tokens) - 1)
        ended = {(other.ban, other.start) for other in self.matcher.finish(before)}
        return self.row.node if (violation.ban, violation.start) in ended else None

    def _is_scarce(self, node: Node, *, start: int | None = None) -> bool:
        """Report whether so little of a distribution is left that it may be noise.

        Exits to before `start`, the node's own depth by default, count as left: that mass is rejected only there.
        """
        left, start = node.mass_left(), node.depth if start is None else start
        elsewhere = sum(mass for exit_to, mass in node.exits().items() if exit_to < start)
        return left == 0 or left + elsewhere < self.policy.mass_floor

    def _has_choice(self, node: Node, *, avoided: Node | None = None) -> bool:
        """Report whether a node has a token to draw; if little is left there, look for further tokens first.

        avoided: a node whose tokens are no alternatives.
        """
        if node.is_forced:
            return node.mass_left() > 0
        return not self._is_scarce(node) or self._keep_likely(node, avoided=avoided) or self._look_further(node)

    def _keep_likely(self, node: Node, *, avoided: Node | None, start: int | None = None) -> bool:
        """Keep only tokens, at a node and below it, that are likely and left; return whether there are any."""
        start = node.depth if start is None else start
        candidates = self._find_likely(node, node.left / node.probs[0]) & (node.left > 0)
        for token, child in node.children.items():
            if candidates[token] and child.is_filled and self._is_scarce(child, start=start):
                candidates[token] = child is not avoided and self._keep_likely(child, avoided=avoided, start=start)
        if candidates.any():
            node.keep_only(candidates)
            return True
        return False

    def _look_further(self, node: Node) -> bool:
        """Apply top-k, top-p and min-p again, to the logits without used-up tokens; return whether a token is left."""
        if self.row.history is not None and not self.row.history.may_ask_again(node.depth):
            return False
        node.spent = node.probs[0] > 0 if node.spent is None else node.spent | (node.probs[0] > 0)
        rest = node.logits.masked_fill(node.spent, -torch.inf)
        if isinstance(node.rule, SampleRule):
            rest = node.rule.apply(rest[0])[None]
        scores = self.row.spec.settings.process([self.row], [node.depth], rest)[0]
        candidates = self._find_likely(node) & ~node.spent & (scores > -torch.inf)
        if candidates.any():
            node.renew(torch.softmax(scores.masked_fill(~candidates, -torch.inf), dim=-1))
        return bool(candidates.any())

    def _find_likely(self, node: Node, share: Tensor | float = 1.0) -> Tensor:
        """Return whether a share of each token is likely by the model's own logits, [vocab]; no end token is."""
        likely = torch.softmax(node.logits[0], dim=-1) * share >= self.policy.probability_floor
        for end in self.row.spec.settings.eos_token_ids:  # a text does not end merely because the rest is banned
            likely[end : end + 1] = False
        return likely

    def _stop(self, violation: Violation, *, forced_by: str | None) -> None:
        """End the text before a violation, and before any ban that this end would complete."""
        row, violations = self.row, [violation]
        while violations:
            self.events.append(Rewound(violations[0].start, row.rewind(violations[0].start), violations[0]))
            violations = list(self.matcher.finish(row.state))
        self._forced_by = forced_by
        self._finish("exhausted")


def in_order(violations: Sequence[Violation]) -> tuple[Violation, ...]:
    """Return violations by their start."""
    return tuple(sorted(violations, key=lambda violation: violation.start))


def _at_start(violation: Violation) -> Violation:
    """Return the violation without its length: the classic rule depends only on the start of a ban."""
    return Violation(violation.ban, violation.start, violation.start)

"""Who draws the tokens of a row: here from logits, in this process.

A source adds tokens to its row until it needs the model, and a judge decides what becomes of each.
`antislop.core.loop.controller_source` asks a caller's rule before it draws. Engines have sources of their own, which
take what a server has drawn.
"""

from __future__ import annotations

import weakref
from dataclasses import replace
from functools import partial
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from antislop.core.bans.bans import Ban
from antislop.core.bans.token_matcher import State
from antislop.core.loop.drawing import NONE_DRAWN, Draws, draw
from antislop.core.loop.forced import LookAhead
from antislop.core.loop.judge import Judge, Verdict
from antislop.core.loop.ledger import Node
from antislop.core.loop.row import NO_DRAFT, Row
from antislop.core.loop.tables import CertainTable, DenseTable, LogitsBatch, find_dense
from antislop.core.trace.events import Drafted, Drawn, Finished, Forced, Reason, Rewound, Settled, TimedOut, Truncated

Outcome: TypeAlias = Verdict | Literal["done"]
"""The judge's verdict on a token that was added, or: the text has reached its end."""


class Source:
    """Adds tokens to one row, and ends it.

    copies: sources of forked rows that continue this text and wait for a place.
    """

    def __init__(self, row: Row) -> None:
        self.row = row
        self.judge = Judge(row, weakref.proxy(self))  # a cycle would keep the tables until the collector comes
        self.copies: list[Source] = []
        self._timed_out: set[Ban] = set()  # bans that were reported
        self._is_lockstep = row.history is not None and row.history.is_lockstep
        self._ends_itself = False  # because of its own tokens, not of a criterion's answer about all rows
        self._reason: Reason = "done"

    # -- what the judge asks: see `judge.Drawer`

    def has_choice(self, node: Node, *, avoided: Node | None = None) -> bool:
        if not node.is_scarce(self.row.spec.policy.mass_floor):
            return True
        row, table = self.row, find_dense(node)
        return table is not None and (
            _keep_likely(row, node, table, avoided=avoided, start=node.depth) or _look_further(row, node, table)
        )

    def draws_others(self, node: Node) -> bool:  # noqa: ARG002
        return True

    def is_stuck(self, start: Node) -> bool:  # noqa: ARG002
        return False

    def find_constraint(self, node: Node) -> str | None:
        row, table = self.row, find_dense(node)
        return (
            None if row.history is None or table is None else row.history.find_constraint(row, node.depth, table.logits)
        )

    def look_ahead(self, node: Node) -> LookAhead | None:
        return None if self.row.history is None else self.row.history.look_ahead(self.row, node.depth)

    # -- what the loop asks

    def read(self, batch: LogitsBatch, place: int) -> bool:  # noqa: ARG002
        """Take the logits of a row; return whether the loop is to draw a token, for all such rows together."""
        return True

    def add_draw(self, draws: Draws, number: int) -> None:
        """Add the token that the loop has drawn for this row, the row `number` of the draws, and walk on."""

    def walk(self) -> None:
        """Add tokens until the model is needed."""

    def wait(self, step_count: int) -> None:
        """Wait at an end, or for the criteria's answer about a token; they have seen `step_count` tokens so far."""
        row = self.row
        if row.end is not None and row.end > step_count and not self._ends_itself:
            row.end = None  # the answer that ended it was about withdrawn text
        row.is_waiting = row.end is not None or len(row.tokens) > step_count

    def end_at(self, length: int) -> None:
        """End the text after `length` tokens, unless that completes a ban: then rewind it."""
        row = self.row
        row.end, self._ends_itself = None, False
        if len(row.tokens) > length:
            row.events.append(Truncated(length, row.rewind(length)))
        if violations := row.spec.matcher.finish(row.state):
            token = row.tokens[-1]
            row.node = row.node.back_to(length - 1)
            verdict = self.judge.judge(token, violations)
            if verdict != "stays":
                self.end_if(verdict)
                return
            row.node = row.node.child(token)
        self.end("done")
        self._ends_itself = False

    def settle(self, length: int) -> None:
        """Settle the first `length` tokens, which no rewind reaches any more."""
        row = self.row
        if length <= row.settled:
            return
        node = row.node.back_to(length)
        if isinstance(node.table, CertainTable) and not row.is_finished and (choice := self.judge.find_choice(node)):
            # A ban within certain tokens may lead back to the draw before them.
            length = min(length, row.settleable_at(choice.depth))
            if length <= row.settled:
                return
            node = node.back_to(length)
        row.events.append(Settled.of(tuple(row.tokens[row.settled : length])))
        row.settled = length
        node.cut_loose()

    def conclude(self) -> None:
        """Finish the text with its present tokens."""
        row = self.row
        row.is_finished = True
        self.settle(len(row.tokens))
        row.node.drop_children()
        if self._reason != "failed":  # then its logits are described
            row.node = Node(depth=len(row.tokens))
        is_cut = self._reason in ("exhausted", "repetition")
        constraint, violation = (self.judge.constraint, self.judge.ended_by) if is_cut else (None, None)
        row.events.append(Finished(self._reason, row.matcher_seconds, constraint, violation))

    # -- what sources share

    def add(self, token: int, drawn: Drawn, *, choice: int | None = None, state: State | None = None) -> Outcome:
        """Add a token to the text, and judge it.

        choice: the token that was drawn, if a controller put another one in its place.
        state: the matcher's after the token, if it is known.
        """
        row = self.row
        row.append(token, row.feed(row.state, token) if state is None else state)
        row.events.append(drawn)
        return self._judge_latest(token if choice is None else choice, is_done=row.spec.settings.is_done(row))

    def _judge_latest(self, choice: int, *, is_done: bool) -> Outcome:
        row, matcher = self.row, self.row.spec.matcher
        violations = row.state.violations
        if is_done:
            violations = (*violations, *matcher.finish(row.state))
        if timed_out := matcher.timed_out:
            row.events.extend(TimedOut(ban) for ban in timed_out if ban not in self._timed_out)
            self._timed_out.update(timed_out)
        if violations and (verdict := self.judge.judge(choice, violations)) != "stays":
            return verdict
        row.node = row.node.child(choice, depth=len(row.tokens))
        if is_done:
            return "done"
        if self._is_lockstep:
            row.is_waiting, row.closed = True, max(row.closed, row.settleable)
        else:
            self.settle(row.settleable)
        return "stays"

    def end_if(self, outcome: Outcome) -> None:
        match outcome:
            case "forced":
                self._write_forced()
            case "done" | "exhausted" | "repetition":
                self.end(outcome)
            case "stays" | "rewound":
                pass

    def _write_forced(self) -> None:
        """Write the tokens that a ban forces; end the text before them if they complete a ban."""
        row, violation, start = self.row, self.judge.ended_by, len(self.row.tokens)
        assert violation is not None, "a ban forces tokens"
        tokens, is_done = row.spec.forced[violation.ban.force], False
        for place, token in enumerate(tokens):
            row.append(token, row.feed(row.state, token))
            row.events.append(Drawn.plain(token))
            row.node = row.node.child(token)
            is_done = row.spec.settings.is_done(row)
            is_last = is_done or place == len(tokens) - 1
            completed = row.state.violations or (is_last and row.spec.matcher.finish(row.state))
            if completed:
                self.judge.cut_before(completed[0]._replace(start=start))
                self.end("repetition" if violation.ban.pattern.is_repetition else "exhausted")
                return
            if is_done:
                break
        row.floor = len(row.tokens)
        row.events.append(Forced(row.floor - start, violation))
        if is_done:
            self.end("done")
        elif self._is_lockstep:
            row.is_waiting = True

    def end(self, reason: Reason) -> None:
        """End the text. In lockstep, the end is provisional until no other row can undo it."""
        row, self._reason = self.row, reason
        if self._is_lockstep:
            row.end, row.is_waiting, self._ends_itself = len(row.tokens), True, True
        else:
            self.conclude()

    def fail(self, fault: Exception) -> None:
        """End the text where the step began, at an error that is its own; see `Row.blame`."""
        row = self.row
        row.blame(fault)
        row.history, self.copies, self._reason = None, [], "failed"  # nothing of its own is called any more
        if (length := max(row.settled, row.unchanged)) < len(row.tokens):  # the rest may not have been judged
            row.events.append(Truncated(length, row.rewind(length)))
        self.conclude()

    def describe(self, token: int) -> Drawn:
        count, table = self.row.spec.alternatives, find_dense(self.row.node)
        if count is None or table is None:
            return Drawn.plain(token)
        return Drawn(token, table.describe_choice(token, alternatives=count))


class LogitsSource(Source):
    """Draws from logits as `generate` does, and again from what a violation has left."""

    def __init__(self, row: Row) -> None:
        super().__init__(row)
        self._always_keeps = needs_ledger(row)

    def add_draw(self, draws: Draws, number: int) -> None:
        row, drawn, state = self.row, draws.events[number], draws.states[number]
        row.set_table(partial(DenseTable, draws.batch, number))
        if drawn.token == NONE_DRAWN:
            self.end("failed")
            return
        row.append(drawn.token, state)
        row.events.append(drawn)
        is_done = row.spec.settings.is_done(row)
        is_passed = not state.violations and state.settled_length == len(row.tokens) - 1
        if is_passed and not (is_done or self._always_keeps or row.spec.matcher.timed_out):
            if tokens := row.pass_over(state.settled_length):
                row.events.append(Settled.of(tuple(tokens)))
            return
        self.end_if(self._judge_latest(drawn.token, is_done=is_done))
        self._walk()

    def walk(self) -> None:
        if not self.row.draft.proposed:
            self._walk()
            return
        row, draft, before, length = self.row, self.row.draft.tokens, len(self.row.events), len(self.row.tokens)
        if not self._forgoes_drafts():
            self._walk()
        accepted = 0
        for event in row.events[before:]:
            if isinstance(event, Rewound):
                break
            if isinstance(event, Drawn):
                if accepted == len(draft) or event.token != draft[accepted]:
                    break
                accepted += 1
        if row.spec.drafter is not None:
            row.spec.drafter.learn(row, proposed=len(draft), accepted=accepted)
        row.draft = NO_DRAFT
        if row.history is not None and accepted < len(draft):
            row.history.rewind(row, min(length + accepted, len(row.tokens)))
        row.events.append(Drafted(len(draft), accepted))

    def _forgoes_drafts(self) -> bool:
        """Have the model read the text alone if it gave no probabilities beside a draft, which may be the reason."""
        row, table = self.row, find_dense(self.row.node)
        if not row.draft.tokens or table is None or not table.is_broken(do_sample=row.spec.policy.do_sample):
            return False
        row.spec = replace(row.spec, drafter=None)
        row.node.replace_table(None)
        return True

    def _walk(self) -> None:
        row = self.row
        while row.node.table is not None and not (row.is_finished or row.is_waiting):
            token = draw(row)
            if token == NONE_DRAWN:
                self.end("failed")
                return
            self.end_if(self.add(token, self.describe(token)))


def needs_ledger(row: Row) -> bool:
    """Report whether a row's nodes are needed though nothing is open: for others of its batch, scores or its start."""
    is_lockstep = row.history is not None and row.history.is_lockstep
    return is_lockstep or row.spec.keep_scores or row.spec.policy.method == "text"


def _keep_likely(row: Row, node: Node, table: DenseTable, *, avoided: Node | None, start: int) -> bool:
    """Keep only the likely tokens, at a node and below it; return whether any is left."""
    left = table.remaining
    candidates = _find_likely(row, table, left / table.probs) & (left > 0)
    for token, child in node.children.items():
        below = find_dense(child)
        if candidates[token] and below is not None and child.is_scarce(row.spec.policy.mass_floor, start=start):
            candidates[token] = child is not avoided and _keep_likely(row, child, below, avoided=avoided, start=start)
    if candidates.any():
        table.keep_only(candidates)
        return True
    return False


def _look_further(row: Row, node: Node, table: DenseTable) -> bool:
    """Apply top-k, top-p and min-p to the logits without used-up tokens; return whether a token is left."""
    if row.history is not None and not row.history.may_ask_again(node.depth):
        return False
    spent = table.probs > 0
    table.spent = spent = spent if table.spent is None else table.spent | spent
    rest = table.logits.masked_fill(spent.to(table.logits.device), -torch.inf)
    if table.restrict is not None:
        rest = table.restrict(rest[0])[None]
    scores = row.spec.settings.process([row], [node.depth], rest)[0].cpu()
    candidates = _find_likely(row, table) & ~spent & (scores > -torch.inf)
    if not candidates.any():
        return False
    table.replace_distribution(torch.softmax(scores.masked_fill(~candidates, -torch.inf), dim=-1))
    node.forget_masses()
    return True


def _find_likely(row: Row, table: DenseTable, share: Tensor | float = 1.0) -> Tensor:
    """Return whether a share of each token is likely under the model's own logits, bool [vocab] on the host."""
    likely = torch.softmax(table.logits[0], dim=-1).cpu() * share >= row.spec.policy.probability_floor
    for end in row.spec.settings.eos_token_ids:  # a text does not end merely because the rest is banned
        likely[end : end + 1] = False
    return likely

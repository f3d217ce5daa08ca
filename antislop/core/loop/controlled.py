"""Move a row as its controller says, with bans on top.

A controller's branch cuts the text; then a token is sampled and spliced, or tokens are forced, without a forward pass.
Bans judge the result; a violation rewinds the row, and the controller is asked again there.

A cut or splice is an edge of the ledger's tree like a token, but leads to a smaller depth. So the mass that a later
violation subtracts is carried back through this edge to the choice that led to it.

A rewind may lead into the middle of a branch: between its forced tokens, or after its cut. The node there keeps the
rest of the branch, which is done again. The controller is not asked: another answer would make the node's mass wrong.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from antislop.core.bans.refusals import sentence
from antislop.core.bans.token_matcher import State
from antislop.core.loop.branches import Branch, Controller, SampleRule, Splice, Step, check_branches
from antislop.core.loop.drawing import NONE_ALLOWED, NONE_DRAWN, LogitsDrawing, describe, draw, draw_together
from antislop.core.loop.judge import judge
from antislop.core.loop.ledger import Node
from antislop.core.loop.row import Row
from antislop.core.loop.tables import CertainTable, DenseTable, Draws, LogitsBatch
from antislop.core.loop.writing import add, end, end_if
from antislop.core.trace.events import Drawn, Forked, Reason, Truncated
from antislop.display import describe_count
from antislop.errors import CapabilityError, InputError

STOP, CUT = -1, -2
"""Edges of the tree that are not tokens. −1: the controller ended the text; −2 − n: it cut the text to n tokens."""


@dataclass(slots=True)
class ControlledMemory:
    """What a controlled text keeps at a node.

    logits: a table of the model's own logits.
    rule: the `SampleRule` by which a token is drawn here, or the tokens, the branch or the `STOP` that is certain here.
    rest: what a branch that began at an earlier node has left to do here; None to ask the controller.
    """

    logits: DenseTable | None = None
    rule: object = None
    rest: Branch | None = None


def recall(node: Node) -> ControlledMemory:
    if not isinstance(node.memory, ControlledMemory):
        node.memory = ControlledMemory()
    return node.memory


def force(node: Node, rule: object) -> None:
    """Make one continuation certain at a node; if it was certain there before, keep what bans have left of it."""
    memory = recall(node)
    if not isinstance(node.table, CertainTable) or memory.rule != rule:
        node.replace_table(CertainTable())
    memory.rule = rule


def cut(node: Node, branch: Branch, *, depth: int) -> Node:
    force(node, branch)
    landing = node.child(CUT - depth, depth=depth)
    carry_logits(node.back_to(depth), landing)
    if branch.sample_mask is not None or branch.ff_tokens:
        recall(landing).rest = replace(branch, backtrack=0)
    return landing


def carry_logits(before: Node, landing: Node) -> None:
    if recall(landing).logits is None:
        recall(landing).logits = recall(before).logits


class ControlledDrawing(LogitsDrawing):
    def __init__(self, controller: Controller) -> None:
        super().__init__()
        self.controller = controller
        self._chosen: Branch | None = None  # the next branch, which has not begun
        self._branch: Branch | None = None  # a branch that has begun, and goes on once the logits are known
        self._branch_idx = 0
        self._length = 0  # of the text when the controller was last asked
        self._sampled: int | None = None
        self._is_done = False  # the text ends here unless the controller removes tokens
        self._end_reason: Reason = "done"
        self._vocabulary_size = 0

    def has_choice(self, row: Row, node: Node, *, avoided: Node | None = None) -> bool:
        if isinstance(node.table, CertainTable):
            return node.mass_left() > 0
        return super().has_choice(row, node, avoided=avoided)

    def draws_others(self, node: Node) -> bool:
        # A splice may put other tokens in the place of the drawn one.
        rule = recall(node).rule
        return not (isinstance(rule, SampleRule) and rule.splices)

    def read(self, row: Row, batch: LogitsBatch, place: int) -> bool:
        """Take the row's logits, and walk on; return whether the loop is to draw a token by the branch's rule."""
        recall(row.node).logits = DenseTable(batch, place)
        self._vocabulary_size = batch.logits.shape[-1]
        row.unchanged = len(row.tokens)
        self._walk(row, leaves_draw=True)
        return not (row.is_finished or self.forks) and self._needs_draw(row)

    def take(self, row: Row, draws: Draws, number: int) -> None:
        self._sample_first(row, draws, number)
        self.walk(row)

    def walk(self, row: Row) -> None:
        self._walk(row, leaves_draw=False)

    def _walk(self, row: Row, *, leaves_draw: bool) -> None:
        while not (row.is_finished or self.forks):
            if (chosen := self._chosen) is not None:
                if chosen.backtrack:
                    landing = cut(row.node, chosen, depth=len(row.tokens) - chosen.backtrack)
                    self._cut(row, chosen.backtrack)
                    row.node = landing
                self._is_done, self._chosen, self._branch = False, None, chosen
            elif self._branch is None:
                if self._is_done or (rest := recall(row.node).rest) is None:
                    self._ask(row)
                else:
                    self._branch = rest
            elif self._branch.sample_mask is None:
                tokens, self._branch = self._branch.ff_tokens, None
                self._force(row, tokens)
            elif recall(row.node).logits is None or (leaves_draw and self._needs_draw(row)):
                return
            else:
                self._sample(row)

    def _needs_draw(self, row: Row) -> bool:
        """Set the branch's rule at the node; return whether no token has been drawn by this rule there so far."""
        node, branch = row.node, self._branch
        if branch is None or branch.sample_mask is None or (memory := recall(node)).logits is None:
            return False
        rule = branch.rule
        if isinstance(node.table, CertainTable) or memory.rule not in (None, rule):
            node.replace_table(None)  # otherwise the table keeps what bans have left
        memory.rule, row.restrict = rule, rule.apply
        return node.table is None

    def end(self, row: Row, reason: Reason) -> None:
        """End the text after the controller was asked once more, unless the model failed."""
        self._end_reason = reason
        self._is_done = reason != "failed"
        if not self._is_done:
            end(row, reason)

    def _ask(self, row: Row) -> None:
        step = Step(
            branch_idx=self._branch_idx,
            last_backtrack=self._length - row.reported,
            last_append=tuple(row.tokens[row.reported :]),
            sampled=self._sampled,
            tokens=tuple(row.tokens),
            is_done=self._is_done,
            is_greedy=not row.spec.policy.do_sample,
        )
        try:
            branches = self._check(row, check_branches(self.controller.mid_process(step)))
            controllers = [self.controller.fork() for _ in branches[1:]]
        except Exception as error:
            if sys.version_info >= (3, 11):
                error.add_note(
                    f"raised by the controller of row {row.number} after {describe_count(len(row.tokens), 'token')}"
                )
            raise
        self._length = row.reported = len(row.tokens)
        self._branch_idx, self._sampled = 0, None
        for i, (branch, controller) in enumerate(zip(branches[1:], controllers, strict=True), start=1):
            fork = row.fork(controller)
            fork.drawing = drawing = ControlledDrawing(controller)
            drawing._chosen, drawing._branch_idx, drawing._length = branch, i, self._length
            drawing._vocabulary_size = self._vocabulary_size
            fork.events.append(Forked(row.number, len(row.tokens), i))
            self.forks.append(fork)
        if branches:
            self._chosen = branches[0]
        elif self._is_done:
            end(row, self._end_reason)
        else:  # the controller ends the text here, unless that completes a ban: then it is rewound
            if violations := row.spec.matcher.finish(row.state):
                force(row.node, STOP)
                verdict = judge(row, STOP, violations)
                if verdict != "stays":
                    end_if(row, verdict)
                    return
            end(row, "done")

    def _check(self, row: Row, branches: Sequence[Branch]) -> Sequence[Branch]:
        if self._is_done and not all(branch.backtrack for branch in branches):
            return []  # after its end, a text follows branches only if all of them remove tokens
        needs = self.controller.needs
        if len(branches) > 1 and not needs.has_forks:
            raise CapabilityError(sentence("undeclared branches", count=len(branches)))
        for branch in branches:
            branch.check(vocabulary_size=self._vocabulary_size, length=len(row.tokens), limit=needs.backtrack)
        return branches

    def _cut(self, row: Row, count: int) -> None:
        withdrawn = row.rewind(len(row.tokens) - count)
        row.withdrawn_count -= len(withdrawn)  # the limit counts only what bans withdraw
        row.events.append(Truncated(len(row.tokens), withdrawn))

    def _add(self, row: Row, drawn: Drawn, *, choice: int | None = None, state: State | None = None) -> bool:
        outcome = add(row, drawn, choice=choice, state=state)
        if outcome not in ("stays", "done"):
            self._sampled = None
        return outcome == "stays"

    def _force(self, row: Row, tokens: tuple[int, ...], *, has_begun: bool = False) -> None:
        """Add the tokens that a branch forces. has_begun: whether the branch has done something before this."""
        for place, token in enumerate(tokens):
            node = row.node
            if has_begun or place:
                recall(node).rest = Branch(ff_tokens=tokens[place:])
            force(node, tokens[place:])
            if not self._add(row, Drawn.plain(token)):
                return

    def _sample(self, row: Row) -> None:
        logits = recall(row.node).logits
        if self._needs_draw(row):
            assert logits is not None, "no forward pass has reached this node"
            draws = draw_together([row], logits.logits, places=[0], batch=1)
            self._sample_first(row, draws, 0)
            return
        token = draw(row)
        if token == NONE_DRAWN:
            self.end(row, "failed")
            return
        self._add_sampled(row, describe(row, token), row.feed(row.state, token))

    def _sample_first(self, row: Row, draws: Draws, number: int) -> None:
        """Add a token that the loop has drawn under the branch's mask or biases."""
        drawn = draws.events[number]
        row.node.table = DenseTable(draws.batch, number, restrict=row.restrict)
        if drawn.token == NONE_ALLOWED:
            raise InputError(sentence("nothing to draw", written=describe_count(len(row.tokens), "token")))
        if drawn.token == NONE_DRAWN:
            self.end(row, "failed")
            return
        self._add_sampled(row, drawn, draws.states[number])

    def _add_sampled(self, row: Row, drawn: Drawn, state: State) -> None:
        branch, self._branch = self._branch, None
        assert branch is not None
        self._sampled = drawn.token
        splice = branch.find_splice(drawn.token)
        if splice is not None and splice.backtrack:
            self._splice(row, splice, drawn, state)
        elif self._add(row, drawn, state=state) and splice is not None:
            self._force(row, splice.ff_tokens, has_begun=True)

    def _splice(self, row: Row, splice: Splice, drawn: Drawn, state: State) -> None:
        node, token = row.node, drawn.token
        row.events.append(drawn)
        row.append(token, state)
        self._cut(row, splice.backtrack)
        row.node = node
        if not splice.ff_tokens:
            row.node = node.child(token, depth=len(row.tokens))
            carry_logits(node.back_to(len(row.tokens)), row.node)
            return
        first, *others = splice.ff_tokens
        if self._add(row, Drawn.plain(first), choice=token):
            self._force(row, tuple(others), has_begun=True)

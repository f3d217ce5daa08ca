"""Move a row as its controller says, with bans on top.

A controller's branch cuts the text; then a token is sampled and spliced, or tokens are forced, without a forward pass.
Bans judge the result; a violation rewinds the row, and the controller is asked again there.

A cut or splice is an edge of the ledger's tree like a token, but leads to a smaller depth. So the mass that a later
violation subtracts is carried through it to the choice that led there.

A rewind may lead to where a branch had more to do: between forced tokens, or after a cut. The node keeps that rest,
which is done again: the controller could answer otherwise there, and the node's mass would no longer be right.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from antislop.core.bans.token_matcher import State
from antislop.core.loop.branches import Branch, Controller, SampleRule, Splice, Step, check_branches
from antislop.core.loop.drawing import NONE_ALLOWED, NONE_DRAWN, Draws, draw, draw_together
from antislop.core.loop.ledger import Node
from antislop.core.loop.row import Row
from antislop.core.loop.sources import Outcome, Source
from antislop.core.loop.tables import CertainTable, DenseTable, LogitsBatch
from antislop.core.trace.events import Drawn, Forked, Reason, Truncated
from antislop.display import describe_count
from antislop.errors import CapabilityError, InputError

STOP, CUT = -1, -2
"""Edges of the tree that are not tokens: the controller ended the text; −2 − n: it cut the text to n tokens."""


@dataclass(slots=True)
class ControlledMemory:
    """What a controlled text keeps at a node.

    logits: a table of the model's own logits.
    rule: by which a token is drawn here, or the tokens or branch that are certain here.
    rest: of a branch that began before: what follows here without asking the controller again.
    """

    logits: DenseTable | None = None
    rule: object = None
    rest: Branch | None = None


def recall(node: Node) -> ControlledMemory:
    if not isinstance(node.memory, ControlledMemory):
        node.memory = ControlledMemory()
    return node.memory


def force(node: Node, rule: object) -> None:
    """Make one continuation certain at a node; keep what bans have left of it if it was certain before."""
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


class ControllerSource(Source):
    def __init__(self, row: Row, controller: Controller) -> None:
        super().__init__(row)
        self.controller = controller
        self._chosen: Branch | None = None  # to be begun
        self._branch: Branch | None = None  # begun, and to be followed once its logits are known
        self._branch_idx = 0
        self._length = 0  # of the text at the latest step
        self._sampled: int | None = None
        self._is_done = False  # the text ends here unless the controller removes tokens
        self._end_reason: Reason = "done"
        self._vocabulary_size = 0

    def has_choice(self, node: Node, *, avoided: Node | None = None) -> bool:
        if isinstance(node.table, CertainTable):
            return node.mass_left() > 0
        return super().has_choice(node, avoided=avoided)

    def draws_others(self, node: Node) -> bool:
        # A splice may put other tokens in the place of the drawn one.
        rule = recall(node).rule
        return not (isinstance(rule, SampleRule) and rule.splices)

    def read(self, batch: LogitsBatch, place: int) -> bool:
        """Take the logits, and walk on; return whether a token is to be drawn by the branch's rule."""
        recall(self.row.node).logits = DenseTable(batch, place)
        self._vocabulary_size = batch.logits.shape[-1]
        self.row.unchanged = len(self.row.tokens)
        self._walk(leaves_draw=True)
        return not (self.row.is_finished or self.copies) and self._needs_draw()

    def add_draw(self, draws: Draws, number: int) -> None:
        self._sample_first(draws, number)
        self.walk()

    def walk(self) -> None:
        self._walk(leaves_draw=False)

    def _walk(self, *, leaves_draw: bool) -> None:
        while not (self.row.is_finished or self.copies):
            if (chosen := self._chosen) is not None:
                if chosen.backtrack:
                    landing = cut(self.row.node, chosen, depth=len(self.row.tokens) - chosen.backtrack)
                    self._cut(chosen.backtrack)
                    self.row.node = landing
                self._is_done, self._chosen, self._branch = False, None, chosen
            elif self._branch is None:
                if self._is_done or (rest := recall(self.row.node).rest) is None:
                    self._ask()
                else:
                    self._branch = rest
            elif self._branch.sample_mask is None:
                tokens, self._branch = self._branch.ff_tokens, None
                self._force(tokens)
            elif recall(self.row.node).logits is None or (leaves_draw and self._needs_draw()):
                return
            else:
                self._sample()

    def _needs_draw(self) -> bool:
        """Prepare the node for the branch's rule; return whether no token was drawn by it there so far."""
        node, branch = self.row.node, self._branch
        if branch is None or branch.sample_mask is None or (memory := recall(node)).logits is None:
            return False
        rule = branch.rule
        if isinstance(node.table, CertainTable) or memory.rule not in (None, rule):
            node.replace_table(None)  # else what bans have left here is kept
        memory.rule, self.row.restrict = rule, rule.apply
        return node.table is None

    def end(self, reason: Reason) -> None:
        """End the text after the controller was asked once more, unless the model failed."""
        self._end_reason = reason
        self._is_done = reason != "failed"
        if not self._is_done:
            super().end(reason)

    def _copy(self, branch_idx: int, branch: Branch, controller: Controller) -> ControllerSource:
        source = ControllerSource(self.row.fork(controller), controller)
        source._chosen, source._branch_idx, source._length = branch, branch_idx, self._length
        source._vocabulary_size = self._vocabulary_size
        source.row.events.append(Forked(self.row.number, len(self.row.tokens), branch_idx))
        return source

    def _ask(self) -> None:
        row = self.row
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
            branches = self._check(check_branches(self.controller.mid_process(step)))
            controllers = [self.controller.fork() for _ in branches[1:]]
        except Exception as error:
            if sys.version_info >= (3, 11):
                error.add_note(
                    f"raised by the controller of row {row.number} after {describe_count(len(row.tokens), 'token')}"
                )
            raise
        self._length = row.reported = len(row.tokens)
        self._branch_idx, self._sampled = 0, None
        self.copies = [
            self._copy(i, branch, controller)
            for i, (branch, controller) in enumerate(zip(branches[1:], controllers, strict=True), start=1)
        ]
        if branches:
            self._chosen = branches[0]
        elif self._is_done:
            super().end(self._end_reason)
        else:  # the controller ends the text here, unless that completes a ban: then it is rewound
            if violations := row.spec.matcher.finish(row.state):
                force(row.node, STOP)
                verdict = self.judge.judge(STOP, violations)
                if verdict != "stays":
                    self.end_if(verdict)
                    return
            super().end("done")

    def _check(self, branches: Sequence[Branch]) -> Sequence[Branch]:
        if self._is_done and not all(branch.backtrack for branch in branches):
            return []  # after its end, a text follows branches only if all of them remove tokens
        row, needs = self.row, self.controller.needs
        if len(branches) > 1 and not needs.has_forks:
            raise CapabilityError(
                f"a controller returned {len(branches)} branches and declared none: set has_forks in its Capabilities"
            )
        for branch in branches:
            branch.check(vocabulary_size=self._vocabulary_size, length=len(row.tokens), limit=needs.backtrack)
        return branches

    def _cut(self, count: int) -> None:
        row = self.row
        withdrawn = row.rewind(len(row.tokens) - count)
        row.withdrawn_count -= len(withdrawn)  # the limit is for what bans withdraw
        row.events.append(Truncated(len(row.tokens), withdrawn))

    def _add(self, token: int, drawn: Drawn, *, choice: int | None = None, state: State | None = None) -> bool:
        outcome: Outcome = self.add(token, drawn, choice=choice, state=state)
        if outcome not in ("stays", "done"):
            self._sampled = None
        self.end_if(outcome)
        return outcome == "stays"

    def _force(self, tokens: tuple[int, ...], *, has_begun: bool = False) -> None:
        """Force tokens. has_begun: the branch has done something before, such as sampling."""
        for place, token in enumerate(tokens):
            node = self.row.node
            if has_begun or place:
                recall(node).rest = Branch(ff_tokens=tokens[place:])
            force(node, tokens[place:])
            if not self._add(token, Drawn.plain(token)):
                return

    def _sample(self) -> None:
        row, logits = self.row, recall(self.row.node).logits
        if self._needs_draw():
            assert logits is not None, "no forward pass has reached this node"
            draws = draw_together([row], logits.logits, places=[0], batch=1)
            self._sample_first(draws, 0)
            return
        token = draw(row)
        if token == NONE_DRAWN:
            self.end("failed")
            return
        self._add_sampled(self.describe(token), row.feed(row.state, token))

    def _sample_first(self, draws: Draws, number: int) -> None:
        """Add a token that the loop has drawn under the branch's mask or biases."""
        row, drawn = self.row, draws.events[number]
        row.node.table = DenseTable(draws.batch, number, restrict=row.restrict)
        if drawn.token == NONE_ALLOWED:
            raise InputError(
                f"after {describe_count(len(row.tokens), 'token')}, the sample_mask of a controller and the logits "
                "processors leave no token to draw: allow more tokens, or leave out what forbids them, min_new_tokens "
                "for instance"
            )
        if drawn.token == NONE_DRAWN:
            self.end("failed")
            return
        self._add_sampled(drawn, draws.states[number])

    def _add_sampled(self, drawn: Drawn, state: State) -> None:
        branch, self._branch = self._branch, None
        assert branch is not None
        self._sampled = drawn.token
        splice = branch.find_splice(drawn.token)
        if splice is not None and splice.backtrack:
            self._splice(splice, drawn, state)
        elif self._add(drawn.token, drawn, state=state) and splice is not None:
            self._force(splice.ff_tokens, has_begun=True)

    def _splice(self, splice: Splice, drawn: Drawn, state: State) -> None:
        row, node, token = self.row, self.row.node, drawn.token
        row.events.append(drawn)
        row.append(token, state)
        self._cut(splice.backtrack)
        row.node = node
        if not splice.ff_tokens:
            row.node = node.child(token, depth=len(row.tokens))
            carry_logits(node.back_to(len(row.tokens)), row.node)
            return
        first, *others = splice.ff_tokens
        if self._add(first, Drawn.plain(first), choice=token):
            self._force(tuple(others), has_begun=True)

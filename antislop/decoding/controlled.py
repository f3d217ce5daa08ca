"""Move a row as its controller says, with bans on top.

At each step the controller is asked for branches. The text is cut; then a token is sampled and spliced, or tokens are
forced, without a forward pass. Bans judge what is in the text after that. A violation rewinds the row, and the
controller is asked again there.

A cut or splice is an edge of the ledger's tree like a token, but leads to a smaller depth. So the mass that a later
violation subtracts is carried through it to the choice that led there.

A rewind may lead to a place where the controller was not asked, since a branch had more to do there: between forced
tokens, or after a cut. The node keeps that rest of the branch, which is done again. Asking the controller there instead
could give another answer than the branch, so that the node's mass would no longer be right.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from antislop.control.branches import Branch, CapabilityError, Controller, SampleRule, Splice, Step
from antislop.decoding.ledger import Node
from antislop.decoding.row import Row
from antislop.decoding.walker import NONE_DRAWN, Walker, in_order
from antislop.errors import InputError
from antislop.matching.token_matcher import Violation
from antislop.trace.events import Drawn, Forked, Reason, Shortened

STOP, JUMP = -1, -2
"""In the place of a token: a controller ended the text; it cut the text to 0 tokens, -3 for 1 token, and so on."""


class ForcedNode(Node):
    """A node after which a controller lets only one token come, cuts the text, or ends it, as its `rule` says."""

    __slots__ = ()

    @property
    def is_forced(self) -> bool:
        """Only one continuation is possible."""
        return True

    @property
    def is_filled(self) -> bool:
        """Nothing is drawn here."""
        return False

    @property
    def probs(self) -> Tensor:
        """The distribution over the only token, [1, 1]."""
        return torch.ones(1, 1)

    def likeliest(self, count: int) -> list[int]:  # noqa: ARG002
        """Return no token: there is no other one."""
        return []

    def alternatives(self, count: int) -> tuple[tuple[int, float], ...]:  # noqa: ARG002
        """Return no token: there is no other one."""
        return ()

    def _before(self, token: int) -> float:  # noqa: ARG002
        return 1.0

    def _get(self, token: int) -> float:  # noqa: ARG002
        return float(self.left[0])

    def _set(self, token: int, mass: float) -> None:  # noqa: ARG002
        self.left[0] = mass


def put_under(node: Node, rule: SampleRule) -> Node:
    """Return the node if tokens were drawn by this rule there, else a new node in its place."""
    if not node.is_forced and node.rule in (None, rule):
        node.rule = rule
        return node
    new = node.put_in_place(Node(node.parent, node.token, node.depth))
    new.rule = rule
    return new


def force(node: Node, rule: object) -> Node:
    """Return the node if the same was certain to come there, with the mass that bans have left; else a new one."""
    if node.is_forced and node.rule == rule:
        return node
    new = node.put_in_place(ForcedNode(node.parent, node.token, node.depth))
    new.rule = rule
    return new


def jump(node: Node, branch: Branch, *, depth: int) -> Node:
    """Return the node after a controller's branch has cut the text to a depth."""
    landing, before = force(node, branch).child(JUMP - depth, depth=depth), node.back_to(depth)
    if before.is_read and not landing.is_read:
        landing.read(before.logits)
    if branch.sample_mask is not None or branch.ff_tokens:
        landing.rest = replace(branch, backtrack=0)
    return landing


class Fork(NamedTuple):
    """A branch that another row is to write, with the controller's copy for it."""

    branch_idx: int
    branch: Branch
    controller: Controller


class ControlledWalker(Walker):
    """Moves one row under a controller. `forks`: branches that wait for rows of their own."""

    def __init__(self, row: Row, controller: Controller) -> None:
        super().__init__(row)
        self.controller = controller
        self.forks: list[Fork] = []
        self._chosen: Branch | None = None  # to be begun
        self._branch: Branch | None = None  # begun, and to be followed once its logits are known
        self._branch_idx = 0
        self._length = 0  # of the text at the latest step
        self._sampled: int | None = None
        self._is_done = False  # the text ends here unless the controller removes tokens
        self._end_reason: Reason = "done"
        self._vocabulary_size = 0

    def read(self, logits: Tensor) -> None:
        """Take the model's logits [1, vocab] after the row's tokens."""
        self.row.node.read(logits)
        self._vocabulary_size = logits.shape[-1]

    def walk(self, token: int | None = None) -> None:  # noqa: ARG002
        """Walk until the model is needed, or other rows for forks."""
        while not (self.row.is_finished or self.forks):
            if self._chosen is not None:
                self._begin(self._chosen)
            elif self._branch is None:
                self._resume_or_ask()
            elif self._branch.sample_mask is None:
                tokens, self._branch = self._branch.ff_tokens, None
                self._force(tokens)
            elif self.row.node.is_read:
                self._sample(self._branch)
            else:
                return

    def fork(self, fork: Fork, *, number: int, place: int) -> ControlledWalker:
        """Return a walker that follows another branch from here, on a row of its own."""
        row = self.row.fork(fork.controller, number=number, place=place)
        walker = ControlledWalker(row, fork.controller)
        walker._chosen, walker._branch_idx, walker._length = fork.branch, fork.branch_idx, self._length
        walker._vocabulary_size = self._vocabulary_size
        walker.events.append(Forked(self.row.number, len(row.tokens), fork.branch_idx))
        return walker

    def _resume_or_ask(self) -> None:
        """Follow the rest of a branch if a rewind has led into it, else ask the controller."""
        rest = self.row.node.rest
        if isinstance(rest, Branch) and not self._is_done:
            self._branch = rest
        else:
            self._ask()

    def _ask(self) -> None:
        """Ask the controller, and choose the branch to begin."""
        row = self.row
        step = Step(
            branch_idx=self._branch_idx,
            last_backtrack=self._length - row.reported,
            last_append=tuple(row.tokens[row.reported :]),
            sampled=self._sampled,
            tokens=tuple(row.tokens),
            is_done=self._is_done,
            is_greedy=not self.policy.do_sample,
        )
        with self._noting_step():
            branches = self._check(self._select(self.controller.mid_process(step)))
            self.forks = [Fork(i, branch, self.controller.fork()) for i, branch in enumerate(branches[1:], start=1)]
        self._length = row.reported = len(row.tokens)
        self._branch_idx, self._sampled = 0, None
        if branches:
            self._chosen = branches[0]
        elif self._is_done:
            super()._finish(self._end_reason)
        else:
            self._stop_here()

    def _select(self, branches: Sequence[Branch]) -> Sequence[Branch]:
        """Return the branches to follow: after the end of a text none, unless all of them remove tokens."""
        return [] if self._is_done and not all(branch.backtrack for branch in branches) else branches

    def _check(self, branches: Sequence[Branch]) -> Sequence[Branch]:
        row, needs = self.row, self.controller.needs
        if len(branches) > 1 and not needs.has_forks:
            raise CapabilityError(
                f"a controller returned {len(branches)} branches and declared none: set has_forks in its Capabilities"
            )
        for branch in branches:
            branch.check(vocabulary_size=self._vocabulary_size, length=len(row.tokens), limit=needs.backtrack)
        return branches

    @contextmanager
    def _noting_step(self) -> Iterator[None]:
        """Let an exception of the controller's name the row and the step."""
        try:
            yield
        except Exception as error:
            if sys.version_info >= (3, 11):
                error.add_note(f"raised by the controller of row {self.row.number} after {len(self.row.tokens)} tokens")
            raise

    def _begin(self, branch: Branch) -> None:
        if branch.backtrack:
            landing = jump(self.row.node, branch, depth=len(self.row.tokens) - branch.backtrack)
            self._cut(branch.backtrack)
            self.row.node = landing
        self._is_done = False
        self._chosen, self._branch = None, branch

    def _cut(self, count: int) -> None:
        """Remove the last tokens; the bans' limit of withdrawn tokens is not for these."""
        row = self.row
        withdrawn = row.rewind(len(row.tokens) - count)
        row.withdrawn -= len(withdrawn)
        self.events.append(Shortened(len(row.tokens), withdrawn))

    def _add(self, token: int, drawn: Drawn, *, edge: int | None = None) -> bool:
        stays = super()._add(token, drawn, edge=edge)
        if not stays:
            self._sampled = None
        return stays

    def _finish(self, reason: Reason) -> None:
        """Finish the text after the controller was asked once more, unless the model failed."""
        self._end_reason = reason
        self._is_done = reason != "failed"
        if not self._is_done:
            super()._finish(reason)

    @property
    def _has_ended(self) -> bool:
        return self._is_done or self.row.is_finished

    def _force(self, tokens: tuple[int, ...], *, has_begun: bool = False) -> None:
        """Force tokens. has_begun: the branch has done something before, such as sampling."""
        for place, token in enumerate(tokens):
            if has_begun or place:
                self.row.node.rest = Branch(ff_tokens=tokens[place:])
            self.row.node = force(self.row.node, tokens[place:])
            if not self._add(token, Drawn.plain(token)) or self._has_ended:
                return

    def _judge(self, token: int, violations: Sequence[Violation]) -> bool:
        """Judge a token; a ban within forced tokens leads back to the choice before them, if there is one."""
        choice = self._find_choice(self.row.node)
        self._latest_start = self.row.capacity if choice is None else choice.depth
        return super()._judge(token, violations)

    def _find_choice(self, node: Node) -> Node | None:
        """Return the latest node, from this one back, at which a token was drawn; None if none can be drawn again."""
        row = self.row
        while node.is_forced:
            before = node.depth - 1
            if node.parent is None or before < 0 or row.state.back_to(before).earliest_start < row.settled:
                return None
            node = node.parent.back_to(before)
        return node

    def settle(self, length: int) -> None:
        """Settle tokens, but for forced ones after a choice, which a ban of forced tokens may lead back to."""
        row = self.row
        if length > row.settled and not row.is_finished and (node := row.node.back_to(length)).is_forced:
            choice = self._find_choice(node)
            length = length if choice is None else min(length, row.settled_length_at(choice.depth))
        super().settle(length)

    def _sample(self, branch: Branch) -> None:
        """Draw a token, and splice it."""
        row, rule = self.row, branch.rule
        node = row.node = put_under(row.node, rule)
        if not node.is_filled:
            self._fill(node, rule)
        self._branch = None
        token = self._draw()
        if token == NONE_DRAWN:
            self._finish("failed")
            return
        self._sampled = token
        splice = branch.find_splice(token)
        if splice is not None and splice.backtrack:
            self._splice(token, splice)
        elif self._add(token, self._describe(token)) and splice is not None and not self._has_ended:
            self._force(splice.ff_tokens, has_begun=True)

    def _fill(self, node: Node, rule: SampleRule) -> None:
        """Store what the call's processors make of the logits that the rule leaves."""
        row = self.row
        scores = row.spec.settings.process([row], [len(row.tokens)], rule.apply(node.logits[0])[None])
        if bool((scores == -torch.inf).all()):
            raise InputError(
                f"after {len(row.tokens)} tokens, the sample_mask of a controller and the logits processors leave no "
                "token to draw: allow more tokens, or leave out what forbids them, min_new_tokens for instance"
            )
        node.fill(node.logits, scores)

    def _splice(self, token: int, splice: Splice) -> None:
        """Put tokens in the place of the sampled one and of others before it."""
        row, node = self.row, self.row.node
        self.events.append(self._describe(token))
        row.append(token, self._feed(row.state, token))
        self._cut(splice.backtrack)
        row.node = node
        if not splice.ff_tokens:
            row.node = node.child(token, depth=len(row.tokens))
            if (before := node.back_to(len(row.tokens))).is_read and not row.node.is_read:
                row.node.read(before.logits)
            return
        first, *others = splice.ff_tokens
        if self._add(first, Drawn.plain(first), edge=token) and not self._has_ended:
            self._force(tuple(others), has_begun=True)

    def _stop_here(self) -> None:
        """End the text because the controller does, unless that completes a ban: then rewind it."""
        row = self.row
        if violations := in_order(self.matcher.finish(row.state)):
            row.node = force(row.node, STOP)
            if not self._judge(STOP, violations):
                return
        super()._finish("done")

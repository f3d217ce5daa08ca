"""Move a row as its controller says, with bans on top.

At each step the controller is asked for branches. The text is cut; then a token is sampled and spliced, or tokens are
forced, without a forward pass. Bans judge what is in the text after that. A violation rewinds the row, and the
controller is asked again there.

A cut or splice is an edge of the ledger's tree like a token, but leads to a smaller depth. So the mass that a later
violation subtracts is carried through it to the choice that led there.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from torch import Tensor

from antislop.decoding.branches import Branch, CapabilityError, Controller, Splice, Step
from antislop.decoding.ledger import STOP
from antislop.decoding.row import Row
from antislop.decoding.walker import NONE_DRAWN, Walker, in_order
from antislop.trace.events import Drawn, Shortened


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
        self._branch: Branch | None = None
        self._branch_idx = 0
        self._length = 0  # of the text at the latest step
        self._sampled: int | None = None
        self._vocabulary_size = 0

    def read(self, logits: Tensor) -> None:
        """Take the model's logits [1, vocab] after the row's tokens."""
        self.row.node.read(logits)
        self._vocabulary_size = logits.shape[-1]

    def walk(self, token: int | None = None) -> None:  # noqa: ARG002
        """Walk until the model is needed."""
        while not self.row.is_finished:
            if self._branch is None:
                self._ask()
            elif self._branch.sample_mask is None:
                self._force(self._branch.ff_tokens)
                self._branch = None
            elif self.row.node.is_read:
                self._sample(self._branch)
            else:
                return

    def begin_branch(self, fork: Fork) -> None:
        """Continue as a fork of the row that this one was copied from."""
        self._branch_idx, self._length = fork.branch_idx, len(self.row.tokens)
        self._begin(fork.branch)

    def _ask(self) -> None:
        """Ask the controller, and cut the text if it says so."""
        row = self.row
        step = Step(
            branch_idx=self._branch_idx,
            last_backtrack=self._length - row.reported,
            last_append=tuple(row.tokens[row.reported :]),
            sampled=self._sampled,
            tokens=tuple(row.tokens),
        )
        with self._noting_step():
            branches = self._check(self.controller.mid_process(step))
            self.forks = [Fork(i, branch, self.controller.fork()) for i, branch in enumerate(branches[1:], start=1)]
        self._length = row.reported = len(row.tokens)
        self._branch_idx, self._sampled = 0, None
        if branches:
            self._begin(branches[0])
        else:
            self._stop_here()

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
            landing = self.row.node.jump(len(self.row.tokens) - branch.backtrack)
            self._cut(branch.backtrack)
            self.row.node = landing
        self._branch = branch

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

    def _force(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self.row.node = self.row.node.force(token)
            if not self._add(token, Drawn(token)) or self.row.is_finished:
                return

    def _sample(self, branch: Branch) -> None:
        """Draw a token, and splice it."""
        row, rule = self.row, branch.rule
        node = row.node = row.node.under(rule)
        if not node.is_filled:
            logits = rule.apply(node.logits[0])[None]
            node.fill(node.logits, row.spec.settings.process([row], [len(row.tokens)], logits))
        self._branch = None
        token = self._draw()
        if token == NONE_DRAWN:
            self._finish("failed")
            return
        self._sampled = token
        splice = branch.find_splice(token)
        if splice is not None and splice.backtrack:
            self._splice(token, splice)
        elif self._add(token, self._describe(token)) and splice is not None and not row.is_finished:
            self._force(splice.ff_tokens)

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
        if self._add(first, Drawn(first), edge=token) and not row.is_finished:
            self._force(others)

    def _stop_here(self) -> None:
        """End the text because the controller does, unless that completes a ban: then rewind it."""
        row = self.row
        if violations := in_order(self.matcher.finish(row.state)):
            row.node = row.node.force(STOP)
            if not self._judge(STOP, violations):
                return
        self._finish("done")

"""Judge the tokens that a server has drawn, with a ledger of the probabilities that it told."""

from __future__ import annotations

from collections.abc import Sequence

from antislop.decoding.ledger import Node, draw_uniform
from antislop.decoding.row import Row
from antislop.decoding.walker import Walker
from antislop.endpoint.sparse_node import SparseNode
from antislop.matching.token_matcher import Violation
from antislop.trace.events import Drawn, Event

GREEDY_REWINDS = 8
"""Rewinds of a greedy text to one position after which tokens that begin a ban are left out there.

A phrase is completed by any token that ends its last word. A server that returns few alternatives shows these tokens
one by one, and each takes little from the phrase.
"""


class StreamWalker(Walker):
    """Moves a row along tokens that are drawn elsewhere.

    visible: the number of likeliest tokens at a place whose probabilities the server returns at most.

    A violation is subtracted only if the probabilities of all tokens from its start on are known. Otherwise the text
    is drawn again from there as if nothing had been seen, which is the rejection that the ledger saves.
    """

    def __init__(self, row: Row, *, visible: int = 0) -> None:
        super().__init__(row)
        row.node = SparseNode()
        self._visible = visible

    @property
    def node(self) -> SparseNode:
        """The node of the next token."""
        assert isinstance(self.row.node, SparseNode)
        return self.row.node

    def keeps(self, token: int) -> bool:
        """Return whether a token drawn from the whole distribution counts as drawn from what is left: by a coin.

        A greedy token does if nothing was subtracted from it.
        """
        share = self.node.share_left(token)
        return share >= 1 or (self.policy.do_sample and draw_uniform(self.row.spec.generator) < share)

    def read(self, token: int, probability: float | None, alternatives: Sequence[tuple[int, float]] = ()) -> bool:
        """Add the next token, and return whether it stays; if not, the row was rewound or is finished.

        probability: before anything was subtracted; None if it is unknown. alternatives: of other tokens.
        """
        if probability is not None:
            self.node.note(token, probability)
        for other, known in alternatives:
            self.node.note(other, known)
        return self._add(token, Drawn.plain(token))

    def finish(self) -> None:
        """End a text without tokens."""
        self._finish("done")

    def release(self) -> list[Event]:
        """Return the events since the last call."""
        events, self.events = self.events, []
        return events

    def _take(self, token: int, violation: Violation, violations: Sequence[Violation]) -> None:
        if not self._knows_since(violation.start, token):
            return
        super()._take(token, violation, violations)
        start, first = self.row.node.step_from(violation.start, token)
        is_stuck = not self.policy.do_sample and start.rewinds >= GREEDY_REWINDS and self.node.touched >= self._visible
        if is_stuck and violation.ban.weight == 0:
            start.close(first, start=start.depth)
            start.carry()

    def _take_others(self, node: Node) -> None:
        if node.parent is None or self._knows_since(0, node.token, node=node.parent):
            super()._take_others(node)

    def _subtract(self, token: int, violations: Sequence[Violation]) -> None:
        if not violations or self._knows_since(min(violation.start for violation in violations), token):
            super()._subtract(token, violations)

    def _knows_since(self, start: int, token: int, *, node: Node | None = None) -> bool:
        """Return whether the probability of each token from a start on is known, to `token` at a node, the row's own.

        Settled tokens are not asked for, since nothing is subtracted from them.
        """
        start = min(start, self._latest_start)
        node = node or self.row.node
        while isinstance(node, SparseNode) and node.depth >= start:
            if not node.knows(token):
                return False
            token = node.token
            node = node.parent
        return True

    def _has_choice(self, node: Node, *, avoided: Node | None = None) -> bool:  # noqa: ARG002
        return not self._is_scarce(node)

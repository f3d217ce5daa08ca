"""Take tokens that a server has drawn, with a table of the probabilities that it sent.

The server sends the probabilities of some tokens only: a violation is subtracted if those of all its tokens are known.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log

from antislop.decoding.ledger import Node
from antislop.decoding.row import Row
from antislop.decoding.sources import Source
from antislop.decoding.tables import draw_uniform
from antislop.trace.events import Drawn

LOWEST_BIAS = -100.0
"""The bias of a token of which nothing is left; servers clamp lower biases to this value."""
GREEDY_REWINDS = 8
"""Rewinds of a greedy text to one position after which tokens that begin a ban are left out there.

Any token that ends a phrase's last word completes it; a server that returns few alternatives shows these one by one.
"""


class SparseTable:
    """The distribution at a node, as far as the server sent it."""

    def __init__(self) -> None:
        self._known: dict[int, float] = {}
        self._left: dict[int, float] = {}  # of tokens from which something was subtracted

    def note(self, token: int, probability: float) -> None:
        """Store a probability; a later one of the same token is ignored, since masses refer to the first."""
        self._known.setdefault(token, probability)

    @property
    def touched(self) -> int:
        return len(self._left)

    def share_left(self, token: int) -> float:
        """Return the fraction of a token's probability that was not subtracted, 0 to 1."""
        known = self._known.get(token, 0.0)
        return self.left(token) / known if known > 0 else 1.0

    def biases(self) -> dict[int, float]:
        """Return what to add to the log-probabilities of tokens to draw from what is left."""
        shares = {token: self.share_left(token) for token in self._left}
        return {
            token: max(LOWEST_BIAS, log(share)) if share > 0 else LOWEST_BIAS
            for token, share in shares.items()
            if share != 1
        }

    def knows(self, token: int) -> bool:
        return token in self._known

    def probability(self, token: int) -> float:
        return self._known[token]

    def left(self, token: int) -> float:
        return self._left.get(token, self._known[token])

    def set_left(self, token: int, mass: float) -> None:
        self._left[token] = mass

    def mass_left(self) -> float:
        return max(0.0, 1.0 - sum(self._known[token] - mass for token, mass in self._left.items()))

    def likeliest(self, count: int) -> list[tuple[int, float]]:
        left = [(token, mass) for token in self._known if (mass := self.left(token)) > 0]
        return sorted(left, key=lambda pair: pair[1], reverse=True)[:count]

    def copy(self) -> SparseTable:
        other = SparseTable()
        other._known, other._left = dict(self._known), dict(self._left)
        return other


class StreamSource(Source):
    """Adds tokens that are drawn elsewhere.

    visible: maximum number of alternatives that the server returns per position.
    """

    def __init__(self, row: Row, *, visible: int = 0) -> None:
        super().__init__(row)
        self._visible = visible

    @property
    def table(self) -> SparseTable:
        """The distribution of the next token."""
        return open_table(self.row.node)

    def is_stuck(self, start: Node) -> bool:
        """Report whether a greedy text rewinds to a ban again and again, with all visible tokens used up."""
        is_greedy, touched = not self.row.spec.policy.do_sample, open_table(self.row.node).touched
        return is_greedy and start.rewinds >= GREEDY_REWINDS and touched >= self._visible

    def keeps(self, token: int) -> bool:
        """Return whether a token drawn from the whole distribution counts as drawn from what is left: by a coin.

        A greedy one does if nothing was subtracted from it.
        """
        share, spec = self.table.share_left(token), self.row.spec
        return share >= 1 or (spec.policy.do_sample and draw_uniform(spec.generator) < share)

    def take(self, token: int, probability: float | None, alternatives: Sequence[tuple[int, float]] = ()) -> bool:
        """Add the next token, and return whether it stays; if not, the row was rewound or is finished.

        probability: before anything was subtracted; None if unknown.
        """
        table = self.table
        if probability is not None:
            table.note(token, probability)
        for other, known in alternatives:
            table.note(other, known)
        outcome = self.add(token, Drawn.plain(token))
        self.end_if(outcome)
        return outcome in ("stays", "done")


def open_table(node: Node) -> SparseTable:
    if not isinstance(node.table, SparseTable):
        node.table = SparseTable()
    return node.table

"""A ledger for models whose distributions are never seen: only the probabilities of some drawn tokens are known.

`Node` subtracts and carries mass by four operations on single tokens. Here they read dictionaries, which contain the
tokens that a server has written at a node and told the probability of; all others have all of theirs left.
"""

from __future__ import annotations

from math import log

from antislop.decoding.ledger import Node

LOWEST_BIAS = -100.0
"""The bias of a token whose whole probability was subtracted; servers clamp lower biases to this value."""


class SparseNode(Node):
    """The distribution after some tokens, as far as it is known."""

    __slots__ = ("_known", "_rest")

    def __init__(self, parent: Node | None = None, token: int = -1, depth: int | None = None) -> None:
        super().__init__(parent, token, depth)
        self._known: dict[int, float] = {}
        self._rest: dict[int, float] = {}

    def note(self, token: int, probability: float) -> None:
        """Store a token's probability; a later value for the same token is ignored, since masses refer to the first."""
        self._known.setdefault(token, probability)

    def knows(self, token: int) -> bool:
        """Return whether a token's probability is known."""
        return token in self._known

    @property
    def touched(self) -> int:
        """The number of tokens whose mass was changed."""
        return len(self._rest)

    def share_left(self, token: int) -> float:
        """Return the fraction of a token's probability that was not subtracted, 0 to 1."""
        known = self._known.get(token, 0.0)
        return self._get(token) / known if known > 0 else 1.0

    def biases(self) -> dict[int, float]:
        """Return what to add to the log-probabilities of tokens to draw from the remaining distribution."""
        shares = {token: self.share_left(token) for token in self._rest}
        return {
            token: max(LOWEST_BIAS, log(share)) if share > 0 else LOWEST_BIAS
            for token, share in shares.items()
            if share != 1
        }

    def mass_left(self) -> float:
        """Return the remaining share of the distribution, 1 at first."""
        return max(0.0, 1.0 - sum(self._known[token] - mass for token, mass in self._rest.items()))

    def likeliest(self, count: int) -> list[int]:
        """Return up to `count` of the known tokens that are left, the likeliest first."""
        left = {token: mass for token in self._known if (mass := self._get(token)) > 0}
        return sorted(left, key=left.__getitem__, reverse=True)[:count]

    def alternatives(self, count: int) -> tuple[tuple[int, float], ...]:
        """Return up to `count` of the known tokens that are left and their shares of the remaining mass."""
        total = self.mass_left()
        return tuple((token, self._get(token) / total) for token in self.likeliest(count)) if total > 0 else ()

    def _make_child(self, token: int, depth: int | None) -> Node:
        return SparseNode(self, token, depth)

    def _before(self, token: int) -> float:
        return self._known[token]

    def _get(self, token: int) -> float:
        return self._rest.get(token, self._known[token])

    def _set(self, token: int, mass: float) -> None:
        self._rest[token] = mass

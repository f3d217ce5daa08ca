"""Keep the probabilities that bans have left: the arithmetic that makes a text exact, without a tensor.

A node stands for the text after one path of tokens; the nodes of the unsettled text form a tree. A violation subtracts
from a node's table, and later draws are made from the rest.

Why this is exact. Rejection sampling withdraws a violation from its first token on and draws again from there. It is a
Markov chain on prefixes, in which a rejection is a jump back to a shorter prefix. A jump from below a node to that node
only repeats the draw there, so it can be left out if the rest is renormalized. A jump to an earlier start can be left
out only at that start; the nodes in between remember its probability in their `exits`, by start. A parent therefore
weights a child by left / (left + exits): the jumps to the child itself don't count. After a rewind the chain may jump
further back, with the probability of the exits, without writing the tokens in between again (`follow_exits`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from antislop.core.bans.bans import Ban


class Table(Protocol):
    """The distribution of the next token at a node, as far as it is known."""

    def knows(self, token: int) -> bool:
        """Report whether a token's probability is known."""

    def probability(self, token: int) -> float:
        """Return a token's probability before anything was subtracted."""

    def left(self, token: int) -> float:
        """Return what is left of a token's probability."""

    def set_left(self, token: int, mass: float) -> None:
        """Replace what is left of a token's probability."""

    def clear(self, tokens: Sequence[int]) -> list[float]:
        """Set what is left of some tokens to 0; return their probabilities before anything was subtracted."""

    def mass_left(self) -> float:
        """Return the sum of what is left of all tokens' probabilities."""

    def likeliest(self, count: int) -> list[tuple[int, float]]:
        """Return up to `count` known tokens of which something is left, with that mass, the likeliest first."""

    def copy(self) -> Table:
        """Return a copy that changes independently."""


NO_EXITS: Mapping[int, float] = MappingProxyType({})


class Node:
    """The text after `depth` generated tokens, the last of which is `token`, and what bans have left to follow it.

    table: the distribution of the next token; None before a forward pass has reached the node.
    rewinds: how often a violation has led back here.
    tries: by ban, how often violations led back here; counted for bans with a `then` or that a grammar may force.
    memory: data about this node for the object that draws the text's tokens.
    """

    __slots__ = (
        "_exits", "_masses", "_weighed",
        "children", "depth", "memory", "parent", "rewinds", "table", "token", "tries",
    )  # fmt: skip

    def __init__(self, parent: Node | None = None, token: int = -1, depth: int | None = None) -> None:
        self.parent = parent
        self.token = token
        self.depth: int = (0 if parent is None else parent.depth + 1) if depth is None else depth
        self.children: dict[int, Node] = {}
        self.table: Table | None = None
        self.rewinds = 0
        self.tries: dict[Ban, int] = {}
        self.memory: object = None
        # By token: its mass before bans after it were subtracted, if any were, 0 if all is subtracted; what of it leads
        # back to before the node, by the depth to which it leads; the bans whose weights have multiplied it, as the
        # first-token rule does. Of tokens that are excluded together, the first has the exits of all.
        self._masses: dict[int, float] = {}
        self._exits: dict[int, Mapping[int, float]] = {}
        self._weighed: dict[int, frozenset[Ban]] = {}

    # -- masses

    def exclude(self, tokens: Sequence[int], start: int) -> None:
        """Leave no probability to some next tokens. start: the depth to which they lead back.

        The probability of tokens that lead back to this node goes to the node's other tokens; that of tokens that lead
        further back becomes exits. A token of unknown probability stays: it may be drawn and withdrawn again.
        """
        known = [token for token in tokens if self._masses.get(token) != 0 and self.knows(token)]
        probabilities = self._known_table.clear(known) if known else ()
        pairs = zip(known, probabilities, strict=True)
        mass = sum(self._masses.get(token, probability) for token, probability in pairs)
        if mass > 0:
            self._masses |= dict.fromkeys(known, 0.0)
            self._exits |= dict.fromkeys(self._exits.keys() & known, NO_EXITS)
            self._exits[known[0]] = {start: mass} if start < self.depth else NO_EXITS

    def weigh(self, token: int, ban: Ban) -> None:
        """Multiply a token's mass by a ban's weight, once, whatever follows the token: the first-token rule."""
        if not self.has_weighed(ban, token=token):
            self._weighed[token] = self._weighed.get(token, frozenset()) | {ban}
            table = self._known_table
            table.set_left(token, table.left(token) * ban.weight)

    def propagate(self) -> None:
        node = self
        while node.parent is not None and node.parent.update_from(node):
            node = node.parent

    def update_from(self, child: Node) -> bool:
        """Update a token's mass in this node from the child after the token; return whether this node has changed.

        A token of unknown mass stays as it is. Exits lead back over known masses only, so this happens only where
        nothing is left after the token: there rejection would repeat itself for ever, and the judge steps back.
        """
        token, exits, left = child.token, child.exits(), child.mass_left()
        if not self.knows(token):
            return False
        total = left + sum(exits.values())
        mass = self._masses.get(token)
        if mass is None and not exits and total > 0:
            return False  # all subtracted mass leads back to the child itself
        mass = self._known_table.probability(token) if mass is None else mass
        if mass == 0:  # the token was excluded, with all that is below it
            return False
        self._masses[token] = mass
        self._exits[token] = {
            start: mass * lost / total for start, lost in exits.items() if total and start < self.depth
        }
        self._known_table.set_left(token, mass * left / total if total else 0.0)
        return True

    def exits(self) -> dict[int, float]:
        """Return the subtracted mass that leads back to before this node, by the depth to which it leads."""
        total: dict[int, float] = {}
        for exits in self._exits.values():
            for start, mass in exits.items():
                total[start] = total.get(start, 0.0) + mass
        return total

    def follow_exits(self, draw: Callable[[], float]) -> Node:
        """Return the node where a rewind to this node ends: this node, or an earlier one that drawn exits lead to.

        draw: returns a random number in [0, 1).
        """
        node = self
        while exits := node.exits():
            rest = draw() * (node.mass_left() + sum(exits.values()))
            for start, mass in exits.items():
                rest -= mass
                if rest < 0:
                    node = node.back_to(start)
                    break
            else:
                break
        return node

    def mass_left(self) -> float:
        return 1.0 if self.table is None else self.table.mass_left()

    def has_weighed(self, ban: Ban, *, token: int) -> bool:
        return ban in self._weighed.get(token, ())

    def is_scarce(self, floor: float, *, start: int | None = None) -> bool:
        """Report whether less than `floor` of the distribution is left, so that what is left may be noise.

        Exits to before `start` (default: the node's depth) count as left: that mass is rejected only further back.
        """
        left, start = self.mass_left(), self.depth if start is None else start
        elsewhere = sum(mass for exit_to, mass in self.exits().items() if exit_to < start)
        return left == 0 or left + elsewhere < floor

    def knows(self, token: int) -> bool:
        return self.table is not None and self.table.knows(token)

    def knows_since(self, start: int, token: int) -> bool:
        """Report whether the probability of each token after depth `start` is known, up to `token` after this node.

        Settled tokens are left out, since nothing is subtracted from them.
        """
        node = self
        while node.knows(token):
            if node.parent is None or node.parent.depth < start:
                return True
            node, token = node.parent, node.token
        return False

    def list_alternatives(self, count: int) -> tuple[tuple[int, float], ...]:
        """Return the likeliest tokens left and their shares of the remaining mass."""
        total = self.mass_left()
        likeliest = [] if self.table is None or total == 0 else self.table.likeliest(count)
        return tuple((token, mass / total) for token, mass in likeliest)

    def replace_table(self, table: Table | None) -> None:
        """Give the node another table; forget what was subtracted from the old one, and drop all nodes below."""
        self.drop_children()
        self.forget_masses()
        self._weighed.clear()
        self.table, self.rewinds, self.tries = table, 0, {}
        if self.parent is not None:
            self.propagate()

    def forget_masses(self) -> None:
        """Forget what was subtracted, once the table has replaced its distribution by one over other tokens."""
        self._masses.clear()
        self._exits.clear()

    @property
    def _known_table(self) -> Table:
        assert self.table is not None, "no forward pass has reached this node"
        return self.table

    # -- the tree

    def child(self, token: int, *, depth: int | None = None) -> Node:
        """Return the node after one more token, created if missing. depth: of a new node after a cut or splice."""
        node = self.children.get(token)
        if node is None:
            node = self.children[token] = Node(self, token, depth)
        return node

    def back_to(self, depth: int) -> Node:
        """Return the latest ancestor, or this node, whose depth is at most `depth`."""
        return self.step_from(depth, self.token)[0]

    def step_from(self, depth: int, token: int) -> tuple[Node, int]:
        """Return what `back_to` returns, and the token that leads from there to this node; `token` if that is here."""
        node = self
        while node.depth > depth:
            assert node.parent is not None, "the ancestor is settled and no longer in the tree"
            node, token = node.parent, node.token
        return node, token

    def fork(self) -> Node:
        """Return this node in an independent copy of the whole tree."""
        root = self
        while root.parent is not None:
            root = root.parent
        copies, waiting = dict[int, Node](), [root]
        while waiting:
            node = waiting.pop()
            parent = None if node.parent is None else copies[id(node.parent)]
            other = copies[id(node)] = Node(parent, node.token, node.depth)
            other.table = None if node.table is None else node.table.copy()
            other.rewinds, other.tries, other.memory = node.rewinds, dict(node.tries), copy.copy(node.memory)
            other._masses, other._exits = dict(node._masses), dict(node._exits)
            other._weighed = dict(node._weighed)
            if parent is not None:
                parent.children[node.token] = other
            waiting += node.children.values()
        return copies[id(self)]

    def cut_loose(self) -> None:
        """Make this node the root, and free the rest of the tree without waiting for the collector.

        Each table refers to the logits of a whole batch, which a cycle of parent and child would keep in memory.
        """
        kept, ancestor, self.parent = self, self.parent, None
        while ancestor is not None:
            ancestor.drop_children(but=kept)
            kept, ancestor = ancestor, ancestor.parent

    def drop_children(self, *, but: Node | None = None) -> None:
        """Detach all children but one, and free everything below the others."""
        waiting = [child for child in self.children.values() if child is not but]
        self.children.clear()
        while waiting:
            node = waiting.pop()
            if node.children:
                waiting += node.children.values()
                node.children.clear()
            node.parent = None

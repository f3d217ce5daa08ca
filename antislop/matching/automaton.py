"""Find many strings at once: an Aho-Corasick automaton (doi 10.1145/360825.360855) that is built while it runs.

Its nodes are the prefixes of the patterns: here a range of the sorted patterns, found by bisection when a text first
reaches it, so that compiling is sorting and only visited nodes take memory.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence



class Node:
    """The longest prefix of a pattern that a text ends with. Compared by identity; to rewind, use an earlier one.

    depth: symbols of the prefix.
    low, high: the range of the sorted patterns that begin with it.
    fallback: the next shorter prefix that the text ends with; None at the root.
    matches: (pattern, length) of the patterns that end here, longest first.
    longest: length of the longest incomplete pattern that ends here.
    steps: the nodes after those symbols that were read here so far.
    """

    __slots__ = ("depth", "fallback", "high", "longest", "low", "matches", "steps")

    def __init__(
        self, depth: int, low: int, high: int, fallback: Node | None, matches: tuple[tuple[int, int], ...], longest: int
    ) -> None:
        self.depth = depth
        self.low = low
        self.high = high
        self.fallback = fallback
        self.matches = matches
        self.longest = longest
        self.steps: dict[str, Node] = {}


class Automaton:
    """Patterns, compiled. root: where a text begins. nodes: those that texts have reached.

    >>> automaton = Automaton(["she", "he", "hers"])
    >>> node = automaton.root
    >>> for symbol in "she":
    ...     node = node.steps.get(symbol) or automaton.step(node, symbol)
    >>> node.matches, node.longest
    (((0, 3), (1, 2)), 2)
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self._ids = array("I", sorted(range(len(patterns)), key=patterns.__getitem__))
        self._sorted = [patterns[i] for i in self._ids]
        self.root = Node(0, 0, len(patterns), None, (), 0)
        self.nodes = [self.root]

    def step(self, node: Node, symbol: str) -> Node:
        after = node.steps.get(symbol)
        if after is None:
            after = node.steps[symbol] = self._advance(node, symbol)
        return after

    def forget(self) -> None:
        """Drop all nodes but the root; those that a caller keeps can still be used."""
        for node in self.nodes:
            node.steps.clear()
        self.nodes = [self.root]

    def prefix(self, node: Node) -> str:
        return self._sorted[node.low][: node.depth] if node.depth else ""

    def endings(self, node: Node, count: int) -> list[str]:
        """Return the rest of up to `count` patterns that begin with the prefix of a node."""
        patterns = self._sorted[node.low : min(node.high, node.low + count)]
        return [pattern[node.depth :] for pattern in patterns]

    def _advance(self, node: Node, symbol: str) -> Node:
        """Add the nodes of the suffixes that continue with this symbol, the shortest first."""
        missing = []
        suffix: Node | None = node
        after = None
        while suffix is not None and (after := suffix.steps.get(symbol)) is None:
            low, high = self._find_range(suffix, symbol)
            if low < high:
                missing.append((suffix, low, high))
            suffix = suffix.fallback
        after = after or self.root
        for suffix, low, high in reversed(missing):
            after = suffix.steps[symbol] = self._append(suffix.depth + 1, low, high, after)
        return after

    def _find_range(self, node: Node, symbol: str) -> tuple[int, int]:
        """Return the range of the patterns that continue a prefix with this symbol."""
        low, high, depth = node.low, node.high, node.depth
        if low == high:
            return low, low
        first, last = self._sorted[low][depth : depth + 1], self._sorted[high - 1][depth : depth + 1]
        if not first <= symbol <= last:
            return low, low
        prefix = self._sorted[low][:depth]
        if first < symbol:
            low = bisect_left(self._sorted, prefix + symbol, low, high)
        if symbol < last:
            high = bisect_left(self._sorted, prefix + chr(ord(symbol) + 1), low, high)
        return low, high

    def _append(self, depth: int, low: int, high: int, fallback: Node) -> Node:
        matches, longest = fallback.matches, depth
        prefix = self._sorted[low]
        if len(prefix) == depth:  # patterns equal to the prefix sort before all longer ones
            equal = bisect_left(self._sorted, prefix + "\0", low, high)
            matches = (*((pattern, depth) for pattern in self._ids[low:equal]), *matches)
            longest = depth if equal < high else fallback.longest
        node = Node(depth, low, high, fallback, matches, longest)
        self.nodes.append(node)
        return node

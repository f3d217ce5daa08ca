"""Find many strings at once: an Aho-Corasick automaton (doi 10.1145/360825.360855) that is built while it runs.

Its nodes are the prefixes of the patterns: here a range of the sorted patterns, found by bisection when a text first
reaches it, so that compiling is sorting and only visited nodes take memory.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence


class Node(dict[str, "Node"]):
    """The longest prefix of a pattern that a text ends with; `node[symbol]` is the one after the text's next symbol.

    Nodes are compared by identity. To rewind, use an earlier one.

    automaton: whose patterns these are.
    depth: symbols of the prefix.
    low, high: the range of the sorted patterns that begin with it.
    fallback: the next shorter prefix that the text ends with; None at the root.
    matches: (pattern, length) of the patterns that end here, longest first.
    longest: length of the longest incomplete pattern that ends here.
    """

    __slots__ = ("automaton", "depth", "fallback", "high", "longest", "low", "matches")
    __eq__ = object.__eq__
    __hash__ = object.__hash__  # type: ignore[assignment]  # that of a dict is None

    def __init__(self, automaton: Automaton, depth: int, low: int, high: int, fallback: Node | None) -> None:
        self.automaton = automaton
        self.depth = depth
        self.low = low
        self.high = high
        self.fallback = fallback
        self.matches: tuple[tuple[int, int], ...] = fallback.matches if fallback is not None else ()
        self.longest = depth

    def __missing__(self, symbol: str) -> Node:
        after = self[symbol] = self.automaton.advance(self, symbol)
        return after


class Automaton:
    """Patterns, compiled. root: where a text begins. nodes: those that texts have reached.

    >>> automaton = Automaton(["she", "he", "hers"])
    >>> node = automaton.root
    >>> for symbol in "she":
    ...     node = node[symbol]
    >>> node.matches, node.longest
    (((0, 3), (1, 2)), 2)
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self._ids = array("I", sorted(range(len(patterns)), key=patterns.__getitem__))
        self._sorted = [patterns[i] for i in self._ids]
        self.root = Node(self, 0, 0, len(patterns), None)
        self.nodes = [self.root]

    def forget(self) -> None:
        """Drop all nodes but the root; those that a caller keeps can still be used."""
        for node in self.nodes:
            node.clear()
        self.nodes = [self.root]

    def prefix(self, node: Node) -> str:
        return self._sorted[node.low][: node.depth] if node.depth else ""

    def endings(self, node: Node, count: int) -> list[str]:
        """Return the rest of up to `count` patterns that begin with the prefix of a node."""
        patterns = self._sorted[node.low : min(node.high, node.low + count)]
        return [pattern[node.depth :] for pattern in patterns]

    def advance(self, node: Node, symbol: str) -> Node:
        """Add the nodes of the suffixes that continue with a symbol, the shortest first; return the longest."""
        missing = []
        suffix: Node | None = node
        after = None
        while suffix is not None and after is None:
            low, high = self._find_range(suffix, symbol)
            if low < high:
                missing.append((suffix, low, high))
            suffix = suffix.fallback
            after = suffix.get(symbol) if suffix is not None else self.root
        assert after is not None
        for suffix, low, high in reversed(missing):
            after = suffix[symbol] = self._append(suffix.depth + 1, low, high, after)
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
        node = Node(self, depth, low, high, fallback)
        prefix = self._sorted[low]
        if len(prefix) == depth:  # patterns equal to the prefix sort before all longer ones
            equal = bisect_left(self._sorted, prefix + "\0", low, high)
            node.matches = (*((pattern, depth) for pattern in self._ids[low:equal]), *fallback.matches)
            node.longest = depth if equal < high else fallback.longest
        self.nodes.append(node)
        return node

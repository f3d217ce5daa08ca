"""Find many strings at once: an Aho-Corasick automaton (doi 10.1145/360825.360855) that is built while it runs.

Its nodes are the prefixes of the patterns: here a range of the sorted patterns, found by bisection when a text first
reaches it, so that compiling is sorting and only visited nodes take memory.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence


class TrieNode(dict[str, "TrieNode"]):
    """The longest prefix of a pattern that a text ends with; `node[symbol]` is the one after the text's next symbol.

    Nodes are compared by identity. To rewind, use an earlier one.

    automaton: whose patterns these are.
    depth: symbols of the prefix.
    low, high: the range of the sorted patterns that begin with it.
    fallback: the next shorter prefix that the text ends with; None at the root.
    matches: (pattern, length) of the patterns that end here, longest first.
    longest: length of the longest incomplete pattern that ends here.
    width: the same, without the symbols that take no place.
    """

    __slots__ = ("automaton", "depth", "fallback", "high", "longest", "low", "matches", "width")
    __eq__ = object.__eq__
    __hash__ = object.__hash__  # type: ignore[assignment]  # that of a dict is None

    def __init__(
        self, automaton: Automaton, depth: int, low: int, high: int, width: int, fallback: TrieNode | None
    ) -> None:
        self.automaton = automaton
        self.depth = depth
        self.low = low
        self.high = high
        self.fallback = fallback
        self.matches: tuple[tuple[int, int], ...] = fallback.matches if fallback is not None else ()
        self.longest = depth
        self.width = width

    def __missing__(self, symbol: str) -> TrieNode:
        path = [self]
        while (fallback := path[-1].fallback) is not None and symbol not in fallback:
            path.append(fallback)
        after = self.automaton.root if fallback is None else fallback[symbol]
        for node in reversed(path):
            after = node[symbol] = self.automaton.extend(node, symbol, after)
        return after


class Automaton:
    """Patterns, compiled.

    placeless: symbols that take no place in a text.
    root: where a text begins.
    nodes: those that texts have reached.

    >>> automaton = Automaton(["she", "he", "hers"])
    >>> node = automaton.root
    >>> for symbol in "she":
    ...     node = node[symbol]
    >>> node.matches, node.longest
    (((0, 3), (1, 2)), 2)
    """

    def __init__(self, patterns: Sequence[str], *, placeless: str = "") -> None:
        self._placeless = placeless
        self._ids = array("I", sorted(range(len(patterns)), key=patterns.__getitem__))
        self._sorted = [patterns[i] for i in self._ids]
        self.root = TrieNode(self, 0, 0, len(patterns), 0, None)
        self.nodes = [self.root]

    def forget(self) -> None:
        """Drop all nodes but the root; those that a caller keeps can still be used."""
        for node in self.nodes:
            node.clear()
        self.nodes = [self.root]

    def prefix(self, node: TrieNode) -> str:
        return self._sorted[node.low][: node.depth] if node.depth else ""

    def endings(self, node: TrieNode, count: int) -> list[str]:
        """Return the rest of up to `count` patterns that begin with the prefix of a node."""
        patterns = self._sorted[node.low : min(node.high, node.low + count)]
        return [pattern[node.depth :] for pattern in patterns]

    def extend(self, node: TrieNode, symbol: str, fallback: TrieNode) -> TrieNode:
        """Add the node of a prefix and one symbol more; return `fallback` if no pattern begins like that."""
        patterns, low, high, depth = self._sorted, node.low, node.high, node.depth
        if low == high:
            return fallback
        first = patterns[low][depth : depth + 1]
        last = first if low + 1 == high else patterns[high - 1][depth : depth + 1]
        if not first <= symbol <= last:
            return fallback
        if first < last:
            prefix = patterns[low][:depth]
            if first < symbol:
                low = bisect_left(patterns, prefix + symbol, low, high)
            if symbol < last:
                high = bisect_left(patterns, prefix + chr(ord(symbol) + 1), low, high)
            if low == high:
                return fallback
        width = node.width + (symbol not in self._placeless)
        after = TrieNode(self, depth + 1, low, high, width, fallback)
        prefix = patterns[low]
        if len(prefix) == depth + 1:  # patterns equal to the prefix sort before all longer ones
            equal = bisect_left(patterns, prefix + "\0", low, high)
            after.matches = (*((pattern, depth + 1) for pattern in self._ids[low:equal]), *fallback.matches)
            if equal == high:
                after.longest, after.width = fallback.longest, fallback.width
        self.nodes.append(after)
        return after

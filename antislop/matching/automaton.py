"""Find many strings at once: an Aho-Corasick automaton (doi 10.1145/360825.360855) that is built while it runs.

Its states are the prefixes of the patterns: here a range of the sorted patterns, found by bisection when a text first
reaches it, so that compiling is sorting and only visited states take memory.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

ROOT = 0
LAST = "\U0010ffff"  # no character sorts after it


class Automaton:
    """States are ints that the caller keeps; to rewind, use an earlier one.

    >>> automaton = Automaton(["she", "he", "hers"])
    >>> state = ROOT
    >>> for symbol in "she":
    ...     state = automaton.step(state, symbol)
    >>> automaton.matches[state], automaton.longest[state]
    ((0, 1), 2)
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self._ids = sorted(range(len(patterns)), key=patterns.__getitem__)
        self._sorted = [patterns[i] for i in self._ids]
        self._lengths = [0]
        self._ranges = [(0, len(self._sorted))]
        self._fallbacks = [ROOT]
        self._steps: list[dict[str, int]] = [{}]
        self.matches: list[tuple[int, ...]] = [()]
        """Per state, the patterns that end in it, longest first."""
        self.longest: list[int] = [0]
        """Per state, the length of the longest incomplete pattern that ends in it."""

    def step(self, state: int, symbol: str) -> int:
        after = self._steps[state].get(symbol)
        if after is None:
            after = self._steps[state][symbol] = self._advance(state, symbol)
        return after

    def prefix(self, state: int) -> str:
        """Return the longest prefix of a pattern that the text ends with."""
        return self._sorted[self._ranges[state][0]][: self._lengths[state]] if state else ""

    def endings(self, state: int, count: int) -> list[str]:
        """Return the rest of up to `count` patterns that begin with the prefix of a state."""
        low, high = self._ranges[state]
        start = self._lengths[state]
        return [pattern[start:] for pattern in self._sorted[low : min(high, low + count)]]

    def _advance(self, state: int, symbol: str) -> int:
        """Add the states of the suffixes that continue with this symbol, the shortest first."""
        missing = []
        after = self._steps[state].get(symbol)
        while after is None:
            low, high = self._find_range(self.prefix(state) + symbol, *self._ranges[state])
            if low < high:
                missing.append((state, low, high))
            if state == ROOT:
                after = ROOT
            else:
                state = self._fallbacks[state]
                after = self._steps[state].get(symbol)
        for state, low, high in reversed(missing):
            after = self._steps[state][symbol] = self._append(self.prefix(state) + symbol, low, high, after)
        return after

    def _find_range(self, prefix: str, low: int, high: int) -> tuple[int, int]:
        low = bisect_left(self._sorted, prefix, low, high)
        if low == high or not self._sorted[low].startswith(prefix):
            return low, low
        stem = prefix.rstrip(LAST)
        beyond = stem[:-1] + chr(ord(stem[-1]) + 1) if stem else ""  # sorts right after everything with this prefix
        return low, bisect_left(self._sorted, beyond, low, high) if beyond else high

    def _append(self, prefix: str, low: int, high: int, fallback: int) -> int:
        # A pattern equal to the prefix sorts before all longer ones.
        equal = bisect_left(self._sorted, prefix + "\0", low, high)
        self._lengths.append(len(prefix))
        self._ranges.append((low, high))
        self._fallbacks.append(fallback)
        self._steps.append({})
        self.matches.append((*self._ids[low:equal], *self.matches[fallback]))
        self.longest.append(len(prefix) if equal < high else self.longest[fallback])
        return len(self._lengths) - 1

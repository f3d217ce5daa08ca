"""Find many strings at once: an Aho-Corasick automaton that is built while it runs.

A. Aho, M. Corasick, "Efficient string matching", 1975, doi 10.1145/360825.360855. Its states are the prefixes of the
patterns. Here a prefix is a range of the sorted patterns, found by bisection when a text first reaches it, so that
compiling is sorting and memory goes to the states that are really visited. It knows nothing of folding or bans.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

ROOT = 0


class Automaton:
    """States are ints that the caller keeps; going back to one is using it again.

    >>> automaton = Automaton(["she", "he", "hers"])
    >>> state = ROOT
    >>> for symbol in "ushers":
    ...     state = automaton.step(state, symbol)
    ...     print(symbol, automaton.matches[state], automaton.depths[state])
    u () ()
    s () (1,)
    h () (2, 1)
    e (0, 1) (3, 2)
    r () (3,)
    s (2,) (4, 1)
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self._ids = sorted(range(len(patterns)), key=patterns.__getitem__)
        self._sorted = [patterns[i] for i in self._ids]
        self._prefixes = [""]
        self._ranges = [(0, len(self._sorted))]
        self._fallbacks = [ROOT]
        self._steps: list[dict[str, int]] = [{}]
        self._states = {"": ROOT}
        self.matches: list[tuple[int, ...]] = [()]
        """Per state, the patterns that end in it, longest first."""
        self.depths: list[tuple[int, ...]] = [()]
        """Per state, the lengths of all prefixes of patterns that end in it, longest first."""

    def step(self, state: int, symbol: str) -> int:
        """Return the state after one more symbol."""
        after = self._steps[state].get(symbol)
        if after is None:
            after = self._steps[state][symbol] = self._advance(state, symbol)
        return after

    def prefix(self, state: int) -> str:
        """Return the longest prefix of a pattern that a text in this state ends with."""
        return self._prefixes[state]

    def _advance(self, state: int, symbol: str) -> int:
        while True:
            child = self._states.get(prefix := self._prefixes[state] + symbol)
            if child is not None:
                return child
            low, high = self._find(prefix, *self._ranges[state])
            if low < high:
                return self._create(prefix, low, high)
            if state == ROOT:
                return ROOT
            state = self._fallbacks[state]

    def _find(self, prefix: str, low: int, high: int) -> tuple[int, int]:
        """Return the range of the patterns with this prefix within low..high."""
        low = bisect_left(self._sorted, prefix, low, high)
        beyond = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        return low, bisect_left(self._sorted, beyond, low, high)

    def _create(self, prefix: str, low: int, high: int) -> int:
        """Add the state of a prefix after those of its suffixes, the shortest first: no recursion."""
        missing = [(prefix, low, high)]
        for start in range(1, len(prefix)):
            suffix = prefix[start:]
            if suffix in self._states:
                break
            low, high = self._find(suffix, 0, len(self._sorted))
            if low < high:
                missing.append((suffix, low, high))
        for suffix, low, high in reversed(missing):
            self._append(suffix, low, high)
        return self._states[prefix]

    def _append(self, prefix: str, low: int, high: int) -> None:
        suffixes = (prefix[start:] for start in range(1, len(prefix) + 1))
        fallback = next(state for suffix in suffixes if (state := self._states.get(suffix)) is not None)
        # A pattern that is this prefix sorts before all that go on.
        whole = bisect_left(self._sorted, prefix + "\0", low, high)
        self._states[prefix] = len(self._prefixes)
        self._prefixes.append(prefix)
        self._ranges.append((low, high))
        self._fallbacks.append(fallback)
        self._steps.append({})
        self.matches.append((*self._ids[low:whole], *self.matches[fallback]))
        self.depths.append((len(prefix), *self.depths[fallback]))

"""Counts of any number of hashes in a fixed number of counters; no count is too low.

A count-min sketch of a single row (Cormode and Muthukrishnan 2005, doi 10.1016/j.jalgor.2003.12.001).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from antislop.profiles.ngrams import MULTIPLIER, Hashes, Longs


class Sketch:
    """A fixed number of counters, shared by n-grams: a counter is at least the count of each of its n-grams."""

    def __init__(self, megabytes: int) -> None:
        bits = max(4, (megabytes * (1 << 20) // 4).bit_length() - 1)
        self._shift = np.uint64(64 - bits)
        self._cells = np.zeros(1 << bits, np.uint32)

    def add(self, hashes: Hashes) -> None:
        """Add one occurrence of each hash."""
        np.add.at(self._cells, self._locate(hashes), np.uint32(1))

    def bound(self, hashes: Hashes) -> npt.NDArray[np.uint32]:
        """Return upper bounds of the counts."""
        return self._cells[self._locate(hashes)]

    def find_min_count(self, min_count: int, limit: int) -> int:
        """Return the smallest count from `min_count` that at most `limit` counters reach."""
        top = np.zeros(1 << 16, np.int64)
        for part in np.array_split(self._cells, max(1, len(self._cells) >> 22)):
            top += np.bincount(np.minimum(part, len(top) - 1), minlength=len(top))
        reached = top[::-1].cumsum()[::-1]
        offsets = np.flatnonzero(reached[min_count:] <= limit)
        return min_count + int(offsets[0]) if len(offsets) else len(top)

    def _locate(self, hashes: Hashes) -> Longs:
        cells: Longs = (hashes * MULTIPLIER >> self._shift).astype(np.int64)
        return cells

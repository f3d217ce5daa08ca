"""Counts of any number of hashes in a fixed number of counters; no count is too low.

A count-min sketch of a single row (Cormode and Muthukrishnan 2005, doi 10.1016/j.jalgor.2003.12.001).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from antislop.profiles.ngrams import MULTIPLIER, Hashes, Longs

FULL = (1 << 16) - 1


class Sketch:
    """A fixed number of counters, shared by n-grams: a counter is at least the count of each of its n-grams.

    A counter of 16 bits stays at `FULL` once it is there, which then means any count from `FULL`.
    """

    def __init__(self, megabytes: int) -> None:
        bits = max(4, (megabytes * (1 << 20) // 2).bit_length() - 1)
        self._shift = np.uint64(64 - bits)
        self._cells = np.zeros(1 << bits, np.uint16)

    def add(self, hashes: Hashes) -> None:
        """Add one occurrence of each hash."""
        located = self._locate(hashes)
        if len(self._cells) <= 1 << 32:
            located = located.astype(np.uint32)  # sorted in half the time
        cells, counts = np.unique(located, return_counts=True)
        self._cells[cells] = np.minimum(self._cells[cells] + counts, FULL)

    def bound(self, hashes: Hashes) -> npt.NDArray[np.uint16]:
        """Return upper bounds of the counts."""
        return self._cells[self._locate(hashes)]

    def find_min_count(self, min_count: int, limit: int) -> int:
        """Return the smallest count from `min_count` that at most `limit` counters reach."""
        top = np.zeros(FULL + 1, np.int64)
        for part in np.array_split(self._cells, max(1, len(self._cells) >> 20)):
            top += np.bincount(part, minlength=len(top))
        reached = top[::-1].cumsum()[::-1]
        offsets = np.flatnonzero(reached[min_count:] <= limit)
        return min_count + int(offsets[0]) if len(offsets) else len(top)

    def _locate(self, hashes: Hashes) -> npt.NDArray[np.int64] | npt.NDArray[np.uint32]:
        cells: Longs = (hashes * MULTIPLIER >> self._shift).astype(np.int64)
        return cells

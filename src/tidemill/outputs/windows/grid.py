"""Which buckets a row goes to by the windows of the grid it lies in: pure arithmetic.

A row goes to every bucket that holds one of its windows. Keys and values do not matter here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tidemill.formats.arrays import Ints, Mask
from tidemill.model.streaming import WindowSpec
from tidemill.model.time import Interval

_FAR = 1 << 61  # beyond every instant; sums of a few of them still fit 64 bits


class Grid:
    """The window starts to compute, cut into regions that each belong to one bucket.

    Regions are sorted and do not overlap, and the windows of a row are consecutive, so the regions that a row
    touches are too.
    """

    def __init__(self, spec: WindowSpec, starts: Sequence[Interval] | None, cuts: Sequence[int]) -> None:
        assert spec.kind.by_time, spec.kind
        self._size, self._step = spec.size, spec.step
        regions = list(self._regions(starts if starts is not None else [Interval(-_FAR, _FAR)], cuts))
        self._first = np.array([first for first, _, _ in regions], np.int64)  # start of its first window …
        self._last = np.array([last for _, last, _ in regions], np.int64)  # … and of its last one
        bucket = np.array([bucket for _, _, bucket in regions], np.int64)
        self._buckets, self._rank = np.unique(bucket, return_inverse=True)

    def _regions(self, starts: Sequence[Interval], cuts: Sequence[int]) -> list[tuple[int, int, int]]:
        edges = [-_FAR, *cuts, _FAR]
        found = []
        for span in starts:
            low = int(np.searchsorted(cuts, span.start, "right")) if cuts else 0
            high = int(np.searchsorted(cuts, span.end, "left")) if cuts else 0
            for bucket in range(low, high + 1):
                start, end = max(span.start, edges[bucket]), min(span.end, edges[bucket + 1])
                first, last = start + -start % self._step, (end - 1) - (end - 1) % self._step
                if first <= last:
                    found.append((first, last, bucket))
        return found

    def _touched(self, at: Ints) -> tuple[Ints, Ints]:
        """For each row, its regions: from the first number up to but excluding the second."""
        newest = at - at % self._step
        # the oldest start after at - size; past the newest if windows leave gaps and it lies in one
        oldest = at - self._size + self._step - (at - self._size) % self._step
        low = np.searchsorted(self._last, oldest, "left")
        high = np.searchsorted(self._first, newest, "right")
        return low, np.where(oldest <= newest, high, 0)

    def holds(self, at: Ints) -> Mask:
        """Whether a row that counts at this instant is in one of the windows."""
        low, high = self._touched(at)
        found: Mask = low < high
        return found

    def may_hold(self, low: int, high: int) -> bool:
        """Whether a row that counts at an instant between these, both included, can be."""
        return bool(np.any((self._first <= high) & (self._last > low - self._size)))

    def pairs(self, at: Ints) -> tuple[Ints, Ints]:
        """(row, bucket) of rows that are all held, each pair once."""
        low, high = self._touched(at)
        assert (low < high).all()
        first, last = self._rank[low], self._rank[high - 1]
        if (first == last).all():
            return np.arange(at.size), self._buckets[first]
        counts = last - first + 1
        row = np.repeat(np.arange(at.size), counts)
        ahead = np.arange(row.size) - np.repeat(np.cumsum(counts) - counts, counts)
        return row, self._buckets[first[row] + ahead]

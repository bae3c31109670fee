"""The statistics of a sliding window: over the last `size`, at every `step`.

Keeps counts of what arrived, never the events. The length of a pane divides both, so every edge of a window
lies between two panes and the counts are exact. Only keys are limited: beyond their memory the oldest ones
are dropped, and then their number is a lower bound.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from tidemill.config.gateway import SlidingWindow
from tidemill.model.gateway import WindowStats

PANE_BYTES: Final = 400  # of a pane besides its keys

Hashes = npt.NDArray[np.uint64]
_NO_KEYS: Final[Hashes] = np.empty(0, dtype=np.uint64)


@dataclass(slots=True)
class _Pane:
    number: int  # its number on the grid since the epoch
    first: int  # arrival
    last: int
    events: int
    bytes: int
    keys: Hashes


class Panes:
    """The panes of one feed, in order of arrival. Not thread-safe."""

    def __init__(self, window: SlidingWindow, most: int) -> None:
        self._most = most  # bytes of keys
        self._size = window.size
        self._length = math.gcd(window.size, window.step)
        self._panes: deque[_Pane] = deque()

    @property
    def size(self) -> int:
        """Bytes that it takes."""
        return sum(PANE_BYTES + pane.keys.nbytes for pane in self._panes)

    def number_of(self, arrival: int) -> int:
        """The pane that an arrival is in."""
        return arrival // self._length

    def add(self, first: int, last: int, events: int, size: int, keys: Collection[int]) -> None:
        """Add what came from `first` to `last`: both in one pane, and not before what was added."""
        number = self.number_of(first)
        assert number == self.number_of(last), (first, last)
        hashes = np.unique(np.fromiter(keys, dtype=np.uint64, count=len(keys)))
        if self._panes and self._panes[-1].number == number:
            pane = self._panes[-1]
            pane.last = last
            pane.events += events
            pane.bytes += size
            pane.keys = np.union1d(pane.keys, hashes)
        else:
            self._panes.append(_Pane(number, first, last, events, size, hashes))
        self._limit_keys()

    def is_over(self, now: int) -> bool:
        """Whether no window that closes after `now` reaches back to anything in it."""
        return not self._panes or self._panes[-1].last < now - self._size

    def _limit_keys(self) -> None:
        taken = sum(pane.keys.nbytes for pane in self._panes)
        for pane in self._panes:
            if taken <= self._most:
                return
            taken -= pane.keys.nbytes
            pane.keys = _NO_KEYS

    def stats(self, until: int) -> WindowStats:
        """Statistics of everything in the `size` before `until`; older panes are dropped."""
        oldest = (until - self._size) // self._length
        while self._panes and self._panes[0].number < oldest:
            self._panes.popleft()
        if not self._panes:
            return WindowStats(events=0, keys=0, bytes=0, duration=0)
        return WindowStats(
            events=sum(pane.events for pane in self._panes),
            keys=int(np.unique(np.concatenate([pane.keys for pane in self._panes])).size),
            bytes=sum(pane.bytes for pane in self._panes),
            duration=self._panes[-1].last - self._panes[0].first,
        )

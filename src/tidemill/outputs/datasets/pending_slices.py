"""Which landed slices a window must wait for, because what they add to it is not known yet.

Pure: it works on what the ledger says of undecided slices, and reads nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from tidemill.model.time import MAX_INSTANT, MIN_INSTANT, Interval
from tidemill.model.windows import Undecided

SHOWN: Final = 3  # slices that a detail names


class PendingSlices:
    """The undecided slices of a stream, by the time that they may touch.

    A slice without declared bounds may touch any window that starts no later than `future` after its arrival:
    records further ahead are rejected. (None: no such limit.) `seen` is the newest ledger offset when the
    round began; None: the round has not begun.
    """

    def __init__(
        self, slices: Iterable[Undecided] = (), future: int | None = None, seen: int | None = None
    ) -> None:
        self._slices: Sequence[Undecided] = list(slices)
        self._seen = seen
        extents = [_extent(one, future) for one in self._slices]
        self._starts = np.array([extent.start for extent in extents], np.int64)
        self._ends = np.array([extent.end for extent in extents], np.int64)

    def __bool__(self) -> bool:
        return bool(self._slices)

    def touching(self, window: Interval, last: int | None) -> list[Undecided]:
        """Those that may touch the window and would count for it, by ledger offset. `last` is the last
        arrival that counts; None: all count."""
        found = np.flatnonzero((self._starts < window.end) & (self._ends > window.start))
        chosen = (self._slices[i] for i in found.tolist())
        return [one for one in chosen if last is None or one.arrival <= last]

    def blocking(
        self, window: Interval, last: int | None, *, built: bool, provisional: bool
    ) -> list[Undecided]:
        """Those that the window must wait for, by ledger offset.

        A window does not wait for a slice that failed for good, and not for one without bounds once it is
        `built`. It waits for what landed since the round began only if that has declared bounds in the
        window. A `provisional` window waits neither for that nor for files that cannot be read: a busy feed
        or a lost file would keep it from ever being built, and it is built again once they are decided.
        """
        return [
            one
            for one in self.touching(window, last)
            if (not one.failed or (one.retried and not provisional))
            and (one.declared is not None or not built)
            and (self._is_seen(one) or (one.declared is not None and not provisional))
        ]

    def _is_seen(self, one: Undecided) -> bool:
        return self._seen is None or one.seq <= self._seen


NOTHING_PENDING: Final = PendingSlices()


def _extent(one: Undecided, future: int | None) -> Interval:
    if one.declared is not None:
        return one.declared
    end = MAX_INSTANT if future is None else min(MAX_INSTANT, one.arrival + future + 1)
    return Interval(MIN_INSTANT, max(MIN_INSTANT, end))


def pending_detail(slices: Sequence[Undecided]) -> str:
    """A text: how many slices are not decided, and which."""
    failed = [one for one in slices if one.failed]
    waiting = [one for one in slices if not one.failed]
    parts = []
    if waiting:
        parts.append(f"{_count(waiting)} pending: {_names(waiting)}")
    if failed:
        parts.append(f"{_count(failed)} cannot be read and will be tried again: {_names(failed)}")
    return "; ".join(parts)


def _count(slices: Sequence[Undecided]) -> str:
    return f"{len(slices)} slice{'s' if len(slices) != 1 else ''}"


def _names(slices: Sequence[Undecided]) -> str:
    names = [one.slice[:12] for one in slices[:SHOWN]]
    return ", ".join([*names, "…"] if len(slices) > SHOWN else names)

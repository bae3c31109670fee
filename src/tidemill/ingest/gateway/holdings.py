"""What the segments of a live log are still needed for, and so which of them can be removed.

Pure, and not thread-safe: its log locks. An entry is not released before its slice is in the ledger, nor the
close of a window before the last entry of that window: without its close, an entry that had landed would be
landed again in another window.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tidemill.ingest.gateway.frames import runs_of


@dataclass(slots=True)
class _Held:
    number: int
    first: int  # lsn
    bytes: int
    unlanded: int = 0
    closed_in: set[int] = field(default_factory=set)  # segments that hold closes of its entries


class Holdings:
    def __init__(self) -> None:
        self._held: list[_Held] = []  # ascending

    def begun(self, number: int, first: int, size: int) -> None:
        self._held.append(_Held(number, first, size))

    def grown(self, size: int, entries: int) -> None:
        """The last segment has `size` bytes now, and `entries` more entries."""
        last = self._held[-1]
        last.bytes = size
        last.unlanded += entries

    def closed(self, lsns: Iterable[int]) -> None:
        """The close of a window with these entries is in the last segment."""
        number = self._held[-1].number
        for held, _ in self._shares(lsns):
            if held.number != number:
                held.closed_in.add(number)

    def landed(self, lsns: Iterable[int]) -> None:
        for held, count in self._shares(lsns):
            held.unlanded -= count
            assert held.unlanded >= 0, (held.number, held.unlanded)

    def removable(self) -> int | None:
        """The oldest full segment that is no longer needed. The last one is still being written."""
        needed: set[int] = set()
        for held in self._held[:-1]:
            if not held.unlanded and held.number not in needed:
                return held.number
            needed |= held.closed_in
        return None

    def removed(self, number: int) -> None:
        self._held = [held for held in self._held if held.number != number]

    @property
    def unlanded(self) -> int:
        return sum(held.unlanded for held in self._held)

    @property
    def bytes(self) -> int:
        return sum(held.bytes for held in self._held)

    def __len__(self) -> int:
        return len(self._held)

    def _shares(self, lsns: Iterable[int]) -> Sequence[tuple[_Held, int]]:
        """How many of these entries each segment has."""
        firsts = [held.first for held in self._held]
        shares: dict[int, int] = {}
        for first, count in runs_of(sorted(lsns)):
            at, end = first, first + count
            while at < end:
                offset = bisect_right(firsts, at) - 1
                assert offset >= 0, at
                until = min(end, firsts[offset + 1]) if offset + 1 < len(firsts) else end
                shares[offset] = shares.get(offset, 0) + until - at
                at = until
        return [(self._held[offset], count) for offset, count in shares.items()]

"""The segments of a log: their files, the one being written (begun, written to, synced, cut back), and which
of them are no longer needed.

What failed to be written is cut off before anything else is written. Files grow as they are written:
reserving space ahead made no sync measurably faster except for the smallest, and unwritten bytes would have
to be distinguished from written ones.
"""

from __future__ import annotations

import os
import secrets
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tidemill.ingest.gateway.frames import HEAD_BYTES, MARK_BYTES, Head, runs_of
from tidemill.model.failpoints import failpoint
from tidemill.storage import layout
from tidemill.storage.files import sync_folder

_AT_ONCE: Final = min(1024, os.sysconf("SC_IOV_MAX"))  # buffers of one write


def segment_numbers(folder: Path) -> list[int]:
    """The numbers of the segments in a folder, ascending; other files are ignored."""
    numbers = map(layout.gateway_segment_number, folder.iterdir())
    return sorted(number for number in numbers if number is not None)


class Segment:
    """The segment at the end of a log. For one thread; OSErrors go through."""

    def __init__(self, descriptor: int, head: Head, path: Path) -> None:
        self._descriptor = descriptor
        self.head = head
        self.path = path
        self.end = HEAD_BYTES  # everything before it is durable
        self._dirty = False  # there may be bytes after the end

    @classmethod
    def begin(cls, folder: Path, number: int, first: int, before: int) -> Segment:
        """Create the file with a durable name and head, or nothing."""
        head = Head(number, first, before, secrets.token_bytes(MARK_BYTES))
        path = layout.gateway_segment(folder, number)
        # No other process writes here; a file with that number is left from a failed try.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        segment = cls(descriptor, head, path)
        try:
            segment._write_all([head.packed()], 0)
            os.fdatasync(descriptor)
            sync_folder(folder)
        except BaseException:
            os.close(descriptor)
            with suppress(OSError):
                path.unlink()
            raise
        return segment

    def write(self, parts: Sequence[bytes]) -> None:
        """Append and make durable, all or nothing: if it raises, nothing counts."""
        self._cut()
        self._dirty = True
        try:
            written = self._write_all(parts, self.end)
            failpoint("wal.after_write")
            os.fdatasync(self._descriptor)
        except BaseException:
            with suppress(OSError):  # the next write tries again, before anything else
                self._cut()
            raise
        self.end += written
        self._dirty = False
        failpoint("wal.after_sync")

    def _write_all(self, parts: Sequence[bytes], at: int) -> int:
        start = at
        for first in range(0, len(parts), _AT_ONCE):
            some = parts[first : first + _AT_ONCE]
            done = os.pwritev(self._descriptor, some, at)
            at += done
            if done < sum(map(len, some)):  # rare: the disk is nearly full
                rest = memoryview(b"".join(some))[done:]
                while rest:
                    done = os.pwrite(self._descriptor, rest, at)
                    at += done
                    rest = rest[done:]
        return at - start

    def _cut(self) -> None:
        if self._dirty:
            os.ftruncate(self._descriptor, self.end)
            os.fsync(self._descriptor)
            self._dirty = False

    def seal(self) -> None:
        """End it after its last durable frame: nothing more is written."""
        self._cut()
        self.close()

    def close(self) -> None:
        with suppress(OSError):  # what counts is already durable
            os.close(self._descriptor)


@dataclass(slots=True)
class _UsedSegment:
    number: int
    first: int  # lsn
    bytes: int
    unlanded: int = 0
    closed_in: set[int] = field(default_factory=set)  # segments that hold closes of its entries


class SegmentUsage:
    """What the segments of a live log are still needed for, and so which of them can be removed.

    Not thread-safe: its log locks. An entry is not released before its slice is in the ledger, nor the close
    of a window before the last entry of that window: without its close, an entry that had landed would be
    landed again in another window.
    """

    def __init__(self) -> None:
        self._held: list[_UsedSegment] = []  # ascending

    def begun(self, number: int, first: int, size: int) -> None:
        self._held.append(_UsedSegment(number, first, size))

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

    def _shares(self, lsns: Iterable[int]) -> Sequence[tuple[_UsedSegment, int]]:
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

"""Finds and reads the logs of gateways that died: their closed windows, and entries that were in none.

Damaged bytes are never used, and intact frames after them are not given up: the next frame is found by the
mark of the segment, and the damaged stretch is reported in `bad`. What a crash leaves of its last write (the
beginning of a frame, or bytes that never were one) is not damage: it was never acknowledged.

Memory: the first pass reads one frame at a time and keeps 21 bytes for each entry (position, feed, lsn,
whether a window has it). Windows and entries are then read again, one at a time, when they are requested. So
it takes about one group at most (to look at a torn tail), and the current window.
"""

from __future__ import annotations

import logging
import os
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final, Self

from tidemill.ingest.gateway.frames import (
    HEAD_BYTES,
    MARK_BYTES,
    VERSION,
    Head,
    Kind,
    Opening,
    close_of,
    entry_of,
    feed_of,
    head_of,
    opening_of,
    possible_heads,
)
from tidemill.ingest.gateway.log_folders import Hold, dead_folders
from tidemill.ingest.gateway.segment_list import Listed, read_list
from tidemill.ingest.gateway.segments import segment_numbers
from tidemill.model.errors import StorageError
from tidemill.model.gateway import Entry, WindowOutput
from tidemill.storage import layout
from tidemill.storage.files import storage_errors

log = logging.getLogger(__name__)

Feed = tuple[str, str]  # stream and source
Runs = list[tuple[int, int]]  # first lsn and count of each

_HINT: Final = "look at the disk, then run the same again: what was read before is not lost"
_SAME: Final = 5  # bytes of a mark that suffice to recognise that a frame began there, though some changed
_AT_ONCE: Final = 1 << 20  # bytes that are searched for a mark
_ZEROS: Final = 16  # so many zeros at the end of a file were never written


@dataclass(frozen=True, slots=True)
class BadBytes:
    """A stretch of a segment that is not what was written."""

    path: Path
    start: int
    end: int  # exclusive; equal to `start` if bytes are missing
    reason: str


@dataclass(slots=True)
class _Segment:
    """Where the frames of a segment are."""

    path: Path
    number: int
    head: Head
    size: int
    first: int  # the lsn of its first entry; 0 until one is known
    entries: array[int] = field(default_factory=lambda: array("Q"))  # positions by lsn; 0: it is lost
    feeds: array[int] = field(default_factory=lambda: array("I"))  # numbers of feeds, likewise
    closes: array[int] = field(default_factory=lambda: array("Q"))
    settled: bytearray = field(default_factory=bytearray)  # 1: a closed window has it, or it is lost
    damaged: bool = False  # since the last entry

    @property
    def next(self) -> int:
        """The lsn of the next entry."""
        return self.first + len(self.entries)


class LogReplay:
    """The contents of a dead log. `windows` and `rest` read the files each time."""

    def __init__(self, name: str, folder: Path, *, listed: bool = False) -> None:
        """`listed`: its gateway is known to have kept a list of its segments."""
        self._name = name
        self._feeds: dict[Feed, int] = {}
        self._segments: list[_Segment] = []
        self._lost: list[range] = []  # lsns of entries lost to damage
        self._unread: set[int] = set()  # numbers of segments without a frame that can be read
        self.bad: list[BadBytes] = []
        self.version = VERSION  # that it was written in
        self.since = 1 << 62  # the first arrival in it
        with storage_errors("read the log", folder):
            self._list = self._read_list(folder, listed)
            self._scan(folder)
            self._firsts = [segment.first for segment in self._segments]
            for _, runs in self._closes():
                self._settle(runs)

    @property
    def windows(self) -> Iterator[tuple[WindowOutput, tuple[Entry, ...]]]:
        """In the order in which they were closed. A window that lacks an entry without damage had landed, and
        is left out: a segment is removed only when everything in it is in the ledger."""
        for output, runs in self._closes():
            lsns = _lsns(runs)
            if all(self._has(lsn) for lsn in lsns):
                yield output, tuple(self._read(lsns))

    @property
    def damaged_windows(self) -> Iterator[tuple[WindowOutput, tuple[Entry, ...]]]:
        """Closed windows that lost entries to damage, with the rest of their entries. They may have
        landed."""
        if not self._lost:
            return
        for output, runs in self._closes():
            lsns = _lsns(runs)
            missing = [lsn for lsn in lsns if not self._has(lsn)]
            if missing and all(self._is_lost(lsn) for lsn in missing):
                yield output, tuple(self._read([lsn for lsn in lsns if self._has(lsn)]))

    @property
    def rest(self) -> Iterator[Entry]:
        """Entries that no closed window has: by stream and source, then by lsn. If there is damage, the close
        of a window may be lost, and they may have landed."""
        lsns: dict[int, array[int]] = {number: array("Q") for _, number in sorted(self._feeds.items())}
        for segment in self._segments:
            for offset, number in enumerate(segment.feeds):
                if not segment.settled[offset]:
                    lsns[number].append(segment.first + offset)
        for found in lsns.values():
            yield from self._read(found)

    # -- the first pass

    def _read_list(self, folder: Path, listed: bool) -> Listed:
        found = read_list(folder)
        path = layout.gateway_segments(folder)
        if found is None:
            if listed:
                reason = "the list of segments is missing: whether one of them is lost is not known"
                self.bad.append(BadBytes(path, 0, 0, reason))
            return Listed()
        if found.damage:
            self.bad.append(BadBytes(path, 0, path.stat().st_size, found.damage))
        return found

    def _scan(self, folder: Path) -> None:
        numbers = segment_numbers(folder)
        missing = self._list.missing(numbers)
        for number in missing:
            self._miss_segment(folder, number)
        for number in numbers:
            path, last = layout.gateway_segment(folder, number), number == max([*numbers, *missing])
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                head = self._head(file, path, number, size, last)
                if head is None:
                    continue
                segment = _Segment(path, number, head, size, head.first)
                self._join(segment)
                self._index(file, segment, last)
            self.version = head.version
            self._look_at_end(segment)
            segment.settled = bytearray(0 if offset else 1 for offset in segment.entries)
            if segment.first:
                self._segments.append(segment)

    def _miss_segment(self, folder: Path, number: int) -> None:
        """A segment that was never removed is missing: what of it had not landed is lost."""
        first, end = self._list.begun[number], self._list.first_after(number)
        held = (
            f"entries from number {first} on"
            if end is None
            else f"{end - first} entries from number {first} on"
        )
        reason = f"the segment is missing; it held {held}, and those that had not landed are lost"
        self._unread.add(number)
        self.bad.append(BadBytes(layout.gateway_segment(folder, number), 0, 0, reason))
        self._lose(first, first + 1 if end is None else end)

    def _look_at_end(self, segment: _Segment) -> None:
        """Check that the segment extends as far as it is known to have been written."""
        end = self._list.end
        if end is None or end.segment != segment.number:
            return
        if segment.size < end.bytes and not self._ends_badly(segment):
            reason = f"it ends early: it had {end.bytes} bytes"
            self.bad.append(BadBytes(segment.path, segment.size, segment.size, reason))
        if segment.first and segment.next <= end.lsn:
            self._lose(segment.next, end.lsn + 1)

    def _known_end(self, number: int) -> int:
        """Up to where a segment is known to have been durable."""
        end = self._list.end
        return end.bytes if end is not None and end.segment == number else 0

    def _head(self, file: BinaryIO, path: Path, number: int, size: int, last: bool) -> Head | None:
        """None: there is nothing to read in it; perhaps its process died while it began this segment."""
        text = file.read(HEAD_BYTES + MARK_BYTES)
        head = head_of(text[:HEAD_BYTES])
        if head is not None and head.number == number:
            return head
        if head is not None:
            self._unreadable(path, number, size, f"by its head it is segment {head.number}")
            return None
        if last and size <= HEAD_BYTES:
            if (known := self._known_end(number)) > size:
                self._unreadable(path, number, size, f"it ends early: it had {known} bytes")
                if self._list.end is not None:
                    self._lose(self._list.begun.get(number, self._list.end.lsn), self._list.end.lsn + 1)
            return None
        for guess in possible_heads(text, number):
            if _next_frame(file, guess, HEAD_BYTES, size) is not None:
                self.bad.append(BadBytes(path, 0, HEAD_BYTES, "the head of the segment does not check out"))
                return guess
        self._unreadable(path, number, size, "neither its head nor any frame checks out")
        return None

    def _unreadable(self, path: Path, number: int, size: int, reason: str) -> None:
        self._unread.add(number)
        self.bad.append(BadBytes(path, 0, size, reason))

    def _join(self, segment: _Segment) -> None:
        """Check that the segment before this one ends where it should."""
        before = self._segments[-1] if self._segments else None
        between = range(before.number + 1 if before else 1, segment.number)
        if before is None or not all(number in self._unread for number in between):
            if segment.number - 1 in self._unread:  # how far back it reached is not known
                self._lose(before.next if before else 1, segment.first)
            return
        if not segment.first:
            segment.first = before.next
        if before.next < segment.first:
            self._lose(before.next, segment.first)
        expected = segment.head.before
        if not between and expected > before.size and not self._ends_badly(before):
            reason = f"it ends early: it had {expected} bytes"
            self.bad.append(BadBytes(before.path, before.size, before.size, reason))

    def _ends_badly(self, segment: _Segment) -> bool:
        """Whether something is known to be wrong with its end."""
        return any(one.path == segment.path and one.end == segment.size for one in self.bad)

    def _lose(self, first: int, end: int) -> None:
        if first < end:
            self._lost.append(range(first, end))

    def _index(self, file: BinaryIO, segment: _Segment, last: bool) -> None:
        """Fill in where the frames are."""
        at, size, head = HEAD_BYTES, segment.size, segment.head
        while at < size:
            found = _frame(file, head, at, size)
            if found is not None and self._take(segment, at, *found):
                at += head.header_bytes + found[0].size
                continue
            follows = _next_frame(file, head, at + 1, size)
            known = self._known_end(segment.number)
            if follows is None and last and at >= known and _is_torn(file, head, at, size):
                log.info(
                    "the last %d bytes of %s are of a write that a crash interrupted", size - at, segment.path
                )
                return
            end = size if follows is None else follows
            self.bad.append(BadBytes(segment.path, at, end, _reason(file, head, at, found)))
            segment.damaged = True
            at = end

    def _take(self, segment: _Segment, at: int, opening: Opening, carried: bytes) -> bool:
        """Whether the frame belongs where it is."""
        is_close = opening.kind == Kind.CLOSE
        if not segment.first:  # its head is damaged, and nothing shows where the segment before it ended
            segment.first = opening.lsn + is_close
        if is_close:
            segment.closes.append(at)
            return True
        if opening.lsn < segment.next:
            return False
        if opening.lsn > segment.next:
            self._miss(segment, at, opening.lsn)
        segment.damaged = False
        segment.entries.append(at)
        segment.feeds.append(self._feeds.setdefault(feed_of(opening, carried), len(self._feeds)))
        self.since = min(self.since, opening.arrival)
        return True

    def _miss(self, segment: _Segment, at: int, lsn: int) -> None:
        first, count = segment.next, lsn - segment.next
        self._lose(first, lsn)
        segment.entries.extend([0] * count)
        segment.feeds.extend([0] * count)
        if not segment.damaged:
            reason = f"{count} entries from number {first} on are missing"
            self.bad.append(BadBytes(segment.path, at, at, reason))

    # -- reading entries

    def _closes(self) -> Iterator[tuple[WindowOutput, Runs]]:
        for segment in self._segments:
            with storage_errors("read the log", segment.path), segment.path.open("rb") as file:
                for at in segment.closes:
                    yield close_of(_frame_again(file, segment, at)[1])

    def _settle(self, runs: Iterable[tuple[int, int]]) -> None:
        for first, count in runs:
            for segment, start, end in self._spans(first, count):
                segment.settled[start:end] = b"\1" * (end - start)

    def _spans(self, first: int, count: int) -> Iterator[tuple[_Segment, int, int]]:
        """The positions, in each segment that has some of it, of a run of entries."""
        for segment in self._segments[max(bisect_right(self._firsts, first) - 1, 0) :]:
            start = max(first - segment.first, 0)
            end = min(first + count - segment.first, len(segment.entries))
            if end <= 0:
                return
            if start < end:
                yield segment, start, end

    def _is_lost(self, lsn: int) -> bool:
        return any(lsn in lost for lost in self._lost)

    def _segment_of(self, lsn: int) -> _Segment | None:
        found = bisect_right(self._firsts, lsn) - 1
        return self._segments[found] if found >= 0 and lsn < self._segments[found].next else None

    def _has(self, lsn: int) -> bool:
        segment = self._segment_of(lsn)
        return segment is not None and segment.entries[lsn - segment.first] > 0

    def _read(self, lsns: Iterable[int]) -> Iterator[Entry]:
        """The entries that exist, by ascending lsn."""
        file: BinaryIO | None = None
        path: Path | None = None
        try:
            for lsn in lsns:
                segment = self._segment_of(lsn)
                assert segment is not None, lsn
                with storage_errors("read the log", segment.path):
                    if file is None or path != segment.path:
                        if file is not None:
                            file.close()
                        path, file = segment.path, segment.path.open("rb")
                    found = _frame_again(file, segment, segment.entries[lsn - segment.first])
                yield entry_of(self._name, *found)
        finally:
            if file is not None:
                file.close()


def _lsns(runs: Runs) -> Sequence[int]:
    if len(runs) == 1:  # of one feed alone
        return range(runs[0][0], sum(runs[0]))
    return [lsn for first, count in runs for lsn in range(first, first + count)]


def _frame(file: BinaryIO, head: Head, at: int, size: int) -> tuple[Opening, bytes] | None:
    """The whole frame at `at`; None if there is none."""
    file.seek(at)
    opening = opening_of(file.read(head.header_bytes), head.mark, head.version)
    if opening is None or opening.size > size - at - head.header_bytes:
        return None
    carried = file.read(opening.size)
    return (opening, carried) if opening.holds(carried) else None


def _frame_again(file: BinaryIO, segment: _Segment, at: int) -> tuple[Opening, bytes]:
    found = _frame(file, segment.head, at, os.fstat(file.fileno()).st_size)
    if found is None:
        problem = f"the log is damaged at byte {at}: a frame that was whole cannot be read any more"
        raise StorageError(problem, hint=_HINT, where=str(segment.path))
    return found


def _next_frame(file: BinaryIO, head: Head, start: int, size: int) -> int | None:
    """The position of the first whole frame from `start` on; content cannot pass for one, since no sender
    knows the mark."""
    while start < size:
        file.seek(start)
        text = file.read(_AT_ONCE)
        at = text.find(head.mark)
        while at >= 0:
            if _frame(file, head, start + at, size) is not None:
                return start + at
            at = text.find(head.mark, at + 1)
        start += max(len(text) - MARK_BYTES + 1, 1)  # a mark may lie across two of them
    return None


def _is_torn(file: BinaryIO, head: Head, at: int, size: int) -> bool:
    """Whether the last bytes of a log can be what a crash leaves of a write: the beginning of a frame, zeros
    in its place, or bytes that never began like one."""
    file.seek(at)
    text = file.read()
    header = text[: head.header_bytes]
    alike = sum(byte == expected for byte, expected in zip(header, head.mark, strict=False))
    if alike < _SAME or len(header) < head.header_bytes or text.endswith(bytes(_ZEROS)):
        return True
    opening = opening_of(header, head.mark, head.version)
    return opening is not None and at + head.header_bytes + opening.size > size


def _reason(file: BinaryIO, head: Head, at: int, found: tuple[Opening, bytes] | None) -> str:
    if found is not None:
        return f"entry {found[0].lsn} is not where it belongs"
    file.seek(at)
    opening = opening_of(file.read(head.header_bytes), head.mark, head.version)
    if opening is None:
        return "no frame checks out"
    if head.version == 1:  # its header has no checksum of its own
        return "the checksum of a frame does not match"
    what = "the close of a window" if opening.kind == Kind.CLOSE else f"entry {opening.lsn}"
    return f"the checksum of {what} does not match"


class Orphan:
    """The log of a dead gateway, which this process has locked until `with` ends or the next one is
    requested. Of two processes that look at the same time, one gets it. `remove` alone deletes it."""

    def __init__(self, hold: Hold) -> None:
        self._hold = hold
        self.name = hold.path.name

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._hold.release()

    def read(self, *, listed: bool = False) -> LogReplay:
        """Its contents. Damage is reported in `LogReplay.bad`; StorageError if the disk cannot be read."""
        return LogReplay(self.name, self._hold.path, listed=listed)

    def remove(self) -> None:
        """Remove it: everything it holds is in the ledger."""
        self._hold.remove()


def orphans(warehouse: Path) -> Iterator[Orphan]:
    """The logs of dead gateways, one after the other, by name; each is released before the next."""
    for hold in dead_folders(warehouse):
        with Orphan(hold) as orphan:
            yield orphan

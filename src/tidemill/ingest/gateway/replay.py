"""Reading the log of a process that died: its closed windows as they were, and what was in none.

It never believes damage: what a crash tore off is dropped, anything else is an error that says where.

Memory: the first pass reads one frame at a time and keeps 21 bytes for each entry (its place, its feed, its
lsn, whether a window has it). Windows and entries are then read anew, one at a time, when they are asked
for. So it takes about one segment at the most (to look behind a torn tail), and the window that is at hand.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

from tidemill.ingest.gateway.frames import (
    FRAME_BYTES,
    HEAD_BYTES,
    Head,
    Kind,
    Opening,
    close_of,
    entry_of,
    feed_of,
    head_of,
    opening_of,
)
from tidemill.ingest.gateway.segments import segment_numbers
from tidemill.model.errors import StorageError
from tidemill.model.gateway import Entry, WindowOutput
from tidemill.storage import layout
from tidemill.storage.files import storage_errors

Feed = tuple[str, str]  # stream and source

_HINT: Final = "restore the file from a copy, or move the folder elsewhere to go on without what it holds"


@dataclass(slots=True)
class _Segment:
    """Where the frames of a segment are."""

    path: Path
    head: Head
    entries: array[int] = field(default_factory=lambda: array("Q"))  # places, by lsn from the first
    feeds: array[int] = field(default_factory=lambda: array("I"))  # numbers of feeds, likewise
    closes: array[int] = field(default_factory=lambda: array("Q"))
    settled: bytearray = field(default_factory=bytearray)  # 1: a closed window has it


class LogReplay:
    """What a dead log holds. `windows` and `rest` read the files each time they are gone through."""

    def __init__(self, name: str, folder: Path) -> None:
        self._name = name
        self._feeds: dict[Feed, int] = {}
        self._segments: list[_Segment] = []
        with storage_errors("read the log", folder):
            self._scan(folder)
            self._firsts = [segment.head.first for segment in self._segments]
            for _, runs in self._closes():
                self._settle(runs)

    @property
    def windows(self) -> Iterator[tuple[WindowOutput, tuple[Entry, ...]]]:
        """In the order in which they were closed. One that misses an entry had landed, and is left out: a
        segment goes only when all that it holds is in the ledger."""
        for output, runs in self._closes():
            if all(self._has(first, count) for first, count in runs):
                lsns = (lsn for first, count in runs for lsn in range(first, first + count))
                yield output, tuple(self._read(lsns))

    @property
    def rest(self) -> Iterator[Entry]:
        """Entries that no closed window has: those of one stream and source after another, by lsn."""
        lsns: dict[int, array[int]] = {number: array("Q") for _, number in sorted(self._feeds.items())}
        for segment in self._segments:
            for place, number in enumerate(segment.feeds):
                if not segment.settled[place]:
                    lsns[number].append(segment.head.first + place)
        for found in lsns.values():
            yield from self._read(found)

    # -- the first pass

    def _scan(self, folder: Path) -> None:
        numbers = segment_numbers(folder)
        previous: tuple[int, int] | None = None  # number and bytes
        for number in numbers:
            path = layout.gateway_segment(folder, number)
            last = number == numbers[-1]
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                head = _head(file, path, number, size, last)
                if head is None:
                    return
                if previous is not None and number == previous[0] + 1 and head.before != previous[1]:
                    before = layout.gateway_segment(folder, previous[0])
                    raise _damage(before, previous[1], f"it ends early: it had {head.before} bytes")
                segment = _Segment(path, head)
                end = self._index(file, segment, size)
                if end < size and not (last and _is_torn(file, head, end)):
                    raise _damage(path, end, "what follows is no frame")
            segment.settled = bytearray(len(segment.entries))
            self._segments.append(segment)
            previous = number, end

    def _index(self, file: BinaryIO, segment: _Segment, size: int) -> int:
        """Fill in where the frames are; where the last whole one ends."""
        at = HEAD_BYTES
        while found := _frame(file, segment.head.mark, at, size):
            opening, carried = found
            if opening.kind == Kind.CLOSE:
                segment.closes.append(at)
            else:
                expected = segment.head.first + len(segment.entries)
                if opening.lsn != expected:
                    raise _damage(segment.path, at, f"entry {opening.lsn} is where {expected} belongs")
                segment.entries.append(at)
                segment.feeds.append(self._feeds.setdefault(feed_of(opening, carried), len(self._feeds)))
            at += FRAME_BYTES + opening.size
        return at

    # -- what is asked for

    def _closes(self) -> Iterator[tuple[WindowOutput, list[tuple[int, int]]]]:
        for segment in self._segments:
            with storage_errors("read the log", segment.path), segment.path.open("rb") as file:
                for at in segment.closes:
                    yield close_of(_again(file, segment, at)[1])

    def _settle(self, runs: Iterable[tuple[int, int]]) -> None:
        for run in runs:
            for segment, start, end in self._spans(*run):
                segment.settled[start:end] = b"\1" * (end - start)

    def _has(self, first: int, count: int) -> bool:
        return sum(end - start for _, start, end in self._spans(first, count)) == count

    def _spans(self, first: int, count: int) -> Iterator[tuple[_Segment, int, int]]:
        """The places, in each segment that has some of it, of a run of entries."""
        for segment in self._segments[max(bisect_right(self._firsts, first) - 1, 0) :]:
            start = max(first - segment.head.first, 0)
            end = min(first + count - segment.head.first, len(segment.entries))
            if end <= 0:
                return
            if start < end:
                yield segment, start, end

    def _read(self, lsns: Iterable[int]) -> Iterator[Entry]:
        """Entries that are there, by ascending lsn."""
        file: BinaryIO | None = None
        path: Path | None = None
        try:
            for lsn in lsns:
                segment = self._segments[bisect_right(self._firsts, lsn) - 1]
                with storage_errors("read the log", segment.path):
                    if file is None or path != segment.path:
                        if file is not None:
                            file.close()
                        path, file = segment.path, segment.path.open("rb")
                    found = _again(file, segment, segment.entries[lsn - segment.head.first])
                yield entry_of(self._name, *found)
        finally:
            if file is not None:
                file.close()


def _head(file: BinaryIO, path: Path, number: int, size: int, last: bool) -> Head | None:
    """None: its process died while it began this segment, before anything was in it."""
    head = head_of(file.read(HEAD_BYTES))
    if head is None:
        if last and size <= HEAD_BYTES:
            return None
        raise _damage(path, 0, "the head of the segment cannot be read")
    if head.number != number:
        raise _damage(path, 0, f"it is segment {head.number} by its head")
    return head


def _frame(file: BinaryIO, mark: bytes, at: int, size: int) -> tuple[Opening, bytes] | None:
    """The frame at `at`; None when there is no whole one."""
    file.seek(at)
    opening = opening_of(file.read(FRAME_BYTES), mark)
    if opening is None or opening.size > size - at - FRAME_BYTES:
        return None
    carried = file.read(opening.size)
    return (opening, carried) if opening.holds(carried) else None


def _again(file: BinaryIO, segment: _Segment, at: int) -> tuple[Opening, bytes]:
    found = _frame(file, segment.head.mark, at, os.fstat(file.fileno()).st_size)
    if found is None:
        raise _damage(segment.path, at, "a frame that was whole cannot be read any more")
    return found


def _is_torn(file: BinaryIO, head: Head, end: int) -> bool:
    """Whether all from `end` on was written by one group, the last: a later one would mean that what is
    there had been durable, and was acknowledged."""
    file.seek(end)
    tail = file.read()
    at = tail.find(head.mark, 1)
    while at >= 0:
        opening = opening_of(tail[at : at + FRAME_BYTES], head.mark)
        start = at + FRAME_BYTES
        if opening and opening.group > end and opening.holds(tail[start : start + opening.size]):
            return False
        at = tail.find(head.mark, at + 1)
    return True


def _damage(path: Path, at: int, what: str) -> StorageError:
    return StorageError(f"the log is damaged at byte {at}: {what}", hint=_HINT, where=str(path))

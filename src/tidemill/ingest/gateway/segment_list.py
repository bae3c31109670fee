"""What the log of a gateway must consist of, kept beside its segments: which were begun, which were removed
because everything in them had landed, and how far the last one extends. So a segment that is missing, or was
cut at the end of a frame, is noticed, and with it the loss of acknowledged events.

A segment is listed before its first frame is written, and struck off before its file is removed; both are
durable. The end of the log is written after each group, and not synced: it is never ahead of the log, and
behind it only after a power cut.
"""

from __future__ import annotations

import json
import os
import struct
import threading
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from zlib import crc32

from tidemill.storage import layout
from tidemill.storage.files import storage_errors, sync_folder
from tidemill.storage.log_chain import EMPTY_LOG, ChainReader, chained

_END: Final = struct.Struct("<8sQQQ")  # magic, number of the segment, its bytes, the last lsn
_CRC: Final = struct.Struct("<I")
_MAGIC: Final = b"TMWALEND"


@dataclass(frozen=True, slots=True)
class LogEnd:
    """Where a log ends."""

    segment: int
    bytes: int  # of that segment
    lsn: int  # of its last entry


@dataclass(frozen=True, slots=True)
class Listed:
    """What is known of a dead log beside its segments."""

    begun: Mapping[int, int] = field(default_factory=dict)  # number -> lsn of its first entry
    removed: Collection[int] = frozenset()
    end: LogEnd | None = None
    damage: str = ""  # why the list is incomplete; "" if it is not

    def missing(self, found: Collection[int]) -> list[int]:
        """Segments that should exist and do not, ascending."""
        return sorted(number for number in self.begun if number not in self.removed and number not in found)

    def first_after(self, number: int) -> int | None:
        """The lsn of the first entry after a segment; None: it is the last one, or unknown."""
        later = [first for other, first in self.begun.items() if other > number]
        if later:
            return min(later)
        return self.end.lsn + 1 if self.end is not None and self.end.segment == number else None


class SegmentList:
    """The list of a log that is being written. Thread-safe; OSErrors of `begun` go through."""

    def __init__(self, folder: Path) -> None:
        self._lock = threading.Lock()
        self._head, self._size = EMPTY_LOG, 0
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
        with storage_errors("list the segments", folder):
            self._list = os.open(layout.gateway_segments(folder), flags, 0o644)
            self._end = os.open(layout.gateway_log_end(folder), flags, 0o644)
            os.pwrite(self._end, bytes(_END.size + _CRC.size), 0)  # from now on it needs no more space
            os.fsync(self._end)
        sync_folder(folder)

    def begun(self, number: int, first: int) -> None:
        """Make it durable that a segment was begun."""
        self._append({"begun": number, "first": first})

    def removed(self, number: int) -> None:
        """A segment is about to be removed: everything in it is in the ledger."""
        self._append({"removed": number})

    def _append(self, line: Mapping[str, int]) -> None:
        with self._lock:
            text, head = chained(self._head, json.dumps(line, separators=(",", ":")).encode())
            try:
                os.pwrite(self._list, text, self._size)
                os.fdatasync(self._list)
            except OSError:
                with suppress(OSError):
                    os.ftruncate(self._list, self._size)
                raise
            self._head, self._size = head, self._size + len(text)

    def reached(self, end: LogEnd) -> None:
        """Everything up to there is durable."""
        packed = _END.pack(_MAGIC, end.segment, end.bytes, end.lsn)
        with suppress(OSError):  # the file is then behind, but not wrong
            os.pwrite(self._end, packed + _CRC.pack(crc32(packed)), 0)

    def close(self) -> None:
        for descriptor in (self._list, self._end):
            with suppress(OSError):
                os.close(descriptor)


def read_list(folder: Path) -> Listed | None:
    """The list of a log; None if there is none, as in logs of earlier versions. A line that a crash cut short
    is left out."""
    try:
        lines = layout.gateway_segments(folder).read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return None
    begun: dict[int, int] = {}
    removed: set[int] = set()
    chain, damage = ChainReader(), ""
    for number, line in enumerate(lines):
        if not chain.read(line) or not chain.is_chained:
            if number < len(lines) - 1 or line.endswith(b"\n"):
                damage = f"line {number + 1} of the list of segments is not the one that was written there"
            break
        fields = json.loads(line)
        if "begun" in fields:
            begun[int(fields["begun"])] = int(fields["first"])
        else:
            removed.add(int(fields["removed"]))
    return Listed(begun, removed, _read_end(folder), damage)


def _read_end(folder: Path) -> LogEnd | None:
    """Where the log ends; None if nothing was written yet, or a power cut left half of it."""
    try:
        text = layout.gateway_log_end(folder).read_bytes()
    except FileNotFoundError:
        return None
    packed = text[: _END.size]
    if len(text) != _END.size + _CRC.size or crc32(packed) != _CRC.unpack_from(text, _END.size)[0]:
        return None
    magic, segment, size, lsn = _END.unpack(packed)
    return LogEnd(segment, size, lsn) if magic == _MAGIC else None

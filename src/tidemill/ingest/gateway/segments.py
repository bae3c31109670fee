"""The files of a log, and the one being written: begun, written to, synced, cut back.

What failed to be written is cut off before anything else is written. Files grow as they are written:
reserving space ahead made no sync measurably faster except for the smallest, and unwritten bytes would have
to be distinguished from written ones.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from tidemill.ingest.gateway.frames import HEAD_BYTES, MARK_BYTES, Head
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

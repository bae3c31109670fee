"""The files of a log, and the one that is being written: begun, written to, synced, cut back.

It never leaves behind what it was told has failed: nothing more is written before that is cut off. Files
grow as they are written: to reserve their space ahead made no sync measurably faster but the smallest,
and what was never written would have to be told from what was.
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
    """Of the segments in a folder, ascending. Nothing else in it counts."""
    numbers = map(layout.gateway_segment_number, folder.iterdir())
    return sorted(number for number in numbers if number is not None)


class Segment:
    """The segment at the end of a log. For one thread; OSErrors go through."""

    def __init__(self, descriptor: int, head: Head, path: Path) -> None:
        self._descriptor = descriptor
        self.head = head
        self.path = path
        self.end = HEAD_BYTES  # all before it is durable
        self._dirty = False  # there may be bytes behind the end

    @classmethod
    def begin(cls, folder: Path, number: int, first: int, before: int) -> Segment:
        """The file is there, with its name and its head durable, or it is not."""
        head = Head(number, first, before, secrets.token_bytes(MARK_BYTES))
        path = layout.gateway_segment(folder, number)
        # Nobody else writes here; a file of that number is what is left of a try that failed.
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
        """Write them behind the end and make them durable, all or none: when it raises, none count."""
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
        """Nothing more comes: it ends where its last durable frame does."""
        self._cut()
        self.close()

    def close(self) -> None:
        with suppress(OSError):  # what counts is durable already
            os.close(self._descriptor)

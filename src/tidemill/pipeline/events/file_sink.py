"""The file sink: one line of JSON for each event, on disk before it counts as delivered.

It only appends, to a file that may be moved away between two calls; part of a line that a crash left is cut
off.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from tidemill.pipeline.events.sink import Message, SentEvents, Trouble

_WINDOW: Final = 64 * 1024
_HINT: Final = "check the disk, and that the user running tidemill may write there"
_HINTS: Final = {
    errno.ENOSPC: "the disk is full: free some space",
    errno.EISDIR: "it is a folder: name a file in it",
    errno.ENOTDIR: "a part of the path is a file: use another path",
}


class FileSender:
    """Any number of processes may append to the same file: each locks it meanwhile."""

    chunk: Final = 1000

    def __init__(self, path: Path) -> None:
        self._path = path

    def send(self, messages: Sequence[Message], now: int, go_on: Callable[[], bool]) -> SentEvents:
        content = b"".join(message.body + b"\n" for message in messages)
        try:
            self._append(content)
        except OSError as error:
            hint = _HINTS.get(error.errno or 0, _HINT)
            return SentEvents(0, Trouble(f"cannot append to {self._path}: {error.strerror or error}", hint))
        return SentEvents(len(messages))

    def _append(self, content: bytes) -> None:
        created = self._make_folders()
        # without O_NONBLOCK it would wait for a reader of a pipe
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
        with os.fdopen(os.open(self._path, flags, 0o644), "r+b", buffering=0) as file:
            descriptor = file.fileno()
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(errno.EINVAL, "not a file")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            before = self._repaired(descriptor)
            try:
                written = 0
                while written < len(content):
                    written += os.write(descriptor, content[written:])
                os.fsync(descriptor)
            except OSError:
                os.ftruncate(descriptor, before)
                raise
        for folder in created or ([self._path.parent] if before == 0 else []):
            _sync_folder(folder)

    def _make_folders(self) -> list[Path]:
        """Create missing folders; returns those with new entries."""
        missing = []
        folder = self._path.parent
        while not folder.exists():
            missing.append(folder)
            folder = folder.parent
        for path in reversed(missing):
            path.mkdir(exist_ok=True)
        return [*missing, folder] if missing else []

    def _repaired(self, descriptor: int) -> int:
        """The size, once the last line is complete: ended if only its line end is missing, else cut off."""
        size = os.fstat(descriptor).st_size
        start, tail = size, b""
        while start > 0 and b"\n" not in tail:
            piece = min(_WINDOW, start)
            start -= piece
            tail = os.pread(descriptor, piece, start) + tail
        line = tail.rpartition(b"\n")[2]
        if not line:
            return size
        if _is_event(line):
            os.write(descriptor, b"\n")
            return size + 1
        os.ftruncate(descriptor, size - len(line))
        return size - len(line)


def _is_event(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

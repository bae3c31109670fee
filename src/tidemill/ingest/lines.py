"""A file of durable lines that is only ever appended to, by any number of processes, one at a time.

It never loses a line whose append returned: only a tail that cannot be read, which is what a crash leaves
of an append, is cut off. What a line means is for its owner to say.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Generic, TypeVar

from tidemill.model.errors import StorageError
from tidemill.storage import layout
from tidemill.storage.files import atomic_write, make_folder, storage_errors, sync_folder

_WINDOW: Final = 256 * 1024

Line = TypeVar("Line")


class LineFile(Generic[Line]):
    """Lines as `parse` reads them; it answers None for what is no line. Every method opens the file anew."""

    def __init__(self, warehouse: Path, name: str, parse: Callable[[bytes], Line | None]) -> None:
        self._warehouse = warehouse
        self._folder = layout.slices(warehouse)
        self.path: Final = layout.slice_log(warehouse, name)
        self._lock: Final = layout.slice_log_lock(warehouse, name)
        self._parse = parse

    @contextmanager
    def locked(self) -> Iterator[None]:
        make_folder(self._folder, top=self._warehouse)
        with storage_errors("lock", self._folder), self._lock.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # let go when the file is closed, also by a crash
            yield

    def all(self) -> Iterator[Line]:
        """From the first; a tail that cannot be read is left out."""
        if not self.path.exists():
            return
        with storage_errors("read", self.path), self.path.open("rb") as file:
            for number, text in enumerate(file, 1):
                line = self._parse(text)
                if line is None:
                    if any(self._parse(rest) for rest in file):
                        raise StorageError(
                            f"line {number} cannot be read",
                            where=str(self.path),
                            hint="restore the file from a copy; what was recorded after that line follows it",
                        )
                    return
                yield line

    def append(self, content: bytes, act: str) -> None:
        """Whole lines, in the lock. When it returns they are on disk; when it raises nothing is there."""
        with storage_errors(act, self.path):
            created = not self.path.exists()
            with self.path.open("ab") as file:
                before = file.tell()
                try:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                except OSError:
                    os.ftruncate(file.fileno(), before)
                    raise
        if created:
            sync_folder(self._folder)

    def replace(self, content: bytes) -> None:
        atomic_write(self.path, content)

    def repaired_tail(self) -> Line | None:
        """The last line; what a crash left behind it is cut off. In the lock."""
        if not self.path.exists():
            return None
        with storage_errors("read", self.path), self.path.open("r+b") as file:
            size = file.seek(0, os.SEEK_END)
            window = _WINDOW
            while True:
                start = max(0, size - window)
                file.seek(start)
                pieces = file.read(size - start).split(b"\n")
                end = size - len(pieces[-1])  # after the last line end
                for piece in reversed(pieces[:-1]):
                    if line := self._parse(piece):
                        _truncate(file.fileno(), end, size)
                        return line
                    end -= len(piece) + 1
                if start == 0:
                    _truncate(file.fileno(), 0, size)
                    return None
                window *= 4

    def last(self, count: int) -> list[Line]:
        """The last `count` lines of a file whose tail is whole."""
        with storage_errors("read", self.path), self.path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            window = _WINDOW
            while True:
                start = max(0, size - window)
                file.seek(start)
                pieces = file.read(size - start).splitlines()[0 if start == 0 else 1 :]
                if len(pieces) >= count or start == 0:
                    lines = [line for piece in pieces[-count:] if (line := self._parse(piece))]
                    assert len(lines) == count, (len(lines), count)
                    return lines
                window *= 4


def _truncate(descriptor: int, end: int, size: int) -> None:
    if end < size:
        os.ftruncate(descriptor, end)
        os.fsync(descriptor)

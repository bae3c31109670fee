"""Datasets that somebody deleted or damaged, found without building them again.

A file that has not been touched since it was built is known by its size and both its ends. One that has been
is held against the checksum of what was written. It looks only; `verify` makes datasets again.
"""

from __future__ import annotations

import logging
import os
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tidemill.model.time import DAY, MAX_INSTANT, MIN_INSTANT, Interval, format_instant
from tidemill.model.windows import Window, WindowKey
from tidemill.storage.state.protocol import State

log = logging.getLogger(__name__)

AT_ONCE: Final = 500  # datasets that one round looks at …
WHILE_BUSY: Final = 50  # … and one that has other work to do, which should not wait for it
READ_AT_ONCE: Final = 64 << 20  # bytes of datasets that one round reads to hold them against their checksums
CHECKPOINT: Final = "@damage"  # where the next look begins; no window is called so
MAGIC: Final = b"ARROW1"  # an Arrow file begins and ends with it
_FIRST: Final = MIN_INSTANT - 400 * DAY  # no window starts before
_PIECE: Final = 1 << 20

Touched = tuple[str, int, int, int]  # a file, and by what it is told that somebody wrote to it


def checksum(content: bytes, before: int = 0) -> str:
    return f"{zlib.crc32(content, before):08x}"


def checksum_of(path: Path) -> str:
    """Of the bytes of a file, which is read piece by piece."""
    found = 0
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            found = zlib.crc32(piece, found)
    return f"{found:08x}"


@dataclass(slots=True)
class DamageReading:
    """Which files were read, whether they are whole, and how many bytes may still be read."""

    known: dict[Touched, bool] = field(default_factory=dict)
    left: int | None = None  # None: any number


def damage_of(warehouse: Path, window: Window, reading: DamageReading | None = None) -> str | None:
    """What is wrong with the file of a window's newest dataset; None: it has none, or nothing is."""
    if window.file is None:
        return None
    path = warehouse / window.file
    try:
        with path.open("rb") as file:
            there = os.fstat(file.fileno())
            first = file.read(len(MAGIC))
            file.seek(max(0, there.st_size - len(MAGIC)))
            last = file.read()
        if window.bytes is not None and there.st_size != window.bytes:
            return f"the file has {there.st_size} bytes, and {window.bytes} were written"
        if not first == last == MAGIC:
            return "the file is not an Arrow file any more"
        return _damage_inside(path, there, window, reading or DamageReading())
    except OSError as error:
        return f"the file cannot be read: {error.strerror or error}"


def _damage_inside(path: Path, there: os.stat_result, window: Window, reading: DamageReading) -> str | None:
    """Of a file that was touched since it was built; read once, until it is touched again. (The time of its
    last change cannot be set back, as that of its content can.)"""
    built = window.built_at
    if window.checksum is None or (built is not None and there.st_ctime_ns // 1000 <= built):
        return None
    touched = (str(window.file), there.st_ino, there.st_mtime_ns, there.st_ctime_ns)
    if touched not in reading.known:
        if reading.left is not None:
            if reading.left < there.st_size:
                return None  # another round reads it
            reading.left -= there.st_size
        reading.known[touched] = checksum_of(path) == window.checksum
    return None if reading.known[touched] else "the file has other bytes than were written"


def repair_command(key: WindowKey) -> str:
    """What makes the dataset of a window again."""
    return f"tidemill rebuild {key.stream} --window {format_instant(key.start)}"


class DamageWatch:
    """Looks at some datasets each round, and at all of them in turn; says once what it finds."""

    def __init__(self, warehouse: Path, state: State) -> None:
        self._warehouse = warehouse
        self._state = state
        self._next: dict[str, int] = {}  # by stream: the start of the window that the next look begins with
        self._damaged: dict[str, dict[WindowKey, str]] = {}
        self._reading = DamageReading()

    def look(self, stream: str, *, busy: bool = False) -> int:
        """How many datasets of the stream are known to be damaged, after a look at the next few."""
        start = self._position(stream)
        limit = min(AT_ONCE, WHILE_BUSY) if busy else AT_ONCE
        page = self._state.windows(stream, None, Interval(start, MAX_INSTANT), limit=limit)
        self._move(stream, page[-1].key.start + 1 if len(page) == limit else _FIRST)
        known = self._damaged.setdefault(stream, {})
        self._reading.left = max(READ_AT_ONCE, self._largest(page))
        for window in page:
            what = damage_of(self._warehouse, window, self._reading)
            if what is None:
                known.pop(window.key, None)
            elif known.get(window.key) != what:
                known[window.key] = what
                where = {"stream": stream, "window": str(window.key.interval), "file": window.file}
                log.warning("a dataset is damaged: %s; %s", what, repair_command(window.key), extra=where)
        return len(known)

    def _position(self, stream: str) -> int:
        """Where the last look ended, be it that of a process that is gone: with a process for each round,
        all windows get their turn, too."""
        if stream not in self._next:
            self._next[stream] = int(self._state.checkpoints(stream).get(CHECKPOINT, _FIRST))
        return self._next[stream]

    def _move(self, stream: str, to: int) -> None:
        """Where one look sees all windows there is nothing to remember."""
        if to != self._next[stream]:
            self._next[stream] = to
            self._state.set_checkpoint(stream, CHECKPOINT, None if to == _FIRST else str(to))

    def _largest(self, page: list[Window]) -> int:
        """Even the largest dataset is read, if it is the only one."""
        return max((window.bytes or 0 for window in page), default=0)

"""Finds deleted or damaged datasets without building them again: some of them each round, and all for
`scrub`.

In a round, a file that was not changed since it was built is recognised by its size and both its ends; one
that was is compared with its checksum. It only reads; `verify` builds datasets again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from tidemill.model.damage import FileKind
from tidemill.model.errors import DamageError
from tidemill.model.time import DAY, MAX_INSTANT, MIN_INSTANT, Interval, format_instant
from tidemill.model.windows import Window, WindowKey
from tidemill.outputs.datasets.checksums import checksum_of
from tidemill.outputs.datasets.empty_datasets import EmptyDatasets
from tidemill.storage import layout
from tidemill.storage.file_scrub import StoredFile
from tidemill.storage.state.protocol import State

log = logging.getLogger(__name__)

AT_ONCE: Final = 500  # datasets that one round checks …
WHILE_BUSY: Final = 50  # … and a round that has other work to do
READ_AT_ONCE: Final = 64 << 20  # bytes that one round reads to compare checksums
CHECKPOINT: Final = "@damage"  # name of the checkpoint of the next check; no window has this name
MAGIC: Final = b"ARROW1"  # the first and last bytes of an Arrow file
_FIRST: Final = MIN_INSTANT - 400 * DAY  # before the first possible window

Touched = tuple[str, int, int, int]  # a file, with what shows that it was written to


@dataclass(slots=True)
class DamageReading:
    """Which files were read, whether they are intact, and how many bytes may still be read."""

    known: dict[Touched, bool] = field(default_factory=dict)
    left: int | None = None  # None: no limit


def damage_of(warehouse: Path, window: Window, reading: DamageReading | None = None) -> str | None:
    """What is wrong with the file of a window's newest dataset; None if it has none or nothing is wrong."""
    if window.file is None:
        return None
    path = warehouse / window.file
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            first = file.read(len(MAGIC))
            file.seek(max(0, status.st_size - len(MAGIC)))
            last = file.read()
        if window.bytes is not None and status.st_size != window.bytes:
            return f"the file has {status.st_size} bytes, and {window.bytes} were written"
        if not first == last == MAGIC:
            return "the file is not an Arrow file any more"
        return _damage_inside(path, status, window, reading or DamageReading())
    except OSError as error:
        return f"the file cannot be read: {error.strerror or error}"


def _damage_inside(path: Path, status: os.stat_result, window: Window, reading: DamageReading) -> str | None:
    """Damage of a file that was changed since it was built; read once, until it changes again. (Its change
    time cannot be set back, unlike its modification time.)"""
    built = window.built_at
    if window.checksum is None or (built is not None and status.st_ctime_ns // 1000 <= built):
        return None
    touched = (str(window.file), status.st_ino, status.st_mtime_ns, status.st_ctime_ns)
    if touched not in reading.known:
        if reading.left is not None:
            if reading.left < status.st_size:
                return None  # a later round reads it
            reading.left -= status.st_size
        reading.known[touched] = checksum_of(path).is_whole(window.checksum)
    return None if reading.known[touched] else "the file has other bytes than were written"


def repair_command(key: WindowKey) -> str:
    """The command that builds the dataset of a window again."""
    return f"tidemill rebuild {key.stream} --window {format_instant(key.start)}"


class DamageWatch:
    """Checks some datasets each round, and all of them in turn; reports each finding once."""

    def __init__(self, warehouse: Path, state: State) -> None:
        self._warehouse = warehouse
        self._state = state
        self._next: dict[str, int] = {}  # by stream: the start of the window that the next check begins with
        self._damaged: dict[str, dict[WindowKey, str]] = {}
        self._reading = DamageReading()

    def check_next(self, stream: str, *, busy: bool = False) -> int:
        """Check the next few datasets of the stream; how many are known to be damaged."""
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
        """Where the last check ended, even if an earlier process made it, so that all windows get their turn
        even if each round is a process."""
        if stream not in self._next:
            self._next[stream] = int(self._state.checkpoints(stream).get(CHECKPOINT, _FIRST))
        return self._next[stream]

    def _move(self, stream: str, to: int) -> None:
        """Remember where the check ended, unless it covered all windows."""
        if to != self._next[stream]:
            self._next[stream] = to
            self._state.set_checkpoint(stream, CHECKPOINT, None if to == _FIRST else str(to))

    def _largest(self, page: list[Window]) -> int:
        """The size of the largest dataset, which is read even if it exceeds the limit."""
        return max((window.bytes or 0 for window in page), default=0)


def dataset_files(warehouse: Path, stream: str, state: State) -> Iterator[StoredFile]:
    newest = {window.file: window for window in state.windows(stream) if window.file is not None}
    for file, window in newest.items():
        yield StoredFile(
            warehouse, warehouse / file, FileKind.DATASET, stream,
            partial(_check, window), partial(_is_newest, state, window.key, file),
        )  # fmt: skip
    for path in (warehouse / layout.datasets(stream)).glob("*/*.arrow"):
        if layout.dataset_revision(path.name) and path.relative_to(warehouse).as_posix() not in newest:
            check = partial(_check_replaced, warehouse)
            yield StoredFile(warehouse, path, FileKind.DATASET, stream, check, path.exists)
    log = layout.empty_datasets_log(layout.empty_datasets(warehouse, stream))
    shared = [window for file, window in newest.items() if layout.is_empty_dataset(file)]
    if shared or log.exists():
        check = partial(_check_recorded, warehouse, stream, state)
        yield StoredFile(
            warehouse, log, FileKind.EMPTY_DATASETS, stream, check, partial(_is_damaged, check, log)
        )


def _check(window: Window, path: Path) -> bool:
    size = path.stat().st_size
    name = str(window.file)
    if window.bytes is not None and size != window.bytes:
        raise DamageError(f"the file has {size} bytes, and {window.bytes} were written", where=name)
    found = checksum_of(path)
    if not found.is_whole(window.checksum):
        raise DamageError("the file has other bytes than were written", where=name)
    return bool(found.stored) or window.checksum is not None


def _check_replaced(warehouse: Path, path: Path) -> bool:
    """A revision that a newer one replaced. It may be deleted meanwhile: then it has expired."""
    found = checksum_of(path)
    if not found.is_whole():
        name = path.relative_to(warehouse).as_posix()
        raise DamageError("the file has other bytes than were written", where=name)
    return bool(found.stored)


def _is_newest(state: State, key: WindowKey, file: str) -> bool:
    found = state.window(key)
    return found is not None and found[0].file == file


def _check_recorded(warehouse: Path, stream: str, state: State, log: Path) -> bool:
    """Check the log of datasets without rows: its lines form a chain, and the current ones are in it."""
    recorded = EmptyDatasets(warehouse, stream)
    is_chained = recorded.is_chained
    for window in state.windows(stream):
        if window.file is None or not layout.is_empty_dataset(window.file):
            continue
        if recorded.at(window.key, window.revision) is None:
            lost = f"revision {window.revision} of the window {window.key.interval} is missing from it"
            raise DamageError(lost, where=log.relative_to(warehouse).as_posix())
    return is_chained


def _is_damaged(check: partial[bool], log: Path) -> bool:
    """Check again: the log may have been rewritten meanwhile."""
    try:
        check(log)
    except (DamageError, FileNotFoundError):
        return True
    return not log.exists()

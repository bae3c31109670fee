"""A log in the hands of a test: appends that are waited for, and what a process killed now would leave."""

from __future__ import annotations

import itertools
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tidemill.config.gateway import WalSettings as Settings
from tidemill.ingest.gateway.log_replay import orphans
from tidemill.ingest.gateway.wal import Done, Wal
from tidemill.model.gateway import Entry, Submission, WindowOutput, WindowStats

SMALLEST = Settings(segment=64 << 10)
NOON = 1_705_320_000_000_000
HELD = b"{}\n"  # the committer waits after it


def submission(content: bytes, stream: str = "requests", source: str = "http") -> Submission:
    return Submission(stream, source, content, content.count(b"\n"))


def line(number: int, size: int = 0) -> bytes:
    return b'{"n":%d,"pad":"%s"}\n' % (number, b"x" * size)


def window(*lsns: int, stream: str = "requests") -> WindowOutput:
    stats = WindowStats(len(lsns), len(lsns), 10 * len(lsns), lsns[-1] - lsns[0])
    return WindowOutput(f"g-{stream}-{lsns[0]:x}", stream, "http", NOON, NOON + 5, "time", stats)


@dataclass
class Played:
    """A log whose `durable` keeps the groups, tells the senders, and can be held up."""

    warehouse: Path
    clock: Callable[[], int]
    settings: Settings = SMALLEST
    groups: list[list[Entry]] = field(default_factory=list)
    wal: Wal = field(init=False)

    def __post_init__(self) -> None:
        self._free = threading.Event()
        self._inside = threading.Event()
        self.wal = Wal.create(self.warehouse, self.settings, self.clock, self._durable)

    def _durable(self, group: Sequence[tuple[Entry, Done]]) -> None:
        self.groups.append([entry for entry, _ in group])
        for entry, done in group:
            done(entry)
        if group[0][0].submission.content == HELD:
            self._inside.set()
            self._free.wait()

    def later(self, wanted: Submission) -> Future[Entry]:
        future: Future[Entry] = Future()

        def done(outcome: Entry | BaseException) -> None:
            if isinstance(outcome, BaseException):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

        self.wal.append(wanted, done)
        return future

    def append(self, wanted: Submission | bytes) -> Entry:
        return self.later(submission(wanted) if isinstance(wanted, bytes) else wanted).result()

    @contextmanager
    def as_one_group(self) -> Iterator[None]:
        """What is appended inside waits until the end of it, and is written at once."""
        self._inside.clear()
        self._free.clear()
        self.append(HELD)
        self._inside.wait()
        try:
            yield
        finally:
            self._free.set()

    def corpse(self, place: Path) -> Path:
        """A warehouse with the log as a process that is killed at this moment leaves it."""
        shutil.copytree(self.warehouse / "wal" / self.wal.name, place / "wal" / self.wal.name)
        return place

    @property
    def files(self) -> list[Path]:
        """The segments."""
        return sorted((self.warehouse / "wal" / self.wal.name).glob("*.wal"))


@contextmanager
def played(warehouse: Path, settings: Settings = SMALLEST) -> Iterator[Played]:
    warehouse.mkdir(exist_ok=True)
    ticks = itertools.count(NOON)
    log = Played(warehouse, lambda: next(ticks), settings)
    try:
        yield log
    finally:
        log.wal.close()


Told = tuple[list[tuple[WindowOutput, tuple[Entry, ...]]], list[Entry]]


def taken_up(warehouse: Path) -> Told:
    """Windows and rest of the one dead log that is there."""
    (found,) = [(list(o.read().windows), list(o.read().rest)) for o in orphans(warehouse)]
    return found


def contents(entries: Sequence[Entry]) -> dict[int, bytes]:
    return {entry.lsn: entry.submission.content for entry in entries}

"""The write-ahead log of one gateway: what it reports as durable survives kill -9 and a power cut.

Submissions are queued by any thread; one thread, the committer, takes all that is queued as a group: one
write, one sync, then one call of `durable` for the whole group. No lock is held during disk I/O, and nothing
is acknowledged before it is synced. The queue is bounded by the memory of the gateway.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final, TypeAlias

from tidemill.config.gateway import WalSettings as Settings
from tidemill.ingest.gateway.frames import (
    FRAME_BYTES,
    HEAD_BYTES,
    Carried,
    carried_close,
    carried_entry,
    framed,
)
from tidemill.ingest.gateway.log_folders import Hold, new_folder
from tidemill.ingest.gateway.segment_list import LogEnd, SegmentList
from tidemill.ingest.gateway.segments import Segment, SegmentUsage
from tidemill.ingest.landing import next_arrival
from tidemill.model.errors import OverloadedError
from tidemill.model.failpoints import failpoint
from tidemill.model.gateway import Entry, Submission, WindowOutput
from tidemill.storage import layout
from tidemill.storage.files import disk_error, storage_errors, sync_folder

log = logging.getLogger(__name__)

Done: TypeAlias = Callable[[Entry | BaseException], None]
Durable: TypeAlias = Callable[[Sequence[tuple[Entry, Done]]], None]

MOST_ENTRIES: Final = 1024  # entries of a group
MOST_BYTES: Final = 8 << 20  # bytes of a group; the frame that crosses the limit is the last


@dataclass(slots=True)
class _Append:
    submission: Submission
    done: Done
    carried: Carried


@dataclass(slots=True)
class _Close:
    lsns: Sequence[int]
    settled: Future[None]
    carried: Carried


@dataclass(slots=True)
class _Marker:
    """A marker in the queue: when it is reached, everything queued before it has been processed."""

    reached: threading.Event
    last: bool  # the committer ends here


_Write: TypeAlias = _Append | _Close


class Wal:
    """Open from `create` to `close`. Thread-safe."""

    def __init__(
        self, hold: Hold, settings: Settings, clock: Callable[[], int], durable: Durable, after: int
    ) -> None:
        self._hold = hold
        self._folder = hold.path
        self._limit = settings.segment
        self._clock = clock
        self._durable = durable
        self._queue: SimpleQueue[_Write | _Marker] = SimpleQueue()
        self._gate = threading.Lock()  # nothing enters the queue after the last mark
        self._taking = self._open = True
        self._guard = threading.Lock()  # of the holdings
        self._holdings = SegmentUsage()
        self._removing = threading.Lock()  # segments are removed one by one, in order
        self._list = SegmentList(hold.path)
        # Used only by the committer:
        self._segment: Segment | None = None
        self._number = self._before = self._lsn = 0
        self._arrival = after
        self._committer = threading.Thread(target=self._run, name="tidemill-committer", daemon=True)

    @classmethod
    def create(
        cls,
        warehouse: Path,
        settings: Settings,
        clock: Callable[[], int],
        durable: Durable,
        after: int = -(1 << 63),
    ) -> Wal:
        """A new log, in a folder of its own that is locked while this process lives. Arrivals are the time of
        the clock, but never earlier than the one before, nor than `after`.

        `durable` is called by the committer, once for each group, in the order of the log; it passes the
        entry to each `done`. It must not wait for the log: no `close_window` in it.
        """
        wal = cls(new_folder(warehouse), settings, clock, durable, after)
        wal._committer.start()
        return wal

    @property
    def name(self) -> str:
        return self._folder.name

    @property
    def size(self) -> int:
        """Bytes in its files."""
        with self._guard:
            return self._holdings.bytes

    @property
    def segments(self) -> int:
        with self._guard:
            return len(self._holdings)

    # -- called by any thread

    def append(self, submission: Submission, done: Done) -> None:
        """Make it durable. `done` gets an error if that fails: then it is not in the log."""
        item = _Append(submission, done, carried_entry(submission))
        with self._gate:
            if not self._taking:
                raise OverloadedError(
                    "the gateway is stopping",
                    hint="send the same again after the time that Retry-After says",
                    refused=True,
                )
            self._queue.put(item)

    def close_window(self, output: WindowOutput, lsns: Sequence[int]) -> None:
        """Make it durable that the window contains exactly these entries, whose lsns ascend."""
        assert threading.current_thread() is not self._committer, "the committer cannot wait for itself"
        settled: Future[None] = Future()
        item = _Close(lsns, settled, carried_close(output, lsns))
        with self._gate:
            assert self._open, "closed"
            self._queue.put(item)
        settled.result()
        failpoint("wal.after_close")

    def landed(self, lsns: Sequence[int]) -> None:
        """Slices with these entries, all of each closed window, are in the ledger. Call it once for each."""
        with self._guard:
            self._holdings.landed(lsns)
            if self._holdings.removable() is None:
                return
        with self._removing:
            while True:
                with self._guard:
                    number = self._holdings.removable()
                if number is None:
                    return
                path = layout.gateway_segment(self._folder, number)
                with storage_errors("remove", path):
                    self._list.removed(number)
                    failpoint("wal.after_unlist")
                    path.unlink(missing_ok=True)
                failpoint("wal.after_remove")
                sync_folder(self._folder)  # before a segment is removed that this one's entries needed
                with self._guard:
                    self._holdings.removed(number)

    def drain(self) -> None:
        """Take no more submissions; return once `durable`, or `done`, was called for all that were taken."""
        self._reach(last=False)

    def close(self, ended: Callable[[], None] | None = None) -> None:
        """Drain it and stop. The folder is removed, unless something in it is not in the ledger yet; `ended`
        is called just before that."""
        if not self._reach(last=True):
            return
        self._committer.join()
        if self._segment is not None:
            self._segment.close()
            self._segment = None
        self._list.close()
        try:
            if not self._holdings.unlanded:
                if ended is not None:
                    ended()
                self._hold.remove()
        finally:
            self._hold.release()

    def _reach(self, *, last: bool) -> bool:
        """Wait until the committer has processed everything queued so far; False once it has ended."""
        marker = _Marker(threading.Event(), last)
        with self._gate:
            self._taking = False
            if not self._open:
                return False
            self._open = not last
            self._queue.put(marker)
        marker.reached.wait()
        return True

    # -- the committer

    def _run(self) -> None:
        while True:
            group, marker = self._gathered()
            if group:
                self._commit(group)
            if marker is not None:
                marker.reached.set()
                if marker.last:
                    return

    def _gathered(self) -> tuple[list[_Write], _Marker | None]:
        """Waits for something to do, then takes all that is queued."""
        group: list[_Write] = []
        size = 0
        item = self._queue.get()
        while not isinstance(item, _Marker):
            group.append(item)
            size += item.carried.size
            if len(group) >= MOST_ENTRIES or size >= MOST_BYTES:
                return group, None
            try:
                item = self._queue.get_nowait()
            except Empty:
                return group, None
        return group, item

    def _commit(self, group: Sequence[_Write]) -> None:
        try:
            entries = self._written(group)
        except OSError as error:
            _fail(group, disk_error("write the log", self._folder, error))
            return
        except Exception as error:  # noqa: BLE001 - all who wait get the error
            _fail(group, error)
            return
        if entries:
            try:
                self._durable(entries)
            except Exception:  # they are in the log: the process that reads it next lands them
                log.exception("entries are durable, and were not taken over")
        for item in group:
            if isinstance(item, _Close):
                item.settled.set_result(None)

    def _written(self, group: Sequence[_Write]) -> list[tuple[Entry, Done]]:
        size = sum(item.carried.size for item in group) + FRAME_BYTES * len(group)
        segment = self._segment_for(size)
        mark, start, lsn = segment.head.mark, segment.end, self._lsn
        arrival = self._arrival = next_arrival(self._arrival, self._clock())
        parts: list[bytes] = []
        entries: list[tuple[Entry, Done]] = []
        for item in group:
            if isinstance(item, _Append):
                lsn += 1
                parts.append(framed(item.carried, mark, start, lsn, arrival))
                entries.append((Entry(self.name, lsn, arrival, item.submission), item.done))
            else:
                parts.append(framed(item.carried, mark, start, lsn, arrival))
            parts.extend(item.carried.parts)
        segment.write(parts)
        self._lsn = lsn
        self._list.reached(LogEnd(segment.head.number, segment.end, lsn))
        with self._guard:
            self._holdings.grown(segment.end, len(entries))
            for item in group:
                if isinstance(item, _Close):
                    self._holdings.closed(item.lsns)
        return entries

    def _segment_for(self, size: int) -> Segment:
        """The segment for a group of `size`; a group is never split."""
        full = self._segment
        if full is not None:
            if full.end == HEAD_BYTES or full.end + size <= self._limit:
                return full
            full.seal()
            self._segment = None
            self._before = full.end
        segment = Segment.begin(self._folder, self._number + 1, self._lsn + 1, self._before)
        try:
            self._list.begun(segment.head.number, segment.head.first)
        except OSError:
            segment.close()
            raise
        self._segment = segment
        self._number += 1
        with self._guard:
            self._holdings.begun(self._number, segment.head.first, segment.end)
        return segment


def _fail(group: Sequence[_Write], error: Exception) -> None:
    for item in group:
        if isinstance(item, _Close):
            item.settled.set_exception(error)
            continue
        try:
            item.done(error)
        except Exception:  # one sender that cannot be answered must not keep others waiting
            log.exception("a sender could not be notified that its submission failed")

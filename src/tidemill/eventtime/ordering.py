"""The ordering operator: rows in as they arrive, rows out in order of event time, a watermark after them.

Pure and in memory. After a watermark W no row with time <= W ever comes out; watermarks never go back; ties
keep their order of arrival; nothing on time is lost.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import count
from typing import Generic, TypeVar

from tidemill.eventtime.watermarks import StreamClock

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Watermark:
    """No row at or before this instant follows."""

    at: int


@dataclass(frozen=True, slots=True)
class Timed(Generic[Row]):
    """A row with its event time and its size in the buffer."""

    time: int
    row: Row
    size: int = 0
    met: int | None = None  # the watermark it met, filled in by the operator


class Ordering(Generic[Row]):
    """Orders the rows of one stream. `push` takes the rows of one slice (a collection) from one source.

    `max_bytes` bounds the buffer: above it the oldest rows are released early, with the watermark that makes
    it safe, and counted.
    """

    def __init__(self, tolerance: int, idle_timeout: int | None = None, max_bytes: int | None = None) -> None:
        assert max_bytes is None or max_bytes >= 0, max_bytes
        self.clock = StreamClock(tolerance, idle_timeout)
        self.max_bytes = max_bytes
        self.buffered_bytes = 0
        self.late_dropped = 0
        self.released_early = 0
        self.max_timestamp_seen: int | None = None
        self._heap: list[tuple[int, int, Timed[Row]]] = []  # by time, then by arrival
        self._numbers = count()

    @property
    def buffer_size(self) -> int:
        return len(self._heap)

    @property
    def watermarks_emitted(self) -> int:
        return self.clock.emitted

    def push(
        self, rows: Iterable[Timed[Row]], *, source: str = "", arrival: int = 0
    ) -> tuple[list[Timed[Row] | Watermark], list[Timed[Row]]]:
        """What comes out now (rows in order, then a Watermark, each time that it moved), and the rows that
        were late. All rows of a push meet the same watermark: as it is after idle sources were removed."""
        out = self.tick(arrival)
        watermark = self.clock.watermark
        arrived = [replace(row, met=watermark) for row in rows]
        if not arrived:
            return out, []
        newest = max(row.time for row in arrived)
        seen = self.max_timestamp_seen
        self.max_timestamp_seen = newest if seen is None else max(seen, newest)
        late = [row for row in arrived if watermark is not None and row.time <= watermark]
        self.late_dropped += len(late)
        for row in arrived:
            if watermark is None or row.time > watermark:
                heapq.heappush(self._heap, (row.time, next(self._numbers), row))
                self.buffered_bytes += row.size
        out += self._advance(self.clock.see(source, newest, arrival))
        return out + self._bounded(), late

    def tick(self, now: int) -> list[Timed[Row] | Watermark]:
        """Advance time: idle sources leave, which may move the watermark."""
        return self._advance(self.clock.at(now))

    def stop(self) -> list[Timed[Row]]:
        """Return what is still buffered, in order; no watermark follows."""
        rest = [heapq.heappop(self._heap)[2] for _ in range(len(self._heap))]
        self.buffered_bytes = 0
        return rest

    def _advance(self, clock: StreamClock) -> list[Timed[Row] | Watermark]:
        before, self.clock = self.clock.watermark, clock
        if clock.watermark is None or clock.watermark == before:
            return []
        out: list[Timed[Row] | Watermark] = []
        while self._heap and self._heap[0][0] <= clock.watermark:
            row = heapq.heappop(self._heap)[2]
            self.buffered_bytes -= row.size
            out.append(row)
        return [*out, Watermark(clock.watermark)]

    def _bounded(self) -> list[Timed[Row] | Watermark]:
        """Release the oldest rows, up to the first instant after which the rest fits."""
        if self.max_bytes is None or self.buffered_bytes <= self.max_bytes:
            return []
        kept = self.buffered_bytes
        instant = self._heap[0][0]
        for time, _, row in sorted(self._heap, key=lambda entry: entry[:2]):
            if time > instant and kept <= self.max_bytes:
                break
            instant = time
            kept -= row.size
        held = self.buffer_size
        out = self._advance(self.clock.forced(instant))
        self.released_early += held - self.buffer_size
        return out

"""Event time for the oracle: which watermark a slice meets, and what the buffer of a stream lets go of.

It only knows what it was told, in the order of the ledger, and looks at all of it each time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class SourceClock:
    """Event-time progress of one source: no watermark before its first accepted event."""

    max_seen: int
    watermark: int
    arrival: int = 0  # of its last slice with an accepted event


class OracleProgress(NamedTuple):
    """How far a stream has come, of all its sources together."""

    watermark: int | None = None
    emitted: int = 0
    buffered_rows: int = 0
    buffered_bytes: int = 0
    released_early: int = 0


class Waiting(NamedTuple, Generic[Row]):
    time: int
    number: int  # in order of arrival
    size: int
    row: Row


class OracleClocks(Generic[Row]):
    """The sources of a stream, its watermark, and its rows in order of event time."""

    def __init__(self, tolerance: int, idle_timeout: int | None, max_bytes: int | None) -> None:
        self.declare(tolerance, idle_timeout, max_bytes)
        self.sources: dict[str, SourceClock] = {}
        self.watermark: int | None = None
        self.emitted = 0
        self.released_early = 0
        self.out: list[Row | int] = []  # rows, and watermarks between them
        self._waiting: list[Waiting[Row]] = []
        self._number = 0

    def declare(self, tolerance: int, idle_timeout: int | None, max_bytes: int | None) -> None:
        self.tolerance = tolerance
        self.idle_timeout = idle_timeout
        self.max_bytes = max_bytes

    def met(self, now: int) -> int | None:
        """The watermark as of an instant: idle sources are not waited for."""
        active = [s for s in self.sources.values() if not self._idle(s, now)]
        if not active and self.sources:  # all are idle: who was heard of last holds it
            last = max(s.arrival for s in self.sources.values())
            active = [s for s in self.sources.values() if s.arrival == last]
        found = [min(s.watermark for s in active)] if active else []
        return max([*found, *([] if self.watermark is None else [self.watermark])], default=None)

    def _idle(self, source: SourceClock, now: int) -> bool:
        return self.idle_timeout is not None and now - source.arrival >= self.idle_timeout

    def accept(self, source: str, arrival: int, rows: list[tuple[int, int, Row]]) -> None:
        """A slice was accepted: time, size and what it is of each row. One without a row leaves no trace."""
        if not rows:
            return
        self._move(self.met(arrival))
        for time, size, row in rows:
            if self.watermark is None or time > self.watermark:
                self._waiting.append(Waiting(time, self._number, size, row))
                self._number += 1
        self.sources[source] = self._heard(source, arrival, max(time for time, _, _ in rows))
        self._move(self.met(arrival))
        self._fit()

    def _heard(self, source: str, arrival: int, newest: int) -> SourceClock:
        known = self.sources.get(source)
        if known is None:
            return SourceClock(newest, newest - self.tolerance, arrival)
        seen = max(known.max_seen, newest)
        watermark = max(known.watermark, seen - self.tolerance)
        return SourceClock(seen, watermark, max(known.arrival, arrival))

    def _fit(self) -> None:
        """Above the bound, one instant after another is let go, the oldest first."""
        before, moved = len(self._waiting), self.watermark
        held = list(self._waiting)
        while self.max_bytes is not None and sum(w.size for w in held) > self.max_bytes:
            moved = min(w.time for w in held)
            held = [w for w in held if w.time > moved]
        self._move(moved)
        self.released_early += before - len(held)

    def _move(self, watermark: int | None) -> None:
        if watermark is None or watermark == self.watermark:
            return
        self.watermark = watermark
        self.emitted += 1
        self.out += [w.row for w in sorted(self._waiting, key=lambda w: w[:2]) if w.time <= watermark]
        self.out.append(watermark)
        self._waiting = [w for w in self._waiting if w.time > watermark]

    def waiting(self) -> list[Row]:
        """What is not released yet, in order: what a graceful stop lets out."""
        return [w.row for w in sorted(self._waiting, key=lambda w: w[:2])]

    def progress(self) -> OracleProgress:
        return OracleProgress(
            self.watermark,
            self.emitted,
            len(self._waiting),
            sum(w.size for w in self._waiting),
            self.released_early,
        )

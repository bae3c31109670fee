"""The watermark of a source (how far event time has come, which events are late), and that of a stream: the
lowest of its sources that are not idle. No watermark ever goes back.

Clocks are values, and pure functions of the slices: idleness is measured by their arrivals, never by a wall
clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Clock:
    """Event-time progress that tolerates a disorder of `tolerance` microseconds.

    There is no watermark before the first event. Absurd times must be rejected before a clock sees them: one
    event of the year 9000 would make everything after it late.
    """

    tolerance: int
    watermark: int | None = None
    max_seen: int | None = None

    def __post_init__(self) -> None:
        assert self.tolerance >= 0, self.tolerance

    def is_late(self, ts: int) -> bool:
        """Return whether `ts` is at or before the watermark; with tolerance 0 an equal timestamp is late."""
        return self.watermark is not None and ts <= self.watermark

    def advance(self, max_ts: int) -> Clock:
        """Return the clock after events up to `max_ts` were seen."""
        max_seen = max_ts if self.max_seen is None else max(self.max_seen, max_ts)
        target = max_seen - self.tolerance
        # A clock that is reopened with a larger tolerance has a target behind its watermark.
        watermark = target if self.watermark is None else max(self.watermark, target)
        return replace(self, watermark=watermark, max_seen=max_seen)


@dataclass(frozen=True, slots=True)
class SourceClock:
    """A source of a stream: its clock, and the arrival of its last slice."""

    clock: Clock
    arrival: int


@dataclass(frozen=True, slots=True)
class StreamClock:
    """Event-time progress of a stream."""

    tolerance: int
    idle_timeout: int | None = None  # None: a source is waited for without limit
    sources: Mapping[str, SourceClock] = field(default_factory=dict)
    watermark: int | None = None
    emitted: int = 0  # how often the watermark moved

    def __post_init__(self) -> None:
        assert self.idle_timeout is None or self.idle_timeout >= 0, self.idle_timeout

    def at(self, instant: int) -> StreamClock:
        """Return the clock at an arrival (or now), without sources that were silent for `idle_timeout` by
        then.

        If all are silent, those with the latest slice still hold the watermark.
        """
        watermarks = [s.clock.watermark for s in self._active(instant) if s.clock.watermark is not None]
        return self._moved(min(watermarks)) if watermarks else self

    def see(self, source: str, newest: int, arrival: int) -> StreamClock:
        """The clock after a slice of the source was accepted whose newest record is at `newest`. What the
        slice itself met is `at(arrival).watermark`."""
        before = self.at(arrival)
        known = self.sources.get(source, SourceClock(Clock(self.tolerance), arrival))
        # A tolerance that was declared later applies from here on; a clock never goes back because of it.
        clock = replace(known.clock, tolerance=self.tolerance).advance(newest)
        source_clock = SourceClock(clock, max(known.arrival, arrival))
        return replace(before, sources={**self.sources, source: source_clock}).at(arrival)

    def forced(self, watermark: int) -> StreamClock:
        """Return the clock after the buffer released everything up to `watermark`."""
        return self._moved(watermark)

    def _active(self, instant: int) -> list[SourceClock]:
        sources = list(self.sources.values())
        if self.idle_timeout is None or not sources:
            return sources
        active = [s for s in sources if instant < s.arrival + self.idle_timeout]
        last = max(s.arrival for s in sources)
        return active or [s for s in sources if s.arrival == last]

    def _moved(self, watermark: int) -> StreamClock:
        if self.watermark is not None and watermark <= self.watermark:
            return self
        return replace(self, watermark=watermark, emitted=self.emitted + 1)

"""The watermark of a stream: the lowest of its sources that are not idle. It never goes back.

A value, and a pure function of the slices: idleness is measured by their arrivals, never by a wall clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tidemill.eventtime.clock import Clock


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

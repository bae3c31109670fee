"""The watermark of a stream, from the recorded clocks of its sources and its progress.

It reads no row, so that a query for the watermark loads neither Arrow nor a table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tidemill.config import Stream
from tidemill.eventtime import Clock, SourceClock, StreamClock
from tidemill.storage.state.protocol import NO_PROGRESS, ClockState, Progress, State


@dataclass(frozen=True, slots=True)
class TimeRules:
    """What a stream declares about event time."""

    in_event_time: bool
    tolerance: int = 0
    idle_timeout: int | None = None
    max_bytes: int | None = None

    @classmethod
    def of(cls, stream: Stream) -> TimeRules:
        time = stream.event_time
        return cls(stream.in_event_time, time.late_tolerance, time.idle_timeout, time.max_buffer_bytes)


def stream_clock(
    tolerance: int,
    idle_timeout: int | None,
    clocks: Iterable[ClockState] = (),
    progress: Progress = NO_PROGRESS,
) -> StreamClock:
    """A stream's clock as its last accepted slice left it."""
    sources = {
        c.source: SourceClock(Clock(tolerance, c.watermark, c.max_seen), c.arrival)
        for c in sorted(clocks, key=lambda c: c.source)
    }
    return StreamClock(tolerance, idle_timeout, sources, progress.watermark, progress.emitted)


def watermark_at(
    stream: Stream, clocks: Sequence[ClockState], progress: Progress, instant: int
) -> int | None:
    """The watermark of a stream as of an instant at or after its last accepted slice: sources that are idle
    by then do not hold it back. In processing time it is the instant itself.

    It is unknown while slices that were sent back wait to be decided again; do not call this before they are.
    """
    rules = TimeRules.of(stream)
    if not rules.in_event_time:
        return instant
    return stream_clock(rules.tolerance, rules.idle_timeout, clocks, progress).at(instant).watermark


def watermark_of(stream: Stream, state: State, now: int) -> int | None:
    """The watermark of a stream as of `now`, or as of the oldest waiting slice: what that meets is not known
    yet."""
    pending = state.pending(stream.name, 1)[:1]
    instant = min(now, pending[0].slice.arrival) if pending else now
    return watermark_at(stream, state.clocks(stream.name), state.progress(stream.name), instant)


def idle_sources(stream: Stream, clocks: Sequence[ClockState], now: int) -> frozenset[str]:
    """Sources that were silent for `idle_timeout` by `now`."""
    timeout = stream.event_time.idle_timeout
    if timeout is None or not stream.in_event_time:
        return frozenset()
    return frozenset(clock.source for clock in clocks if now - clock.arrival >= timeout)

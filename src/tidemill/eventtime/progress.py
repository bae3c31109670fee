"""The watermark of a stream: the least of its sources' that are not idle, which never goes back.

A value, and a pure function of the slices that came by: idleness is told by their arrivals, never by a wall clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidemill.eventtime.clock import Clock


@dataclass(frozen=True, slots=True)
class SourceClock:
    """A source of a stream: its clock, and when it was heard of last."""

    clock: Clock
    arrival: int


@dataclass(frozen=True, slots=True)
class StreamClock:
    """Event-time progress of a stream."""

    tolerance: int
    idle_timeout: int | None = None  # None: a source is waited for for ever
    sources: Mapping[str, SourceClock] = field(default_factory=dict)
    watermark: int | None = None
    emitted: int = 0  # how often the watermark moved

    def at(self, instant: int) -> StreamClock:
        """As it stands at an arrival (or now): sources that fell silent for `idle_timeout` by then have left. When all
        of them have, those that were heard of last still hold it."""
        raise NotImplementedError

    def see(self, source: str, newest: int, arrival: int) -> StreamClock:
        """After a slice of the source was accepted whose newest record is of `newest`. What the slice itself met is
        `at(arrival).watermark`."""
        raise NotImplementedError

    def forced(self, watermark: int) -> StreamClock:
        """The buffer let go of everything up to `watermark`."""
        raise NotImplementedError

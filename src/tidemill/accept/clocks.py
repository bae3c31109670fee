"""The watermarks of a stream's sources while its slices come by, in the order of the ledger.

What a slice met is on record once it was judged; only those that are judged now are met by something new.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from tidemill.eventtime import Clock
from tidemill.model.slices import SliceEntry
from tidemill.state.protocol import ClockState


class Clocks:
    """One clock for each source; there is none before its first accepted event."""

    def __init__(self, tolerance: int, states: Iterable[ClockState] = ()) -> None:
        self._new = Clock(tolerance)
        self._clocks = {c.source: Clock(tolerance, c.watermark, c.max_seen) for c in states}

    def met(self, source: str) -> int | None:
        """The watermark that a slice of the source meets now."""
        return self._clocks.get(source, self._new).watermark

    def see(self, source: str, newest: int) -> None:
        """Events up to `newest` were accepted from the source."""
        self._clocks[source] = self._clocks.get(source, self._new).advance(newest)

    def recall(self, entry: SliceEntry) -> None:
        """An accepted slice comes by as it once did: what it met is taken from the record, so that a
        tolerance that was declared since changes nothing about it."""
        if entry.observed is not None:
            clock = self._clocks.get(entry.slice.source, self._new)
            self._clocks[entry.slice.source] = replace(clock, watermark=entry.watermark).advance(
                entry.observed.end - 1
            )

    def states(self, sources: Collection[str]) -> list[ClockState]:
        return [
            ClockState(source, clock.max_seen, clock.watermark)
            for source, clock in sorted(self._clocks.items())
            if source in sources and clock.max_seen is not None and clock.watermark is not None
        ]

"""What the mill says it did, and where a stream stands. Plain values: nothing here does anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidemill.state.protocol import ClockState

if TYPE_CHECKING:
    from tidemill.accept.batch import Batch
    from tidemill.events.delivery import Delivered
    from tidemill.rollups.roller import Rebuilt
    from tidemill.windows.builder import Outcome
    from tidemill.windows.coordinator import Coordinated


@dataclass(frozen=True, slots=True)
class StreamTick:
    """What one round did for one stream."""

    stream: str
    batch: Batch | None = None
    tiles: Sequence[Rebuilt] = ()
    merged_runs: int = 0
    windows: Coordinated | None = None  # None: it has no windows

    @property
    def idle(self) -> bool:
        return self.batch is None and not self.tiles and (self.windows is None or self.windows.idle)


@dataclass(frozen=True, slots=True)
class TickReport:
    """What one round did."""

    now: int
    streams: Sequence[StreamTick]
    seconds: float
    builds: Sequence[Outcome] = ()
    delivered: Sequence[Delivered] = ()

    @property
    def idle(self) -> bool:
        told = any(sink.delivered for sink in self.delivered)
        return all(stream.idle for stream in self.streams) and not self.builds and not told


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """Where a stream stands; from maintained totals, so it costs the same however long its history."""

    stream: str
    totals: dict[str, int]
    clocks: Sequence[ClockState]
    watermark: int | None
    stale_tiles: int
    raw_parts: int
    raw_rows: int
    quarantine_rows: int
    tiles: dict[str, int] = field(default_factory=dict)  # level -> tiles
    windows: dict[str, int] = field(default_factory=dict)  # phase -> windows; empty: it has none

"""Reports of what the mill did, and of the status of a stream. Plain values and how they are read from the
state; nothing here changes anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidemill.storage.state.protocol import ClockState, Progress

if TYPE_CHECKING:
    from tidemill.model.completeness import Pending
    from tidemill.model.errors import TidemillError
    from tidemill.model.expiry import ExpiryStep
    from tidemill.outputs.contract import Refreshed
    from tidemill.outputs.datasets.builder import BuildOutcome
    from tidemill.outputs.datasets.coordinator import Coordinated
    from tidemill.outputs.index.indexer import Indexed
    from tidemill.outputs.rollups.roller import Rebuilt
    from tidemill.outputs.vectors.chainer import ChainRound, ChainStatus
    from tidemill.outputs.windows.refresh import WindowRefresh as WindowRefreshed
    from tidemill.pipeline.events.delivery import Delivered
    from tidemill.raw.accept.batch import Batch
    from tidemill.raw.compaction.column_rewrite import RemadeColumns
    from tidemill.raw.compaction.packer import PackRound
    from tidemill.storage.state.faults import Fault


@dataclass(frozen=True, slots=True)
class StreamTick:
    """What one round did for one stream."""

    stream: str
    batch: Batch | None = None
    tiles: Sequence[Rebuilt] = ()
    merged_runs: int = 0
    compressed: int = 0  # slices that were looked at to compress their files, in a round without other work
    compacted: int = 0  # parts of rollups that were merged, in a round without other work
    windows: Coordinated | None = None  # None: it has no windows
    indexed: Indexed | None = None  # None: nothing is indexed
    packed: PackRound | None = None  # None: nothing is packed
    columns: RemadeColumns | None = None  # of raw; None: they are as declared
    chains: ChainRound | None = None  # None: it has no vectors
    damaged: int = 0  # datasets that were deleted or damaged
    others: Mapping[str, Refreshed] = field(default_factory=dict)  # other outputs, by name

    @property
    def idle(self) -> bool:
        parts = (self.windows, self.indexed, self.packed, self.columns, self.chains, *self.others.values())
        worked = self.batch is not None or self.tiles or self.compacted
        return not worked and all(part is None or part.idle for part in parts)


@dataclass(frozen=True, slots=True)
class TickReport:
    """What one round did."""

    now: int
    streams: Sequence[StreamTick]
    seconds: float
    builds: Sequence[BuildOutcome] = ()
    delivered: Sequence[Delivered] = ()
    results: Mapping[str, Sequence[WindowRefreshed]] = field(
        default_factory=dict
    )  # of streaming windows, by stream
    expired: Sequence[ExpiryStep] = ()  # what expired
    faults: Sequence[Fault] = ()  # of streams and outputs that could not be worked on; the others were
    errors: Sequence[TidemillError] = ()  # what was wrong with them

    @property
    def idle(self) -> bool:
        has_delivered = any(sink.delivered for sink in self.delivered)
        came_out = any(not one.idle for done in self.results.values() for one in done)
        went_on = self.builds or has_delivered or came_out or self.expired
        return all(stream.idle for stream in self.streams) and not went_on

    @property
    def rest(self) -> int | None:
        """How long the next round may wait, for streams that wait for more slices to pack; None: no limit.
        While slices are compressed, the next round begins at once."""
        if any(one.compressed for one in self.streams):
            return 0
        return min((one.packed.again for one in self.streams if one.packed is not None), default=None)


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """The progress of one source of a stream."""

    source: str
    watermark: int
    max_seen: int
    arrival: int  # of its last slice with an accepted record
    idle: bool  # silent for `idle_timeout`: the stream's watermark does not wait for it


def source_statuses(clocks: Sequence[ClockState], idle: frozenset[str]) -> list[SourceStatus]:
    return [
        SourceStatus(one.source, one.watermark, one.max_seen, one.arrival, one.source in idle)
        for one in clocks
    ]


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """The status of a stream; from maintained totals, so that its cost does not depend on the history. Only
    for what waits to be packed the footers of packed parts are read, and those are few."""

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
    outdated_windows: int = 0  # evaluated by other rules or columns than those declared now
    progress: Progress = field(default_factory=Progress)
    idle: frozenset[str] = frozenset()  # sources
    event_time: bool = True  # False: the arrival is the time of an event
    sealed: int | None = None  # raw before this instant has expired
    index_parts: int | None = None  # None: nothing is indexed
    unindexed_parts: int = 0  # parts of raw without an index: not yet, or no longer
    retry_at: int | None = None  # when the first of the failed slices is tried again
    manifests: Mapping[str, int] = field(default_factory=dict)  # slices that they list, by status
    packed_parts: int = 0  # of raw
    fresh_parts: int = 0  # of raw, with rows that are not packed
    unpacked_slices: int = 0  # that wait for a full group
    stale_parts: int = 0  # of raw, whose columns are of another declaration …
    stale_rows: int = 0  # … and their rows
    chains: ChainStatus | None = None  # None: it has no vectors
    late_dropped: int = 0  # late rows that a window, or ordered output without windows, left out
    faults: Sequence[Fault] = ()  # what cannot be worked on, and why
    pending: tuple[Pending, ...] = ()  # what its answers do not include yet

    @property
    def sources(self) -> list[SourceStatus]:
        return source_statuses(self.clocks, self.idle)

    @property
    def max_seen(self) -> int | None:
        """The newest event time of all sources."""
        return max((clock.max_seen for clock in self.clocks), default=None)

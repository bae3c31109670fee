"""From an event id to everything about it: its arrivals, its row, and the outputs that contain it.

It only reads, and starts no JVM. An output is a function of a set of slices, so it contains an event if the
slice that the event was accepted from is in that set.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

from tidemill.model.errors import InputError, NotFoundError
from tidemill.model.levels import LEVELS, Level, TileKey
from tidemill.model.slices import RecordOutcome
from tidemill.model.time import Interval, align, from_datetime
from tidemill.model.windows import Dataset, WindowKey, WindowStatus

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemill.config import Stream
    from tidemill.outputs.rollups.planning import Horizons
    from tidemill.outputs.windows.trace import TracedResult
    from tidemill.pipeline.workers import Workers
    from tidemill.raw.arrivals import Arrival, SearchedSlices

# Imports inside functions keep start-up short: reading the state loads neither Arrow nor Delta.

CURRENT: Final = "current"
STALE: Final = "stale"
NOT_BUILT: Final = "not_built"
EXPIRED: Final = "expired"


@dataclass(frozen=True, slots=True)
class TracedTile:
    """A bucket that counts an event, and its tile."""

    metric: str
    kind: str
    group: Mapping[str, object]
    level: Level
    bucket: int
    tile: int
    revision: int
    hash: str | None
    state: str  # current, stale, not_built or expired


@dataclass(frozen=True, slots=True)
class TracedWindow:
    """The aggregation window of an event: each revision of its dataset, and whether the event is in it."""

    key: WindowKey
    status: WindowStatus
    current: int | None  # the current revision, if there is one
    revisions: Sequence[tuple[Dataset, bool]]


@dataclass(frozen=True, slots=True)
class EventTrace:
    """The trace of one event of one tenant of one stream."""

    stream: str
    tenant: str | None  # None: no record of it names one
    arrivals: Sequence[Arrival]
    row: Mapping[str, object] | None  # of raw; None: it was not accepted, or has expired
    tiles: Sequence[TracedTile]
    windows: Sequence[TracedWindow]
    results: Sequence[TracedResult]
    quarantine: pa.Table
    searched: SearchedSlices


def trace(workers: Workers, event_id: str, streams: Sequence[str], tenant: str | None) -> list[EventTrace]:
    """The traces in each of `streams` and for each tenant that has the id; NotFoundError if there are
    none."""
    if not event_id:
        raise InputError("an event id must be a non-empty string", hint="paste the id of an event")
    found = [one for name in streams for one in _Tracer(workers, name).of(event_id, tenant)]
    if not found:
        named = ", ".join(streams) or "none"
        raise NotFoundError(
            f"no event has the id {event_id[:100]!r}",
            hint=f"streams that were searched: {named}; `tidemill search` finds events by their content",
        )
    return found


class _Tracer:
    """Traces events of one stream."""

    def __init__(self, workers: Workers, stream: str) -> None:
        self._workers = workers
        self._warehouse = workers.warehouse
        self._state = workers.state
        self._stream: Stream = workers.project.stream(stream)

    def of(self, event_id: str, tenant: str | None) -> Iterator[EventTrace]:
        import pyarrow.compute as pc

        from tidemill.raw.arrivals import arrivals_of

        tenants = self._tenants(tenant)
        found = arrivals_of(self._warehouse, self._stream, event_id, tenants, whole=tenant is None)
        for name in dict.fromkeys(one.tenant for one in found.arrivals):
            arrivals = [one for one in found.arrivals if one.tenant == name]
            held = found.quarantine.column("tenant")
            matches = pc.is_null(held) if name is None else pc.fill_null(pc.equal(held, name), False)
            quarantine = found.quarantine.filter(matches)
            yield self._traced(name, arrivals, quarantine, found.searched)

    def _tenants(self, tenant: str | None) -> list[str]:
        from tidemill.query.service import tables_with_tenants
        from tidemill.query.tenants import tenants_of

        declared = self._stream.tenant.value
        if tenant is not None:
            return [tenant] if declared in (None, tenant) else []
        if declared is not None:
            return [declared]
        return sorted(tenants_of(list(tables_with_tenants(self._warehouse, self._stream.name))))

    def _traced(
        self, tenant: str | None, arrivals: Sequence[Arrival], quarantine: pa.Table, searched: SearchedSlices
    ) -> EventTrace:
        from tidemill.raw.arrivals import row_of

        name, accepted = self._stream.name, RecordOutcome.ACCEPTED.value
        first = next((one for one in arrivals if one.outcome == accepted), None)
        row = row_of(self._warehouse.snapshot("raw", name), first) if first is not None else None
        if row is None or first is None:
            return EventTrace(name, tenant, arrivals, row, (), (), (), quarantine, searched)
        windows = list(self._windows(row)) if self._stream.aggregation_span is not None else []
        tiles = list(self._tiles(row)) if self._stream.metrics else []
        return EventTrace(
            name, tenant, arrivals, row, tiles, windows, list(self._results(row)), quarantine, searched
        )

    # -- tiles

    def _tiles(self, row: Mapping[str, object]) -> Iterator[TracedTile]:
        from tidemill.outputs.rollups.planning import horizons_of

        at = _instant(row["event_time"])
        horizons = horizons_of(self._warehouse, self._stream.name)
        stale = [tile.state.key.start for tile in self._state.stale_tiles(self._stream.name)]
        counted = list(self._counted(row))
        for level in LEVELS:
            key = TileKey(level.name, level.tile_of(at))
            known = self._state.tiles(self._stream.name, level.name, Interval(key.start, key.start + 1))
            revision, digest = (known[0].revision, known[0].hash) if known else (0, None)
            state = _tile_state(key, level, digest, stale, horizons)
            bucket = align(at, level.width)
            for metric, group in counted:
                kind = self._stream.metrics[metric].kind
                yield TracedTile(metric, kind, group, level, bucket, key.start, revision, digest, state)

    def _counted(self, row: Mapping[str, object]) -> Iterator[tuple[str, Mapping[str, object]]]:
        """The metrics that count the event, each with the values of its dimensions there."""
        import pyarrow as pa

        from tidemill.outputs.rollups.spec import spec_for
        from tidemill.query.raw_events import RawEvents
        from tidemill.raw.tables import RAW

        raw = RawEvents(self._warehouse.root, self._stream, self._workers.project.limits, None)
        at = _instant(row["event_time"])
        rows = raw.counted(pa.Table.from_pylist([dict(row)], schema=RAW), Interval(at, at + 1))
        if rows is None:
            return
        spec = spec_for(self._stream)
        seen: list[tuple[str, Mapping[str, object]]] = []
        for made in rows.to_pylist():
            metric = spec.metric(made["metric"])
            one = (metric.name, {each.column: made[each.column] for each in metric.dimensions})
            if one not in seen:
                seen.append(one)
                yield one

    # -- datasets

    def _windows(self, row: Mapping[str, object]) -> Iterator[TracedWindow]:
        at = _instant(row["event_time"])
        try:
            details = self._workers.windows.window(self._stream.name, at)
        except NotFoundError:  # it has expired, or no round has evaluated it yet
            return
        window = details.view.window
        holding = self._holding(str(row["slice"]), int(str(row["line"])), at)
        revisions = [(one, bool(holding.intersection(one.slices))) for one in details.revisions]
        current = window.revision if details.view.current else None
        yield TracedWindow(window.key, details.view.status, current, revisions)

    def _holding(self, slice_id: str, line: int, at: int) -> frozenset[str]:
        """Names under which the row counts in a dataset: its own slice, and an earlier arrival that could not
        be read in time and repeats it."""
        entry = self._state.slice(slice_id)
        names = {entry.name} if entry is not None else set()
        details = self._workers.windows.window(self._stream.name, at)
        for member in details.members:
            for repeat in member.repeats:
                if repeat.slice == slice_id and any(low <= line <= high for low, high in repeat.lines):
                    names.add(member.name)
        return frozenset(names)

    # -- streaming windows

    def _results(self, row: Mapping[str, object]) -> Iterator[TracedResult]:
        from tidemill.outputs.windows.trace import TracedRow, results_with

        raw = self._warehouse.snapshot("raw", self._stream.name)
        if raw is None:
            return
        watermark = row["watermark"]
        traced = TracedRow(
            tenant=str(row["tenant"]),
            time=_instant(row["event_time"]),
            watermark=None if watermark is None else _instant(watermark),
            slice=str(row["slice"]),
            payload=str(row["payload"]),
        )

        @cache
        def names(slice_id: str) -> tuple[int, str] | None:
            entry = self._state.slice(slice_id)
            return None if entry is None else (entry.seq, entry.name)

        for spec in self._stream.window_specs:
            try:
                yield from results_with(self._warehouse.root, self._stream, spec, traced, raw, names)
            except NotFoundError:  # its results are of another declaration: the next round makes them again
                continue


def _instant(value: object) -> int:
    from datetime import datetime

    assert isinstance(value, datetime), value
    return from_datetime(value)


def _tile_state(
    key: TileKey, level: Level, digest: str | None, stale: Sequence[int], horizons: Horizons
) -> str:
    if horizons.expired(key):
        return EXPIRED
    if digest is None:
        return NOT_BUILT
    return STALE if any(key.start <= start < key.start + level.tile for start in stale) else CURRENT

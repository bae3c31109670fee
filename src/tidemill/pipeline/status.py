"""The status of a stream. It only reads, and starts no JVM."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from tidemill.model.errors import InputError
from tidemill.model.slices import SliceStatus
from tidemill.pipeline.reports import StreamStatus
from tidemill.query.service import arrivals
from tidemill.raw.compaction.column_rewrite import StaleColumns
from tidemill.raw.part_names import is_settled
from tidemill.raw.tail.late import LateCounts
from tidemill.raw.watermark import idle_sources
from tidemill.storage.state.faults import Fault, fault_by, faults_of

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemill.model.time import Interval
    from tidemill.outputs.datasets.timeline import Timeline
    from tidemill.pipeline.workers import Workers
    from tidemill.raw.quarantine import Place
    from tidemill.storage.tables.snapshot import Part

# Imports inside functions keep start-up short: reading the state loads neither Arrow nor Delta.


FAILED_LOOKED_AT: Final = 1000

Seen = TypeVar("Seen")
Other = TypeVar("Other")  # shown if something cannot be read


def status_of(workers: Workers, stream: str) -> StreamStatus:
    """The status of a stream. What cannot be read because files are damaged is left out and reported."""
    reading = _StreamReading(workers, stream)
    raw = reading.at("raw", lambda: workers.warehouse.snapshot("raw", stream), None)
    quarantine = reading.at("quarantine", lambda: workers.warehouse.snapshot("quarantine", stream), None)
    parts = raw.parts if raw is not None else ()
    declared, clocks = workers.project.stream(stream), workers.state.clocks(stream)
    indexed, unindexed = reading.at("index", lambda: _index_counts(workers, stream, parts), (0, 0))
    packed = sum(map(is_settled, parts))
    totals = dict(workers.state.totals(stream))
    late = reading.at("raw", lambda: LateCounts(workers.feed).of(stream, totals["late"]).dropped, 0)
    waiting = reading.at("pack", lambda: workers.packer.waiting(stream)[stream], 0)
    stale = reading.at("raw", lambda: workers.packer.stale(stream), StaleColumns())
    chains = reading.at("chains", lambda: workers.chains.current(stream), None)
    manifests = reading.at("sources", lambda: workers.sources.counts(declared), {})
    pending = reading.at(
        "raw",
        lambda: arrivals(workers.warehouse, stream, None, tiles=bool(declared.metrics)).pending,
        (),
    )
    return StreamStatus(
        stream=stream,
        totals=totals,
        clocks=clocks,
        watermark=workers.watermark(stream),
        stale_tiles=len(workers.state.stale_tiles(stream)) if declared.metrics else 0,
        raw_parts=len(parts),
        raw_rows=raw.rows if raw is not None else 0,
        quarantine_rows=quarantine.rows if quarantine is not None else 0,
        tiles=dict(workers.state.tile_counts(stream)),
        windows=_window_counts(workers, stream),
        outdated_windows=workers.windows.outdated(stream) if declared.aggregation_span is not None else 0,
        progress=workers.state.progress(stream),
        idle=idle_sources(declared, clocks, workers.warehouse.clock()),
        event_time=declared.in_event_time,
        sealed=reading.at("retention", lambda: workers.warehouse.expiries.seal(stream), None),
        index_parts=indexed,
        unindexed_parts=unindexed,
        packed_parts=packed,
        fresh_parts=sum(part.rows > 0 for part in parts) - packed,
        unpacked_slices=waiting,
        stale_parts=stale.parts,
        stale_rows=stale.rows,
        retry_at=_next_try(workers, stream) if totals["failed_slices"] else None,
        manifests=manifests,
        chains=chains,
        faults=reading.faults(),
        late_dropped=late,
        pending=pending,
    )


class _StreamReading:
    """Reads the files of a stream; errors become faults, which its rounds may not have met yet."""

    def __init__(self, workers: Workers, stream: str) -> None:
        self._workers = workers
        self._stream = stream
        self._met: dict[str, Fault] = {}

    def at(self, output: str, read: Callable[[], Seen], otherwise: Other) -> Seen | Other:
        try:
            return read()
        except Exception as error:  # noqa: BLE001 - `status` is for the day when something is wrong
            now = self._workers.warehouse.clock()
            self._met.setdefault(output, fault_by(error, self._stream, output, self._workers.root, now))
            return otherwise

    def faults(self) -> list[Fault]:
        """Recorded faults, and new ones about other files."""
        recorded = faults_of(self._workers.state, self._stream)
        files = {fault.file for fault in recorded}
        return [*recorded, *(fault for fault in self._met.values() if fault.file not in files)]


def _next_try(workers: Workers, stream: str) -> int | None:
    """When the first of the failed slices (of the newest, if there are very many) is tried again."""
    failed = workers.state.slices(stream, SliceStatus.FAILED, newest=True, limit=FAILED_LOOKED_AT)
    return min((entry.tried_next for entry in failed if entry.tried_next is not None), default=None)


def _index_counts(workers: Workers, stream: str, raw: Sequence[Part]) -> tuple[int | None, int]:
    """Parts of the index, and parts of raw without one."""
    paths = workers.project.stream(stream).indexed
    if not paths:
        return None, 0
    from tidemill.outputs.index.table import index_path

    found = workers.warehouse.snapshot("index", stream)
    in_index = found.by_name if found is not None else {}
    return len(in_index), sum(index_path(part, paths) not in in_index for part in raw if part.rows)


def _window_counts(workers: Workers, stream: str) -> dict[str, int]:
    if workers.project.stream(stream).aggregation_span is None:
        return {}
    return {phase.value: count for phase, count in workers.state.window_counts(stream).items()}


def timeline_of(workers: Workers, stream: str, span: Interval | None, limit: int) -> Timeline:
    """Windows over time; InputError for a stream that has none."""
    from tidemill.outputs.datasets.timeline import MOST_LISTED, timeline

    declared = workers.project.stream(stream)
    if declared.aggregation_span is None:
        raise InputError(f"stream {stream} declares no windows", hint="give it an aggregation_span")
    if not 1 <= limit <= MOST_LISTED:
        raise InputError(f"a limit of {limit} is not possible", hint=f"limit is 1 to {MOST_LISTED:,}")
    return timeline(workers.windows, workers.state, stream, declared.aggregation_span, span, limit)


def quarantined(
    workers: Workers,
    stream: str,
    reason: str | None,
    slice: str | None,
    limit: int | None,
    after: Place | None,
    tenant: str | None,
    outcome: str | None = None,
) -> pa.Table:
    """Rows of quarantine. If a stream belongs to one tenant, so do records that name none."""
    from tidemill.raw.quarantine import read_quarantine
    from tidemill.raw.quarantine_tenants import rows_of_tenant

    def metadata(slice_id: str) -> str | None:
        entry = workers.state.slice(slice_id)
        return entry.slice.metadata if entry is not None else None

    declared = workers.project.stream(stream).tenant
    of = rows_of_tenant(tenant, metadata) if tenant is not None and declared.value != tenant else None
    found = workers.warehouse.slice(slice).id if slice is not None else None
    held = workers.warehouse.snapshot("quarantine", stream)
    return read_quarantine(
        held, reason=reason, slice_id=found, limit=limit, after=after, of=of, outcome=outcome
    )


def published_events(
    workers: Workers, after: int, limit: int, stream: str | None
) -> list[tuple[int, dict[str, object]]]:
    """CloudEvents of the outbox after an offset, each with its own."""
    from tidemill.pipeline.events.cloudevents import cloud_event

    if stream is not None:
        workers.project.stream(stream)
    source, warehouse = workers.project.events.source, workers.root
    found = workers.state.outbox(after, limit, stream)
    return [(event.seq, cloud_event(event, source, warehouse)) for event in found]

"""Rows of rollups made from the events of raw, for the ends of spans that no bucket fits.

The kernels are those that make the 5s tiles, so a row made here is the same as in a bucket of just these
events. They are imported only when there is an event to read. It only reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidemill.model.errors import StorageError
from tidemill.model.levels import BASE
from tidemill.model.time import Interval, align
from tidemill.query.plan_sql import WIDTH
from tidemill.query.source import RawRequest, RawRows

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from tidemill.config import Limits, Stream
    from tidemill.formats.read_plan import ReadPlan
    from tidemill.outputs.rollups.spec import Metric, RollupSpec
    from tidemill.outputs.rollups.state_history import Recollection
    from tidemill.query.column_cache import KeptColumns
    from tidemill.query.raw_scan import FoundRows, RawScan
    from tidemill.storage.tables.snapshot import Part, Range, Snapshot

# Imports inside functions keep start-up short: an answer from rollups loads neither Numba nor what reads raw.

KNOWN: Final = ("tenant", "event_time", "event_id", "slice", "line")  # columns that raw has of every event
_TRIES: Final = 5  # observation files may be merged meanwhile: then the current ones are read
_NEVER: Final = RawRows(None)
_MAX_KEPT: Final = 200_000  # rows of a part whose times are cached
_AT_ONCE: Final = 100_000  # events that become rows together


@dataclass(frozen=True, slots=True)
class RawEvents:
    """The raw table of one stream at one version, with its state history and admitted keys."""

    warehouse: Path
    stream: Stream
    limits: Limits
    snapshot: Snapshot | None  # None: nothing was ever accepted
    columns: KeptColumns | None = None  # event times of parts that were read before

    def rows(self, request: RawRequest) -> RawRows:
        parts = list(self._parts(request))
        if not parts or self.snapshot is None:
            return _NEVER
        seen = sum(part.rows for part in parts)
        made: list[pa.Table] = []
        # A metric of objects needs to see all events of one together; short spans have few events.
        long = request.filter is not None or request.past is not None
        at_once = None if not long or self._follows(request) else _AT_ONCE
        whole = None
        for events in _batches(self._events(request), at_once):
            whole = whole or self._spec
            rows = self._made(request, whole, events)
            if rows is None:
                return RawRows(None, len(parts), seen, is_known=False)
            made.append(rows)
        return RawRows(_joined(made), len(parts), seen)

    def _events(self, request: RawRequest) -> Iterator[pa.Table]:
        """The events with the columns that metrics use, as d0 …, m0 …, in any order."""
        from tidemill.outputs.rollups.events import with_columns

        plan = self._plan
        columns = KNOWN if self._names_events(request) else ("tenant", "event_time")
        scan = self._scan(request, columns, coded=True)
        yield from scan.rows(
            self._paths(request), lambda found: with_columns(plan, found.table, found.fields)
        )

    def found_rows(self, request: RawRequest, more: Sequence[str] = ()) -> Iterator[FoundRows]:
        """The events, a row group at a time, with the columns that metrics use and `more` columns of raw."""
        yield from self._scan(request, [*KNOWN, *more]).rows(self._paths(request), lambda found: found)

    def _scan(self, request: RawRequest, columns: Sequence[str], *, coded: bool = False) -> RawScan:
        from tidemill.outputs.rollups.events import fields_of
        from tidemill.query.raw_scan import RawScan

        return RawScan(request, fields_of(self._plan), columns, coded=coded)

    def _paths(self, request: RawRequest) -> list[str]:
        parts = list(self._parts(request))
        return self.snapshot.paths(parts) if parts and self.snapshot is not None else []

    def with_payloads(self, request: RawRequest, more: Sequence[str]) -> Iterator[pa.Table]:
        """The events as they were sent, a row group at a time, with `more` columns of raw."""
        from tidemill.formats.payload_columns import columns_in
        from tidemill.query.raw_scan import RawScan

        scan = RawScan(request, columns_in(()), [*KNOWN, *more], payload=True)
        yield from scan.rows(self._paths(request), lambda found: found.table)

    @property
    def _plan(self) -> ReadPlan:
        from tidemill.formats.read_plan import plan_for
        from tidemill.outputs.rollups.events import metric_plan

        return metric_plan(plan_for(self.stream, self.limits))

    def _names_events(self, request: RawRequest) -> bool:
        """Whether one of the metrics uses the ids of events, not only their values. Ids take longer to read
        than all other columns."""
        return any(self.stream.metrics[name].kind in ("gauge", "state") for name in request.metrics)

    def _follows(self, request: RawRequest) -> bool:
        """Whether one of the metrics is about objects and their states."""
        return any(self.stream.metrics[name].kind == "state" for name in request.metrics)

    def counted(self, events: pa.Table, span: Interval) -> pa.Table | None:
        """The rows that rollups of all metrics would have for these events of `span` alone; None if they
        depend on a state history that is not built yet."""
        from tidemill.outputs.rollups.events import with_columns

        request = RawRequest(frozenset(self.stream.metrics), None, [span])
        made = self._made(request, self._spec, with_columns(self._plan, events))
        return made.drop_columns(WIDTH) if made is not None else None

    def _parts(self, request: RawRequest) -> Iterator[Part]:
        """Parts that can hold an event of a span, by their statistics alone."""
        if self.snapshot is None or not request.spans:
            return
        ranges: dict[str, Range] = {"event_time": (request.spans[0].start, request.spans[-1].end - 1)}
        if request.tenant is not None:
            ranges["tenant"] = (request.tenant, request.tenant)
        for part in self.snapshot.select(ranges=ranges):
            spans = [span for span in request.spans if part.may_hold("event_time", span.start, span.end - 1)]
            if spans and self._holds(part, spans):
                yield part

    def _holds(self, part: Part, spans: Sequence[Interval]) -> bool:
        """Whether an event of the part is in one of the spans, which are short and mostly hold none; True
        also if finding out would cost as much as reading the part."""
        if self.columns is None or not self.columns.is_used or part.rows > _MAX_KEPT or self.snapshot is None:
            return True
        (path,) = self.snapshot.paths([part])
        time = self.columns.read(path, ["event_time"])["event_time"].view("int64").to_numpy()
        return any(((time >= span.start) & (time < span.end)).any() for span in spans)

    @property
    def _spec(self) -> RollupSpec:
        from tidemill.outputs.rollups.spec import spec_for

        return spec_for(self.stream)

    def _made(self, request: RawRequest, whole: RollupSpec, read: pa.Table) -> pa.Table | None:
        """The rows; None if they depend on a state history that is not built yet."""
        import pyarrow as pa

        spec = _only(whole, request.metrics)
        time = read.column("event_time").cast(pa.int64()).to_numpy()
        pieces = [
            (span, _chosen_rows(read, (time >= span.start) & (time < span.end))) for span in request.spans
        ]
        if not spec.in_order:
            return pa.concat_tables(_rows(spec, span, piece, request.width, None) for span, piece in pieces)
        until = None if request.past is None else request.past.offset + 1
        return self._remembering(whole, spec, pieces, request.width, until)

    def _remembering(
        self,
        whole: RollupSpec,
        spec: RollupSpec,
        pieces: Sequence[tuple[Interval, pa.Table]],
        width: int,
        until: int | None,
    ) -> pa.Table | None:
        """The rows, with observations at ledger offsets below `until`, or all."""
        import pyarrow as pa

        from tidemill.outputs.rollups.state_history import recollect

        for _ in range(_TRIES):
            known = recollect(self.warehouse, whole)
            if known is None:
                return None
            try:
                return pa.concat_tables(
                    _rows(spec, span, piece, width, known, until) for span, piece in pieces
                )
            except FileNotFoundError:
                continue  # merged into another since the log was read
        raise StorageError(
            "the state history changes faster than it can be read",
            hint="try again; if it stays, `tidemill repair --explain` says what is damaged",
        )


def _chosen_rows(events: pa.Table, chosen: NDArray[np.bool_]) -> pa.Table:
    import pyarrow as pa

    return events if chosen.all() else events.filter(pa.array(chosen))


def _only(spec: RollupSpec, metrics: frozenset[str]) -> RollupSpec:
    return replace(spec, metrics=tuple(each for each in spec.metrics if (each.of or each.name) in metrics))


def _joined(made: Sequence[pa.Table]) -> pa.Table | None:
    import pyarrow as pa

    return pa.concat_tables(made) if made else None


def _batches(events: Iterator[pa.Table], at_once: int | None) -> Iterator[pa.Table]:
    """Tables of at least so many events, except for the last; None: one table of all."""
    found: list[pa.Table] = []
    for table in events:
        found.append(table)
        if at_once is not None and sum(each.num_rows for each in found) >= at_once:
            yield _together(found)
            found = []
    if found:
        yield _together(found)


def _together(tables: Sequence[pa.Table]) -> pa.Table:
    import pyarrow as pa

    if len({tuple(table.column_names) for table in tables}) > 1:
        # Only tables with a value that does not fit its type have the column that says so.
        return pa.concat_tables(tables, promote_options="default").unify_dictionaries().combine_chunks()
    return pa.concat_tables(tables).unify_dictionaries().combine_chunks()


def _rows(
    spec: RollupSpec,
    span: Interval,
    events: pa.Table,
    width: int,
    known: Recollection | None,
    until: int | None = None,
) -> pa.Table:
    """The rows of the events of one span. No bucket starts before it."""
    import pyarrow as pa

    from tidemill.outputs.rollups.cells import accumulate
    from tidemill.outputs.rollups.rows import to_rows

    cells = dict(accumulate(spec, events, width))
    if known is not None:
        cells = dict(known.admitted(cells))
        for metric in spec.metrics:
            if metric.following is not None:
                cells[metric.name] = _states(metric, span, events, known, until)
    rows = to_rows(spec, cells)
    at = rows.schema.get_field_index("bucket")
    starts, widths = _bounds(spec, events, rows, span.start, width)
    rows = rows.set_column(at, "bucket", pa.array(starts).cast(rows.column(at).type))
    return rows.append_column(WIDTH, pa.array(widths))


def _bounds(
    spec: RollupSpec, events: pa.Table, rows: pa.Table, start: int, width: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where the buckets of rows start, and their widths: of wide buckets only what is between the first and
    the last event of their metric, in 5s buckets."""
    import numpy as np
    import pyarrow as pa

    from tidemill.formats.arrow import one
    from tidemill.outputs.rollups.events import passing

    starts = one(rows.column("bucket")).cast(pa.int64()).to_numpy()
    ends = starts + BASE.width
    if width > BASE.width:
        time = one(events.column("event_time")).cast(pa.int64()).to_numpy()
        names = one(rows.column("metric"))
        starts, code = starts.copy(), names.indices.to_numpy()
        for metric in spec.metrics:
            of_metric = code == names.dictionary.index(metric.name).as_py()
            if metric.following is not None or not of_metric.any():
                continue  # changes of states have their own buckets
            mask = passing(metric, events)
            counted = time if mask is None else time[mask]
            last = align(int(counted.max()), BASE.width) + BASE.width
            ends[of_metric] = np.minimum(starts[of_metric] + width, last)
            first = align(int(counted.min()), BASE.width)
            starts[of_metric] = np.maximum(starts[of_metric], first)
    starts = np.maximum(starts, start)
    return starts, ends - starts


def _states(
    metric: Metric, span: Interval, events: pa.Table, known: Recollection, until: int | None
) -> pa.Table:
    """State rows: which objects were seen is read from raw, their earlier states from the state history."""
    from tidemill.formats.arrow import one
    from tidemill.outputs.rollups.cells import cell_schema
    from tidemill.outputs.rollups.observation_runs import histories_of, object_spans
    from tidemill.outputs.rollups.observations import in_order, observed
    from tidemill.outputs.rollups.transitions import state_cells

    seen = observed(metric, events)
    if not seen.num_rows:
        return cell_schema(metric).empty_table()
    objects = object_spans(in_order(seen.drop_columns(["slice"])))
    history = histories_of(metric, known.observation_files.get(metric.name, ()), objects, (0, 1 << 64), until)
    time: NDArray[np.int64] = one(history.column("time")).to_numpy()
    inside = (time >= span.start) & (time < span.end)
    return state_cells(metric, known.renamed(metric.name, history), inside)

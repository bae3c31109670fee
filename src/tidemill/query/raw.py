"""Rows of rollups made of the events of raw themselves, for the ends of spans that no bucket fits.

The kernels are those that make the 5s tiles, so a row made here is the one that a bucket of just these events
would have. They are imported only when there is an event to look at. It only looks, and never writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidemill.model.errors import StorageError
from tidemill.model.levels import BASE
from tidemill.model.time import Interval
from tidemill.query.source import RawAsked, RawRows, literal_path
from tidemill.storage.tables.checksums import checked

if TYPE_CHECKING:
    import duckdb
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from tidemill.config import Limits, Stream
    from tidemill.model.conditions.ast import Condition
    from tidemill.outputs.rollups.spec import Metric, RollupSpec
    from tidemill.outputs.rollups.state_history import Recollection
    from tidemill.query.kept_columns import KeptColumns
    from tidemill.storage.tables.snapshot import Part, Range, Snapshot

# Imports inside functions keep start-up short: an answer from rollups loads neither Numba nor what reads raw.

_COLUMNS: Final = ("tenant", "event_time", "event_id", "slice", "line", "payload")
_TRIES: Final = 5  # trails are merged while somebody looks: then those that stand now are read
_NEVER: Final = RawRows(None)
_MAX_KEPT: Final = 200_000  # rows of a part whose times are kept
_AT_ONCE: Final = 100_000  # events whose payloads are looked into


@dataclass(frozen=True, slots=True)
class RawEvents:
    """The raw table of one stream at one version, and what is remembered of its objects and keys."""

    warehouse: Path
    stream: Stream
    limits: Limits
    snapshot: Snapshot | None  # None: nothing was ever accepted
    columns: KeptColumns | None = None  # of parts that were read before

    def rows(self, asked: RawAsked, cursor: duckdb.DuckDBPyConnection) -> RawRows:
        parts = list(self._parts(asked))
        if not parts or self.snapshot is None:
            return _NEVER
        seen = sum(part.rows for part in parts)
        made: list[pa.Table] = []
        long = asked.filter is not None or asked.past is not None
        at_once = not long or self._follows(asked)
        for events in _batches(cursor, self.snapshot.paths(parts), asked, at_once=at_once):
            rows = self._made(asked, events)
            if rows is None:
                return RawRows(None, len(parts), seen, is_known=False)
            made.append(rows)
        return RawRows(_joined(made), len(parts), seen)

    def events(
        self, asked: RawAsked, cursor: duckdb.DuckDBPyConnection, more: Sequence[str] = ()
    ) -> Iterator[pa.Table]:
        """The events themselves, a batch at a time, with `more` columns of raw."""
        parts = list(self._parts(asked))
        if parts and self.snapshot is not None:
            yield from _batches(cursor, self.snapshot.paths(parts), asked, at_once=False, more=more)

    def _follows(self, asked: RawAsked) -> bool:
        """Whether one of the metrics is about objects and their states."""
        return any(self.stream.metrics[name].kind == "state" for name in asked.metrics)

    def counted(self, events: pa.Table, span: Interval) -> pa.Table | None:
        """The rows that rollups of all metrics would have of these events of `span` alone; None: what was
        before them decides, and it is not remembered yet."""
        asked = RawAsked(frozenset(self.stream.metrics), None, [span])
        return self._made(asked, events)

    def _parts(self, asked: RawAsked) -> Iterator[Part]:
        """Those that can hold an event of a span, by their statistics alone."""
        if self.snapshot is None or not asked.spans:
            return
        ranges: dict[str, Range] = {"event_time": (asked.spans[0].start, asked.spans[-1].end - 1)}
        if asked.tenant is not None:
            ranges["tenant"] = (asked.tenant, asked.tenant)
        for part in self.snapshot.select(ranges=ranges):
            spans = [span for span in asked.spans if part.may_hold("event_time", span.start, span.end - 1)]
            if spans and self._holds(part, spans):
                yield part

    def _holds(self, part: Part, spans: Sequence[Interval]) -> bool:
        """Whether an event of the part is in one of the spans, which are short and mostly hold none; True
        also where that cannot be told for less than it takes to read the part."""
        if self.columns is None or not self.columns.is_used or part.rows > _MAX_KEPT or self.snapshot is None:
            return True
        (path,) = self.snapshot.paths([part])
        time = self.columns.read(path, ["event_time"])["event_time"].view("int64").to_numpy()
        return any(((time >= span.start) & (time < span.end)).any() for span in spans)

    def _made(self, asked: RawAsked, events: pa.Table) -> pa.Table | None:
        """None: what came before is not remembered, and it decides."""
        import pyarrow as pa

        from tidemill.formats.plan import plan_for
        from tidemill.outputs.rollups.events import metric_plan, with_columns
        from tidemill.outputs.rollups.spec import spec_for

        whole = spec_for(self.stream)
        spec = _only(whole, asked.metrics)
        read = with_columns(metric_plan(plan_for(self.stream, self.limits)), events)
        time = read.column("event_time").cast(pa.int64()).to_numpy()
        pieces = [
            (span, read.filter(pa.array((time >= span.start) & (time < span.end)))) for span in asked.spans
        ]
        if not spec.in_order:
            return pa.concat_tables(_rows(spec, span, piece, None) for span, piece in pieces)
        until = None if asked.past is None else asked.past.offset + 1
        return self._remembering(whole, spec, pieces, until)

    def _remembering(
        self,
        whole: RollupSpec,
        spec: RollupSpec,
        pieces: Sequence[tuple[Interval, pa.Table]],
        until: int | None,
    ) -> pa.Table | None:
        """With observations at offsets of the ledger below `until`, or all."""
        import pyarrow as pa

        from tidemill.outputs.rollups.state_history import recollect

        for _ in range(_TRIES):
            known = recollect(self.warehouse, whole)
            if known is None:
                return None
            try:
                return pa.concat_tables(_rows(spec, span, piece, known, until) for span, piece in pieces)
            except FileNotFoundError:
                continue  # merged into another since the log was read
        raise StorageError(
            "what is remembered of objects changes faster than it can be read",
            hint="try again; if it stays, `tidemill repair --explain` says what is damaged",
        )


def _only(spec: RollupSpec, metrics: frozenset[str]) -> RollupSpec:
    return replace(spec, metrics=tuple(each for each in spec.metrics if each.name in metrics))


def _joined(made: Sequence[pa.Table]) -> pa.Table | None:
    import pyarrow as pa

    return pa.concat_tables(made) if made else None


def _batches(
    cursor: duckdb.DuckDBPyConnection,
    paths: Sequence[str],
    asked: RawAsked,
    *,
    at_once: bool,
    more: Sequence[str] = (),
) -> Iterator[pa.Table]:
    """The events of the spans, in any order; `at_once` where a metric needs to see an object's events
    together, or the spans are short."""
    import pyarrow as pa

    values = _bounds(asked)
    where = " OR ".join(
        f"(event_time >= make_timestamptz($start_{i}) AND event_time < make_timestamptz($end_{i}))"
        for i in range(len(asked.spans))
    )
    if asked.tenant is not None:
        where = f"tenant = $tenant AND ({where})"
    if asked.past is not None:
        where = f"arrival <= make_timestamptz($arrived) AND ({where})"
        if asked.past.without:
            where = f"NOT list_contains($without, slice) AND {where}"
    values["files"] = [literal_path(path) for path in checked(paths)]
    scan = "read_parquet($files, hive_partitioning = false)"
    found = cursor.execute(f"SELECT {', '.join((*_COLUMNS, *more))} FROM {scan} WHERE {where}", values)
    if at_once:
        events = found.to_arrow_table()
        if events.num_rows:
            yield events
        return
    for batch in found.to_arrow_reader(_AT_ONCE):
        events = pa.Table.from_batches([batch])
        events = events if asked.filter is None else _passing(asked.filter, events)
        if events.num_rows:
            yield events


def _bounds(asked: RawAsked) -> dict[str, object]:
    values: dict[str, object] = {} if asked.tenant is None else {"tenant": asked.tenant}
    if asked.past is not None:
        values["arrived"] = asked.past.at
        if asked.past.without:
            values["without"] = sorted(asked.past.without)
    for i, span in enumerate(asked.spans):
        values |= {f"start_{i}": span.start, f"end_{i}": span.end}
    return values


def _passing(condition: Condition, events: pa.Table) -> pa.Table:
    """Those whose payload the condition is true for, as a search would find them."""
    import pyarrow as pa

    from tidemill.formats.arrow import one
    from tidemill.query.search.finding import holds

    return events.filter(pa.array(holds(condition, one(events.column("payload")), {})))


def _rows(
    spec: RollupSpec,
    span: Interval,
    events: pa.Table,
    known: Recollection | None,
    until: int | None = None,
) -> pa.Table:
    """The rows of the events of one span. No bucket starts before it."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from tidemill.outputs.rollups.cells import accumulate
    from tidemill.outputs.rollups.rows import to_rows

    cells = dict(accumulate(spec, events, BASE.width))
    if known is not None:
        cells = dict(known.admitted(cells))
        for metric in spec.metrics:
            if metric.following is not None:
                cells[metric.name] = _states(metric, span, events, known, until)
    rows = to_rows(spec, cells)
    at = rows.schema.get_field_index("bucket")
    bucket = rows.column(at)
    starts = pc.max_element_wise(bucket.cast(pa.int64()), span.start)
    return rows.set_column(at, "bucket", starts.cast(bucket.type))


def _states(
    metric: Metric, span: Interval, events: pa.Table, known: Recollection, until: int | None
) -> pa.Table:
    """Which objects were seen is read from raw, what was seen of them before from what is remembered."""
    from tidemill.formats.arrow import one
    from tidemill.outputs.rollups.cells import cell_schema
    from tidemill.outputs.rollups.observation_runs import asked, histories_of
    from tidemill.outputs.rollups.observations import in_order, observed
    from tidemill.outputs.rollups.transitions import state_cells

    seen = observed(metric, events)
    if not seen.num_rows:
        return cell_schema(metric).empty_table()
    objects = asked(in_order(seen.drop_columns(["slice"])))
    history = histories_of(metric, known.observation_files.get(metric.name, ()), objects, (0, 1 << 64), until)
    time: NDArray[np.int64] = one(history.column("time")).to_numpy()
    inside = (time >= span.start) & (time < span.end)
    return state_cells(metric, known.renamed(metric.name, history), inside)

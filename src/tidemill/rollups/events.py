"""Accepted events as the columns that metrics use, read back from raw, and which of them a metric counts.

Raw already says tenant, event time, id and place; only dimensions and measures are read from the payload, by
the same reader that first read them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidemill.model.time import Interval
from tidemill.records.arrays import Mask
from tidemill.records.arrow import one
from tidemill.records.chunk import RecordChunk
from tidemill.records.conditions import holds
from tidemill.records.plan import ReadPlan
from tidemill.records.read import read_chunk
from tidemill.rollups.spec import Metric

_KNOWN = ("tenant", "event_time", "event_id", "slice", "line")  # what raw itself says


def metric_plan(plan: ReadPlan) -> ReadPlan:
    """Only what metrics look at, and nothing is required: acceptance was decided long ago."""
    used = {*plan.dimensions, *plan.measures}
    return replace(
        plan,
        rules=tuple(replace(rule, required=False) for rule in plan.rules if rule.name in used),
        identity=(),
        tenant_column=None,
        tenant_value="",
        type_column=None,
        time_column=None,
        time_parser=None,
        delta=None,
        messages=None,
        skew_past=None,
        skew_future=None,
        record_bytes=1 << 40,
    )


def passing(metric: Metric, events: pa.Table) -> Mask | None:
    """Which events the metric's filter is true for; None: it has none, all count."""
    if metric.filter is None:
        return None
    columns = {field: (name, scale) for field, name, scale in metric.filter.columns}

    def column_of(field: str) -> tuple[pa.Array, int]:
        name, scale = columns[field]
        return one(events.column(name)), scale

    return holds(metric.filter.condition, column_of)


def read_events(
    plan: ReadPlan, files: Sequence[str], span: Interval, slices: frozenset[str] | None
) -> list[pa.Table]:
    """Events of `span` (only those of `slices`, unless None): tenant, event_time, event_id, slice,
    line, d0 …, m0 …"""
    tables = []
    for path in files:
        rows = _rows(path, span, slices)
        if rows.num_rows:
            tables.append(with_columns(plan, rows))
    return tables


def _rows(path: str, span: Interval, slices: frozenset[str] | None) -> pa.Table:
    file = pq.ParquetFile(path)
    names = [*_KNOWN, "payload"]
    found = []
    for group in range(file.num_row_groups):
        if not _may_hold(file, group, span):
            continue
        rows = file.read_row_group(group, columns=names)
        time = rows.column("event_time").cast(pa.int64())
        keep = pc.and_(pc.greater_equal(time, span.start), pc.less(time, span.end))
        if slices is not None:
            keep = pc.and_(keep, pc.is_in(rows.column("slice"), pa.array(sorted(slices))))
        found.append(rows.filter(keep))
    return pa.concat_tables(found) if found else file.schema_arrow.empty_table().select(names)


def _may_hold(file: pq.ParquetFile, group: int, span: Interval) -> bool:
    index = file.schema_arrow.get_field_index("event_time")
    stats = file.metadata.row_group(group).column(index).statistics
    if stats is None or not stats.has_min_max:
        return True
    low = pa.scalar(stats.min, pa.timestamp("us", tz="UTC")).value
    high = pa.scalar(stats.max, pa.timestamp("us", tz="UTC")).value
    return bool(low < span.end and high >= span.start)


def with_columns(plan: ReadPlan, rows: pa.Table) -> pa.Table:
    """Rows of raw (what it says itself, and the payload) as events with d0 …, m0 … read from the payload."""
    payload = rows.column("payload").combine_chunks()
    if isinstance(payload, pa.ChunkedArray):
        payload = pa.concat_arrays(payload.chunks)
    _, offsets, data = payload.buffers()
    first = payload.offset
    ends = np.frombuffer(offsets, np.int32)[first : first + len(payload) + 1].astype(np.int64)
    chunk = RecordChunk(np.frombuffer(data, np.uint8), ends[:-1], ends[1:])
    read = read_chunk(plan, chunk, 0)
    names = [n for n in read.columns.column_names if n[0] in "dm" and n[1:].isdigit()]
    columns = {
        name: rows.column(name).dictionary_encode() if name in ("tenant", "slice") else rows.column(name)
        for name in _KNOWN
    }
    if read.refused.num_rows == 0:
        columns |= {name: read.columns.column(name) for name in names}
    else:
        # A field whose declared type changed since: the event still counts, without that value.
        at = np.full(len(payload), -1, np.int64)
        at[read.columns.column("row").to_numpy()] = np.arange(read.columns.num_rows)
        where = pa.array(at, mask=at < 0)
        columns |= {name: read.columns.column(name).take(where) for name in names}
    return pa.table(columns)

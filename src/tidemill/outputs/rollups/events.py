"""Reads accepted events from raw as the columns that metrics use, and finds which of them a metric counts.

Raw has tenant, event time, id and position of every event; dimensions and measures are declared columns.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidemill.formats.arrays import Ints, Mask
from tidemill.formats.arrow import flags, one, unscaled
from tidemill.formats.conditions import holds
from tidemill.formats.declared_columns import Column
from tidemill.formats.payload_columns import Columns, columns_in
from tidemill.formats.read_plan import ReadPlan
from tidemill.model.names import unfit_column
from tidemill.model.time import Interval
from tidemill.outputs.rollups.spec import Metric
from tidemill.raw.part_columns import PartColumns, part_columns
from tidemill.storage.tables.parts import open_part

_KNOWN = ("tenant", "event_time", "event_id", "slice", "line")  # columns of raw itself


def metric_plan(plan: ReadPlan) -> ReadPlan:
    """A plan that reads only what metrics use and requires nothing: the events were accepted before."""
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
    """Which events the metric counts; None: all of them. Only events with a value that does not fit its type
    have a column that says so."""
    if metric.unfit is None:
        return _filtered(metric, events)
    name = unfit_column(metric.unfit)
    if name not in events.column_names:
        return np.zeros(events.num_rows, np.bool_)
    found: Mask = np.asarray(pc.fill_null(one(events.column(name)), fill_value=False))
    passed = _filtered(metric, events) if found.any() else None
    return found if passed is None else found & passed


def _filtered(metric: Metric, events: pa.Table) -> Mask | None:
    """Which events the metric's filter is true for; None if it has no filter."""
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

    def wanted(rows: pa.Table, time: Ints) -> Mask:
        keep: Mask = (time >= span.start) & (time < span.end)
        if slices is not None:
            keep &= np.asarray(pc.is_in(rows.column("slice"), pa.array(sorted(slices))))
        return keep

    return _read(plan, files, lambda low, high: low < span.end and high >= span.start, wanted)


def read_tile_events(
    plan: ReadPlan, files: Sequence[str], tiles: Mapping[int, frozenset[str] | None], width: int
) -> list[pa.Table]:
    """Like `read_events`, for tiles of one width by their starts, each with its slices (None: all)."""
    starts = np.array(sorted(tiles), np.int64)

    def may_hold(low: int, high: int) -> bool:
        first, last = np.searchsorted(starts, [low - width + 1, high + 1])
        return bool(first < last)

    def wanted(rows: pa.Table, time: Ints) -> Mask:
        at = np.searchsorted(starts, time, side="right") - 1
        inside: Mask = (at >= 0) & (time < starts[at] + width)
        slices = one(rows.column("slice")).dictionary_encode()
        code = {name: i for i, name in enumerate(slices.dictionary.to_pylist())}
        if not inside.any() or all(tiles[start] is None for start in tiles):
            return inside
        pairs = [
            position * len(code) + code[name]
            for position, start in enumerate(starts.tolist())
            for name in _either(tiles[start], code)
        ]
        position = at * len(code) + slices.indices.to_numpy(zero_copy_only=False)
        return inside & np.isin(position, np.array(pairs, np.int64))

    return _read(plan, files, may_hold, wanted)


def _either(chosen: frozenset[str] | None, there: Mapping[str, int]) -> Collection[str]:
    return there if chosen is None else chosen & there.keys()


def _read(
    plan: ReadPlan,
    files: Sequence[str],
    may_hold: Callable[[int, int], bool],
    wanted: Callable[[pa.Table, Ints], Mask],
) -> list[pa.Table]:
    """The events of each file; row groups whose times exclude them are not read."""
    fields = fields_of(plan)
    tables = []
    for path in files:
        with open_part(path) as file:
            columns = part_columns(file, path, fields)
            rows = _rows(file, [*_KNOWN, *columns.names], may_hold, wanted)
        if rows is not None and rows.num_rows:
            tables.append(with_columns(plan, rows, columns))
    return tables


def _rows(
    file: pq.ParquetFile,
    names: Sequence[str],
    may_hold: Callable[[int, int], bool],
    wanted: Callable[[pa.Table, Ints], Mask],
) -> pa.Table | None:
    found = []
    for group in range(file.num_row_groups):
        bounds = _bounds(file, group)
        if bounds is not None and not may_hold(*bounds):
            continue
        rows = file.read_row_group(group, columns=list(dict.fromkeys(names)))
        keep = wanted(rows, one(rows.column("event_time")).cast(pa.int64()).to_numpy())
        found.append(rows if keep.all() else rows.filter(pa.array(keep)))
    return pa.concat_tables(found) if found else None


def _bounds(file: pq.ParquetFile, group: int) -> tuple[int, int] | None:
    """The first and last time of a row group; None if unknown."""
    index = file.schema_arrow.get_field_index("event_time")
    stats = file.metadata.row_group(group).column(index).statistics
    if stats is None or not stats.has_min_max:
        return None
    low = pa.scalar(stats.min, pa.timestamp("us", tz="UTC")).value
    high = pa.scalar(stats.max, pa.timestamp("us", tz="UTC")).value
    return low, high


def with_columns(plan: ReadPlan, rows: pa.Table, columns: PartColumns | None = None) -> pa.Table:
    """Rows of raw as events with d0 …, m0 …, from the columns of their part; None: from the payload. A value
    that does not fit its declared type, because that has changed, is null, and a column `unfit_column` of its
    field says where; the event still counts. Columns of raw itself that were not read stay away."""
    found = columns if columns is not None else PartColumns(fields_of(plan), None)
    typed = found.typed(rows, coded=True)
    values = dict(zip(found.fields, typed.arrays, strict=True))
    read = {
        name: rows.column(name).dictionary_encode() if name in ("tenant", "slice") else rows.column(name)
        for name in _KNOWN
        if name in rows.column_names
    }
    for number, name in enumerate(plan.dimensions):
        array = values[name]
        read[f"d{number}"] = array.dictionary_encode() if pa.types.is_string(array.type) else array
    for number, name in enumerate(plan.measures):
        read[f"m{number}"] = _exact(values[name])
    for name, at in typed.misfits:
        read[unfit_column(name)] = flags(at, rows.num_rows)
    return pa.table(read)


def fields_of(plan: ReadPlan) -> Columns:
    """The fields that metrics use."""
    used = {*plan.dimensions, *plan.measures}
    return columns_in([Column(rule.name, rule.type, rule.scale) for rule in plan.rules if rule.name in used])


def _exact(array: pa.Array) -> pa.Array:
    """Decimals as unscaled integers."""
    if not pa.types.is_decimal(array.type):
        return array
    absent = np.asarray(array.is_null()) if array.null_count else None
    return pa.array(unscaled(array), mask=absent)

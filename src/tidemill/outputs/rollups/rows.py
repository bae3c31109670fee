"""Cells as rows of the rollups table and back: one table for all metrics, sums and extremes as decimals.

Columns that a metric does not use are null in its rows. Rows of metrics that are no longer declared are left
out when read, and so are not written again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit

from tidemill.formats.arrays import Ints, Mask, Offsets, Words
from tidemill.formats.arrow import one
from tidemill.model.metrics import MetricKind
from tidemill.outputs.rollups.accumulators.gauge import ENDS
from tidemill.outputs.rollups.cells import STATE_KEYS, TEXT, Cells, cell_schema, within_tiles
from tidemill.outputs.rollups.spec import (
    BIN_COUNTS,
    BINS,
    INSTANT,
    STATE_COLUMNS,
    Measure,
    Metric,
    RollupSpec,
    retyped_columns,
    value_type,
)
from tidemill.storage.tables.parts import open_part

Columns = dict[str, pa.Array]


def to_rows(spec: RollupSpec, cells: Cells) -> pa.Table:
    """The rows of sorted cells, metric by metric; equal cells give equal bytes in a part."""
    schema = row_schema(spec)
    found = [_rows(metric, cells[metric.name], schema) for metric in spec.metrics if metric.name in cells]
    if not found:
        return schema.empty_table()
    whole = found[0] if len(found) == 1 else pa.concat_tables(found)
    columns = [
        _tidied(one(column)) if pa.types.is_dictionary(column.type) else column for column in whole.columns
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def from_rows(spec: RollupSpec, rows: pa.Table) -> Cells:
    """Rows of the table (those of each metric together, in order) as cells."""
    names = _coded(one(rows.column("metric")))
    code = {name: i for i, name in enumerate(names.dictionary.to_pylist())}
    codes = names.indices.to_numpy()
    found: dict[str, pa.Table] = {}
    for metric in spec.metrics:
        if metric.unfit is not None and metric.name not in code:
            continue
        at = np.flatnonzero(codes == code.get(metric.name, -1))
        start, stop = (int(at[0]), int(at[-1]) + 1) if at.size else (0, 0)
        assert stop - start == at.size, f"rows of {metric.name} do not lie together"
        found[metric.name] = _cells(metric, rows.slice(start, stop - start))
    return found


def row_schema(spec: RollupSpec) -> pa.Schema:
    """The schema of rows as written: repeated strings are dictionary-encoded, the level is the folder."""
    coded = {"metric", "tenant", *STATE_COLUMNS, *(d.column for d in spec.dimensions)}
    return pa.schema(
        [
            pa.field(field.name, TEXT) if field.name in coded and field.type == pa.string() else field
            for field in spec.schema
            if field.name != "level"
        ]
    )


def read_part(spec: RollupSpec, path: str) -> pa.Table:
    """The rows of a part in the columns declared now; null in those that were added later, and in those of
    dimensions and measures that had another type."""
    schema = row_schema(spec)
    with open_part(path) as file:
        metadata, stored = file.metadata, file.schema_arrow
    there = set(stored.names) - retyped_columns(spec, stored)
    texts = [field.name for field in schema if field.type == TEXT and field.name in there]
    with open_part(path, texts, metadata=metadata) as file:
        rows = file.read(columns=[name for name in schema.names if name in there])
    columns = [
        rows.column(field.name) if field.name in there else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, names=schema.names)


def read_tiles(spec: RollupSpec, path: str, starts: Sequence[int], tile: int) -> Cells:
    """The cells of the tiles of a part that begin at `starts`; only their rows are decoded."""
    rows = read_part(spec, path)
    bucket = one(rows.column("bucket")).cast(pa.int64()).to_numpy()
    inside = within_tiles(bucket, starts, tile)
    return from_rows(spec, rows if inside.all() else rows.filter(pa.array(inside)))


def row_buckets(cells: Cells) -> Ints:
    """The bucket of every row."""
    buckets = [one(table.column("bucket")).to_numpy() for table in cells.values()]
    return np.concatenate([np.empty(0, np.int64), *buckets])


# -- one metric, forth


def _rows(metric: Metric, cells: pa.Table, schema: pa.Schema) -> pa.Table:
    columns: Columns = {
        "metric": pa.DictionaryArray.from_arrays(
            pa.array(np.zeros(cells.num_rows, np.int32)), pa.array([metric.name])
        ),
        "tenant": one(cells.column("tenant")),
        "bucket": one(cells.column("bucket")).cast(INSTANT),
        "count": one(cells.column("count")),
    }
    for i, d in enumerate(metric.dimensions):
        columns[d.column] = one(cells.column(f"k{i}"))
    if metric.kind is MetricKind.STATE:
        for name, column in zip(STATE_KEYS, STATE_COLUMNS, strict=True):
            columns[column] = one(cells.column(name))
    for i, m in enumerate(metric.measures):
        columns |= _measured(cells, i, m)
    if metric.keeps_ends:
        columns |= _ends(cells, metric.measures[0])
    if metric.kind is MetricKind.HISTOGRAM:
        columns |= {BINS: one(cells.column("bins")), BIN_COUNTS: one(cells.column("bin_counts"))}
    arrays = [
        columns[field.name] if field.name in columns else pa.nulls(cells.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _tidied(column: pa.DictionaryArray) -> pa.DictionaryArray:
    """With a dictionary of only the strings that occur, sorted: a part stores its dictionary as it is."""
    indices, texts = column.indices, column.dictionary
    absent = np.asarray(indices.is_null()) if indices.null_count else None
    codes = (pc.fill_null(indices, len(texts)) if indices.null_count else indices).to_numpy()
    at = np.flatnonzero(_used(codes, len(texts) + 1)[:-1])
    if at.size < len(texts):
        texts = texts.take(pa.array(at))
    order = pc.array_sort_indices(texts).to_numpy()
    position = np.zeros(len(column.dictionary) + 1, np.int32)
    position[at[order]] = np.arange(at.size)
    if at.size == len(column.dictionary) and bool((order == np.arange(at.size)).all()):
        return column
    return pa.DictionaryArray.from_arrays(
        pa.array(_renumbered(codes, position), mask=absent), texts.take(pa.array(order))
    )


@njit(cache=True, nogil=True)
def _used(codes: Offsets, size: int) -> Mask:
    found = np.zeros(size, np.bool_)
    for i in range(codes.size):
        found[codes[i]] = True
    return found


@njit(cache=True, nogil=True)
def _renumbered(codes: Offsets, position: Offsets) -> Offsets:
    found = np.empty(codes.size, np.int32)
    for i in range(codes.size):
        found[i] = position[codes[i]]
    return found


def _measured(cells: pa.Table, i: int, m: Measure) -> Columns:
    low, high = (one(cells.column(f"v{i}_{word}")).to_numpy() for word in ("low", "high"))
    return {
        f"{m.column}__count": one(cells.column(f"v{i}_count")),
        f"{m.column}__sum": _decimals(low, high, pa.decimal128(38, m.scale), None),
        f"{m.column}__min": _scaled(one(cells.column(f"v{i}_min")), m),
        f"{m.column}__max": _scaled(one(cells.column(f"v{i}_max")), m),
    }


def _ends(cells: pa.Table, m: Measure) -> Columns:
    found: Columns = {}
    for end in ENDS:
        found[f"{m.column}__{end}"] = _scaled(one(cells.column(f"v0_{end}")), m)
        found[f"{m.column}__{end}_time"] = one(cells.column(f"v0_{end}_time")).cast(INSTANT)
        found[f"{m.column}__{end}_id"] = one(cells.column(f"v0_{end}_id"))
    return found


def _scaled(values: pa.Array, m: Measure) -> pa.Array:
    """Unscaled integers as decimals."""
    if m.type == "integer":
        return values
    numbers = _or_zero(values).to_numpy()
    valid = values.is_valid() if values.null_count else None
    return _decimals(numbers.view(np.uint64), numbers >> 63, value_type(m), valid)


# -- and back


def _cells(metric: Metric, rows: pa.Table) -> pa.Table:
    columns: Columns = {"tenant": _coded(one(rows.column("tenant")))}
    for i, d in enumerate(metric.dimensions):
        column = one(rows.column(d.column))
        columns[f"k{i}"] = _coded(column) if d.type == "string" else column
    if metric.kind is MetricKind.STATE:
        for name, column in zip(STATE_KEYS, STATE_COLUMNS, strict=True):
            columns[name] = _coded(one(rows.column(column)))
    columns["bucket"] = one(rows.column("bucket")).cast(pa.int64())
    columns["count"] = one(rows.column("count"))
    for i, m in enumerate(metric.measures):
        columns |= _unmeasured(rows, i, m)
    if metric.keeps_ends:
        columns |= _unended(rows, metric.measures[0])
    schema = cell_schema(metric)
    if metric.kind is MetricKind.HISTOGRAM:
        columns["bins"] = _lists(one(rows.column(BINS)), pa.int32())
        columns["bin_counts"] = _lists(one(rows.column(BIN_COUNTS)), pa.int64())
    return pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema)


def _lists(column: pa.ListArray, kind: pa.DataType) -> pa.ListArray:
    """Bins as lists; empty where the row was written before bins were kept."""
    return pc.fill_null(column, pa.scalar([], pa.list_(kind))).cast(pa.list_(kind))


def _unmeasured(rows: pa.Table, i: int, m: Measure) -> Columns:
    """A measure that was declared after the row was written has no values there."""
    low, high = _words(_or_zero(one(rows.column(f"{m.column}__sum"))))
    return {
        f"v{i}_count": _or_zero(one(rows.column(f"{m.column}__count"))),
        f"v{i}_low": pa.array(low),
        f"v{i}_high": pa.array(high.view(np.int64)),
        f"v{i}_min": _unscaled(one(rows.column(f"{m.column}__min")), m),
        f"v{i}_max": _unscaled(one(rows.column(f"{m.column}__max")), m),
    }


def _unended(rows: pa.Table, m: Measure) -> Columns:
    found: Columns = {}
    for end in ENDS:
        found[f"v0_{end}"] = _unscaled(one(rows.column(f"{m.column}__{end}")), m)
        found[f"v0_{end}_time"] = one(rows.column(f"{m.column}__{end}_time")).cast(pa.int64())
        found[f"v0_{end}_id"] = one(rows.column(f"{m.column}__{end}_id"))
    return found


def _unscaled(values: pa.Array, m: Measure) -> pa.Array:
    if m.type == "integer":
        return values
    low, _ = _words(values)
    return pa.array(low.view(np.int64), mask=np.asarray(values.is_null()) if values.null_count else None)


def _or_zero(values: pa.Array) -> pa.Array:
    return pc.fill_null(values, 0) if values.null_count else values


def _coded(column: pa.Array) -> pa.DictionaryArray:
    return column if pa.types.is_dictionary(column.type) else column.dictionary_encode()


# -- decimals by their two little-endian words


def _decimals(low: Words, high: Ints, kind: pa.DataType, valid: pa.BooleanArray | None) -> pa.Array:
    words = np.empty((low.size, 2), np.uint64)
    words[:, 0] = low
    words[:, 1] = high.view(np.uint64)
    array = pa.Array.from_buffers(kind, low.size, [None, pa.py_buffer(words)])
    return array if valid is None else pc.if_else(valid, array, pa.scalar(None, kind))


def _words(array: pa.Array) -> tuple[Words, Words]:
    if not len(array):
        return np.empty(0, np.uint64), np.empty(0, np.uint64)
    words = np.frombuffer(array.buffers()[1], np.uint64).reshape(-1, 2)
    words = words[array.offset : array.offset + len(array)]
    return np.ascontiguousarray(words[:, 0]), np.ascontiguousarray(words[:, 1])

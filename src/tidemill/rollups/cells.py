"""Cells: one row per (metric, tenant, dimensions, bucket), and the one operation on them, merging.

Merging adds counts and sums and takes the smaller minimum and larger maximum: associative, commutative,
the empty table its identity. Sums are 128-bit integers of a declared scale, so no order of merging can
change a bit.

A table of cells has: metric, tenant, d0 … (dictionary-coded text, int64 or bool), bucket (microseconds),
count, and per measure m{i}_count, m{i}_low/m{i}_high (the two halves of the sum), m{i}_min, m{i}_max.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidemill.records.arrow import one
from tidemill.rollups.spec import RollupSpec

Ints = NDArray[np.int64]
_TEXT = pa.dictionary(pa.int32(), pa.string())
_MAX, _MIN = np.iinfo(np.int64).max, np.iinfo(np.int64).min
_LOW32 = np.uint64(0xFFFFFFFF)


def cell_schema(spec: RollupSpec) -> pa.Schema:
    kinds = {"string": _TEXT, "integer": pa.int64(), "boolean": pa.bool_()}
    fields = [("metric", _TEXT), ("tenant", _TEXT)]
    fields += [(f"d{i}", kinds[d.type]) for i, d in enumerate(spec.dimensions)]
    fields += [("bucket", pa.int64()), ("count", pa.int64())]
    for i in range(len(spec.measures)):
        fields += [
            (f"m{i}_count", pa.int64()),
            (f"m{i}_low", pa.uint64()),
            (f"m{i}_high", pa.int64()),
            (f"m{i}_min", pa.int64()),
            (f"m{i}_max", pa.int64()),
        ]
    return pa.schema(fields)


def no_cells(spec: RollupSpec) -> pa.Table:
    return cell_schema(spec).empty_table()


def accumulate(spec: RollupSpec, events: pa.Table, width: int) -> pa.Table:
    """Cells of accepted events: tenant, event_time (microseconds or timestamp), d0 …, m0 …"""
    tables = []
    time = events.column("event_time")
    bucket = np.asarray(time.cast(pa.int64()) if pa.types.is_timestamp(time.type) else time)
    bucket = bucket - bucket % width
    for metric in spec.metrics:
        group = _Group(events.num_rows)
        group.text(events.column("tenant"))
        for d in metric.dimensions:
            group.column(events.column(f"d{d.at}"))
        group.number(bucket)
        group.close()
        columns: dict[str, pa.Array] = {
            "metric": _constant(metric.name, group.size),
            "tenant": group.take(events.column("tenant")),
        }
        for i, d in enumerate(spec.dimensions):
            kind = cell_schema(spec).field(f"d{i}").type
            used = d in metric.dimensions
            columns[f"d{i}"] = group.take(events.column(f"d{d.at}")) if used else pa.nulls(group.size, kind)
        columns["bucket"] = pa.array(bucket[group.first])
        columns["count"] = pa.array(group.counts())
        for i, m in enumerate(spec.measures):
            if m in metric.measures:
                columns |= _measured(group, events.column(f"m{m.at}"), i)
            else:
                columns |= _unmeasured(group.size, i)
        tables.append(pa.table(columns).cast(cell_schema(spec)))
    return pa.concat_tables(tables) if tables else no_cells(spec)


def merge(spec: RollupSpec, tables: Sequence[pa.Table], width: int) -> pa.Table:
    """One table of the cells of all, buckets widened to `width`, sorted by (metric, tenant, d…, bucket)."""
    whole = [table for table in tables if table.num_rows]
    if not whole:
        return no_cells(spec)
    cells = pa.concat_tables(whole).unify_dictionaries().combine_chunks()
    bucket = _numpy(cells.column("bucket"))
    bucket = bucket - bucket % width
    group = _Group(cells.num_rows)
    for name in ("metric", "tenant", *(f"d{i}" for i in range(len(spec.dimensions)))):
        group.column(cells.column(name))
    group.number(bucket)
    group.close()
    columns: dict[str, pa.Array] = {
        name: group.take(cells.column(name))
        for name in ("metric", "tenant", *(f"d{i}" for i in range(len(spec.dimensions))))
    }
    columns["bucket"] = pa.array(bucket[group.first])
    columns["count"] = pa.array(group.sum(_numpy(cells.column("count"))))
    for i in range(len(spec.measures)):
        counts = group.sum(_numpy(cells.column(f"m{i}_count")))
        low, high = group.sum128(_numpy(cells.column(f"m{i}_low")), _numpy(cells.column(f"m{i}_high")))
        empty = counts == 0
        columns |= {
            f"m{i}_count": pa.array(counts),
            f"m{i}_low": pa.array(low),
            f"m{i}_high": pa.array(high),
            f"m{i}_min": pa.array(group.min(_filled(cells.column(f"m{i}_min"), _MAX)), mask=empty),
            f"m{i}_max": pa.array(group.max(_filled(cells.column(f"m{i}_max"), _MIN)), mask=empty),
        }
    return pa.table(columns, schema=cell_schema(spec))


def to_rows(spec: RollupSpec, cells: pa.Table) -> pa.Table:
    """Cells as rows of the rollups table: sums and extremes as decimals of their scale."""
    columns: dict[str, pa.Array] = {"metric": cells.column("metric"), "tenant": cells.column("tenant")}
    for i, d in enumerate(spec.dimensions):
        columns[d.column] = cells.column(f"d{i}")
    columns["bucket"] = cells.column("bucket").cast(pa.timestamp("us", tz="UTC"))
    columns["count"] = cells.column("count")
    for i, m in enumerate(spec.measures):
        columns[f"{m.column}__count"] = cells.column(f"m{i}_count")
        low, high = _numpy(cells.column(f"m{i}_low")), _numpy(cells.column(f"m{i}_high"))
        columns[f"{m.column}__sum"] = _decimals(low, high, pa.decimal128(38, m.scale), None)
        for end in ("min", "max"):
            value = cells.column(f"m{i}_{end}")
            if m.type == "decimal":
                numbers = _filled(value, 0)
                valid = pc.is_valid(value) if value.null_count else None
                columns[f"{m.column}__{end}"] = _decimals(
                    numbers.view(np.uint64), numbers >> 63, pa.decimal128(18, m.scale), valid
                )
            else:
                columns[f"{m.column}__{end}"] = value
    return pa.table(columns)


def from_rows(spec: RollupSpec, rows: pa.Table) -> pa.Table:
    """Rows of the rollups table as cells again."""
    columns: dict[str, pa.Array | pa.ChunkedArray] = {
        "metric": _coded(rows.column("metric")),
        "tenant": _coded(rows.column("tenant")),
    }
    for i, d in enumerate(spec.dimensions):
        column = rows.column(d.column)
        columns[f"d{i}"] = _coded(column) if d.type == "string" else column
    columns["bucket"] = rows.column("bucket").cast(pa.int64())
    columns["count"] = rows.column("count")
    for i, m in enumerate(spec.measures):
        columns[f"m{i}_count"] = rows.column(f"{m.column}__count")
        low, high = _lanes(rows.column(f"{m.column}__sum"))
        columns[f"m{i}_low"], columns[f"m{i}_high"] = pa.array(low), pa.array(high.view(np.int64))
        for end in ("min", "max"):
            value = rows.column(f"{m.column}__{end}")
            if m.type == "decimal":
                low, _ = _lanes(value)
                absent = np.asarray(pc.is_null(value))
                columns[f"m{i}_{end}"] = pa.array(low.view(np.int64), mask=absent if absent.any() else None)
            else:
                columns[f"m{i}_{end}"] = value
    return pa.table(columns, schema=cell_schema(spec)).combine_chunks()


class _Group:
    """Rows that share all keys. Keys are added most significant first; groups come out in their order."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self._keys: list[tuple[Ints, int]] = []  # codes and how many there are

    def column(self, column: pa.ChunkedArray) -> None:
        if pa.types.is_dictionary(column.type):
            self.text(column)
        elif pa.types.is_boolean(column.type):
            codes = _filled(column.cast(pa.int64()), -1)
            self._keys.append((codes + 1, 3))
        else:
            absent = np.asarray(pc.is_null(column)) if column.null_count else None
            self.number(_filled(column, 0), absent)

    def text(self, column: pa.ChunkedArray) -> None:
        """Dictionary-coded text: ranked by its bytes, nothing first."""
        array = one(column)
        texts = array.dictionary.to_pylist()
        order = sorted(range(len(texts)), key=lambda i: texts[i].encode())
        rank = np.zeros(len(texts) + 1, np.int64)
        rank[np.array(order, np.int64)] = np.arange(1, len(texts) + 1)
        codes = array.indices
        filled = np.asarray(pc.fill_null(codes, len(texts)) if codes.null_count else codes)
        self._keys.append((rank[filled], len(texts) + 1))

    def number(self, values: Ints, absent: NDArray[np.bool_] | None = None) -> None:
        """Integers: ranked by value, nothing first."""
        if not values.size:
            self._keys.append((values, 1))
            return
        least, most = int(values.min()), int(values.max())
        if most - least < 1 << 40:
            codes, span = values - least + 1, most - least + 2
        else:
            _, inverse = np.unique(values, return_inverse=True)
            codes, span = inverse.astype(np.int64) + 1, int(inverse.max()) + 2
        if absent is not None:
            codes = np.where(absent, 0, codes)
        self._keys.append((codes, span))

    def close(self) -> None:
        total = 1
        for _, span in self._keys:
            total *= span
        if total < 1 << 63:
            key = np.zeros(self.rows, np.int64)
            for codes, span in self._keys:
                key *= span
                key += codes
            self.order = np.argsort(key)
            key = key[self.order]
            changes = key[1:] != key[:-1]
        else:
            self.order = np.lexsort([codes for codes, _ in reversed(self._keys)])
            changes = np.zeros(max(0, self.rows - 1), np.bool_)
            for codes, _ in self._keys:
                sorted_codes = codes[self.order]
                changes |= sorted_codes[1:] != sorted_codes[:-1]
        begins = np.ones(self.rows, np.bool_)
        begins[1:] = changes
        self.starts = np.flatnonzero(begins)
        self.first = self.order[self.starts]
        self.size = int(self.starts.size)

    def take(self, column: pa.ChunkedArray) -> pa.Array:
        return one(column).take(pa.array(self.first))

    def counts(self) -> Ints:
        return np.diff(np.append(self.starts, self.rows))

    def sum(self, values: Ints) -> Ints:
        return np.add.reduceat(values[self.order], self.starts) if self.rows else values

    def min(self, values: Ints) -> Ints:
        return np.minimum.reduceat(values[self.order], self.starts) if self.rows else values

    def max(self, values: Ints) -> Ints:
        return np.maximum.reduceat(values[self.order], self.starts) if self.rows else values

    def sum128(self, low: NDArray[np.uint64], high: Ints) -> tuple[NDArray[np.uint64], Ints]:
        """Exact sums of 128-bit integers, by adding their 32-bit quarters and carrying."""
        quarters = [low & _LOW32, low >> np.uint64(32)]
        sums = [self.sum(q.astype(np.int64)) for q in quarters]
        middle = sums[1] + (sums[0] >> 32)
        carry = middle >> 32
        out_low = (sums[0].view(np.uint64) & _LOW32) | ((middle.view(np.uint64) & _LOW32) << np.uint64(32))
        return out_low, self.sum(high) + carry


def _measured(group: _Group, values: pa.ChunkedArray, i: int) -> dict[str, pa.Array]:
    numbers = _filled(values, 0)
    if values.null_count:
        present = np.asarray(pc.is_valid(values)).astype(np.int64)
        counts = group.sum(present)
    else:
        counts = group.counts()
    low, high = group.sum128(numbers.view(np.uint64), numbers >> 63)
    empty = counts == 0
    return {
        f"m{i}_count": pa.array(counts),
        f"m{i}_low": pa.array(low),
        f"m{i}_high": pa.array(high),
        f"m{i}_min": pa.array(group.min(_filled(values, _MAX)), mask=empty),
        f"m{i}_max": pa.array(group.max(_filled(values, _MIN)), mask=empty),
    }


def _unmeasured(size: int, i: int) -> dict[str, pa.Array]:
    zeros = pa.array(np.zeros(size, np.int64))
    return {
        f"m{i}_count": zeros,
        f"m{i}_low": pa.array(np.zeros(size, np.uint64)),
        f"m{i}_high": zeros,
        f"m{i}_min": pa.nulls(size, pa.int64()),
        f"m{i}_max": pa.nulls(size, pa.int64()),
    }


def _constant(text: str, size: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(size, np.int32)), pa.array([text]))


def _coded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column if pa.types.is_dictionary(column.type) else column.dictionary_encode()


def _numpy(column: pa.ChunkedArray) -> np.ndarray:
    return one(column).to_numpy(zero_copy_only=False)


def _filled(column: pa.ChunkedArray, value: int) -> Ints:
    return _numpy(pc.fill_null(column, value)) if column.null_count else _numpy(column)


def _decimals(
    low: NDArray[np.uint64], high: Ints, kind: pa.DataType, valid: pa.ChunkedArray | None
) -> pa.Array:
    """128-bit integers as decimals, by their two little-endian words."""
    words = np.empty((low.size, 2), np.uint64)
    words[:, 0] = low
    words[:, 1] = high.view(np.uint64)
    array = pa.Array.from_buffers(kind, low.size, [None, pa.py_buffer(words)])
    if valid is not None:
        array = pc.if_else(one(valid), array, pa.scalar(None, kind))
    return array


def _lanes(column: pa.ChunkedArray) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    array = one(column)
    words = np.frombuffer(array.buffers()[1], np.uint64).reshape(-1, 2)
    words = words[array.offset : array.offset + len(array)]
    return np.ascontiguousarray(words[:, 0]), np.ascontiguousarray(words[:, 1])

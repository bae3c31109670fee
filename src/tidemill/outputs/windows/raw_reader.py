"""Reads parts of raw for streaming windows: row groups that can hold rows in scope, and their fields.

Narrow columns decide first; fields are read only for the rows in scope, or once for all windows of the stream
if most rows of a row group are. Nothing is written here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidemill.formats.arrays import Ints, Mask
from tidemill.formats.arrow import flags, one
from tidemill.formats.payload_columns import Columns, columns_named
from tidemill.outputs.windows.grid import Grid
from tidemill.outputs.windows.keys import buckets_of, key_codes
from tidemill.outputs.windows.row_fates import counts_elsewhere, fates
from tidemill.outputs.windows.row_group_cache import GroupId, Narrow, RowGroup, Wide, group_ids, joined
from tidemill.outputs.windows.row_scope import (
    FIELD,
    PAST,
    TENANT,
    ExtractUnit,
    RowScope,
    row_schema,
)
from tidemill.outputs.windows.unfit import UnfitValues, together
from tidemill.raw.part_columns import PartColumns, part_columns
from tidemill.storage.tables.parts import open_part

_NARROW: Final = ["event_time", "watermark", "slice"]
_WIDE: Final = ["tenant", "line"]  # and the fields
_LEAST_ROWS, _MOST_ROWS = 16, 32_768  # of one batch of rows …
_BATCH_BYTES: Final = 8 << 20  # … and about how many bytes
_MOSTLY: Final = 2  # a row group is decoded as a whole if more than one row in so many is in scope
_LEAST, _MOST = -(2**63), 2**63 - 1

FoundRows = tuple[pa.Table, Ints | None, Ints]  # rows, which of them (None: all), and the bucket of each


class RowReader:
    """The rows in scope of one unit, in bounded batches, with their buckets."""

    def __init__(self, unit: ExtractUnit) -> None:
        self._unit = unit
        self._spec = unit.spec
        self._scope = unit.scope
        self._schema = row_schema(unit.spec, unit.stream)
        self._columns = columns_named(unit.stream, unit.spec.columns)
        self._shared = unit.shared
        self._path = ""  # of the part that is being read
        self._grid = Grid(unit.spec, unit.scope.starts, unit.cuts) if unit.spec.kind.by_time else None
        self._floor = max(unit.scope.span.start, _floor(unit.scope))
        self._members = _Members(unit.scope) if unit.scope.slices is not None else None
        self.unfit: frozenset[UnfitValues] = frozenset()  # in the rows that were read

    def read(self) -> Iterator[FoundRows]:
        for path in self._unit.parts:
            self._path = path
            with open_part(path, ("tenant", "slice")) as file:
                groups = [
                    one for one in group_ids(path, file.num_row_groups) if self._may_hold(file, one[-1])
                ]
                later: list[GroupId] = []
                for group in groups:
                    if self._shared.is_busy(group):  # another window is decoding it: decode the next one here
                        later.append(group)
                    else:
                        yield from self._group(file, group)
                for group in later:
                    yield from self._group(file, group)

    # -- what is looked at

    def _may_hold(self, file: pq.ParquetFile, group: int) -> bool:
        """Whether a row group can hold a row in scope, by its statistics."""
        first, last, _ = _bounds(file, group, "event_time")
        if self._between(first, last):
            return True
        if not counts_elsewhere(self._spec):
            return False
        least, most, any_met = _bounds(file, group, "watermark")
        # a late row counts at the watermark it met, or right after it, which is not before its event time
        return any_met and self._between(max(first, least), most + self._spec.next_open)

    def _between(self, low: int, high: int) -> bool:
        """Whether a row that counts at an instant between these, both included, can be in scope."""
        low, high = max(low, self._floor), min(high, self._scope.span.end - 1)
        return low <= high and (self._grid is None or self._grid.may_hold(low, high))

    def _group(self, file: pq.ParquetFile, which: GroupId) -> Iterator[FoundRows]:
        group = which[-1]
        whole = self._shared.find(which)
        narrow = whole.narrow if whole is not None else _narrow(file, group)
        time, watermark = narrow.time, narrow.watermark
        has_met = watermark.is_valid().to_numpy(zero_copy_only=False)
        fate = fates(self._spec, time, _ints(watermark.fill_null(0)), has_met)
        ids = narrow.slices.dictionary.to_pylist()
        positions = [self._unit.ledger.get(name) for name in ids]
        known = [position for position in positions if position is not None]
        if not known:
            return
        code = narrow.slices.indices.to_numpy(zero_copy_only=False)
        in_ledger = np.array([position is not None for position in positions], np.bool_)
        keep = fate.used & in_ledger[code] & (fate.at >= self._floor) & (fate.at < self._scope.span.end)
        if self._members is not None:
            keep &= self._members.hold(time, code, ids)
        rows = np.flatnonzero(keep)
        if self._grid is not None:
            rows = rows[self._grid.holds(fate.at[rows])]
        if not rows.size:
            return
        seq = np.array([position.seq if position is not None else -1 for position in positions], np.int64)
        number = np.cumsum(in_ledger) - 1  # of a slice among the known ones
        names = pa.array([position.name for position in known], pa.string())
        if whole is None and self._shared.is_on and rows.size * _MOSTLY >= time.size:
            whole = self._shared.get(which, lambda: self._decode(file, group, narrow))
        found = self._fields(file, group, rows) if whole is None else _taken(whole, rows)
        for wide, own in found:
            yield from self._typed(
                wide,
                {
                    "at": fate.at[own],
                    "time": time[own],
                    "seq": seq[code[own]],
                    "late": fate.late[own],
                    **({PAST: fate.past[own]} if fate.past is not None else {}),
                },
                pa.DictionaryArray.from_arrays(pa.array(number[code[own]].astype(np.int32)), names),
            )

    def _fields(self, file: pq.ParquetFile, group: int, rows: Ints) -> Iterator[tuple[Wide, Ints]]:
        """The fields of rows in scope, in batches, and the numbers of those rows in the group."""
        before = 0
        columns = self._in_part(file, self._columns)
        for batch in _batches(file, group, columns):
            low, high = np.searchsorted(rows, [before, before + batch.num_rows])
            if low < high:
                inside = rows[low:high] - before
                chosen = batch if inside.size == batch.num_rows else batch.take(pa.array(inside))
                yield _wide(chosen, columns), rows[low:high]
            before += batch.num_rows
            if high == rows.size:
                return

    def _decode(self, file: pq.ParquetFile, group: int, narrow: Narrow) -> RowGroup:
        """All of a row group, with the columns of all windows of the stream."""
        columns = self._in_part(file, columns_named(self._unit.stream, self._shared.columns))
        return RowGroup(narrow, joined([_wide(batch, columns) for batch in _batches(file, group, columns)]))

    def _in_part(self, file: pq.ParquetFile, fields: Columns) -> PartColumns:
        return part_columns(file, self._path, fields, sizes=True)

    # -- what becomes of a batch

    def _typed(self, wide: Wide, narrow: dict[str, np.ndarray], name: pa.Array) -> Iterator[FoundRows]:
        self._note_unfit(wide, narrow["time"])
        table = pa.Table.from_arrays(
            [
                pa.array(narrow["at"]),
                pa.array(narrow["time"]),
                pa.array(narrow["seq"]),
                wide.line,
                name,
                pa.array(narrow["late"]),
                wide.bytes,
                wide.tenant,
                *([pa.array(narrow[PAST])] if PAST in narrow else []),
                *(wide.fields[column] for column in self._spec.columns),
            ],
            schema=self._schema,
        )
        if self._grid is not None:
            row, bucket = self._grid.pairs(narrow["at"])
            yield table, None if row.size == table.num_rows else row, bucket
        else:
            yield from self._by_key(table, narrow["at"])

    def _note_unfit(self, wide: Wide, time: Ints) -> None:
        for name in wide.unfit.keys() & set(self._spec.columns):
            marked = np.flatnonzero(np.asarray(wide.unfit[name]))
            tenants = np.array(wide.tenant.take(pa.array(marked)).to_pylist(), object)
            for tenant in dict.fromkeys(tenants.tolist()):
                own = time[marked][tenants == tenant]
                found = UnfitValues(name, str(tenant), int(own.min()), int(own.max()))
                self.unfit = together(self.unfit, [found])

    def _by_key(self, table: pa.Table, at: Ints) -> Iterator[FoundRows]:
        again, since, buckets = self._scope.again, self._scope.since, self._unit.buckets
        if again is None and buckets == 1:
            yield table, None, np.zeros(at.size, np.int64)
            return
        tenant, key = table.column(TENANT), [table.column(FIELD + name) for name in self._spec.key]
        row: Ints | None = None
        if again is not None:
            codes, found = key_codes([tenant, *key])
            always = _MOST if since is None else since
            keys = [(str(values[0]), values[1:]) for values in found]
            floor = np.array([min(again.get(known, _MOST), always) for known in keys], np.int64)
            keep = at >= floor[codes]
            if not keep.any():
                return
            row = None if keep.all() else np.flatnonzero(keep)
        bucket = buckets_of(tenant, key, buckets) if buckets > 1 else np.zeros(at.size, np.int64)
        yield table, row, bucket if row is None else bucket[row]


class _Members:
    """Which slices the aggregation windows were built from."""

    def __init__(self, scope: RowScope) -> None:
        assert scope.slices is not None
        self._intervals = list(scope.slices)
        self._sets = list(scope.slices.values())
        self._starts = np.array([interval.start for interval in self._intervals], np.int64)
        self._ends = np.array([interval.end for interval in self._intervals], np.int64)

    def hold(self, time: Ints, code: Ints, ids: list[str]) -> Mask:
        """Rows whose slice is among those of the aggregation window they lie in."""
        keep = np.zeros(time.size, np.bool_)
        if not self._starts.size:
            return keep
        window = np.searchsorted(self._starts, time, "right") - 1
        rows = np.flatnonzero((window >= 0) & (time < self._ends[window]))
        pairs, inverse = np.unique(window[rows] * len(ids) + code[rows], return_inverse=True)
        built = [ids[pair % len(ids)] in self._sets[pair // len(ids)] for pair in pairs.tolist()]
        keep[rows] = np.array(built, np.bool_)[inverse]
        return keep


def _narrow(file: pq.ParquetFile, group: int) -> Narrow:
    found = file.read_row_group(group, _NARROW, use_threads=False)
    time, watermark, slices = (one(found.column(name)) for name in _NARROW)
    return Narrow(_ints(time), watermark, slices)


def _batches(file: pq.ParquetFile, group: int, columns: PartColumns) -> Iterator[pa.RecordBatch]:
    """Fields and tenants of a row group, in batches that bound memory."""
    metadata = file.metadata.row_group(group)
    payload = metadata.column(file.schema_arrow.get_field_index("payload")).total_uncompressed_size
    size = payload if columns.keeps_payload else metadata.total_byte_size
    at_once = _BATCH_BYTES * metadata.num_rows // max(1, size)
    step = max(_LEAST_ROWS, min(_MOST_ROWS, at_once))
    names = list(dict.fromkeys([*_WIDE, *columns.names]))
    yield from file.iter_batches(step, [group], columns=names, use_threads=False)


def _wide(batch: pa.RecordBatch, columns: PartColumns) -> Wide:
    typed = columns.typed(batch)
    return Wide(
        tenant=batch.column("tenant"),
        line=batch.column("line"),
        bytes=columns.sizes(batch).cast(pa.int64()),
        fields=dict(zip(columns.fields, typed.arrays, strict=True)),
        unfit={name: flags(rows, batch.num_rows) for name, rows in typed.misfits},
    )


def _taken(whole: RowGroup, rows: Ints) -> Iterator[tuple[Wide, Ints]]:
    yield whole.wide if rows.size == whole.narrow.time.size else whole.wide.take(rows), rows


def _floor(scope: RowScope) -> int:
    """No row that counts before this is in scope, whatever its key."""
    if scope.again is None:
        return _LEAST
    return min([*scope.again.values(), _MOST if scope.since is None else scope.since])


def _ints(column: pa.Array) -> Ints:
    values: Ints = column.view(pa.int64()).to_numpy()
    return values


def _bounds(file: pq.ParquetFile, group: int, column: str) -> tuple[int, int, bool]:
    """Minimum and maximum of a column of instants, as far as known; and whether it can have any value."""
    position = file.schema_arrow.get_field_index(column)
    stats = file.metadata.row_group(group).column(position).statistics
    if stats is None or not stats.has_min_max:
        empty = stats is not None and stats.has_null_count and stats.num_values == 0
        return _LEAST, _MOST, not empty
    return stats.min_raw, stats.max_raw, True

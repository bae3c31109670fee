"""Reads the events that a query needs from raw parts, a row group at a time, with the fields that it uses.

Row groups that cannot hold such an event are excluded by their statistics; payloads are read only where a
part has no column for a field. It only reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidemill.engine.session import default_cores
from tidemill.formats.arrays import Mask
from tidemill.formats.arrow import one
from tidemill.formats.declared import RawColumns
from tidemill.formats.payload_columns import Columns
from tidemill.model.conditions.ast import Condition, paths_in
from tidemill.outputs.index.entries import metadata_of
from tidemill.query.search.by_columns import ColumnFilter, column_filter
from tidemill.query.search.finding import holds
from tidemill.query.source import RawRequest
from tidemill.raw.columns import PartColumns
from tidemill.raw.footers import declared_in
from tidemill.raw.payloads import PAYLOAD, PartPayloads
from tidemill.storage.tables.parts import open_part

_TOGETHER: Final = 4  # row groups that are read at once
_Unit = tuple[str, Sequence[int]]  # a part, and some of its row groups


@dataclass(frozen=True, slots=True)
class FoundRows:
    """Rows of one part: the columns of every event, and its fields as `fields` reads them."""

    table: pa.Table
    fields: PartColumns


@dataclass(frozen=True, slots=True)
class RawScan:
    """What is read from the parts of raw."""

    request: RawRequest
    fields: Columns  # the fields to read of each event
    columns: Sequence[str]  # of raw, beside them
    payload: bool = False  # whether to read payloads, as they were sent

    def rows(self, paths: Sequence[str]) -> Iterator[FoundRows]:
        """The events of the parts, a row group at a time; as many at once as there are cores."""
        units = [unit for path in paths for unit in self._units(path)]
        at_once = default_cores()
        if len(units) == 1 or at_once == 1:
            found = (self._read(unit) for unit in units)
            yield from (each for each in found if each is not None)
            return
        with ThreadPoolExecutor(at_once) as pool:
            for start in range(0, len(units), at_once):
                for each in pool.map(self._read, units[start : start + at_once]):
                    if each is not None:
                        yield each

    def _units(self, path: str) -> Iterator[_Unit]:
        """Row groups that can hold an event of the spans and the tenant, a few together."""
        metadata = metadata_of(path)
        positions = _positions(metadata, ("event_time", "tenant"))
        groups = [
            group
            for group in range(metadata.num_row_groups)
            if self._may_hold(metadata.row_group(group), positions)
        ]
        for start in range(0, len(groups), _TOGETHER):
            yield path, groups[start : start + _TOGETHER]

    def _may_hold(self, group: pq.RowGroupMetaData, positions: Sequence[int]) -> bool:
        time, tenant = (group.column(position).statistics for position in positions)
        if time is not None and time.has_min_max:
            low, high = time.min_raw, time.max_raw
            if not any(span.start <= high and low < span.end for span in self.request.spans):
                return False
        if self.request.tenant is not None and tenant is not None and tenant.has_min_max:
            return bool(tenant.min <= self.request.tenant <= tenant.max)
        return True

    def _read(self, unit: _Unit) -> FoundRows | None:
        path, groups = unit
        condition = self.request.filter
        with open_part(path, metadata=metadata_of(path)) as file:
            declared = declared_in(file, path)
            by_columns = column_filter(condition, declared, file) if condition is not None else None
            if by_columns is not None:
                groups = [group for group in groups if by_columns.may_match(group)]
            if not groups:
                return None
            chosen = self._narrow(file, groups)
            if condition is not None and chosen.any():
                chosen = _passing(condition, by_columns, declared, file, groups, chosen)
            if not chosen.any():
                return None
            fields = PartColumns(self.fields, declared)
            payloads = PartPayloads(declared)
            names = [*self.columns, *fields.names, *(payloads.names if self.payload else ())]
            table = file.read_row_groups(groups, list(dict.fromkeys(names)), use_threads=False)
        table = table if chosen.all() else table.filter(pa.array(chosen))
        if self.payload:
            table = payloads.put_back(table).select([*self.columns, PAYLOAD])
        return FoundRows(table, fields)

    def _narrow(self, file: pq.ParquetFile, groups: Sequence[int]) -> Mask:
        """The rows of the spans and the tenant that had arrived by then."""
        request = self.request
        names = ["event_time"]
        names += ["tenant"] if request.tenant is not None else []
        names += ["arrival", "slice"] if request.past is not None else []
        rows = file.read_row_groups(groups, names, use_threads=False)
        time = one(rows.column("event_time")).view(pa.int64()).to_numpy()
        chosen = np.zeros(time.size, np.bool_)
        for span in request.spans:
            chosen |= (time >= span.start) & (time < span.end)
        if request.tenant is not None:
            chosen &= np.asarray(pc.equal(rows.column("tenant"), request.tenant))
        if request.past is not None:
            chosen &= one(rows.column("arrival")).view(pa.int64()).to_numpy() <= request.past.at
            if request.past.without:
                without = pa.array(sorted(request.past.without), pa.string())
                chosen &= ~np.asarray(pc.is_in(rows.column("slice"), without))
        return chosen


def _positions(metadata: pq.FileMetaData, names: Sequence[str]) -> list[int]:
    schema = metadata.schema
    at = {schema.column(number).path: number for number in range(len(schema))}
    return [at[name] for name in names]


def _passing(
    condition: Condition,
    by_columns: ColumnFilter | None,
    declared: RawColumns | None,
    file: pq.ParquetFile,
    groups: Sequence[int],
    chosen: Mask,
) -> Mask:
    """Which of these rows the condition is true for: by columns where they are enough, otherwise by payloads,
    as in a search."""
    passed = np.zeros(chosen.size, np.bool_)
    rows = np.flatnonzero(chosen)
    if by_columns is None:
        left = rows
    else:
        true, unknown = by_columns.rows(groups, pa.array(rows))
        passed[rows[true & ~unknown]] = True
        left = rows[unknown]
    if left.size:
        payloads = PartPayloads(declared, [".".join(path.segments) for path in paths_in(condition)])
        table = file.read_row_groups(groups, payloads.names, use_threads=False)
        some = table if left.size == chosen.size else table.take(pa.array(left))
        passed[left[holds(condition, payloads.of(some), {})]] = True
    return passed

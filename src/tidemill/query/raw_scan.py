"""Reads the events that a query needs from raw parts, a row group at a time, with the fields that it uses.

Row groups that cannot hold such an event are excluded by their statistics; payloads are read only where a
part has no column for a field. It only reads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidemill.engine.session import default_cores
from tidemill.formats.arrays import Mask
from tidemill.formats.arrow import one
from tidemill.formats.declared_columns import RawColumns
from tidemill.formats.payload_columns import Columns
from tidemill.model.conditions.ast import Condition, paths_in
from tidemill.outputs.index.entries import metadata_of
from tidemill.query.search.column_filter import ColumnFilter, column_filter
from tidemill.query.search.kernel import holds
from tidemill.query.source import RawRequest
from tidemill.raw.footers import declared_with
from tidemill.raw.part_columns import PartColumns
from tidemill.raw.part_payloads import PAYLOAD, PartPayloads
from tidemill.storage.tables.parts import open_part

_TOGETHER: Final = 4  # row groups that are read at once
_AHEAD: Final = 2  # units of work for each core that are being read, or wait for the caller
_Unit = tuple[str, Sequence[int]]  # a part, and some of its row groups
Made = TypeVar("Made")


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
    coded: bool = False  # whether tenants and fields of strings are dictionary-encoded

    def rows(self, paths: Sequence[str], made: Callable[[FoundRows], Made]) -> Iterator[Made]:
        """What is made of the events of the parts, a few row groups at a time. They are read and made by as
        many threads as there are cores, and the next ones while the caller uses these."""

        def work(unit: _Unit) -> Made | None:
            found = self._read(unit)
            return made(found) if found is not None else None

        units = [unit for path in paths for unit in self._units(path)]
        at_once = default_cores()
        if len(units) == 1 or at_once == 1:
            yield from (each for unit in units if (each := work(unit)) is not None)
            return
        with ThreadPoolExecutor(at_once) as pool:
            left = iter(units)
            reading = deque(pool.submit(work, unit) for unit in islice(left, _AHEAD * at_once))
            while reading:
                found = reading.popleft().result()
                reading.extend(pool.submit(work, unit) for unit in islice(left, 1))
                if found is not None:
                    yield found

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
        metadata = metadata_of(path)
        declared = declared_with(metadata, path)
        fields = PartColumns(self.fields, declared)
        coded = ["tenant", *fields.texts] if self.coded else []
        with open_part(path, coded, metadata=metadata) as file:
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
            payloads = PartPayloads(declared)
            names = [*self.columns, *fields.names, *(payloads.names if self.payload else ())]
            table = file.read_row_groups(groups, list(dict.fromkeys(names)), use_threads=False)
        table = table if chosen.all() else table.filter(pa.array(chosen))
        if self.payload:
            table = payloads.put_back(table).select([*self.columns, PAYLOAD])
        return FoundRows(table, fields)

    def _are_inside(self, metadata: pq.FileMetaData, groups: Sequence[int]) -> bool:
        """Whether the statistics say that all events of these row groups are in one of the spans."""
        (position,) = _positions(metadata, ("event_time",))
        times = [metadata.row_group(group).column(position).statistics for group in groups]
        if not all(time is not None and time.has_min_max for time in times):
            return False
        first, last = min(time.min_raw for time in times), max(time.max_raw for time in times)
        return any(span.start <= first and last < span.end for span in self.request.spans)

    def _narrow(self, file: pq.ParquetFile, groups: Sequence[int]) -> Mask:
        """The rows of the spans and the tenant that had arrived by then."""
        request = self.request
        if request.tenant is None and request.past is None and self._are_inside(file.metadata, groups):
            return np.ones(sum(file.metadata.row_group(group).num_rows for group in groups), np.bool_)
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

"""Finds the results of a streaming window, and their revisions, that contain an event. It only reads.

A result identifies the set of slices that its rows came from by a hash. Slices are added in ledger order, so
a result can have been made from few sets; the one with the same hash shows whether the event's slice is in
it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.formats.arrow import one
from tidemill.formats.payload_columns import Columns, columns_named, typed
from tidemill.model.names import column_name
from tidemill.model.slices import set_hash
from tidemill.model.streaming import Fate, WindowSpec
from tidemill.model.time import Interval
from tidemill.outputs.windows.reader import read_results
from tidemill.outputs.windows.row_fates import fates
from tidemill.outputs.windows.row_scope import field_type
from tidemill.raw.footers import declared_by
from tidemill.raw.part_columns import PartColumns
from tidemill.raw.part_payloads import tops
from tidemill.storage.tables.parts import read_footer, read_part

if TYPE_CHECKING:
    from pathlib import Path

    from tidemill.config.stream import Stream
    from tidemill.storage.tables.snapshot import Range, Snapshot

MOST_ROWS: Final = 500_000  # rows that are read to find which slices a result is made from

SliceNames = Callable[[str], tuple[int, str] | None]  # by id: offset in the ledger, and name in sets


@dataclass(frozen=True, slots=True)
class TracedRow:
    """An accepted event, as raw has it."""

    tenant: str
    time: int
    watermark: int | None  # that it met
    slice: str
    payload: str


@dataclass(frozen=True, slots=True)
class TracedResult:
    """One window and group that an event belongs to, with all revisions of its result."""

    spec: WindowSpec
    fate: Fate
    revisions: Sequence[Mapping[str, object]]  # rows of the results table, by revision
    includes: Sequence[bool | None]  # whether the event is in each; None: unknown


def results_with(
    warehouse: Path, stream: Stream, spec: WindowSpec, row: TracedRow, raw: Snapshot, names: SliceNames
) -> list[TracedResult]:
    """Results of the windows that the event lies in, by start."""
    fate, at = spec.fate(row.time, row.watermark), spec.counts_at(row.time, row.watermark)
    found = read_results(warehouse, stream, spec.name, Interval(at - 1, at + 1), row.tenant, revisions=True)
    group = _group(spec, stream, pa.array([row.payload]))
    by_window: dict[str, list[Mapping[str, object]]] = {}
    for result in found.filter(_same_group(found, group)).to_pylist():
        if _holds(spec, result, at):
            by_window.setdefault(result["window_id"], []).append(result)
    return [
        TracedResult(spec, fate, revisions, _included(stream, spec, row, fate, raw, names, revisions))
        for revisions in by_window.values()
    ]


def _holds(spec: WindowSpec, result: Mapping[str, object], at: int) -> bool:
    start, end = (_instant(result[name]) for name in ("start", "end"))
    return start <= at < end if spec.kind.by_time else start <= at <= end


def _instant(value: object) -> int:
    return int(pa.scalar(value, pa.timestamp("us", "UTC")).cast(pa.int64()).as_py())


def _group(spec: WindowSpec, stream: Stream, payload: pa.Array) -> dict[str, pa.Array]:
    """The values that distinguish the results of one instant, by column of the results."""
    fields = _fields(spec, stream)
    return _grouped(stream, [column.name for column in fields.columns], typed(fields, payload).arrays)


def _fields(spec: WindowSpec, stream: Stream) -> Columns:
    return columns_named(stream, [name for name in spec.grouped_by if name in stream.fields])


def _grouped(stream: Stream, fields: Sequence[str], arrays: Sequence[pa.Array]) -> dict[str, pa.Array]:
    return {
        column_name(name): array.cast(field_type(stream, name), safe=False)
        for name, array in zip(fields, arrays, strict=True)
    }


def _same_group(table: pa.Table, group: Mapping[str, pa.Array]) -> pa.Array:
    keep = pa.array(np.ones(table.num_rows, np.bool_))
    for name, value in group.items():
        if name == "tenant":
            continue
        expected, column = value[0], one(table.column(name))
        equal = (
            pc.is_null(column) if not expected.is_valid else pc.fill_null(pc.equal(column, expected), False)
        )
        keep = pc.and_(keep, equal)
    return keep


def _included(
    stream: Stream,
    spec: WindowSpec,
    row: TracedRow,
    fate: Fate,
    raw: Snapshot,
    names: SliceNames,
    revisions: Sequence[Mapping[str, object]],
) -> list[bool | None]:
    if not fate.used:
        return [False for _ in revisions]
    starts, ends = ([_instant(one[name]) for one in revisions] for name in ("start", "end"))
    span = Interval(min(starts), max(ends) + (not spec.kind.by_time))
    slices = _slices_in(stream, spec, row, raw, names, span)
    if slices is None:
        return [None for _ in revisions]
    own = names(row.slice)
    sets = {set_hash(name for _, name in slices[:count]): count for count in range(1, len(slices) + 1)}
    position = next((at for at, each in enumerate(slices) if each == own), len(slices))
    found: list[bool | None] = []
    for revision in revisions:
        count = sets.get(str(revision["hash"]))
        gone = bool(revision["withdrawn"])
        found.append(False if gone else None if count is None else position < count)
    return found


def _slices_in(
    stream: Stream, spec: WindowSpec, row: TracedRow, raw: Snapshot, names: SliceNames, span: Interval
) -> list[tuple[int, str]] | None:
    """Offset and name of each slice with a used row of this tenant and group in `span`, in ledger order; None
    if too many rows would have to be read."""
    ranges: dict[str, Range] = {"tenant": (row.tenant, row.tenant), "event_time": (None, span.end - 1)}
    parts = raw.select(ranges=ranges)
    if spec.counts_at(span.start - 1, span.start) == span.start - 1:  # rows count at their event time
        parts = [part for part in parts if part.may_hold("event_time", span.start, span.end - 1)]
    if sum(part.rows for part in parts) > MOST_ROWS:
        return None
    group = _group(spec, stream, pa.array([row.payload]))
    found: set[str] = set()
    for path in raw.paths(parts):
        found |= _slices_of(stream, spec, row, path, span, group)
    known = [each for each in map(names, found) if each is not None]
    return sorted(known)


def _slices_of(
    stream: Stream, spec: WindowSpec, row: TracedRow, path: str, span: Interval, group: Mapping[str, pa.Array]
) -> set[str]:
    fields = PartColumns(_fields(spec, stream), declared_by(read_footer(path)))
    columns = list(dict.fromkeys(["event_time", "watermark", "slice", *tops(fields.names)]))
    rows = read_part(path, columns, where=pc.field("tenant") == row.tenant).combine_chunks()
    time = one(rows.column("event_time")).cast(pa.int64()).to_numpy()
    watermarks = one(rows.column("watermark")).cast(pa.int64())
    decided = fates(
        spec, time, watermarks.fill_null(0).to_numpy(), watermarks.is_valid().to_numpy(zero_copy_only=False)
    )
    inside = decided.used & (decided.at >= span.start) & (decided.at < span.end)
    rows = rows.filter(pa.array(inside)).combine_chunks()
    if group and rows.num_rows:
        found = _grouped(stream, fields.fields, fields.typed(rows).arrays)
        rows = rows.filter(_same_group(pa.table(found), group))
    return set(pc.unique(rows.column("slice")).to_pylist())

"""The writing kernel: what passed the gate becomes raw parts, what did not becomes a quarantine part.

Everything is written to staging; the driver commits. Rows of a part are sorted by (tenant, event time), ties
in order of arrival, so equal groups of slices always give equal bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from tidemill.formats.arrays import Ints, Mask
from tidemill.formats.arrow import one, string_buffers
from tidemill.formats.columns import copy_at, put_positions, put_rows
from tidemill.formats.declared_columns import RawColumns
from tidemill.formats.locate import Located, locate
from tidemill.formats.payload_columns import TypedRows, typed, typed_at
from tidemill.formats.read import NOT_LOCATED
from tidemill.formats.stored_slice import content_bytes
from tidemill.model.levels import BASE
from tidemill.model.slices import RecordOutcome
from tidemill.raw.accept.gate import CONFLICT
from tidemill.raw.accept.stage import StagedChunk
from tidemill.raw.footers import QUARANTINE_PART, BatchFooter, LargeRows
from tidemill.raw.part_columns import coded_and_bounded, nested_columns, own_columns, payload_sizes
from tidemill.raw.part_names import born_large
from tidemill.raw.part_payloads import without_columns
from tidemill.raw.partitioning import part_numbers, row_order
from tidemill.raw.quarantine import as_line
from tidemill.raw.tables import INSTANT, QUARANTINE, QUARANTINE_STATS, RAW_STATS, ROW_GROUP, partition_at
from tidemill.storage.bucket_path import local_copy, size_of, warehouse_path
from tidemill.storage.ipc import read_ipc
from tidemill.storage.tables.parts import StagedPart, write_part

# Called with the accepted rows of a unit while they are in memory: (rows, staging folder, name).
Tap = Callable[[pa.Table, Path, str], None]


@dataclass(frozen=True, slots=True)
class WriteChunk:
    """A staged chunk with facts from the batch."""

    index: int  # its number in the batch, as the gate's drops name it
    staged: StagedChunk
    first_line: int
    watermark: int | None
    replayed: Sequence[str] = ()  # files of slices that took records of this one out of quarantine


@dataclass(frozen=True, slots=True)
class WriteUnit:
    name: str  # equal for equal slices: it names the parts
    chunks: Sequence[WriteChunk]
    drops: Sequence[str]
    slices: Mapping[int, str]  # seq -> slice id, for those that a conflict may name
    raw_folder: str
    quarantine_folder: str
    footer: BatchFooter
    dimensions: int
    measures: int
    columns: RawColumns  # the declared fields that become columns
    has_type: bool
    arrival: int  # of the first slice: decides the partition of a part without rows
    by_day: bool  # whether a part must be within one day
    large: int  # parts with more bytes need not be packed
    many: int  # nor do parts with more slices
    now: int
    tap: Tap | None


@dataclass(frozen=True, slots=True)
class Written:
    raw: Sequence[StagedPart]
    quarantine: StagedPart | None
    tiles: Mapping[int, frozenset[str]]  # 5s tile start -> slices with accepted rows in it
    bounds: Mapping[str, tuple[int, int]]  # slice -> first and last accepted event time
    late: Mapping[str, int]  # slice -> accepted rows at or before the watermark that they met


def write(unit: WriteUnit) -> Iterator[Written]:
    drops = _drops(unit)
    tables = [read_ipc(chunk.staged.columns) for chunk in unit.chunks]
    keep = [_kept(chunk, table, drops) for chunk, table in zip(unit.chunks, tables, strict=True)]
    rows = _PassedRows(unit, tables, keep)
    yield Written(
        raw=rows.write_raw(),
        quarantine=_write_quarantine(unit, tables, drops),
        tiles=rows.tiles(),
        bounds=rows.bounds(),
        late=rows.late(),
    )


def _drops(unit: WriteUnit) -> pa.Table | None:
    numbers = pa.array([chunk.index for chunk in unit.chunks], pa.int64())
    pieces = []
    for path in unit.drops:
        table = read_ipc(path)
        pieces.append(table.filter(pa.compute.is_in(table.column("chunk"), numbers)))
    return pa.concat_tables(pieces).combine_chunks() if pieces else None


def _kept(chunk: WriteChunk, table: pa.Table, drops: pa.Table | None) -> Mask:
    keep = np.ones(table.num_rows, np.bool_)
    if drops is not None:
        of_chunk = drops.column("chunk").to_numpy() == chunk.index
        keep[drops.column("at").to_numpy()[of_chunk]] = False
    return keep


class _PassedRows:
    """The accepted rows of a unit in their final order; each payload is copied once."""

    def __init__(self, unit: WriteUnit, tables: Sequence[pa.Table], keep: Sequence[Mask]) -> None:
        self.unit = unit
        self.tables = tables
        self.rows = [np.flatnonzero(mask) for mask in keep]
        self.sizes = np.array([r.size for r in self.rows], np.int64)
        self.total = int(self.sizes.sum())
        self.time = self._numbers("event_time")
        self.tenants, tenant = self._codes("tenant")
        self.sizes_of = self._numbers("end") - self._numbers("start")  # bytes of payloads
        self.part = part_numbers(self.time, self.sizes_of, by_day=unit.by_day)
        self.order = row_order(self.part, tenant, self.time)
        self.tenant = tenant
        # The target of each row: position[i] of row i, counted chunk by chunk.
        self.position = np.empty(self.total, np.int64)
        self.position[self.order] = np.arange(self.total)

    def _numbers(self, name: str) -> Ints:
        if not self.tables:
            return np.empty(0, np.int64)
        return np.concatenate(
            [
                one(table.column(name)).to_numpy()[rows]
                for table, rows in zip(self.tables, self.rows, strict=True)
            ]
        )

    def _codes(self, name: str) -> tuple[list[str], Ints]:
        """A dictionary column of all chunks: its strings in ascending order, and codes."""
        texts: set[str] = set()
        for table in self.tables:
            texts.update(one(table.column(name)).dictionary.to_pylist())
        ordered = sorted(texts, key=lambda text: text.encode())
        rank = {text: code for code, text in enumerate(ordered)}
        pieces = [np.empty(0, np.int64)]
        for table, rows in zip(self.tables, self.rows, strict=True):
            column = one(table.column(name))
            ranks = np.array([rank[text] for text in column.dictionary.to_pylist()] or [0], np.int64)
            pieces.append(ranks[column.indices.to_numpy(zero_copy_only=False)[rows]])
        return ordered, np.concatenate(pieces)

    def _positions(self) -> Iterator[tuple[pa.Table, Ints, Ints]]:
        """Each chunk's table, its accepted rows, and their positions in the final order."""
        done = 0
        for table, rows in zip(self.tables, self.rows, strict=True):
            yield table, rows, self.position[done : done + rows.size]
            done += rows.size

    def _per_chunk(self, values: Sequence[int]) -> Ints:
        return np.repeat(np.array(values, np.int64), self.sizes)[self.order]

    def _scattered(self, sources: Sequence[tuple[np.ndarray, Ints, Ints]], kind: pa.DataType) -> pa.Array:
        """One string column from spans in several buffers, each byte copied once."""
        lengths = np.concatenate([end - start for _, start, end in sources] or [np.empty(0, np.int64)])
        offsets = np.zeros(self.total + 1, np.int64)
        np.cumsum(lengths[self.order], out=offsets[1:])
        assert offsets[-1] < 2**31, "a unit of work stays below 2 GiB"
        out = np.empty(int(offsets[-1]), np.uint8)
        done = 0
        for data, start, end in sources:
            copy_at(data, start, end, offsets[self.position[done : done + start.size]], out)
            done += start.size
        return pa.Array.from_buffers(
            kind, self.total, [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(out)]
        )

    def _payload(self) -> pa.Array:
        sources = []
        for chunk, table, rows in zip(self.unit.chunks, self.tables, self.rows, strict=True):
            start = one(table.column("start")).to_numpy()[rows]
            end = one(table.column("end")).to_numpy()[rows]
            sources.append((mapped(chunk.staged.data), start, end))
        return self._scattered(sources, pa.string())

    def _event_id(self) -> pa.Array:
        sources = []
        for table, rows in zip(self.tables, self.rows, strict=True):
            offsets, data = string_buffers(one(table.column("event_id")))
            sources.append((data, offsets[rows].astype(np.int64), offsets[rows + 1].astype(np.int64)))
        return self._scattered(sources, pa.string())

    def _dictionary(self, texts: Sequence[str], codes: Ints) -> pa.Array:
        return pa.DictionaryArray.from_arrays(
            pa.array(codes.astype(np.int32)), pa.array(list(texts), pa.string())
        )

    def write_raw(self) -> list[StagedPart]:
        unit = self.unit
        table = self._raw_table()
        payload = one(table.column("payload"))
        values = self._fields(payload)
        for name, array in nested_columns(unit.columns, values, payload_sizes(payload)).items():
            table = table.append_column(name, array)
        columns = unit.columns.made((name for name, _ in values.misfits), values.rounded)
        if not columns.keeps_payload:
            left, columns = without_columns(columns, table)
            table = table.set_column(table.schema.get_field_index("payload"), "payload", left)
        footer = replace(unit.footer, columns=columns)
        if unit.tap is not None and self.total:
            unit.tap(self._tapped(table), warehouse_path(unit.raw_folder), unit.name)
        cuts = np.flatnonzero(np.diff(self.part[self.order])) + 1
        starts = [0, *cuts.tolist()]
        return [
            self._write_part(table, number, start, stop, footer if number == 0 else footer.for_next_part())
            for number, (start, stop) in enumerate(pairwise([*starts, self.total]))
        ]

    def _fields(self, payload: pa.StringArray) -> TypedRows:
        """The declared fields, from the positions that the scanner found."""
        fields = own_columns(self.unit.columns)
        if not fields.columns or not all("tag0" in table.column_names for table in self.tables):
            return typed(fields, payload)
        offsets, data = string_buffers(payload)
        ends = offsets.astype(np.int64)
        shape = (len(fields.columns), self.total)
        found = Located(
            np.empty(shape, np.uint8), np.empty(shape, np.int64), np.empty(shape, np.int64),
            np.zeros(self.total, np.uint8),
        )  # fmt: skip
        for table, rows, at in self._positions():
            for index in range(len(fields.columns)):
                tag, start, end = (one(table.column(f"{name}{index}")) for name in ("tag", "from", "to"))
                put_rows(tag.to_numpy(), rows, at, found.tags[index])
                put_positions(start.to_numpy(), rows, at, ends, found.starts[index])
                put_positions(end.to_numpy(), rows, at, ends, found.ends[index])
        writable = data if data.flags.writeable else data.copy()  # writable, as kernels are compiled
        left = np.flatnonzero(found.tags[0] == NOT_LOCATED)
        if left.size:
            again = locate(writable, ends[left], ends[left + 1], fields.paths)
            found.tags[:, left], found.starts[:, left], found.ends[:, left] = (
                again.tags,
                again.starts,
                again.ends,
            )
        return typed_at(fields, writable, found)

    def _write_part(
        self, table: pa.Table, number: int, start: int, stop: int, footer: BatchFooter
    ) -> StagedPart:
        """Write the rows between two positions. A unit with nothing accepted writes a part without rows."""
        unit, rows = self.unit, self.order[start:stop]
        first = int(self.time[rows].min()) if rows.size else unit.arrival
        held = self._rows_of_slices(rows)
        has_many = len(held) >= unit.many
        may_be_large = has_many or int(self.sizes_of[rows].sum()) >= unit.large
        if may_be_large:
            footer = replace(footer, large=LargeRows(held, first, int(self.time[rows].max()), unit.now))
        part_rows = table.slice(start, stop - start)
        coded, bounded = coded_and_bounded(part_rows, unit.columns)
        part = write_part(
            warehouse_path(unit.raw_folder),
            f"{unit.name}-{number:03d}.parquet",
            part_rows,
            partition=partition_at(first, by_day=unit.by_day),
            footer=footer.to_footer(),
            stats_columns=RAW_STATS,
            row_group_rows=ROW_GROUP,
            dictionary=coded,
            bounded=bounded,
        )
        if has_many or (may_be_large and part.size >= unit.large):
            return replace(part, name=born_large(part.name))
        return part

    def _rows_of_slices(self, rows: Ints) -> dict[str, int]:
        """How many of these rows each slice has, without slices that have none."""
        chunk = np.searchsorted(np.cumsum(self.sizes), rows, "right")
        counts = np.bincount(chunk, minlength=len(self.unit.chunks)).tolist()
        found: dict[str, int] = {}
        for each, count in zip(self.unit.chunks, counts, strict=True):
            if count:
                found[each.staged.slice] = found.get(each.staged.slice, 0) + count
        return found

    def _raw_table(self) -> pa.Table:
        unit = self.unit
        slices = sorted({chunk.staged.slice for chunk in unit.chunks})
        code = [slices.index(chunk.staged.slice) for chunk in unit.chunks]
        met = [chunk.watermark for chunk in unit.chunks]
        no_watermark = self._per_chunk([m is None for m in met]).astype(np.bool_)
        lines = self._numbers("row") + np.repeat(
            np.array([chunk.first_line for chunk in unit.chunks], np.int64), self.sizes
        )
        if unit.has_type:
            types, kind = self._codes("event_type")
            event_type = self._dictionary(types, kind[self.order])
        else:
            event_type = pa.nulls(self.total, pa.string())
        return pa.table(
            {
                "tenant": self._dictionary(self.tenants, self.tenant[self.order]),
                "event_time": pa.array(self.time[self.order]).cast(INSTANT),
                "event_id": self._event_id(),
                "event_type": event_type,
                "arrival": pa.array(self._per_chunk([c.staged.arrival for c in unit.chunks])).cast(INSTANT),
                "watermark": pa.array(self._per_chunk([m or 0 for m in met]), mask=no_watermark).cast(
                    INSTANT
                ),
                "slice": self._dictionary(slices, self._per_chunk(code)),
                "line": pa.array(lines[self.order]),
                "payload": self._payload(),
            }
        )

    def _tapped(self, raw: pa.Table) -> pa.Table:
        """The columns for a tap: tenant, time, id and position of each event, and what metrics use (d0 …, m0
        …)."""
        columns = {name: raw.column(name) for name in ("tenant", "event_time", "event_id", "slice", "line")}
        names = [f"d{i}" for i in range(self.unit.dimensions)] + [f"m{i}" for i in range(self.unit.measures)]
        order = pa.array(self.order)
        for name in names:
            pieces = [
                table.column(name).take(pa.array(rows)) if rows.size < table.num_rows else table.column(name)
                for table, rows in zip(self.tables, self.rows, strict=True)
            ]
            whole = pa.chunked_array([chunk for piece in pieces for chunk in piece.chunks], pieces[0].type)
            columns[name] = one(whole.unify_dictionaries()).take(order)
        return pa.table(columns)

    def _by_slice(self) -> Iterator[tuple[str, WriteChunk, Ints]]:
        done = 0
        for chunk, rows in zip(self.unit.chunks, self.rows, strict=True):
            if rows.size:
                yield chunk.staged.slice, chunk, self.time[done : done + rows.size]
            done += rows.size

    def tiles(self) -> dict[int, frozenset[str]]:
        found: dict[int, set[str]] = {}
        for name, _, time in self._by_slice():
            for tile in np.unique(time // BASE.tile).tolist():
                found.setdefault(tile * BASE.tile, set()).add(name)
        return {start: frozenset(slices) for start, slices in found.items()}

    def bounds(self) -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        for name, _, time in self._by_slice():
            low, high = found.get(name, (int(time[0]), int(time[0])))
            found[name] = (min(low, int(time.min())), max(high, int(time.max())))
        return found

    def late(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for name, chunk, time in self._by_slice():
            if chunk.watermark is not None:
                found[name] = found.get(name, 0) + int(np.count_nonzero(time <= chunk.watermark))
        return found


def mapped(path: str) -> np.ndarray:
    return np.memmap(local_copy(path), np.uint8, mode="r") if size_of(path) else np.empty(0, np.uint8)


def _write_quarantine(
    unit: WriteUnit, tables: Sequence[pa.Table], drops: pa.Table | None
) -> StagedPart | None:
    rows: list[dict[str, object]] = []
    for chunk, table in zip(unit.chunks, tables, strict=True):
        data = mapped(chunk.staged.data)
        found = list(_refusals(chunk, data))
        if drops is not None:
            found.extend(_conflicts(unit, chunk, table, drops, data))
        if chunk.replayed:
            found = _not_replayed(found, chunk.replayed)
        rows.extend(sorted(found, key=lambda row: int(str(row["line"]))))
    if not rows:
        return None
    return write_part(
        warehouse_path(unit.quarantine_folder),
        f"{unit.name}.parquet",
        pa.Table.from_pylist(rows, schema=QUARANTINE),
        partition={},
        footer=replace(unit.footer, kind=QUARANTINE_PART).to_footer(),
        stats_columns=QUARANTINE_STATS,
    )


def _not_replayed(rows: Sequence[dict[str, object]], files: Sequence[str]) -> list[dict[str, object]]:
    """Without records that left quarantine as part of another slice: their outcome is there."""
    taken = {line for file in files for line in content_bytes(local_copy(file)).split(b"\n")}
    return [
        row for row in rows if not (isinstance(row["payload"], bytes) and as_line(row["payload"]) in taken)
    ]


def _refusals(chunk: WriteChunk, data: np.ndarray) -> Iterator[dict[str, object]]:
    if chunk.staged.refused is None:
        return
    for row in read_ipc(chunk.staged.refused).to_pylist():
        yield {
            "slice": chunk.staged.slice,
            "line": chunk.first_line + row["row"],
            "arrival": chunk.staged.arrival,
            "outcome": RecordOutcome.REJECTED.value,
            "reason": row["reason"],
            "detail": row["detail"],
            "tenant": row["tenant"],
            "payload": data[row["start"] : row["end"]].tobytes(),
        }


def _conflicts(
    unit: WriteUnit, chunk: WriteChunk, table: pa.Table, drops: pa.Table, data: np.ndarray
) -> Iterator[dict[str, object]]:
    chosen = (drops.column("chunk").to_numpy() == chunk.index) & (drops.column("kind").to_numpy() == CONFLICT)
    for drop in drops.filter(pa.array(chosen)).to_pylist():
        record = {
            name: table.column(name)[drop["at"]].as_py()
            for name in ("row", "start", "end", "tenant", "event_id")
        }
        held_by = unit.slices.get(drop["seq"], f"#{drop['seq']}")
        yield {
            "slice": chunk.staged.slice,
            "line": chunk.first_line + record["row"],
            "arrival": chunk.staged.arrival,
            "outcome": RecordOutcome.CONFLICT.value,
            "reason": RecordOutcome.CONFLICT.value,
            "detail": f"another payload was accepted from slice {held_by[:12]} line {drop['line']}",
            "tenant": record["tenant"],
            "event_id": record["event_id"],
            "content_hash": f"{drop['content']:016x}",
            "accepted_hash": f"{drop['rival']:016x}",
            "payload": data[record["start"] : record["end"]].tobytes(),
        }

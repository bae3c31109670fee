"""The writing kernel: what passed the gate becomes raw parts, what did not becomes a quarantine part.

Everything is written to staging; the driver commits. Rows of a part are sorted by (tenant, event time), ties
in order of arrival, so equal groups of slices always give equal bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.formats.arrays import Ints, Mask
from tidemill.formats.arrow import one
from tidemill.formats.stored_slice import content_bytes
from tidemill.model.levels import BASE
from tidemill.model.slices import RecordOutcome
from tidemill.raw.accept.gate import CONFLICT
from tidemill.raw.accept.record_texts import ChunkTexts, mapped, payloads, record_texts
from tidemill.raw.accept.stage import StagedChunk
from tidemill.raw.accept.staged_fields import StagedFields
from tidemill.raw.footers import QUARANTINE_PART, BatchFooter, LargeRows
from tidemill.raw.part_columns import SAMPLE, coded_and_bounded, nested_columns
from tidemill.raw.part_names import born_large
from tidemill.raw.part_payloads import PAYLOAD, without_columns
from tidemill.raw.partitioning import part_numbers, row_order
from tidemill.raw.quarantine import as_line
from tidemill.raw.tables import INSTANT, QUARANTINE, QUARANTINE_STATS, RAW_STATS, ROW_GROUP, partition_at
from tidemill.storage.bucket_path import local_copy, warehouse_path
from tidemill.storage.ipc import read_ipc
from tidemill.storage.tables.parts import StagedPart, write_part


class Tap(Protocol):
    """Called with the accepted rows of a unit while they are in memory; it may write to their folder."""

    @property
    def columns(self) -> Sequence[str]:
        """The columns of raw that it reads, beside the dimensions and measures."""
        ...

    def __call__(self, rows: pa.Table, folder: Path, name: str) -> None: ...


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
    fields: StagedFields
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
        pieces.append(table.filter(pc.is_in(table.column("chunk"), numbers)))
    return pa.concat_tables(pieces).combine_chunks() if pieces else None


def _kept(chunk: WriteChunk, table: pa.Table, drops: pa.Table | None) -> Mask:
    keep = np.ones(table.num_rows, np.bool_)
    if drops is not None:
        of_chunk = drops.column("chunk").to_numpy() == chunk.index
        keep[drops.column("at").to_numpy()[of_chunk]] = False
    return keep


class _PassedRows:
    """The accepted rows of a unit, by their numbers through all staged chunks. They stay where they were
    staged until a part is written, which puts them in order a few row groups at a time."""

    def __init__(self, unit: WriteUnit, tables: Sequence[pa.Table], keep: Sequence[Mask]) -> None:
        self.unit = unit
        self.tables = tables
        self.keep = keep
        self.staged = np.array([table.num_rows for table in tables], np.int64)
        self.passed = np.flatnonzero(np.concatenate([np.empty(0, np.bool_), *keep]))
        self.time = self._numbers("event_time")
        self.bytes = self._numbers("end") - self._numbers("start")
        self.tenants, self.tenant = self._codes("tenant")
        time, tenant = self.time[self.passed], self.tenant[self.passed]
        part = part_numbers(time, self.bytes[self.passed], by_day=unit.by_day)
        order = row_order(part, tenant, time)
        self.order = self.passed[order]
        self.cuts = (np.flatnonzero(np.diff(part[order])) + 1).tolist()  # where the next part begins

    def _numbers(self, name: str) -> Ints:
        return np.concatenate(
            [np.empty(0, np.int64), *(one(table.column(name)).to_numpy() for table in self.tables)]
        )

    def _codes(self, name: str) -> tuple[list[str], Ints]:
        """A dictionary column of all chunks: its strings in ascending order, and codes."""
        texts: set[str] = set()
        for table in self.tables:
            texts.update(one(table.column(name)).dictionary.to_pylist())
        ordered = sorted(texts, key=lambda text: text.encode())
        rank = {text: code for code, text in enumerate(ordered)}
        pieces = [np.empty(0, np.int64)]
        for table in self.tables:
            column = one(table.column(name))
            ranks = np.array([rank[text] for text in column.dictionary.to_pylist()] or [0], np.int64)
            pieces.append(ranks[column.indices.to_numpy(zero_copy_only=False)])
        return ordered, np.concatenate(pieces)

    def _per_chunk(self, values: Sequence[int]) -> Ints:
        return np.repeat(np.array(values, np.int64), self.staged)

    def _dictionary(self, texts: Sequence[str], codes: Ints) -> pa.Array:
        return pa.DictionaryArray.from_arrays(
            pa.array(codes.astype(np.int32)), pa.array(list(texts), pa.string())
        )

    def write_raw(self) -> list[StagedPart]:
        unit = self.unit
        texts = record_texts(
            [
                ChunkTexts(chunk.staged.data, staged)
                for chunk, staged in zip(unit.chunks, self.tables, strict=True)
            ]
        )
        columns = unit.fields.made(self.tables, self.keep)
        if columns.keeps_payload:
            table, order = self._raw_table(payloads(texts)), self.order
        else:
            whole = self._raw_table(payloads(texts).cast(pa.string())).take(pa.array(self.order))
            left, columns = without_columns(columns, whole)
            table = whole.set_column(whole.schema.get_field_index(PAYLOAD), PAYLOAD, left)
            order = np.arange(self.order.size)
        footer = replace(unit.footer, columns=columns)
        if unit.tap is not None and self.order.size:
            unit.tap(self._tapped(unit.tap, table, order), warehouse_path(unit.raw_folder), unit.name)
        spans = pairwise([0, *self.cuts, self.order.size])
        return [
            self._write_part(table, order[start:stop], self.order[start:stop], number, footer)
            for number, (start, stop) in enumerate(spans)
        ]

    def _write_part(
        self, table: pa.Table, order: Ints, rows: Ints, number: int, footer: BatchFooter
    ) -> StagedPart:
        """Write the accepted `rows`, which are at `order` in the table. A unit with nothing accepted writes a
        part without rows."""
        unit = self.unit
        if number:
            footer = footer.for_next_part()
        first = int(self.time[rows].min()) if rows.size else unit.arrival
        held = self._rows_of_slices(rows)
        has_many = len(held) >= unit.many
        may_be_large = has_many or int(self.bytes[rows].sum()) >= unit.large
        if may_be_large:
            footer = replace(footer, large=LargeRows(held, first, int(self.time[rows].max()), unit.now))
        sampled = table.drop_columns(PAYLOAD) if unit.fields.columns.keeps_payload else table
        coded, bounded = coded_and_bounded(sampled.take(pa.array(order[:SAMPLE])), unit.fields.columns)
        part = write_part(
            warehouse_path(unit.raw_folder),
            f"{unit.name}-{number:03d}.parquet",
            table,
            partition=partition_at(first, by_day=unit.by_day),
            footer=footer.to_footer(),
            stats_columns=RAW_STATS,
            row_group_rows=ROW_GROUP,
            dictionary=coded,
            bounded=bounded,
            order=pa.array(order),
        )
        if has_many or (may_be_large and part.size >= unit.large):
            return replace(part, name=born_large(part.name))
        return part

    def _rows_of_slices(self, rows: Ints) -> dict[str, int]:
        """How many of these rows each slice has, without slices that have none."""
        chunk = np.searchsorted(np.cumsum(self.staged), rows, "right")
        counts = np.bincount(chunk, minlength=len(self.unit.chunks)).tolist()
        found: dict[str, int] = {}
        for each, count in zip(self.unit.chunks, counts, strict=True):
            if count:
                found[each.staged.slice] = found.get(each.staged.slice, 0) + count
        return found

    def _raw_table(self, payload: pa.Array) -> pa.Table:
        """All staged rows as rows of raw. Each column is one chunk: Arrow would otherwise join the chunks
        of texts again for every group of rows that is taken."""
        unit = self.unit
        slices = sorted({chunk.staged.slice for chunk in unit.chunks})
        code = [slices.index(chunk.staged.slice) for chunk in unit.chunks]
        met = [chunk.watermark for chunk in unit.chunks]
        no_watermark = self._per_chunk([m is None for m in met]).astype(np.bool_)
        if unit.has_type:
            event_type = self._dictionary(*self._codes("event_type"))
        else:
            event_type = pa.nulls(self.time.size, pa.string())
        return pa.table(
            {
                "tenant": self._dictionary(self.tenants, self.tenant),
                "event_time": pa.array(self.time).cast(INSTANT),
                "event_id": self._column("event_id", pa.string()),
                "event_type": event_type,
                "arrival": pa.array(self._per_chunk([c.staged.arrival for c in unit.chunks])).cast(INSTANT),
                "watermark": pa.array(self._per_chunk([m or 0 for m in met]), mask=no_watermark).cast(
                    INSTANT
                ),
                "slice": self._dictionary(slices, self._per_chunk(code)),
                "line": pa.array(self._lines()),
                PAYLOAD: payload,
                **self._declared(),
            }
        ).combine_chunks()

    def _lines(self) -> Ints:
        return self._numbers("row") + self._per_chunk([chunk.first_line for chunk in self.unit.chunks])

    def _column(self, name: str, kind: pa.DataType) -> pa.ChunkedArray:
        return pa.chunked_array([one(table.column(name)) for table in self.tables], kind)

    def _declared(self) -> dict[str, pa.ChunkedArray]:
        """The declared fields, and the sizes of payloads."""
        fields = self.unit.fields
        pieces = [
            nested_columns(
                fields.columns,
                fields.values(table),
                pc.subtract(table.column("end"), table.column("start")).cast(pa.int32()).combine_chunks(),
            )
            for table in self.tables
        ]
        return {
            field.name: pa.chunked_array([one(piece[field.name]) for piece in pieces], field.type)
            for field in fields.columns.fields
        }

    def _tapped(self, tap: Tap, raw: pa.Table, order: Ints) -> pa.Table:
        """The columns for a tap, of the accepted rows (at `order` in raw): those of raw that it reads, and
        what metrics use (d0 …, m0 …)."""
        names = [f"d{i}" for i in range(self.unit.dimensions)] + [f"m{i}" for i in range(self.unit.measures)]
        used = pa.concat_tables([table.select(names) for table in self.tables]).unify_dictionaries()
        at, staged_at = pa.array(order), pa.array(self.order)
        return pa.table(
            {
                **{name: one(raw.column(name).take(at)) for name in tap.columns},
                **{name: one(used.column(name).take(staged_at)) for name in names},
            }
        )

    def _by_slice(self) -> Iterator[tuple[str, WriteChunk, Ints]]:
        ends = np.searchsorted(self.passed, np.cumsum(self.staged))
        for chunk, rows in zip(self.unit.chunks, np.split(self.passed, ends[:-1]), strict=False):
            if rows.size:
                yield chunk.staged.slice, chunk, self.time[rows]

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

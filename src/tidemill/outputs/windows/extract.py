"""Rows of raw as streaming windows use them: only used ones, typed, at the instant they count at.

The extracting kernel reads each part of raw once and writes narrow rows to one file per bucket, so that a
fold reads exactly what it needs. `WindowSpec.fate` decides which rows are used.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from pyarrow import ipc

from tidemill.config.stream import Stream
from tidemill.formats.arrays import Ints
from tidemill.formats.arrow import one
from tidemill.model.streaming import WindowSpec
from tidemill.outputs.windows.raw_reader import RowReader
from tidemill.outputs.windows.row_scope import (
    AT,
    BYTES,
    FIELD,
    LATE,
    LINE,
    NAME,
    SEQ,
    TENANT,
    TIME,
    Extracted,
    ExtractUnit,
    RowPosition,
    RowScope,
    field_type,
    row_schema,
)
from tidemill.storage.bucket_path import local_copy, on_disk, warehouse_path
from tidemill.storage.files import storage_errors

__all__ = [
    "AT",
    "BYTES",
    "FIELD",
    "LATE",
    "LINE",
    "NAME",
    "SEQ",
    "TENANT",
    "TIME",
    "ExtractUnit",
    "Extracted",
    "RowPosition",
    "RowScope",
    "extract",
    "field_type",
    "row_schema",
    "rows_of",
]

_HELD_BYTES: Final = 32 << 20  # bytes of rows that are buffered for their files


def extract(unit: ExtractUnit) -> Iterator[Extracted]:
    """Write the rows in scope of the unit's parts to its folder."""
    with _Files(unit) as files:
        reader = RowReader(unit)
        for table, row, bucket in reader.read():
            files.add(table, row, bucket)
        files.finish()
        yield Extracted(dict(sorted(files.paths.items())), files.rows, reader.unfit)


class _Files:
    """One file per bucket, each a stream of record batches with their own dictionaries; memory is bounded."""

    def __init__(self, unit: ExtractUnit) -> None:
        self._schema = row_schema(unit.spec, unit.stream)
        self._folder, self._name = warehouse_path(unit.folder), unit.name
        self._attempt = uuid.uuid4().hex
        self._held: list[tuple[pa.Table, Ints]] = []
        self._held_bytes = 0
        self._open: dict[int, tuple[pa.OSFile, ipc.RecordBatchStreamWriter]] = {}
        self.paths: dict[int, str] = {}
        self.rows = 0

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def add(self, table: pa.Table, row: Ints | None, bucket: Ints) -> None:
        """Add rows with the bucket of each; `row` selects rows of the table."""
        if row is not None:
            table = table.take(pa.array(row))
        self._held.append((table, bucket))
        self._held_bytes += table.nbytes
        if self._held_bytes >= _HELD_BYTES:
            self._flush()

    def _flush(self) -> None:
        if not self._held:
            return
        table = _whole([held for held, _ in self._held], self._schema)
        buckets = np.concatenate([found for _, found in self._held])
        self._held, self._held_bytes = [], 0
        self.rows += table.num_rows
        if buckets.size and (buckets != buckets[0]).any():
            order = np.argsort(buckets, kind="stable")
            table, buckets = table.take(pa.array(order)), buckets[order]
        starts = [0, *(np.flatnonzero(np.diff(buckets)) + 1).tolist()]
        for start, end in zip(starts, [*starts[1:], buckets.size], strict=True):
            if start < end:
                self._write(int(buckets[start]), table.slice(start, end - start))

    def _write(self, bucket: int, table: pa.Table) -> None:
        path = self._folder / f"{self._name}-{bucket:05d}.rows"
        with storage_errors("write the rows", path):
            if bucket not in self._open:
                sink = pa.OSFile(str(on_disk(self._temporary(path))), "wb")
                self._open[bucket] = sink, ipc.new_stream(sink, self._schema)
                self.paths[bucket] = str(path)
            self._open[bucket][1].write_table(table)

    def _temporary(self, path: Path) -> Path:
        """The path an attempt writes to: two attempts at one unit never share a file."""
        return path.with_name(f".{path.name}.{self._attempt}.tmp")

    def finish(self) -> None:
        self._flush()
        self._close()
        with storage_errors("write the rows", self._folder):
            for path in map(warehouse_path, self.paths.values()):
                self._temporary(path).replace(path)

    def _close(self) -> None:
        with storage_errors("write the rows", self._folder):
            for sink, writer in self._open.values():
                writer.close()
                sink.close()
        self._open = {}


def rows_of(spec: WindowSpec, stream: Stream, files: Sequence[str]) -> pa.Table:
    """All rows of a bucket in order of (at, seq, line), one chunk per column, dictionaries unified."""
    table = _whole([_read(path) for path in files], row_schema(spec, stream))
    order = _order(*(table.column(name).to_numpy() for name in (AT, SEQ, LINE)))
    return table if order is None else table.take(pa.array(order)).combine_chunks()


def _read(path: str) -> pa.Table:
    with storage_errors("read the rows", path):
        return ipc.open_stream(pa.memory_map(str(local_copy(path)))).read_all()


def _whole(tables: Sequence[pa.Table], schema: pa.Schema) -> pa.Table:
    """The tables as one, one chunk per column."""
    filled = [table for table in tables if table.num_rows] or [schema.empty_table()]
    table = pa.concat_tables(filled).unify_dictionaries()
    return pa.Table.from_arrays([one(column) for column in table.columns], schema=schema)


def _order(at: Ints, seq: Ints, line: Ints) -> Ints | None:
    """Row numbers in order; None if they already are. Sorted by instant first, and by the rest only where
    that is equal: sorting all rows by three keys takes several times as long."""
    rises = np.diff(at)
    if (rises > 0).all():
        return None
    # stable: rows are a few sorted runs, which such a sort merges quickly
    order = np.arange(at.size) if (rises >= 0).all() else np.argsort(at, kind="stable")
    tie = np.diff(at[order]) == 0
    if not tie.any():
        return order
    tied = np.zeros(at.size, np.bool_)
    tied[:-1] |= tie
    tied[1:] |= tie
    among = order[tied]
    order[tied] = among[np.lexsort((line[among], seq[among], at[among]))]
    return order

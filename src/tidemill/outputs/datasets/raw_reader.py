"""Reads rows of raw for a group of windows, typed, in bounded batches.

Only row groups that can hold a row of the windows are read, and payloads only where a part lacks the column
of a field.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa

from tidemill.config.stream import Stream
from tidemill.config.vectors import Vector
from tidemill.formats.arrays import Ints, Mask
from tidemill.formats.declared_columns import RawColumns
from tidemill.formats.payload_columns import Columns, columns_of
from tidemill.model.slices import Repeat
from tidemill.model.time import Interval
from tidemill.model.windows import Build
from tidemill.outputs.datasets.dataset import dataset_schema
from tidemill.outputs.datasets.deltas import delta_columns
from tidemill.outputs.datasets.row_order import LINE, SLICE
from tidemill.outputs.datasets.slice_spans import is_repeated
from tidemill.raw.footers import declared_in
from tidemill.raw.part_columns import PartColumns
from tidemill.raw.part_deltas import PartDeltas
from tidemill.storage.tables.parts import open_part

CODED: Final = ("tenant", "slice")  # columns that are read dictionary-encoded
_WIDE: Final = ("event_time", "slice", "tenant", "event_id", "line")  # and the declared fields
_PAYLOAD: Final = "payload"
_LEAST_ROWS, _MOST_ROWS = 16, 32_768  # of one batch that is read


@dataclass(frozen=True, slots=True)
class RowPiece:
    """A row group of a raw part."""

    path: str
    group: int
    rows: int
    size: int  # bytes of the columns that are read, unpacked
    first: int  # first and last event time, both included
    last: int
    declared: RawColumns | None = field(default=None, compare=False)  # the declaration of its columns


class Recent:
    """A cache of row groups that were read lately: windows that are built one by one are often neighbours in
    the same row groups. Builders of one process share it; in another process it keeps nothing."""

    def __init__(self, limit: int) -> None:
        self.parts = RawParts()
        self._limit = limit  # bytes
        self._kept: dict[RowPiece, Future[pa.Table]] = {}
        self._guard = threading.Lock()

    def __reduce__(self) -> tuple[type[Recent], tuple[int]]:
        return Recent, (0,)

    def table(self, piece: RowPiece, names: Sequence[str]) -> pa.Table | None:
        """These columns of the row group, shared by all callers; None if it is too large to be kept. Callers
        wait while another one reads it."""
        if piece.size > self._limit:
            return None
        with self._guard:
            reading = self._kept.get(piece)
            if reading is not None:
                reads_it = False
            else:
                reads_it, reading = True, Future()
                while sum(kept.size for kept in self._kept) + piece.size > self._limit:
                    del self._kept[next(iter(self._kept))]
                self._kept[piece] = reading
        if reads_it:
            try:
                with open_part(piece.path, CODED) as file:
                    reading.set_result(file.read_row_group(piece.group, list(names), use_threads=False))
            except BaseException as error:
                with self._guard:
                    self._kept.pop(piece, None)
                reading.set_exception(error)
                raise
        return reading.result()


class RawParts:
    """The row groups of raw parts; each footer is read once (or twice, by two threads at once)."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[RowPiece, ...]] = {}

    def pieces(self, paths: Sequence[str], span: Interval) -> list[RowPiece]:
        """Those that can hold a row of `span`."""
        found: list[RowPiece] = []
        for path in paths:
            if path not in self._known:
                self._known[path] = tuple(_pieces(path))
            found.extend(p for p in self._known[path] if p.first < span.end and p.last >= span.start)
        return found


def _pieces(path: str) -> Iterator[RowPiece]:
    with open_part(path, CODED) as file:
        declared = declared_in(file, path)
        positions = {name: file.schema_arrow.get_field_index(name) for name in (*_WIDE, _PAYLOAD)}
        for number in range(file.num_row_groups):
            group = file.metadata.row_group(number)
            size = sum(group.column(position).total_uncompressed_size for position in positions.values())
            if declared is not None and not declared.keeps_payload:
                size = group.total_byte_size
            stats = group.column(positions["event_time"]).statistics
            known = stats is not None and stats.has_min_max
            first, last = (stats.min_raw, stats.max_raw) if known else (-(2**63), 2**63 - 1)
            yield RowPiece(path, number, group.num_rows, size, first, last, declared)


def row_schema(stream: Stream) -> pa.Schema:
    """The columns of rows being built: those of the dataset, and those that order rows which are equal in
    them."""
    position = [pa.field(SLICE, pa.int32()), pa.field(LINE, pa.int64())]
    return pa.schema([*dataset_schema(stream), *position])


@dataclass(frozen=True, slots=True)
class WindowScope:
    """What a group of windows, which are consecutive and do not overlap, is made of."""

    starts: Ints
    ends: Ints
    rank: dict[str, int]  # of each slice, by id
    members: Mask  # [window, rank]
    repeats: Sequence[tuple[int, Repeat]]  # rank of a member, and the rows of later slices that it repeats

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of raw by which its rows are found."""
        return ("event_time", "slice", "line") if self.repeats else ("event_time", "slice")

    def rows(self, batch: pa.RecordBatch) -> tuple[Ints, Ints, Ints]:
        """Of a batch of raw: the rows in the windows, the window of each, and the rank of its slice."""
        time = batch.column("event_time").view(pa.int64()).to_numpy()
        window = np.searchsorted(self.starts, time, "right") - 1
        slices = batch.column("slice")
        known = np.array([self.rank.get(name, -1) for name in slices.dictionary.to_pylist()], np.int64)
        rank = known[slices.indices.to_numpy()] if len(known) else np.empty(0, np.int64)
        rows = np.flatnonzero((window >= 0) & (rank >= 0))
        window, rank = window[rows], rank[rows]
        counts = self.members[window, rank]
        if self.repeats:
            counts |= self._repeated(batch.column("line").to_numpy()[rows], window, rank)
        keep = (time[rows] < self.ends[window]) & counts
        return rows[keep], window[keep], rank[keep]

    def _repeated(self, lines: Ints, window: Ints, rank: Ints) -> Mask:
        """Which rows a member of their window contains, although they were accepted from another slice."""
        found = np.zeros(lines.size, np.bool_)
        for member, repeat in self.repeats:
            rows = np.flatnonzero((rank == self.rank[repeat.slice]) & self.members[window, member])
            found[rows] |= is_repeated(lines[rows], repeat)
        return found


def window_scope(builds: Sequence[Build]) -> WindowScope:
    repeats = {member.slice: member.repeats for build in builds for member in build.members}
    owners = {repeat.slice for held in repeats.values() for repeat in held}
    ids = sorted(repeats.keys() | owners)
    rank = {name: number for number, name in enumerate(ids)}
    members = np.zeros((len(builds), len(ids)), np.bool_)
    for number, build in enumerate(builds):
        members[number, [rank[member.slice] for member in build.members]] = True
    starts = np.array([build.key.start for build in builds], np.int64)
    ends = np.array([build.key.end for build in builds], np.int64)
    assert (starts[1:] >= ends[:-1]).all(), "windows of a group follow each other"
    held = [(rank[name], repeat) for name, found in sorted(repeats.items()) for repeat in found]
    return WindowScope(starts, ends, rank, members, held)


@dataclass(slots=True)
class WindowRowReader:
    """Reads the rows of a group; counts those of each window, and the values that do not fit their types."""

    stream: Stream
    scope: WindowScope
    batch_bytes: int
    recent: Recent | None = None
    columns: Columns = field(init=False)
    schema: pa.Schema = field(init=False)
    counts: Ints = field(init=False)
    misfits: list[Counter[str]] = field(init=False)
    _parts: dict[str, PartColumns] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.columns = columns_of(self.stream)
        self.schema = row_schema(self.stream)
        self.counts = np.zeros(self.scope.starts.size, np.int64)
        self.misfits = [Counter() for _ in range(self.scope.starts.size)]

    def glance(self, pieces: Sequence[RowPiece]) -> Iterator[tuple[RowPiece, Ints, Ints]]:
        """Event times of the rows in the windows, and the window of each; reads nothing else."""
        for piece, batch in self._batches(pieces, self.scope.columns, _MOST_ROWS):
            rows, window, _ = self.scope.rows(batch)
            yield piece, batch.column("event_time").view(pa.int64()).to_numpy()[rows], window

    def read(self, pieces: Sequence[RowPiece]) -> Iterator[tuple[pa.Table, Ints]]:
        """Rows in the windows as typed columns, and the window of each."""
        for piece in pieces:
            at_once = self.batch_bytes * piece.rows // max(1, piece.size)
            for batch in self._whole(piece, max(_LEAST_ROWS, min(_MOST_ROWS, at_once))):
                rows, window, rank = self.scope.rows(batch)
                if rows.size:
                    yield self._typed(batch, rows, window, rank, piece), window

    def _whole(self, piece: RowPiece, rows: int) -> Iterator[pa.RecordBatch]:
        names = [*_WIDE, *(name for name in self._names(piece) if name not in _WIDE)]
        kept = self.recent.table(piece, names) if self.recent is not None else None
        if kept is not None:
            yield from kept.to_batches(rows)
        else:
            yield from (batch for _, batch in self._batches([piece], names, rows))

    def _names(self, piece: RowPiece) -> list[str]:
        """The paths of the declared fields in a part."""
        if self.stream.vector is not None:
            return self._deltas(piece, self.stream.vector).names
        return self._fields(piece).names

    def _deltas(self, piece: RowPiece, vector: Vector) -> PartDeltas:
        return PartDeltas(vector, piece.declared, piece.path)

    def _fields(self, piece: RowPiece) -> PartColumns:
        if piece.path not in self._parts:
            self._parts[piece.path] = PartColumns(self.columns, piece.declared)
        return self._parts[piece.path]

    def _batches(
        self, pieces: Sequence[RowPiece], columns: Sequence[str], rows: int
    ) -> Iterator[tuple[RowPiece, pa.RecordBatch]]:
        for piece in pieces:
            with open_part(piece.path, CODED) as file:
                groups = [piece.group]
                for batch in file.iter_batches(rows, groups, columns=list(columns), use_threads=False):
                    yield piece, batch

    def _typed(
        self, batch: pa.RecordBatch, rows: Ints, window: Ints, rank: Ints, piece: RowPiece
    ) -> pa.Table:
        if rows.size < batch.num_rows:
            batch = batch.take(pa.array(rows))
        self.counts += np.bincount(window, minlength=self.counts.size)
        arrays = [
            batch.column("event_time"),
            batch.column("tenant").dictionary_decode(),
            batch.column("event_id"),
            *self._declared(batch, window, piece),
            pa.array(rank.astype(np.int32)),
            batch.column("line"),
        ]
        return pa.Table.from_arrays(arrays, schema=self.schema)

    def _declared(self, batch: pa.RecordBatch, window: Ints, piece: RowPiece) -> Sequence[pa.Array]:
        if self.stream.vector is not None:
            return delta_columns(self._deltas(piece, self.stream.vector).of(batch))
        read = self._fields(piece).typed(batch)
        for column, at in read.misfits:
            for number, count in Counter(window[at].tolist()).items():
                self.misfits[number][column] += count
        return read.arrays

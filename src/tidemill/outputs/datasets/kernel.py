"""The building kernel: windows in, dataset files out, one after another.

Windows that share parts are read together. Memory is bounded whatever the size of a window; the rows and the
bytes of a dataset depend on its slices only. It never touches the state: the driver commits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa

from tidemill.config.stream import Stream
from tidemill.formats.arrays import Ints
from tidemill.model.errors import TidemillError
from tidemill.model.slices import set_hash
from tidemill.model.windows import Build, Dataset, DeltaStats, WindowKey
from tidemill.outputs.datasets.dataset import (
    LAYOUT,
    Content,
    Layout,
    dataset_schema,
    make_folders,
    published,
    write_dataset,
)
from tidemill.outputs.datasets.deltas import as_batch, together, vector_parts
from tidemill.outputs.datasets.empty_datasets import empty_datasets
from tidemill.outputs.datasets.raw_reader import RawParts, Recent, RowPiece, WindowRowReader, window_scope
from tidemill.outputs.datasets.row_order import STEP, Run, arranged, batches, times, whole
from tidemill.outputs.datasets.spill import MOST_BUCKETS, Spill
from tidemill.storage.bucket_path import warehouse_path
from tidemill.storage.files import make_folder
from tidemill.storage.layout import dataset_staging

_CELLS: Final = 1 << 16  # cells of the histogram by which the rows of a group are partitioned
_TOGETHER: Final = 128  # windows in one group at most
_TROUBLE: Final = (TidemillError, OSError, pa.ArrowException, MemoryError)


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is held at once, in bytes."""

    memory: int = 64 << 20  # of unpacked raw whose rows are held in memory instead of spilled
    bucket: int = 16 << 20  # of spilled rows read at once
    buffer: int = 32 << 20  # of rows on their way to disk
    batch: int = 8 << 20  # of raw read at once


@dataclass(frozen=True, slots=True)
class WindowUnit:
    build: Build
    raw: Sequence[str]  # absolute paths of the parts that may hold its rows


@dataclass(frozen=True, slots=True)
class BuildUnit:
    """Windows of one stream that are built one after another; neighbours in time share what they read."""

    stream: Stream
    warehouse: str
    windows: Sequence[WindowUnit]
    step: int = STEP
    sizes: Sizes = field(default_factory=Sizes)
    recent: Recent | None = None
    layout: Layout = LAYOUT


@dataclass(frozen=True, slots=True)
class BuiltWindow:
    key: WindowKey
    dataset: Dataset | None
    error: str | None
    seconds: float
    adopted: bool  # it already existed, published by a builder that died before recording it


@dataclass(frozen=True, slots=True)
class _Task:
    """A window with the row groups that may hold its rows."""

    build: Build
    revision: int
    pieces: Sequence[RowPiece]


def build_windows(unit: BuildUnit) -> Iterator[BuiltWindow]:
    """Build each window, in order. One that cannot be built gives its error, and the others continue."""
    parts = RawParts() if unit.recent is None else unit.recent.parts
    group: list[_Task] = []
    for window in unit.windows:
        began = time.perf_counter()
        ready: BuiltWindow | None = None
        try:
            task = _task(unit, window, parts)
        except _TROUBLE as error:
            ready = _failed(window.build, error, began)
        else:
            if isinstance(task, Dataset):
                ready = BuiltWindow(window.build.key, task, None, time.perf_counter() - began, True)
            elif group and not _shares(unit, group, task):
                yield from _build_group(unit, group)
                group = [task]
            else:
                group.append(task)
        if ready is not None:
            yield from _build_group(unit, group)
            group = []
            yield ready
    yield from _build_group(unit, group)


def _task(unit: BuildUnit, window: WindowUnit, parts: RawParts) -> _Task | Dataset:
    build = window.build
    assert build.key.stream == unit.stream.name, build.key
    assert set_hash(member.name for member in build.members) == build.desired, build.key
    warehouse = warehouse_path(unit.warehouse)
    recorded = empty_datasets(warehouse, unit.stream.name).of(build.key)
    revision, existing = published(warehouse, unit.stream, build, recorded)
    if existing is not None:
        return existing
    return _Task(build, revision, parts.pieces(window.raw, build.key.interval))


def _shares(unit: BuildUnit, group: Sequence[_Task], task: _Task) -> bool:
    """Whether a window is read together with those before it: if everything fits in memory, or if it needs
    only what they need anyway."""
    if len(group) >= _TOGETHER or task.build.key.start < group[-1].build.key.end:
        return False
    known = {piece for other in group for piece in other.pieces}
    fresh = set(task.pieces) - known
    return not fresh or sum(piece.size for piece in known | fresh) <= unit.sizes.memory


def _build_group(unit: BuildUnit, group: Sequence[_Task]) -> Iterator[BuiltWindow]:
    if not group:
        return
    began = time.perf_counter()
    with ExitStack() as stack:
        try:
            rows = _GroupRows(unit, group, stack)
            empty = _record_empty(unit, group, rows)
        except _TROUBLE as error:
            stack.close()
            if len(group) == 1:
                yield _failed(group[0].build, error, began)
            else:  # one by one, so that only those fail that need what cannot be read
                for task in group:
                    yield from _build_group(unit, [task])
            return
        shared = (time.perf_counter() - began) / len(group)
        for number, task in enumerate(group):
            began = time.perf_counter()
            try:
                without_rows = empty.get(task.build.key)
                dataset, adopted = (
                    _write(unit, task, rows, number) if without_rows is None else (without_rows, False)
                )
            except _TROUBLE as error:
                yield _failed(task.build, error, began - shared)
            else:
                seconds = time.perf_counter() - began + shared
                yield BuiltWindow(task.build.key, dataset, None, seconds, adopted)


def _record_empty(unit: BuildUnit, group: Sequence[_Task], rows: _GroupRows) -> dict[WindowKey, Dataset]:
    """Record the datasets without rows together; make folders for the others."""
    warehouse, name = warehouse_path(unit.warehouse), unit.stream.name
    held = rows.reader.counts.tolist()
    make_folders(warehouse, name, [task.build.key for task, n in zip(group, held, strict=True) if n])
    without = [
        (Content(unit.stream, task.build, 0), task.revision)
        for task, n in zip(group, held, strict=True)
        if not n
    ]
    made = empty_datasets(warehouse, name).record(without) if without else []
    return {dataset.key: dataset for dataset in made}


def _write(unit: BuildUnit, task: _Task, rows: _GroupRows, number: int) -> tuple[Dataset, bool]:
    with ExitStack() as stack:
        found, layout = rows.of_window(number, stack), unit.layout
        misfits = rows.reader.misfits[number]
        content = Content(unit.stream, task.build, found.count, misfits, layout, found.deltas)
        written = batches(found.runs, rows.schema, unit.step, layout.least_rows)
        return write_dataset(warehouse_path(unit.warehouse), content, task.revision, written)


def _failed(build: Build, error: BaseException, began: float) -> BuiltWindow:
    lines = str(error).splitlines()
    text = lines[0] if lines else type(error).__name__
    return BuiltWindow(build.key, None, text, time.perf_counter() - began, False)


@dataclass(frozen=True, slots=True)
class _WindowRows:
    """The rows of one dataset, in order."""

    count: int
    runs: Iterable[Run]
    deltas: DeltaStats | None = None  # what they were merged from, in a delta stream


class _GroupRows:
    """The typed rows of a group of windows: in memory, or spilled to disk if they are too many."""

    def __init__(self, unit: BuildUnit, group: Sequence[_Task], stack: ExitStack) -> None:
        self._sizes = unit.sizes
        self._are_deltas = unit.stream.kind == "delta"
        scope = window_scope([task.build for task in group])
        self.reader = WindowRowReader(unit.stream, scope, unit.sizes.batch, unit.recent)
        self.schema = dataset_schema(unit.stream)  # of the datasets
        self._spill: Spill | None = None
        warehouse = warehouse_path(unit.warehouse)
        pieces = sorted({piece for task in group for piece in task.pieces}, key=_position)
        if sum(piece.size for piece in pieces) > self._sizes.memory:
            histogram = _Histogram(self.reader, pieces)
            pieces = histogram.pieces
            if histogram.size > self._sizes.memory:
                self._folder = dataset_staging(warehouse, unit.stream.name)
                make_folder(self._folder, top=warehouse)
                self._set_down(histogram, stack)
                return
        self._table = whole((table for table, _ in self.reader.read(pieces)), self.reader.schema)
        self._by_time = np.argsort(times(self._table), kind="stable")
        self._sorted = times(self._table)[self._by_time]

    def _set_down(self, histogram: _Histogram, stack: ExitStack) -> None:
        """Spill rows by time; deltas by vector, since all deltas of a vector are merged together."""
        table, self._buckets = histogram.buckets(self._sizes.bucket)
        self._in_time: Callable[[Ints, Ints], Ints] = lambda at, window: table[histogram.cells(at, window)]
        self._spill = stack.enter_context(self._spilled(self._buckets[-1].stop))
        firsts = np.array([buckets.start for buckets in self._buckets], np.int64)
        sizes = np.array([len(buckets) for buckets in self._buckets], np.int64)
        for rows, window in self.reader.read(histogram.pieces):
            if self._are_deltas:
                self._spill.add(rows, firsts[window] + vector_parts(rows, sizes[window]))
            else:
                self._spill.add(rows, self._in_time(times(rows), window))
        self._spill.finish()

    def _spilled(self, buckets: int) -> Spill:
        return Spill(self._folder, self.reader.schema, buckets, self._sizes.buffer)

    def of_window(self, number: int, stack: ExitStack) -> _WindowRows:
        """The rows of the dataset of a window in the group; their resources are freed when the stack ends."""
        if self._spill is not None and self._are_deltas:
            return self._merged_on_disk(self._spill, number, stack)
        if self._spill is not None:
            runs = self._spill.runs(self._buckets[number], self._sizes.bucket)
            return _WindowRows(int(self.reader.counts[number]), runs)
        span = self.reader.scope.starts[number], self.reader.scope.ends[number]
        low, high = np.searchsorted(self._sorted, span)
        if self._are_deltas:
            rows, stats = as_batch(self._table.take(pa.array(self._by_time[low:high])))
            return _WindowRows(rows.num_rows, [arranged(rows)], stats)
        return _WindowRows(int(high - low), [arranged(self._table, self._by_time[low:high])])

    def _merged_on_disk(self, by_vector: Spill, number: int, stack: ExitStack) -> _WindowRows:
        """Merge the deltas of some vectors at a time, and spill the result by time."""
        buckets = self._buckets[number]
        in_time = stack.enter_context(self._spilled(len(buckets)))
        stats = []
        for bucket in buckets:
            rows, byte_size = as_batch(whole(by_vector.pieces(bucket), self.reader.schema))
            window = np.full(rows.num_rows, number, np.int64)
            in_time.add(rows, self._in_time(times(rows), window) - buckets.start)
            stats.append(byte_size)
        in_time.finish()
        runs = in_time.runs(range(len(buckets)), self._sizes.bucket)
        return _WindowRows(int(in_time.rows.sum()), runs, together(stats))


def _position(piece: RowPiece) -> tuple[str, int]:
    return piece.path, piece.group


class _Histogram:
    """How many rows a group of windows has in each of many small cells of time, to partition them."""

    def __init__(self, reader: WindowRowReader, pieces: Sequence[RowPiece]) -> None:
        self._starts, ends = reader.scope.starts, reader.scope.ends
        self._windows = int(self._starts.size)
        self._per_window = max(1, _CELLS // self._windows)
        self._widths = -(-(ends - self._starts) // self._per_window)
        self._rows = np.zeros(self._windows * self._per_window, np.int64)
        found: dict[RowPiece, int] = {}
        for piece, time_of, window in reader.glance(pieces):
            if window.size:
                cells = self.cells(time_of, window)
                self._rows += np.bincount(cells, minlength=self._rows.size)
                found[piece] = found.get(piece, 0) + int(window.size)
        self.pieces = [piece for piece in pieces if piece in found]  # only those that hold a row of a window
        self.size = sum(piece.size * rows // piece.rows for piece, rows in found.items())

    def cells(self, time_of: Ints, window: Ints) -> Ints:
        """The cell of each row; the cells of a window follow those of the window before it."""
        found: Ints = window * self._per_window + (time_of - self._starts[window]) // self._widths[window]
        return found

    def buckets(self, bucket_bytes: int) -> tuple[Ints, list[range]]:
        """The bucket of each cell, and the buckets of each window: about the size asked for, not too many,
        and none with rows of two windows."""
        most = max(1, MOST_BUCKETS - self._windows)
        target = max(1, -(-self.size // max(1, min(most, -(-self.size // bucket_bytes)))))
        per_row = self.size / max(1, int(self._rows.sum()))
        bucket = np.empty(self._rows.size, np.int64)
        ranges, first = [], 0
        for number in range(self._windows):
            cells = slice(number * self._per_window, (number + 1) * self._per_window)
            before = np.cumsum(self._rows[cells]) - self._rows[cells]
            inside = (before * per_row // target).astype(np.int64)
            _, inside = np.unique(inside, return_inverse=True)  # renumber, since a full cell may skip numbers
            bucket[cells] = first + inside
            ranges.append(range(first, first + int(inside[-1]) + 1))
            first = ranges[-1].stop
        return bucket, ranges

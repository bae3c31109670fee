"""Row groups of raw as typed columns, decoded once for all windows of a stream that need the same rows.

A cache in memory, bounded by bytes. Parts of raw never change, so it is never out of date.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from tidemill.formats.arrays import Ints
from tidemill.formats.arrow import one
from tidemill.storage.bucket_path import local_copy

KEPT_BYTES: Final = 32 << 20  # for one stream: some 400,000 rows of a few narrow columns

GroupId = tuple[str, int, int, int]  # path, size and change time of the part, number of the row group


@dataclass(frozen=True, slots=True)
class Narrow:
    """The columns that decide which rows are needed."""

    time: Ints
    watermark: pa.Array
    slices: pa.DictionaryArray

    @property
    def nbytes(self) -> int:
        return int(self.time.nbytes + self.watermark.nbytes + self.slices.nbytes)


@dataclass(frozen=True, slots=True)
class Wide:
    """The other columns that are read of rows."""

    tenant: pa.Array
    line: pa.Array
    bytes: pa.Array  # of the payload
    fields: Mapping[str, pa.Array]  # from the payload, by name
    # Where a field has a value that its type cannot hold; only fields that have one somewhere.
    unfit: Mapping[str, pa.Array] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        arrays = (self.tenant, self.line, self.bytes, *self.fields.values())
        return sum(int(array.nbytes) for array in arrays)

    def take(self, rows: Ints) -> Wide:
        which = pa.array(rows)
        fields = {name: array.take(which) for name, array in self.fields.items()}
        return Wide(
            self.tenant.take(which), self.line.take(which), self.bytes.take(which), fields, self._unfit(which)
        )

    def _unfit(self, which: pa.Array) -> dict[str, pa.Array]:
        return {name: marks.take(which) for name, marks in self.unfit.items()}


def joined(batches: Sequence[Wide]) -> Wide:
    """The rows of several batches, concatenated."""
    if len(batches) == 1:
        return batches[0]
    first = batches[0]
    return Wide(
        one(pa.chunked_array([batch.tenant for batch in batches]).unify_dictionaries()),
        pa.concat_arrays([batch.line for batch in batches]),
        pa.concat_arrays([batch.bytes for batch in batches]),
        {name: pa.concat_arrays([batch.fields[name] for batch in batches]) for name in first.fields},
        {name: _marks(name, batches) for name in dict.fromkeys(n for batch in batches for n in batch.unfit)},
    )


def _marks(name: str, batches: Sequence[Wide]) -> pa.Array:
    none = pa.scalar(False)
    return pa.concat_arrays(
        [each.unfit[name] if name in each.unfit else pa.repeat(none, len(each.line)) for each in batches]
    )


@dataclass(frozen=True, slots=True)
class RowGroup:
    """All rows of one row group."""

    narrow: Narrow
    wide: Wide

    @property
    def nbytes(self) -> int:
        return self.narrow.nbytes + self.wide.nbytes


class RowGroups:
    """Row groups that were decoded recently. Thread-safe."""

    def __init__(self, columns: Iterable[str] = (), limit: int = KEPT_BYTES) -> None:
        self.columns = tuple(dict.fromkeys(columns))  # fields that any of the windows needs
        self._limit = limit
        self._lock = threading.Lock()
        self._groups: OrderedDict[GroupId, Future[RowGroup]] = OrderedDict()  # most recently used last
        self._bytes = 0

    def __reduce__(self) -> tuple[type[RowGroups], tuple[tuple[str, ...], int]]:
        """Pickled without contents: another process does not share the cache."""
        return RowGroups, (self.columns, 0)

    @property
    def is_on(self) -> bool:
        return self._limit > 0

    def is_busy(self, group: GroupId) -> bool:
        """Whether another thread is decoding it now."""
        with self._lock:
            found = self._groups.get(group)
        return found is not None and not found.done()

    def find(self, group: GroupId) -> RowGroup | None:
        """The row group if it is cached; waits while another thread decodes it."""
        with self._lock:
            found = self._groups.get(group)
            if found is None:
                return None
            self._groups.move_to_end(group)
        return found.result()

    def get(self, group: GroupId, decode: Callable[[], RowGroup]) -> RowGroup:
        """The row group, decoded unless it is cached."""
        with self._lock:
            found = self._groups.get(group)
            future: Future[RowGroup] | None = None
            if found is None:
                found = future = self._groups[group] = Future()
        if future is not None:
            try:
                future.set_result(decode())
            except BaseException as error:
                future.set_exception(error)
                with self._lock:
                    del self._groups[group]
                raise
            self._make_room(future.result().nbytes)
        return found.result()

    def _make_room(self, added: int) -> None:
        with self._lock:
            self._bytes += added
            for group, kept in list(self._groups.items()):
                if self._bytes <= self._limit:
                    return
                if kept.done():
                    del self._groups[group]
                    self._bytes -= kept.result().nbytes


def group_ids(path: str, groups: int) -> list[GroupId]:
    """The ids of the row groups of a part. A part that was removed and written again may have the same
    name."""
    found = local_copy(path).stat()
    return [(path, found.st_size, found.st_mtime_ns, number) for number in range(groups)]

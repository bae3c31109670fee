"""Reads rows of chains by vector, from the row groups that can hold them, and caches what was read.

Parts never change, so the cache never goes stale. It reads parts of chain tables, and nothing else.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidemill.outputs.vectors.table import ROWS, ChainFooter, Made, bucket_of, in_bucket
from tidemill.storage.tables.parts import open_part, read_footer
from tidemill.storage.tables.snapshot import Snapshot

KEPT_BYTES: Final = 256 << 20
KEPT_PARTS: Final = 4096  # parts of which footers and statistics are cached


@dataclass(frozen=True, slots=True)
class _ChainRowGroup:
    """A row group, with the first and last of its vectors; None: its statistics do not say."""

    path: str
    number: int
    first: str | None
    last: str | None

    def may_hold(self, ids: Sequence[str]) -> bool:
        """Whether it may hold any of the sorted `ids`."""
        if self.first is None or self.last is None:
            return True
        position = bisect_left(ids, self.first)
        return position < len(ids) and ids[position] <= self.last


@dataclass(frozen=True, slots=True)
class _KnownPart:
    made: Made
    declared: str  # the declaration of the stream when the part was written
    groups: tuple[_ChainRowGroup, ...]


class ChainParts:
    """Thread-safe."""

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._most = kept_bytes
        self._guard = threading.Lock()
        self._parts: OrderedDict[str, _KnownPart] = OrderedDict()
        self._tables: OrderedDict[_ChainRowGroup, pa.Table] = OrderedDict()
        self._bytes = 0
        self.groups_read = 0  # from disk, since the start

    def made(self, chains: Snapshot | None, declared: str) -> Made:
        """What the table was made of, according to the newest of its parts; nothing if the stream is declared
        differently now."""
        found = [self._known(path) for path in chains.paths()] if chains is not None else []
        if any(known.declared != declared for known in found):
            return Made()
        return max((known.made for known in found), key=lambda made: made.through, default=Made())

    def rows(self, chains: Snapshot | None, tenant: str, ids: Sequence[str]) -> pa.Table:
        """The rows of these vectors of a tenant."""
        if chains is None or not ids:
            return ROWS.empty_table()
        buckets: dict[str, list[str]] = {}
        for name in sorted(ids):
            buckets.setdefault(bucket_of(name), []).append(name)
        found = [ROWS.empty_table()]
        for bucket, ids_of_bucket in buckets.items():
            found += self._of_bucket(chains, bucket, tenant, ids_of_bucket)
        return pa.concat_tables(found)

    def _of_bucket(self, chains: Snapshot, bucket: str, tenant: str, ids: Sequence[str]) -> list[pa.Table]:
        parts = chains.select(
            {"bucket": [bucket]}, {"tenant": (tenant, tenant), "vector_id": (ids[0], ids[-1])}
        )
        assert all(in_bucket(part) == bucket for part in parts), bucket
        names = pa.array(ids, pa.string())
        found = []
        for path in chains.paths(parts):
            for group in self._known(path).groups:
                if group.may_hold(ids):
                    table = self._table(group)
                    of = pc.is_in(table.column("vector_id"), value_set=names)
                    chosen = pc.and_(of, pc.equal(table.column("tenant"), tenant))
                    found.append(table.filter(chosen))
        return found

    def _known(self, path: str) -> _KnownPart:
        with self._guard:
            known = self._parts.get(path)
            if known is not None:
                self._parts.move_to_end(path)
                return known
        footer = ChainFooter.from_footer(read_footer(path))
        known = _KnownPart(footer.made, footer.declared, tuple(_groups(path)))
        with self._guard:
            self._parts[path] = known
            while len(self._parts) > KEPT_PARTS:
                self._parts.popitem(last=False)
        return known

    def _table(self, group: _ChainRowGroup) -> pa.Table:
        with self._guard:
            kept = self._tables.get(group)
            if kept is not None:
                self._tables.move_to_end(group)
                return kept
        with open_part(group.path) as file:
            read = file.read_row_group(group.number, columns=ROWS.names)
        table = read.select(ROWS.names).cast(ROWS).combine_chunks()
        with self._guard:
            self.groups_read += 1
            if group not in self._tables and table.nbytes <= self._most:
                self._tables[group] = table
                self._bytes += table.nbytes
                while self._bytes > self._most:
                    self._bytes -= self._tables.popitem(last=False)[1].nbytes
        return table


def _groups(path: str) -> list[_ChainRowGroup]:
    with open_part(path) as file:
        found = []
        for number in range(file.num_row_groups):
            stats = statistics_of(file.metadata.row_group(number), "vector_id")
            ends = (stats.min, stats.max) if stats is not None and stats.has_min_max else (None, None)
            found.append(_ChainRowGroup(path, number, *ends))
        return found


def statistics_of(group: pq.RowGroupMetaData, name: str) -> pq.Statistics | None:
    """The statistics of a column, found by name: leaves of lists have other names and positions than in the
    schema."""
    columns = (group.column(position) for position in range(group.num_columns))
    return next((column.statistics for column in columns if column.path_in_schema == name), None)

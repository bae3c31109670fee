"""Entries of the index in groups of one path and kind, of which only those that can matter are read.

They come from an index part, from payloads that are not indexed yet, or from a column of raw; callers see no
difference. Conditions are not evaluated here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidemill.formats.arrays import Ints
from tidemill.formats.arrow import one
from tidemill.outputs.index.table import BOOLEAN, NUMBER, STRING
from tidemill.storage.bucket_path import local_copy
from tidemill.storage.tables.parts import open_part, part_errors

# Imports inside functions keep start-up short: a search reads the index without Numba.

Edge = bytes | float


@dataclass(frozen=True, slots=True)
class Values:
    """The values of the entries of a group: strings, or numbers with their exact texts."""

    text: pa.StringArray | None = None
    number: np.ndarray | None = None
    exact: pa.StringArray | None = None


@dataclass(frozen=True, slots=True)
class EntryGroup:
    """Entries of one path and kind; `low` and `high` are the least and the greatest value, if known."""

    kind: str
    low: Edge | None
    high: Edge | None
    size: int
    values: Callable[[], Values]
    rows: Callable[[], Ints]


@dataclass(slots=True)
class Tally:
    """What was read."""

    groups: int = 0
    entries: int = 0


@dataclass(frozen=True, slots=True)
class EntrySource:
    """The groups of each path, and how many rows there are."""

    size: int
    of: Callable[[str], Sequence[EntryGroup]]
    tally: Tally = field(default_factory=Tally)


# -- an index part


@dataclass(frozen=True, slots=True)
class _GroupPosition:
    number: int  # of the row group
    kind: str
    low: Edge | None
    high: Edge | None
    size: int


@lru_cache(maxsize=256)
def _directory(
    path: str, _size: int, _written: int
) -> tuple[pq.FileMetaData, Mapping[str, Sequence[_GroupPosition]]]:
    with open_part(path) as file:
        metadata = file.metadata
        column = {name: position for position, name in enumerate(file.schema_arrow.names)}
    found: dict[str, list[_GroupPosition]] = {}
    for where, position in _positions(metadata, column):
        found.setdefault(where, []).append(position)
    return metadata, found


def _positions(metadata: pq.FileMetaData, column: Mapping[str, int]) -> Iterator[tuple[str, _GroupPosition]]:
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        path = group.column(column["path"]).statistics.min
        kind = group.column(column["kind"]).statistics.min
        low: Edge | None = None
        high: Edge | None = None
        if kind in (NUMBER, STRING, BOOLEAN):
            statistics = group.column(column["number" if kind == NUMBER else "text"]).statistics
            if statistics is not None and statistics.has_min_max:
                low, high = _edge(statistics.min), _edge(statistics.max)
        yield path, _GroupPosition(number, kind, low, high, group.num_rows)


def _edge(value: object) -> Edge:
    return value.encode() if isinstance(value, str) else float(str(value))


def metadata_of(path: str) -> pq.FileMetaData:
    """The metadata of a part, which never changes under its name."""
    return _metadata(path, *_written(path))


def _written(path: str) -> tuple[int, int]:
    with part_errors(path):
        status = local_copy(path).stat()
    return status.st_size, status.st_mtime_ns


@lru_cache(maxsize=256)
def _metadata(path: str, _size: int, _written: int) -> pq.FileMetaData:
    with open_part(path) as file:
        return file.metadata


@contextmanager
def index_source(path: str, rows: int, extra: Mapping[str, Sequence[EntryGroup]]) -> Iterator[EntrySource]:
    """The entries of the index part of a raw part with so many rows, and what else is known of it."""
    metadata, positions = _directory(path, *_written(path))
    tally = Tally()
    known: dict[str, Sequence[EntryGroup]] = dict(extra)
    with open_part(path, metadata=metadata) as file:

        def of(name: str) -> Sequence[EntryGroup]:
            if name not in known:
                known[name] = [_file_group(file, position, tally) for position in positions.get(name, ())]
            return known[name]

        yield EntrySource(rows, of, tally)


def _file_group(file: pq.ParquetFile, position: _GroupPosition, tally: Tally) -> EntryGroup:
    def values() -> Values:
        columns = ["number", "exact"] if position.kind == NUMBER else ["text"]
        table = file.read_row_group(position.number, columns, use_threads=False)
        if position.kind == NUMBER:
            return Values(number=one(table.column("number")).to_numpy(), exact=one(table.column("exact")))
        return Values(text=one(table.column("text")))

    def rows() -> Ints:
        tally.groups += 1
        tally.entries += position.size
        table = file.read_row_group(position.number, ["row"], use_threads=False)
        found: Ints = one(table.column("row")).to_numpy()
        return found

    return EntryGroup(position.kind, position.low, position.high, position.size, values, rows)


# -- what is in memory


def payload_source(
    payload: pa.StringArray, paths: Sequence[str], extra: Mapping[str, Sequence[EntryGroup]] | None = None
) -> EntrySource:
    """The same for payloads in memory; their rows are counted from 0."""
    from tidemill.outputs.index.extract import (
        Extraction,  # compiled: not loaded if the index has everything
    )

    extraction = Extraction(paths)
    extraction.add(payload, 0)
    groups: dict[str, list[EntryGroup]] = {}
    for path, kind, piece in extraction.pieces():
        groups.setdefault(path, []).append(_piece_group(kind, piece))
    known: Mapping[str, Sequence[EntryGroup]] = {**groups, **(extra or {})}
    return EntrySource(len(payload), lambda path: known.get(path, ()))


def _piece_group(kind: str, piece: pa.Table) -> EntryGroup:
    def values() -> Values:
        if kind == NUMBER:
            return Values(number=one(piece.column("number")).to_numpy(), exact=one(piece.column("exact")))
        return Values(text=one(piece.column("text")))

    return EntryGroup(kind, None, None, piece.num_rows, values, lambda: one(piece.column("row")).to_numpy())


def text_group(texts: pa.StringArray) -> EntryGroup:
    """A column of raw, one string for every row."""
    size = len(texts)
    return EntryGroup(STRING, None, None, size, lambda: Values(text=texts), lambda: np.arange(size))

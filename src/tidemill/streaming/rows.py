"""Rows of raw as streaming windows see them: used ones only, typed, at the instant they count at.

The extracting kernel reads each part of raw once and sets narrow rows down in one file per bucket, so that whoever
folds a bucket has all it needs and nothing else. It decides nothing but what `WindowSpec.fate` says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from tidemill.config.stream import Stream
from tidemill.model.streaming import Value, WindowSpec
from tidemill.model.time import Interval

AT: Final = "at"  # int64: the instant it counts at (`WindowSpec.counts_at`)
TIME: Final = "time"  # int64: its event time
SEQ: Final = "seq"  # int64: place of its slice in the ledger
LINE: Final = "line"  # int64
NAME: Final = "name"  # dictionary<int32, string>: `SliceEntry.name` of its slice
LATE: Final = "late"  # bool
BYTES: Final = "bytes"  # int64: of its payload
TENANT: Final = "tenant"  # dictionary<int32, string>
FIELD: Final = "f."  # prefix of the columns of `WindowSpec.columns`, typed as `windows.columns` has them

Key = tuple[str, tuple[Value, ...]]  # tenant, and values of `WindowSpec.key`


@dataclass(frozen=True, slots=True)
class Place:
    """What the ledger says of a slice."""

    seq: int
    name: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which used rows a fold needs. `span` and `starts` are half-open, sorted and disjoint."""

    span: Interval  # the instants they count at
    starts: Sequence[Interval] | None = None  # by_time: rows of windows that start in one of these
    again: Mapping[Key, int] | None = None  # others: rows of these keys alone, each from that instant on …
    since: int | None = None  # … and with `again` rows of all keys that count at this instant or after it
    slices: Mapping[Interval, frozenset[str]] | None = None  # `close: complete`: of rows whose event time lies in
    # an aggregation window, only those whose slice (by id) it was built of; disjoint, sorted; others not at all


@dataclass(frozen=True, slots=True)
class ExtractUnit:
    spec: WindowSpec
    stream: Stream
    parts: Sequence[str]  # absolute paths of raw parts
    ledger: Mapping[str, Place]  # by slice id; rows of a slice that is not in it are left out
    wanted: Wanted
    cuts: Sequence[int] = ()  # by_time: bucket i holds windows that start in [cuts[i-1], cuts[i])
    buckets: int = 1  # others: by a hash of the key
    folder: str = ""
    name: str = ""  # prefix of the files, different for every unit


@dataclass(frozen=True, slots=True)
class Extracted:
    """Files of one unit: Arrow IPC, rows in no particular order; a bucket without rows has none."""

    files: Mapping[int, str] = field(default_factory=dict)  # bucket -> path
    rows: int = 0


def row_schema(spec: WindowSpec, stream: Stream) -> pa.Schema:
    raise NotImplementedError


def extract(unit: ExtractUnit) -> Iterator[Extracted]:
    raise NotImplementedError


def rows_of(spec: WindowSpec, stream: Stream, files: Sequence[str]) -> pa.Table:
    """All rows of a bucket in order of (at, seq, line), one chunk per column, dictionaries unified."""
    raise NotImplementedError
